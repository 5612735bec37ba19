"""Whom the API server lets run what on Macs, asked with real tokens of a tenant and of the operator."""

import base64
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_lib.kube import APPLY, STRATEGIC_PATCH, ApiError, Kube
from thunderfleet_localcluster.client.cluster import Cluster

from tests.support import yamltext
from tests.support.waiting import until, until_async

Json = dict[str, Any]

CHART = Path(__file__).parents[3] / "charts" / "thunderfleet"
SYSTEM = "thunderfleet-system"
TENANT, TRUSTED = "tenant", "trusted"
SECONDS = 60.0
PODS = f"/api/v1/namespaces/{TENANT}/pods"
MAC: Json = {"nodeSelector": {"kubernetes.io/os": "darwin"}}
HOST: Json = {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
ROOT: Json = {"securityContext": {"runAsUser": 0}}
DIRTY: Json = {**ROOT, **HOST}
FIRST: Json = {"securityContext": {"capabilities": {"add": ["SYS_NICE"]}}}


def enforced(cluster: Cluster) -> bool:
    """Whether the API server has taken notice of the policy, which takes a moment after its installation."""
    words = ("create", "--dry-run=server", "-f", "-")
    done = cluster.kubectl(*words, text=json.dumps(pod(**MAC, **DIRTY)), check=False)
    return "thunderfleet-mac-pods" in done.stderr


@pytest.fixture(scope="module")
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    """With the chart, and namespaces that allow what models need."""
    words = ("--set", f"pods.privilegedNamespaces={{{TRUSTED}}}")
    control_plane.helm("upgrade", "--install", "thunderfleet", str(CHART), "-n", SYSTEM, "--create-namespace", *words)
    for name in (TENANT, TRUSTED):
        control_plane.kubectl("create", "namespace", name)
        control_plane.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=privileged")
        control_plane.kubectl("create", "serviceaccount", "author", "-n", name)
        control_plane.kubectl(
            "create", "rolebinding", "author", "--clusterrole=edit", f"--serviceaccount={name}:author", "-n", name
        )
    until(lambda: enforced(control_plane), "the policy is enforced", SECONDS)

    def may(namespace: str) -> bool:
        """Whether its account may create pods. They need the account that a controller makes in a new namespace."""
        words = (f"--as=system:serviceaccount:{namespace}:author", "create", "--dry-run=server", "-f", "-")
        return control_plane.kubectl(*words, text=json.dumps(pod(namespace)), check=False).returncode == 0

    until(lambda: may(TENANT) and may(TRUSTED), "the accounts may create pods", SECONDS)
    yield control_plane
    for name in (TENANT, TRUSTED):
        control_plane.kubectl("delete", "namespace", name, "--wait=false")
    control_plane.helm("uninstall", "thunderfleet", "-n", SYSTEM, "--ignore-not-found", "--wait")


def as_account(cluster: Cluster, namespace: str, account: str, folder: Path) -> Kube:
    config = yamltext.load(cluster.kubeconfig.read_text())
    ca = folder / "ca.crt"
    ca.write_bytes(base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]))
    token = cluster.kubectl("create", "token", account, "-n", namespace).stdout.strip()
    return Kube.with_files(cluster.server, ca, token=token)


