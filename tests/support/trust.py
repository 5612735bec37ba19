"""Who may do what: every identity, every action, and what becomes of it. Data only.

``tests/e2e/security/test_trust_matrix.py`` carries out each cell with a real token or certificate, and ``make docs`` writes the
tables to ``docs/reference/permissions.md``. To add an action, add a row. To add an identity, add a column, and its credentials
to the test. ``OUTCOMES`` and ``ANSWERS`` explain the words of the rows.
"""

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

IDENTITIES = {
    "nobody": "no credentials",
    "admin": "the cluster administrator",
    "edit": "the ClusterRole `edit` in namespace A, which runs a group",
    "view": "the ClusterRole `view` in namespace A",
    "author": "all verbs on `modeldeployments` in namespace A, and nothing else",
    "pod": "the default service account of namespace A, which any pod there has",
    "system": "the ClusterRole `edit` in the namespace of the release",
    "operator": "the operator's service account",
    "agent": "the token of Mac 1's agent",
    "kubelet": "the certificate of Mac 1's kubelet",
    "joining": "a bootstrap token that is bound to no name",
}
"""The columns of ``API``."""

OUTCOMES = {
    "yes": "allowed",
    "401": "refused: not authenticated",
    "role": "refused: no role allows it (RBAC, or the Node authorizer for kubelets)",
    "node": "refused by the admission plugin NodeRestriction",
    "signer": "refused by the admission plugin CertificateApproval: no role allows it for this signer",
    "policy": "refused by an admission policy of the chart",
}

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
OURS = "/apis/thunderfleet.io/v1alpha1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
IN_A, IN_B, IN_SYSTEM = (f"/api/v1/namespaces/{name}" for name in ("$a", "$b", "$system"))
DEPLOYMENTS = f"{OURS}/namespaces/$a/modeldeployments"


@dataclass(frozen=True)
class Action:
    """One request to the API server. ``$words`` in it are filled in by the test; everything but a GET is a dry run.

    ``outcomes``: a word for each identity. ``real``: no dry run, because the API server connects instead of storing.
    """

    id: str
    what: str
    request: str
    outcomes: str
    body: Json | None = None
    content: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    real: bool = False

    @property
    def expected(self) -> dict[str, str]:
        """Identity to outcome."""
        return dict(zip(IDENTITIES, self.outcomes.split(), strict=True))


def _object(kind: str, name: str, api: str = "v1", metadata: Json | None = None, **parts: Any) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **(metadata or {})}, **parts}


def _ours(kind: str, name: str, **parts: Any) -> Json:
    return _object(kind, name, "thunderfleet.io/v1alpha1", **parts)


def _pod(metadata: Json | None = None, inner: Json | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "$image", **(inner or {})}
    return _object("Pod", "matrix", metadata=metadata, spec={"hostNetwork": True, "containers": [container], **spec})


def _mac_pod(inner: Json | None = None, **spec: Any) -> Json:
    return _pod(inner=inner, nodeSelector={"kubernetes.io/os": "darwin"}, **spec)


def _bound(kind: str, role: str, **metadata: Any) -> Json:
    """A binding of ``role`` to the caller's service account; for the table it does not matter whose that is."""
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "$a"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return _object(kind, "matrix", "rbac.authorization.k8s.io/v1", metadata, roleRef=reference, subjects=[subject])


def _token_for(pod: str) -> Json:
    bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"{pod}_uid"}} if pod else {}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], **bound}}


def _csr(request: str, signer: str = "kubernetes.io/kube-apiserver-client-kubelet") -> Json:
    spec = {
        "request": request,
        "signerName": signer,
        "usages": ["digital signature", "server auth" if signer.endswith("serving") else "client auth"],
        "expirationSeconds": 3600,
    }
    return _object("CertificateSigningRequest", "matrix", "certificates.k8s.io/v1", spec=spec)


APPROVED: Json = {
    "status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Matrix", "message": "by a test"}]}
}
HOST_FOLDER: Json = {"volumes": [{"name": "host", "hostPath": {"path": "/etc"}}]}
MANAGED = {"labels": {"app.kubernetes.io/managed-by": "thunderfleet-operator"}}
SIGNED = {"annotations": {"thunderfleet.io/signature": "v1.matrix"}}
QUARANTINE = {"bootID": "one", "since": "2026-01-01T00:00:00Z", "reason": "StackHung", "evidence": "none"}
MODEL = {"model": {"repository": "thunderfleet/tiny-qwen2"}}

