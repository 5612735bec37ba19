"""Everything that a control plane needs on disk before its programs start: certificates, kubeconfigs, command lines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from thunderfleet_lib.net import tls

from thunderfleet_controlplane import components
from thunderfleet_controlplane.components import Endpoints, Program
from thunderfleet_controlplane.pki import kubeconfig, make_pki
from thunderfleet_controlplane.pki_files import ClusterPki

# These mostly wait, and share a machine's processors with recorded Macs, often with other clusters too. With one processor,
# they do not look for work on others whenever something happens: a fifth of the CPU time of the controller manager.
ONE_PROCESSOR = {"GOMAXPROCS": "1", "GOGC": "200"}
GO_RUNTIME: Mapping[str, Mapping[str, str]] = {"kube-controller-manager": ONE_PROCESSOR, "kube-scheduler": ONE_PROCESSOR}
"""Environment variables of the Go runtime in a local cluster, by program."""


@dataclass(frozen=True)
class Prepared:
    """A control plane that can be started: ``programs`` by name, and its certificates."""

    pki: ClusterPki
    programs: Mapping[str, Program]

    def admin_kubeconfig(self, cluster: str, server: str) -> str:
        """The administrator's kubeconfig for the API server at the URL ``server``."""
        pki = self.pki
        return kubeconfig(cluster, server, pki.ca_pem, "kubernetes-admin", pki.admin_certificate, pki.admin_key)


def write_kubeconfigs(cluster: str, folder: Path, pki: ClusterPki, server: str) -> Mapping[str, Path]:
    """Write the kubeconfigs of the controller manager and the scheduler into ``folder``; their paths by program."""
    clients: dict[str, Path] = {}
    for program in ("kube-controller-manager", "kube-scheduler"):
        pair = pki.pair(program)
        text = kubeconfig(cluster, server, pki.ca_pem, program, pair.certificate.read_bytes(), pair.key.read_bytes())
        clients[program] = folder / f"{program}.kubeconfig"
        tls.write_private(clients[program], text.encode())
    return clients


def prepare(
    cluster: str, folder: Path, assets: Path, at: Endpoints, names: Sequence[str], audit_log: Path | None = None
) -> Prepared:
    """Write the certificates and kubeconfigs of a local cluster into ``folder``.

    ``assets`` is the folder of the programs, ``names`` are the addresses and DNS names of the API server.
    """
    pki = make_pki(folder / "pki", names, ["127.0.0.1", at.local, "localhost"])
    clients = write_kubeconfigs(cluster, folder, pki, at.server)
    audit_policy = None
    if audit_log is not None:
        audit_policy = folder / "audit-policy.json"
        audit_policy.write_text(json.dumps(components.AUDIT_POLICY))
    programs = (
        components.etcd(assets / "etcd", folder / "etcd", pki, at, durable=False),
        components.api_server(assets / "kube-apiserver", pki, at, audit_log=audit_log, audit_policy=audit_policy),
        components.controller_manager(assets / "kube-controller-manager", pki, clients["kube-controller-manager"], at),
        components.scheduler(assets / "kube-scheduler", pki, clients["kube-scheduler"], at),
    )
    return Prepared(pki, {one.name: replace(one, env={**one.env, **GO_RUNTIME.get(one.name, {})}) for one in programs})