@pytest.fixture
async def tenant(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:
    async with as_account(cluster, TENANT, "author", tmp_path) as kube:
        yield kube


@pytest.fixture
async def operator(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Kube]:
    async with as_account(cluster, SYSTEM, "thunderfleet-operator", tmp_path) as kube:
        yield kube


def pod(namespace: str = TENANT, *, inner: Json | None = None, **spec: Any) -> Json:
    containers = [{"name": "main", "image": "thunderfleet/thunderfleet:0.1.0", **(inner or {})}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p-{uuid.uuid4().hex[:8]}", "namespace": namespace},
        "spec": {"hostNetwork": True, "automountServiceAccountToken": False, "containers": containers, **spec},
    }


async def verdict(kube: Kube, item: Json) -> str:
    """Empty if the API server would take the pod, else why not."""
    try:
        path = f"/api/v1/namespaces/{item['metadata']['namespace']}/pods"
        await kube.request("POST", path, query={"dryRun": "All"}, body=item)
    except ApiError as error:
        assert error.status == 403, error
        return str(error)
    return ""


def affinity(*terms: Json) -> Json:
    selector = {"nodeSelectorTerms": [{"matchExpressions": [term]} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}}


LINUX_TERM = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
EITHER_TERM = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux", "darwin"]}
ASKS = {
    "a node selector": MAC,
    "the runtime class": {"runtimeClassName": "macos"},
    "an affinity": affinity(LINUX_TERM, EITHER_TERM),
    "a node name and a selector": {**MAC, "nodeName": "studio-1"},
    "a gate": {**MAC, "schedulingGates": [{"name": "example.com/later"}]},
}
REFUSED: dict[str, tuple[Json, str]] = {
    "root": (ROOT, "must not run as user 0"),
    "root container": ({"inner": ROOT}, "must not run as user 0"),
    "root init container": ({"initContainers": [{"name": "i", "image": "i", **ROOT}]}, "must not run as user 0"),
    "a person of the Mac": ({"securityContext": {"runAsUser": 501}}, "must not run as user 501"),
    "another pod's user": ({"securityContext": {"runAsUser": 1_900_000_001}}, "must not run as user 1900000001"),
    "group wheel": ({"securityContext": {"runAsUser": 2000, "runAsGroup": 0}}, "must not have group 0"),
    "group of a container": ({"inner": {"securityContext": {"runAsGroup": 80}}}, "must not have group 80"),
    "supplementary group admin": ({"securityContext": {"supplementalGroups": [3000, 80]}}, "must not have group 80"),
    "fsGroup staff": ({"securityContext": {"fsGroup": 20}}, "must not have group 20"),
    "privileged": ({"inner": {"securityContext": {"privileged": True}}}, "remove privileged from container main"),
    "priority of the system": ({"priorityClassName": "system-node-critical"}, "priority class system-node-critical"),
    "before other programs": ({"inner": FIRST}, "must not have the capability SYS_NICE"),
    "init container before other programs": (
        {"initContainers": [{"name": "i", "image": "i", **FIRST}]},
        "because groups would wait for their processes: remove it from container i, or",
    ),
    "hostPath": (HOST, "must not have hostPath volumes, except those of the operator: remove volume host"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_tenant_gets_no_rights_on_macs(tenant: Kube, name: str) -> None:
    spec, sentence = REFUSED[name]
    said = await verdict(tenant, pod(**MAC, **spec))
    assert "ValidatingAdmissionPolicy 'thunderfleet-mac-pods'" in said
    assert sentence in said
    assert await verdict(tenant, pod(**spec)) == "", "pods elsewhere are no business of this policy"


@pytest.mark.parametrize("name", ASKS)
async def test_every_way_to_ask_for_a_mac_counts(tenant: Kube, name: str) -> None:
    for bad in (ROOT, HOST, {"initContainers": [{"name": "i", "image": "i", **FIRST}]}):
        assert "thunderfleet-mac-pods" in await verdict(tenant, pod(**{**ASKS[name], **bad}))
    assert await verdict(tenant, pod(**ASKS[name])) == ""


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"securityContext": {"runAsUser": 1000, "runAsGroup": 65535, "fsGroup": 3000, "supplementalGroups": [2000]}},
        {"volumes": [{"name": "e", "emptyDir": {}}]},
        {"inner": {"securityContext": {"capabilities": {"add": ["NET_RAW"], "drop": ["SYS_NICE"]}}}},
    ],
)
async def test_ordinary_pods_run_on_macs(tenant: Kube, spec: Json) -> None:
    assert await verdict(tenant, pod(**MAC, **spec)) == ""


async def test_the_operators_pods_have_host_folders_and_are_not_root(operator: Kube) -> None:
    assert await verdict(operator, pod(**MAC, **HOST)) == ""
    assert "must not run as user 0" in await verdict(operator, pod(**MAC, **DIRTY))


async def created(kube: Kube, **spec: Any) -> str:
    """The path of a new pod."""
    return f"{PODS}/{(await kube.create(PODS, pod(**spec)))['metadata']['name']}"


async def why_not(kube: Kube, path: str, **container: Any) -> list[str]:
    """Why the API server refuses a change of a pod's container, as a patch and as an apply; empty if it does not."""
    body = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", **container}]}}
    said = []
    for content in (STRATEGIC_PATCH, APPLY):
        query = {"fieldManager": "test", "dryRun": "All"} | ({"force": "true"} if content == APPLY else {})
        try:
            await kube.request("PATCH", path, query=query, body=body, content=content)
        except ApiError as error:
            said.append(str(error))
    return said


async def test_only_the_operators_pods_come_before_other_programs(cluster: Cluster, tenant: Kube, operator: Kube) -> None:
    waits = {"nodeSelector": {**MAC["nodeSelector"], "example.com/none": "here"}}
    refusal = "must not have the capability SYS_NICE"
    later = {"schedulingGates": [{"name": "example.com/later"}]}
    operators = await created(operator, inner=FIRST, **waits, **HOST)
    plain, gated = await created(tenant, **waits), await created(tenant, inner=FIRST, **later)
    async with await Kube.from_kubeconfig(cluster.kubeconfig) as admin:
        # The program of a pod that has it stays that of the operator.
        for kube in (tenant, admin):
            kept = "the image of container main must not change"
            assert [kept in said for said in await why_not(kube, operators, image="other")] == [True, True]
            assert await why_not(kube, plain, image="other") == []
            # Nobody adds it later.
            immutable = "pod updates may not change fields"
            assert [immutable in said for said in await why_not(kube, plain, image="other", **FIRST)] == [True, True]
        await tenant.patch(operators, {"metadata": {"labels": {"a": "b"}}})
        await admin.patch(f"{plain}/resize", {"spec": {"containers": [{"name": "main", **FIRST}]}}, STRATEGIC_PATCH)
        debugger = {"ephemeralContainers": [{"name": "d", "image": "i", **FIRST}]}
        with pytest.raises(ApiError, match=refusal):
            await admin.patch(f"{plain}/ephemeralcontainers", {"spec": debugger})
        assert "SYS_NICE" not in json.dumps(await admin.get(plain))
    with pytest.raises(ApiError, match=refusal):
        await tenant.patch(gated, {"spec": MAC})