# Columns:                    nobody admin edit view author pod system operator agent kubelet joining
API: dict[str, tuple[Action, ...]] = {
    "ModelDeployments": (
        Action(
            "md-create",
            "create one in A",
            f"POST {DEPLOYMENTS}",
            "401 yes yes role yes role role role role role role",
            _ours("ModelDeployment", "matrix", spec=MODEL),
        ),
        Action(
            "md-change",
            "change one in A",
            f"PATCH {DEPLOYMENTS}/$md",
            "401 yes yes role yes role role role role role role",
            {"spec": {"replicas": 2}},
            MERGE,
        ),
        Action(
            "md-delete", "delete one in A", f"DELETE {DEPLOYMENTS}/$md", "401 yes yes role yes role role role role role role"
        ),
        Action(
            "md-status",
            "write the status of one in A",
            f"PATCH {DEPLOYMENTS}/$md/status",
            "401 policy role role policy role role yes role role role",
            {"status": {"highestEpoch": 9}},
            MERGE,
        ),
        Action(
            "md-create-b",
            "create one in another namespace",
            f"POST {OURS}/namespaces/$b/modeldeployments",
            "401 yes role role role role role role role role role",
            _ours("ModelDeployment", "matrix", spec=MODEL),
        ),
        Action(
            "md-list",
            "read those of all namespaces",
            f"GET {OURS}/modeldeployments",
            "401 yes role role role role role yes role role role",
        ),
    ),
    "NodeProfiles and ThunderboltLinks": (
        Action(
            "np-list",
            "read all NodeProfiles",
            f"GET {OURS}/nodeprofiles",
            "401 yes role role role role role yes yes role role",
        ),
        Action(
            "np-own",
            "write the NodeProfile of Mac 1",
            f"PATCH {OURS}/nodeprofiles/$mac/status",
            "401 yes role role role role role yes yes role role",
            _ours("NodeProfile", "$mac", status={"hardware": {"chip": "matrix"}}),
            APPLY,
        ),
        Action(
            "np-other",
            "write the NodeProfile of Mac 2",
            f"PATCH {OURS}/nodeprofiles/$other/status",
            "401 yes role role role role role yes policy role role",
            _ours("NodeProfile", "$other", status={"hardware": {"chip": "matrix"}}),
            APPLY,
        ),
        Action(
            "np-quarantine",
            "change the quarantine of Mac 1",
            f"PATCH {OURS}/nodeprofiles/$mac/status",
            "401 yes role role role role role yes policy role role",
            _ours("NodeProfile", "$mac", status={"quarantine": QUARANTINE}),
            APPLY,
        ),
        Action(
            "np-delete",
            "delete a NodeProfile",
            f"DELETE {OURS}/nodeprofiles/$mac",
            "401 yes role role role role role role role role role",
        ),
        Action(
            "link-list",
            "read all ThunderboltLinks",
            f"GET {OURS}/thunderboltlinks",
            "401 yes role role role role role yes yes yes role",
        ),
        Action(
            "link-list-own",
            "read the ThunderboltLinks that end at Mac 1",
            f"GET {OURS}/thunderboltlinks?fieldSelector=spec.a.node=$mac",
            "401 yes role role role role role yes yes yes role",
        ),
        Action(
            "link-own",
            "write Mac 1's end of a link",
            f"PATCH {OURS}/thunderboltlinks/$link/status",
            "401 yes role role role role role yes yes role role",
            _ours("ThunderboltLink", "$link", status={"endpoints": [{"node": "$mac", "port": "$port", "seesPeer": False}]}),
            APPLY,
        ),
        Action(
            "link-other",
            "write Mac 2's end of a link",
            f"PATCH {OURS}/thunderboltlinks/$link/status",
            "401 yes role role role role role yes policy role role",
            _ours(
                "ThunderboltLink", "$link", status={"endpoints": [{"node": "$other", "port": "$otherport", "seesPeer": False}]}
            ),
            APPLY,
        ),
        Action(
            "link-between-others",
            "create a link between two other Macs",
            f"PATCH {OURS}/thunderboltlinks/linux-1.tb9--$other.tb9",
            "401 yes role role role role role role policy role role",
            _ours(
                "ThunderboltLink",
                "linux-1.tb9--$other.tb9",
                spec={"a": {"node": "linux-1", "port": 9}, "b": {"node": "$other", "port": 9}},
            ),
            APPLY,
        ),
        Action(
            "link-summary",
            "write the summary of a link",
            f"PATCH {OURS}/thunderboltlinks/$link/status",
            "401 yes role role role role role yes policy role role",
            _ours("ThunderboltLink", "$link", status={"speed": "1G"}),
            APPLY,
        ),
        Action(
            "link-delete",
            "delete a link",
            f"DELETE {OURS}/thunderboltlinks/$link",
            "401 yes role role role role role yes role role role",
        ),
    ),
    "Plans, keys and tokens": (
        Action(
            "plan-forge",
            "create a ConfigMap in A with the operator's label",
            f"POST {IN_A}/configmaps",
            "401 policy policy role role role role yes role role role",
            _object("ConfigMap", "matrix", metadata=MANAGED, data={"plan.json": "{}"}),
        ),
        Action(
            "plan-sign",
            "create a ConfigMap in A with a copied signature",
            f"POST {IN_A}/configmaps",
            "401 policy policy role role role role yes role role role",
            _object("ConfigMap", "matrix", metadata=SIGNED, data={"plan.json": "{}"}),
        ),
        Action(
            "plan-relabel",
            "remove the operator's label from a plan in A",
            f"PATCH {IN_A}/configmaps/$plan",
            "401 policy policy role role role role role role role role",
            {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}},
            MERGE,
        ),
        Action(
            "plan-delete",
            "delete a plan in A, so that its group is placed again",
            f"DELETE {IN_A}/configmaps/$plan",
            "401 yes yes role role role role yes role role role",
        ),
        Action(
            "plan-read",
            "read a plan in A",
            f"GET {IN_A}/configmaps/$plan",
            "401 yes yes yes role role role role role yes role",
        ),
        Action(
            "plan-create-b",
            "create a ConfigMap in another namespace",
            f"POST {IN_B}/configmaps",
            "401 yes role role role role role yes role role role",
            _object("ConfigMap", "matrix"),
        ),
        Action(
            "key-read",
            "read the key of a group in A that runs on Mac 1",
            f"GET {IN_A}/secrets/$key",
            "401 yes yes role role role role role role yes role",
        ),
        Action(
            "secret-read-b",
            "read a Secret of another namespace",
            f"GET {IN_B}/secrets/theirs",
            "401 yes role role role role role role role role role",
        ),
        Action(
            "secret-list",
            "read the Secrets of all namespaces",
            "GET /api/v1/secrets",
            "401 yes role role role role role role role role role",
        ),
        Action(
            "operator-key",
            "read the operator's key",
            f"GET {IN_SYSTEM}/secrets/thunderfleet-operator-key",
            "401 yes role role role role yes yes role role role",
        ),
        Action(
            "operator-lease",
            "take over the operator's Lease",
            "PATCH /apis/coordination.k8s.io/v1/namespaces/$system/leases/thunderfleet-operator",
            "401 yes role role role role yes role role role role",
            {"spec": {"holderIdentity": "matrix"}},
            MERGE,
        ),
        Action(
            "token-a",
            "get a token of a service account in A",
            f"POST {IN_A}/serviceaccounts/default/token",
            "401 yes yes role role role role role role node role",
            _token_for(""),
        ),
        Action(
            "token-operator",
            "get a token of the operator",
            f"POST {IN_SYSTEM}/serviceaccounts/thunderfleet-operator/token",
            "401 yes role role role role yes role role role role",
            _token_for(""),
        ),
        Action(
            "token-agent",
            "get a token of Mac 1's agent",
            f"POST {IN_SYSTEM}/serviceaccounts/thunderfleet-agent/token",
            "401 yes role role role role yes role role yes role",
            _token_for("$agent"),
        ),
        Action(
            "token-agent-other",
            "get a token of Mac 2's agent",
            f"POST {IN_SYSTEM}/serviceaccounts/thunderfleet-agent/token",
            "401 yes role role role role yes role role node role",
            _token_for("$otheragent"),
        ),
    ),
    "Pods": (
        Action(
            "pod-create",
            "create a pod on a Mac, in A",
            f"POST {IN_A}/pods",
            "401 yes yes role role role role yes role node role",
            _mac_pod(),
        ),
        Action(
            "pod-root",
            "the same, as root",
            f"POST {IN_A}/pods",
            "401 policy policy role role role role policy role node role",
            _mac_pod(securityContext={"runAsUser": 0}),
        ),
        Action(
            "pod-user",
            "the same, as the user of another pod",
            f"POST {IN_A}/pods",
            "401 policy policy role role role role policy role node role",
            _mac_pod(securityContext={"runAsUser": 1_900_000_001}),
        ),
        Action(
            "pod-privileged",
            "the same, privileged",
            f"POST {IN_A}/pods",
            "401 policy policy role role role role policy role node role",
            _mac_pod({"securityContext": {"privileged": True}}),
        ),
        Action(
            "pod-host",
            "the same, with a hostPath volume",
            f"POST {IN_A}/pods",
            "401 policy policy role role role role yes role node role",
            _mac_pod(**HOST_FOLDER),
        ),
        Action(
            "pod-first",
            "the same, with processes that come before other programs (the capability `SYS_NICE`)",
            f"POST {IN_A}/pods",
            "401 policy policy role role role role yes role node role",
            _mac_pod({"securityContext": {"capabilities": {"add": ["SYS_NICE"]}}}),
        ),
        Action(
            "pod-priority",
            "the same, with a priority class of the system",
            f"POST {IN_A}/pods",
            "401 policy policy role role role role policy role node role",
            _mac_pod(priorityClassName="system-cluster-critical"),
        ),
        Action(
            "pod-agent",
            "create a pod on a Mac with the agent's account, as root",
            f"POST {IN_SYSTEM}/pods",
            "401 yes role role role role yes yes role node role",
            _mac_pod(serviceAccountName="thunderfleet-agent", securityContext={"runAsUser": 0}),
        ),
        Action(
            "pod-create-b",
            "create a pod in another namespace",
            f"POST {IN_B}/pods",
            "401 yes role role role role role yes role node role",
            _pod(),
        ),
        Action(
            "pod-delete",
            "delete a pod of a group in A, on Mac 1",
            f"DELETE {IN_A}/pods/$pod",
            "401 yes yes role role role role yes role yes role",
        ),
        Action(
            "pod-delete-other",
            "delete a pod of a group in A, on Mac 2",
            f"DELETE {IN_A}/pods/$otherpod",
            "401 yes yes role role role role yes role node role",
        ),
        Action(
            "pod-delete-b",
            "delete a pod of another namespace",
            f"DELETE {IN_B}/pods/theirs",
            "401 yes role role role role role yes role node role",
        ),
        Action(
            "pod-evict-b",
            "evict a pod of another namespace",
            f"POST {IN_B}/pods/theirs/eviction",
            "401 yes role role role role role role role node role",
            _object("Eviction", "theirs", "policy/v1", {"namespace": "$b"}),
        ),
        Action(
            "pod-status",
            "write the status of a pod on Mac 1",
            f"PATCH {IN_A}/pods/$pod/status",
            "401 yes role role role role role role role yes role",
            {"status": {"message": "matrix"}},
            MERGE,
        ),
        Action(
            "pod-status-other",
            "write the status of a pod on Mac 2",
            f"PATCH {IN_A}/pods/$otherpod/status",
            "401 yes role role role role role role role node role",
            {"status": {"message": "matrix"}},
            MERGE,
        ),
        Action(
            "pod-bind",
            "bind a pod in A to a Mac, without the scheduler",
            f"POST {IN_A}/pods/waits/binding",
            "401 yes role role role role role role role role role",
            _object(
                "Binding", "waits", metadata={"namespace": "$a"}, target={"apiVersion": "v1", "kind": "Node", "name": "$mac"}
            ),
        ),
        Action(
            "pod-debug",
            "add a debugging container to a pod of a group in A",
            f"PATCH {IN_A}/pods/$pod/ephemeralcontainers",
            "401 policy role role role role role role role role role",
            {"spec": {"ephemeralContainers": [{"name": "matrix", "image": "$image"}]}},
            "application/strategic-merge-patch+json",
        ),
        Action(
            "pod-image",
            "change the image of a pod of a group in A",
            f"PATCH {IN_A}/pods/$pod",
            "401 policy policy role role role role role role role role",
            {"spec": {"containers": [{"name": "runner", "image": "other"}]}},
            "application/strategic-merge-patch+json",
        ),
        Action(
            "pod-exec",
            "run a command in a pod of a group in A",
            f"POST {IN_A}/pods/$pod/exec?container=runner&command=true&stdout=true",
            "401 yes yes role role role role role role role role",
            real=True,
        ),
        Action(
            "pod-exec-b",
            "run a command in a pod of a group of another namespace",
            f"POST {IN_B}/pods/$runner/exec?container=runner&command=true&stdout=true",
            "401 yes role role role role role role role role role",
            real=True,
        ),
        Action(
            "pod-proxy",
            "send a request to a port of Mac 1 through a pod of a group in A",
            f"GET {IN_A}/pods/$pod:9441/proxy/healthz",
            "401 yes yes role role role role role role role role",
        ),
        Action(
            "pod-proxy-b",
            "the same through a pod of a group of another namespace",
            f"GET {IN_B}/pods/$runner:9441/proxy/healthz",
            "401 yes role role role role role role role role role",
        ),
        Action(
            "pod-log",
            "read the log of a pod of a group in A",
            f"GET {IN_A}/pods/$pod/log?tailLines=1",
            "401 yes yes yes role role role role role role role",
        ),
        Action(
            "pod-log-system",
            "read the log of an agent",
            f"GET {IN_SYSTEM}/pods/$agent/log?tailLines=1",
            "401 yes role role role role yes role role role role",
        ),
        Action(
            "pod-list",
            "read the pods of all namespaces",
            "GET /api/v1/pods",
            "401 yes role role role role role yes role role role",
        ),
    ),
    "Nodes": (
        Action(
            "node-read",
            "read the Node of Mac 2",
            "GET /api/v1/nodes/$other",
            "401 yes role role role role role role yes role role",
        ),
        Action(
            "node-delete",
            "delete the Node of Mac 1",
            "DELETE /api/v1/nodes/$mac",
            "401 yes role role role role role role role role role",
        ),
        Action(
            "node-status",
            "write the status of Mac 1",
            "PATCH /api/v1/nodes/$mac/status",
            "401 yes role role role role role role role yes role",
            {"status": {"capacity": {"memory": "1Ti"}}},
            MERGE,
        ),
        Action(
            "node-status-other",
            "write the status of Mac 2",
            "PATCH /api/v1/nodes/$other/status",
            "401 yes role role role role role role role node role",
            {"status": {"capacity": {"memory": "1Ti"}}},
            MERGE,
        ),
        Action(
            "node-taint",
            "remove the taint of Mac 1",
            "PATCH /api/v1/nodes/$mac",
            "401 yes role role role role role role role node role",
            {"spec": {"taints": None}},
            MERGE,
        ),
        Action(
            "node-label",
            "set a label of Mac 1 that is reserved for administrators",
            "PATCH /api/v1/nodes/$mac",
            "401 yes role role role role role role role node role",
            {"metadata": {"labels": {"node-restriction.kubernetes.io/matrix": "1"}}},
            MERGE,
        ),
        Action(
            "node-lease-other",
            "renew the Lease of Mac 2",
            "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/$other",
            "401 yes role role role role role role role role role",
            {"spec": {"holderIdentity": "matrix"}},
            MERGE,
        ),
        Action(
            "node-proxy",
            "send a request to Mac 1's kubelet through the API server",
            "GET /api/v1/nodes/$mac/proxy/pods",
            "401 yes role role role role role role role role role",
        ),
        Action(
            "csr-own",
            "request a client certificate for Mac 1's kubelet",
            f"POST {CSRS}",
            "401 yes role role role role role role role yes yes",
            _csr("$csr"),
        ),
        Action(
            "csr-other",
            "request a client certificate for Mac 2's kubelet",
            f"POST {CSRS}",
            "401 yes role role role role role role role node yes",
            _csr("$othercsr"),
        ),
        Action(
            "csr-serving-other",
            "request a serving certificate for Mac 2's kubelet",
            f"POST {CSRS}",
            "401 yes role role role role role role role node yes",
            _csr("$othercsr", "kubernetes.io/kubelet-serving"),
        ),
        Action(
            "csr-approve",
            "approve a certificate request of another signer than kubernetes.io/kubelet-serving",
            f"PATCH {CSRS}/matrix-$a/approval",
            "401 yes role role role role role signer role role role",
            APPROVED,
            MERGE,
        ),
        Action(
            "csr-approve-serving",
            "approve a request for a serving certificate",
            f"PATCH {CSRS}/matrix-serving-$a/approval",
            "401 yes role role role role role yes role role role",
            APPROVED,
            MERGE,
        ),
    ),
    "The cluster": (
        Action(
            "be-admin",
            "act as the administrator",
            "GET /api/v1/namespaces",
            "401 yes role role role role role role role role role",
            headers=(("Impersonate-User", "matrix"), ("Impersonate-Group", "system:masters")),
        ),
        Action(
            "be-operator",
            "act as the operator",
            f"GET {OURS}/modeldeployments",
            "401 yes role role role role yes role role role role",
            headers=(("Impersonate-User", "system:serviceaccount:$system:thunderfleet-operator"),),
        ),
        Action(
            "be-account",
            "act as a service account of A",
            f"GET {IN_A}/pods",
            "401 yes yes role role role role role role role role",
            headers=(("Impersonate-User", "system:serviceaccount:$a:matrix-view"),),
        ),
        Action(
            "api-servers-read",
            "read the addresses of the API servers",
            "GET /apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
            "401 yes role role role role role yes role yes role",
        ),
        Action(
            "api-servers-write",
            "write the addresses at which Macs look for API servers",
            "PATCH /api/v1/namespaces/kube-system/configmaps/thunderfleet-api-servers",
            "401 yes role role role role role role role role role",
            _object("ConfigMap", "thunderfleet-api-servers", data={"matrix": "192.0.2.1"}),
            APPLY,
        ),
        Action(
            "bind-admin",
            "bind the role cluster-admin",
            f"POST {RBAC}/clusterrolebindings",
            "401 yes role role role role role role role role role",
            _bound("ClusterRoleBinding", "cluster-admin"),
        ),
        Action(
            "bind-a",
            "bind the role edit in A",
            f"POST {RBAC}/namespaces/$a/rolebindings",
            "401 yes role role role role role role role role role",
            _bound("RoleBinding", "edit"),
        ),
        Action(
            "widen-agent",
            "add permissions to the agents' role",
            f"PATCH {RBAC}/clusterroles/thunderfleet-agent",
            "401 yes role role role role role role role role role",
            {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]},
            MERGE,
        ),
        Action(
            "policy-delete",
            "delete an admission policy",
            f"DELETE {ADMISSION}/validatingadmissionpolicybindings/thunderfleet-mac-pods",
            "401 yes role role role role role role role role role",
        ),
        Action(
            "namespace-label",
            "lower the PodSecurity level of A",
            f"PATCH {IN_A}",
            "401 yes role role role role role role role role role",
            {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
            MERGE,
        ),
        Action("version", "read the version of the API server", "GET /version", "401 yes yes yes yes yes yes yes yes yes yes"),
    ),
}


