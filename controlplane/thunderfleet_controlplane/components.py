"""Command lines of the control plane's four programs, and the objects that joining needs. Pure.

The flags are those of a hardened cluster, so that tests show how such a cluster behaves. Where a flag differs from production
(leader election off; in a local cluster, fsync off), a comment gives the reason.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_lib.csr.names import CLIENT_SIGNER, NODES, SERVING_SIGNER

from thunderfleet_controlplane.pki_files import PkiFiles
from thunderfleet_controlplane.tokens import BOOTSTRAPPERS

SERVICES = "10.96.0.0/16"
ISSUER = "https://kubernetes.default.svc.cluster.local"
ETCD_NAME = "thunderfleet"
"""The name of the etcd that began a cluster."""
OPERATOR_ROLE = "thunderfleet-operator"
"""The ClusterRole of the chart's operator."""


def server_url(address: str, port: int) -> str:
    """The URL of an API server."""
    return f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}"


@dataclass(frozen=True)
class Endpoints:
    """Addresses. ``api`` is the API server's for other machines, ``local`` is for ports that only the control plane uses.

    ``bind``: the address that the API server listens on; ``api`` if empty.
    """

    api: str
    api_port: int
    local: str
    etcd_client: int
    etcd_peer: int
    controller_manager: int
    scheduler: int
    loopback: bool
    bind: str = ""

    @property
    def server(self) -> str:
        return server_url(self.api, self.api_port)


@dataclass(frozen=True)
class Peering:
    """An etcd that has, or may get, other members.

    ``name``: the member's name; ``address``: where other members reach it. ``initial``: all members, including this one, as
    ``NAME=URL,…``, if it joins an existing cluster; empty for the member that created the cluster.
    """

    name: str
    address: str
    initial: str = ""