async def test_pods_of_a_users_controllers_come_before_no_other_programs(tenant: Kube) -> None:
    template = {"metadata": {"labels": {"app": "first"}}, "spec": pod(inner=FIRST, **MAC)["spec"]}
    wanted = {"replicas": 1, "selector": {"matchLabels": {"app": "first"}}, "template": template}
    sets = f"/apis/apps/v1/namespaces/{TENANT}/replicasets"
    await tenant.create(sets, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "first"}, "spec": wanted})

    async def refused() -> bool:
        conditions = (await tenant.get(f"{sets}/first"))["status"].get("conditions") or []
        return any("must not have the capability SYS_NICE" in str(one.get("message")) for one in conditions)

    await until_async(refused, "the pods of a ReplicaSet are refused", SECONDS)


async def test_the_operators_name_in_a_pod_is_not_the_operator(tenant: Kube) -> None:
    forged = pod(**MAC, **HOST)
    # The label of the operator's objects is another policy's matter.
    forged["metadata"]["labels"] = {"app.kubernetes.io/name": "thunderfleet-runner"}
    assert "must not have hostPath volumes" in await verdict(tenant, forged)
    forged["spec"]["serviceAccountName"] = "thunderfleet-operator"
    assert "thunderfleet-operator" in await verdict(tenant, forged), "there is no such account in the tenant's namespace"


async def test_agents_and_privileged_namespaces_are_exempt(cluster: Cluster, tmp_path: Path) -> None:
    async with await Kube.from_kubeconfig(cluster.kubeconfig) as admin:
        agent = pod(SYSTEM, **MAC, **DIRTY, serviceAccountName="thunderfleet-agent")
        assert await verdict(admin, agent) == ""
        other = pod(SYSTEM, **MAC, **DIRTY, serviceAccountName="default")
        assert "thunderfleet-mac-pods" in await verdict(admin, other)
    async with as_account(cluster, TRUSTED, "author", tmp_path) as trusted:
        assert await verdict(trusted, pod(TRUSTED, **MAC, **DIRTY)) == ""


async def test_agents_of_another_namespace_are_no_agents(cluster: Cluster, tenant: Kube) -> None:
    cluster.kubectl("create", "serviceaccount", "thunderfleet-agent", "-n", TENANT)
    assert "thunderfleet-mac-pods" in await verdict(tenant, pod(**MAC, **DIRTY, serviceAccountName="thunderfleet-agent"))


async def test_what_is_added_to_a_pod_later_is_checked(cluster: Cluster, tenant: Kube) -> None:
    async with await Kube.from_kubeconfig(cluster.kubeconfig) as admin:
        gated = await tenant.create(PODS, pod(**DIRTY, schedulingGates=[{"name": "example.com/later"}]))
        name = gated["metadata"]["name"]
        with pytest.raises(ApiError, match="thunderfleet-mac-pods"):
            await tenant.patch(f"{PODS}/{name}", {"spec": MAC})
        # A pod from before there was a policy: its labels and finalizers must stay writable, or it could not be deleted.
        cluster.kubectl("delete", "validatingadmissionpolicybinding", "thunderfleet-mac-pods")
        try:
            until(lambda: not enforced(cluster), "the policy is gone", SECONDS)
            old = await tenant.create(PODS, pod(**MAC, **HOST, nodeName="studio-1"))
        finally:
            cluster.helm("upgrade", "thunderfleet", str(CHART), "-n", SYSTEM, "--reuse-values")
        until(lambda: enforced(cluster), "the policy is enforced", SECONDS)
        path = f"{PODS}/{old['metadata']['name']}"
        await tenant.patch(path, {"metadata": {"labels": {"a": "b"}}})
        debugger = {"name": "d", "image": "i", **ROOT}
        clean = await admin.create(PODS, pod(**MAC, nodeName="studio-1"))
        for target in (path, f"{PODS}/{clean['metadata']['name']}"):
            with pytest.raises(ApiError, match="thunderfleet-mac-pods"):
                await admin.patch(f"{target}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger]}})
        assert json.dumps(await admin.get(path)).count("ephemeralContainers") == 0