# --- listeners ---------------------------------------------------------------------------------------------------------------

CALLERS = {
    "stranger": "no credentials",
    "forged": "a certificate that the caller made, as agents make theirs",
    "pod": "the token of namespace A's default service account",
    "edit": "the token of `edit` in namespace A",
    "agent": "the token of Mac 1's agent",
    "kubelet": "the certificate of Mac 1's kubelet",
    "member": "on the control port, the key pair of the group; on all other ports, the certificate of Mac 1's agent",
    "admin": "the certificate of the cluster administrator",
    "key": "an API key of the model",
}
"""The columns of ``PORTS``."""

ANSWERS = {
    "yes": "answered",
    "401": "status 401: not authenticated",
    "403": "status 403: not allowed",
    "407": "status 407: the proxy requires its token",
    "tls": "no answer: the TLS handshake fails or the connection is closed",
    "none": "nothing listens on an address of the network",
}


@dataclass(frozen=True)
class Knock:
    """One request to a port. ``at``: the listener, whose address the test knows; ``path`` as in ``Action.request``."""

    id: str
    what: str
    at: str
    path: str
    outcomes: str

    @property
    def expected(self) -> dict[str, str]:
        """Caller to answer."""
        return dict(zip(CALLERS, self.outcomes.split(), strict=True))