@dataclass(frozen=True)
class Program:
    """One program: name, arguments (program first), and environment for the Go runtime."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


def _flags(**flags: object) -> tuple[str, ...]:
    return tuple(
        f"--{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in flags.items()
        if value is not None
    )


def etcd(binary: Path, data: Path, pki: PkiFiles, at: Endpoints, *, durable: bool, peering: Peering | None = None) -> Program:
    """The command line of etcd. ``durable``: data survives a crash and a power cut; otherwise, fsync is off.

    ``peering``: the ports are open to other members; None: a single member with local ports.
    """
    own = pki.pair("etcd")
    argv = (
        str(binary),
        *_flags(
            data_dir=data,
            **_addresses_of_etcd(at, peering),
            cert_file=own.certificate,
            key_file=own.key,
            client_cert_auth=True,
            trusted_ca_file=pki.folder / "etcd-ca.crt",
            peer_cert_file=own.certificate,
            peer_key_file=own.key,
            peer_client_cert_auth=True,
            peer_trusted_ca_file=pki.folder / "etcd-ca.crt",
            unsafe_no_fsync=None if durable else True,
            **_elections(peering),
            initial_election_tick_advance=True,
            snapshot_count=10000,
            auto_compaction_mode="periodic",
            auto_compaction_retention="1h",
            log_level="warn",
            logger="zap",
        ),
    )
    return Program("etcd", argv, {"GOMAXPROCS": "2"})


def _elections(peering: Peering | None) -> dict[str, object]:
    """Milliseconds between heartbeats, and until a member without a leader calls an election."""
    if peering is None:
        # A single member elects itself after a random time of up to the second value, and answers nothing before. It sends no
        # heartbeats. A time that is much shorter would end requests to a slow disk too early.
        return {"heartbeat_interval": 100, "election_timeout": 500}
    # On a LAN, a new leader within seconds is soon enough; more frequent heartbeats would only use CPU.
    return {"heartbeat_interval": 500, "election_timeout": 2500}


def peer_url(address: str, port: int) -> str:
    """The URL at which other members reach an etcd."""
    return server_url(address, port)


def _addresses_of_etcd(at: Endpoints, peering: Peering | None) -> dict[str, object]:
    if peering is None:
        client, peer = server_url(at.local, at.etcd_client), server_url(at.local, at.etcd_peer)
        return {
            "name": ETCD_NAME,
            "listen_client_urls": client,
            "advertise_client_urls": client,
            "listen_peer_urls": peer,
            "initial_advertise_peer_urls": peer,
            "initial_cluster": f"{ETCD_NAME}={peer}",
        }
    # Listens on all addresses, so that it survives a change of address, and can start before the network is up.
    anywhere = "::" if ":" in peering.address else "0.0.0.0"
    peer = peer_url(peering.address, at.etcd_peer)
    return {
        "name": peering.name,
        "listen_client_urls": server_url(anywhere, at.etcd_client),
        "advertise_client_urls": server_url(peering.address, at.etcd_client),
        "listen_peer_urls": server_url(anywhere, at.etcd_peer),
        "initial_advertise_peer_urls": peer,
        "initial_cluster": peering.initial or f"{peering.name}={peer}",
        # A member that lost its data must not create a second cluster. The member that created the cluster already has data.
        "initial_cluster_state": "existing",
        # etcd's CA also signs client certificates, but only members may act as members.
        "peer_cert_allowed_cn": "etcd",
        # A Mac with several networks may connect to other members from an address that is not in its certificate.
        "peer_skip_client_san_verification": True,
    }


def api_server(
    binary: Path,
    pki: PkiFiles,
    at: Endpoints,
    *,
    audit_log: Path | None = None,
    audit_policy: Path | None = None,
    encryption: Path | None = None,
) -> Program:
    """The API server with the authorizers and admission of a hardened cluster.

    ``encryption``: the file that configures the encryption of Secrets in etcd; None stores them unencrypted.
    """
    own, kubelets, proxy, store = (
        pki.pair(name) for name in ("apiserver", "apiserver-kubelet-client", "front-proxy-client", "etcd-client")
    )
    argv = (
        str(binary),
        *_flags(
            bind_address=at.bind or at.api,
            secure_port=at.api_port,
            advertise_address=at.api,
            # The API server refuses loopback addresses as its own endpoint and would log that every ten seconds.
            endpoint_reconciler_type="none" if at.loopback else "lease",
            etcd_servers=f"https://{at.local}:{at.etcd_client}",
            etcd_cafile=pki.folder / "etcd-ca.crt",
            etcd_certfile=store.certificate,
            etcd_keyfile=store.key,
            tls_cert_file=own.certificate,
            tls_private_key_file=own.key,
            client_ca_file=pki.ca,
            requestheader_client_ca_file=pki.folder / "front-proxy-ca.crt",
            requestheader_allowed_names="front-proxy-client",
            requestheader_extra_headers_prefix="X-Remote-Extra-",
            requestheader_group_headers="X-Remote-Group",
            requestheader_username_headers="X-Remote-User",
            proxy_client_cert_file=proxy.certificate,
            proxy_client_key_file=proxy.key,
            kubelet_client_certificate=kubelets.certificate,
            kubelet_client_key=kubelets.key,
            kubelet_certificate_authority=pki.ca,
            # By default, the API server resolves the Hostname by DNS first.
            kubelet_preferred_address_types="InternalIP,Hostname",
            service_account_issuer=ISSUER,
            service_account_key_file=pki.folder / "service-accounts.pub",
            service_account_signing_key_file=pki.folder / "service-accounts.key",
            service_account_extend_token_expiration=False,
            service_cluster_ip_range=SERVICES,
            authorization_mode="Node,RBAC",
            enable_admission_plugins="NodeRestriction",
            anonymous_auth=False,
            enable_bootstrap_token_auth=True,
            feature_gates="ExtendWebSocketsToKubelet=true",
            allow_privileged=True,
            profiling=False,
            event_ttl="3h",
            # Without it, the API server ends after 60 s if a client watches over HTTP/1.1, as all of ours do.
            shutdown_watch_termination_grace_period="5s",
            encryption_provider_config=encryption,
            audit_log_path=audit_log,
            audit_policy_file=audit_policy,
            audit_log_mode="batch" if audit_log else None,
        ),
    )
    return Program("kube-apiserver", argv, {"GOGC": "200"})


def _component(
    name: str, binary: Path, pki: PkiFiles, kubeconfig: Path, address: str, port: int, *, elect: bool, **flags: object
) -> Program:
    """Common flags of controller manager and scheduler: connection to the API server, health and metrics."""
    serving = pki.pair(f"{name}-serving")
    shared = _flags(
        kubeconfig=kubeconfig,
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        bind_address=address,
        secure_port=port,
        tls_cert_file=serving.certificate,
        tls_private_key_file=serving.key,
        client_ca_file=pki.ca,
        requestheader_client_ca_file=pki.folder / "front-proxy-ca.crt",
        # With a single instance, leader election would write a Lease every two seconds without need.
        leader_elect=elect,
        profiling=False,
    )
    return Program(name, (str(binary), *shared, *_flags(**flags)), {})


def controller_manager(binary: Path, pki: PkiFiles, kubeconfig: Path, at: Endpoints, *, elect: bool = False) -> Program:
    """The controllers, including those for bootstrap tokens. ``elect``: other instances may run, and a leader is elected."""
    return _component(
        "kube-controller-manager",
        binary,
        pki,
        kubeconfig,
        at.local,
        at.controller_manager,
        elect=elect,
        controllers="*,bootstrapsigner,tokencleaner",
        use_service_account_credentials=True,
        service_account_private_key_file=pki.folder / "service-accounts.key",
        root_ca_file=pki.ca,
        cluster_signing_cert_file=pki.ca,
        cluster_signing_key_file=pki.folder / "ca.key",
        service_cluster_ip_range=SERVICES,
        allocate_node_cidrs=False,
    )


def scheduler(binary: Path, pki: PkiFiles, kubeconfig: Path, at: Endpoints, *, elect: bool = False) -> Program:
    """The scheduler. ``elect``: other instances may run, and a leader is elected."""
    return _component("kube-scheduler", binary, pki, kubeconfig, at.local, at.scheduler, elect=elect)


def encryption_config(key: bytes) -> dict[str, Any]:
    """The API server's EncryptionConfiguration: Secrets are encrypted with ``key`` (32 bytes)."""
    secretbox = {"keys": [{"name": "key1", "secret": base64.b64encode(key).decode()}]}
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "EncryptionConfiguration",
        # identity reads Secrets that were stored before the encryption was configured.
        "resources": [{"resources": ["secrets"], "providers": [{"secretbox": secretbox}, {"identity": {}}]}],
    }


AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
"""Metadata only: shows which permissions are used."""


def _binding(name: str, role: str, subjects: list[dict[str, str]], namespace: str | None = None) -> dict[str, Any]:
    kind = "Role" if namespace else "ClusterRole"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", **subject} for subject in subjects],
    }


def _role(name: str, rule: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": [rule],
    }


def joining_objects(cluster: str, server: str, ca_pem: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Objects that joining needs, as (path of the collection, object).

    They are kubeadm's bindings and cluster-info, the API server's access to kubelets, and the role of the approver.
    Kubeadm also lets the controller manager approve every request of a bootstrap token (``nodeclient``). That binding is
    missing here, because such a token can become any Node, even an existing one; the approver decides instead.
    """
    bootstrappers = [{"kind": "Group", "name": BOOTSTRAPPERS}]
    nodes = [{"kind": "Group", "name": NODES}]
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "",
                "cluster": {"server": server, "certificate-authority-data": base64.b64encode(ca_pem).decode()},
            }
        ],
    }
    approver = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "thunderfleet:kubelet-approver"},
        "rules": [
            {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["list", "watch"]},
            {
                "apiGroups": ["certificates.k8s.io"],
                "resources": ["certificatesigningrequests/approval"],
                "verbs": ["patch"],
            },
            {
                "apiGroups": ["certificates.k8s.io"],
                "resources": ["signers"],
                "resourceNames": [CLIENT_SIGNER, SERVING_SIGNER],
                "verbs": ["approve"],
            },
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
            {
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "resourceNames": ["kubernetes"],
                "verbs": ["get"],
            },
            # Shows whether the operator is installed, which then decides serving certificates.
            {
                "apiGroups": ["rbac.authorization.k8s.io"],
                "resources": ["clusterroles"],
                "resourceNames": [OPERATOR_ROLE],
                "verbs": ["get"],
            },
        ],
    }
    binding = f"{rbac}/clusterrolebindings"
    name = "thunderfleet:api-servers"
    slices, maps = (
        {"apiGroups": [group], "resources": [resource], "resourceNames": [one], "verbs": ["get"]}
        for group, resource, one in (
            ("discovery.k8s.io", "endpointslices", "kubernetes"),
            ("", "configmaps", "thunderfleet-api-servers"),
        )
    )
    # Every Mac may read the addresses of the API servers.
    learning = [
        (f"{rbac}/namespaces/{namespace}/{kind}", body)
        for namespace, rule in (("default", slices), ("kube-system", maps))
        for kind, body in (
            ("roles", _role(name, rule, namespace)),
            ("rolebindings", _binding(name, name, nodes, namespace)),
        )
    ]
    return [
        *learning,
        (binding, _binding("thunderfleet:node-bootstrapper", "system:node-bootstrapper", bootstrappers)),
        (
            binding,
            _binding(
                "thunderfleet:node-autoapprove-rotation",
                "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
                nodes,
            ),
        ),
        (
            binding,
            _binding(
                "thunderfleet:apiserver-kubelet",
                "system:kubelet-api-admin",
                [{"kind": "Group", "name": "thunderfleet:apiserver"}],
            ),
        ),
        (f"{rbac}/clusterroles", approver),
        (
            binding,
            _binding(
                "thunderfleet:kubelet-approver",
                "thunderfleet:kubelet-approver",
                [{"kind": "User", "name": "thunderfleet:approver"}],
            ),
        ),
        (
            "/api/v1/namespaces/kube-public/configmaps",
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "cluster-info", "namespace": "kube-public"},
                "data": {"kubeconfig": json.dumps(config)},
            },
        ),
    ]