ANYONE = "yes " * 9
MEMBERS = "tls tls tls tls tls tls yes tls tls"
REVIEWED = "401 tls 403 403 403 403 tls yes 401"
"""A TokenReview, or the cluster's CA, and then a SubjectAccessReview."""

# Columns:                          stranger forged pod edit agent kubelet member admin key
PORTS: dict[str, tuple[Knock, ...]] = {
    "Kubelet, 10250": (
        Knock("kubelet-healthz", "health", "kubelet", "/healthz", REVIEWED),
        Knock("kubelet-pods", "the pods with their specs", "kubelet", "/pods", REVIEWED),
        Knock("kubelet-metrics", "metrics", "kubelet", "/metrics", REVIEWED),
        Knock(
            "kubelet-logs",
            "the log of a pod",
            "kubelet",
            "/containerLogs/$a/$pod/runner",
            REVIEWED,
        ),
        Knock(
            "kubelet-exec",
            "a command in a pod",
            "kubelet",
            "/exec/$a/$pod/runner?command=true&output=1",
            REVIEWED,
        ),
    ),
    "Agent, 9440 and 9441": (
        Knock("agent-peers", "the port for other agents", "agent", "/v1/hello", "tls 403 tls tls tls tls yes tls tls"),
        Knock("agent-metrics", "metrics", "agent-metrics", "/metrics", ANYONE),
        Knock("agent-healthz", "health", "agent-metrics", "/healthz", ANYONE),
    ),
    "Operator, 9401": (
        Knock("operator-metrics", "metrics", "operator", "/metrics", ANYONE),
        Knock("operator-healthz", "health", "operator", "/healthz", ANYONE),
    ),
    "Runner": (
        Knock(
            "control-state",
            "the control port: state of the group",
            "control",
            "/v1/state",
            MEMBERS,
        ),
        Knock("gateway-open", "a gateway without keys", "gateway", "/v1/models", ANYONE),
        Knock("gateway-keyed", "a gateway with `apiKeySecret`", "keyed", "/v1/models", "401 401 401 401 401 401 401 401 yes"),
        Knock("gateway-metrics", "metrics of such a gateway", "keyed", "/metrics", ANYONE),
        Knock("gateway-healthz", "health of such a gateway", "keyed", "/healthz", ANYONE),
    ),
    "Local cluster": (
        Knock("api-version", "the API server", "api", "/version", "401 401 yes yes yes yes 401 yes 401"),
        Knock("etcd", "etcd, from the network of the machines", "etcd", "/version", "none " * 9),
        Knock("scheduler", "the scheduler, from the network of the machines", "scheduler", "/metrics", "none " * 9),
        Knock(
            "controller-manager",
            "the controller manager, from the network of the machines",
            "controllers",
            "/metrics",
            "none " * 9,
        ),
        Knock("proxy", "the HTTP proxy, without its token", "proxy", "/", "407 407 407 407 407 407 407 407 407"),
    ),
}


def pages() -> str:
    """The tables as Markdown."""
    parts = [
        "# Permissions\n\nWhat each identity may do, and which callers each port accepts. An end-to-end test checks every\n",
        "cell on a real cluster, and fails if one differs.\n",
        "[security.md](../security.md) explains what the cells mean for users of the cluster.\n",
        "\n## Requests to the API server\n\n",
        *_legend(IDENTITIES),
        "\n",
        *_legend(OUTCOMES),
    ]
    for title, actions in API.items():
        parts.append(f"\n### {title}\n\n")
        parts.append(grid(IDENTITIES, [(action.what, action.expected) for action in actions]))
    parts += ["\n## Requests to ports\n\n", *_legend(CALLERS), "\n", *_legend(ANSWERS)]
    for title, knocks in PORTS.items():
        parts.append(f"\n### {title}\n\n")
        parts.append(grid(CALLERS, [(knock.what, knock.expected) for knock in knocks]))
    return "".join(parts)


def _legend(words: dict[str, str]) -> list[str]:
    return [f"- **{word}**: {meaning}\n" for word, meaning in words.items()]


def grid(columns: dict[str, str], rows: list[tuple[str, dict[str, str]]]) -> str:
    """A Markdown table with a column for each identity."""
    lines = [
        ["", *columns],
        ["---"] * (len(columns) + 1),
        *([what, *(cells[name] for name in columns)] for what, cells in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
