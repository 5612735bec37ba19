"""Certificate authorities of one cluster, and the certificates that are needed before the cluster can sign any.

There are three authorities, as in kubeadm: for the cluster (API server, clients, kubelets), for the front proxy (the API server
does not start with the cluster's CA in its place), and for etcd.
"""

import base64
import datetime
import json
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from thunderfleet_lib import tls

from thunderfleet_controlplane.pki_files import ClusterPki

YEARS = 1
KEY_USAGES = ("digital_signature",)
SERVICE_ADDRESS = "10.96.0.1"
"""The first address of the Service network: the ``kubernetes`` Service."""


class Authority:
    """A certificate authority."""

    def __init__(self, name: str) -> None:
        key, subject = tls.new_key(), tls.subject(name)
        self.key, self._issuer = key, tls.Issuer(subject, key)
        self.certificate = tls.build_certificate(
            subject, key.public_key(), self._issuer, _validity(), ca=True, key_usages=(*KEY_USAGES, "key_cert_sign", "crl_sign")
        )

    @property
    def pem(self) -> bytes:
        return tls.certificate_pem(self.certificate)

    @property
    def hash(self) -> str:
        """``sha256:`` and the hash of the DER SubjectPublicKeyInfo, as in kubeadm."""
        return tls.public_key_hash(self.key.public_key())

    def issue(
        self, name: str, *, groups: Iterable[str] = (), names: Iterable[str] = (), server: bool = False, client: bool = True
    ) -> tuple[bytes, bytes]:
        """A certificate and its key (PEM) for CN ``name``, O ``groups``, SANs ``names`` (addresses or DNS names)."""
        key = tls.new_key()
        certificate = tls.build_certificate(
            tls.subject(name, groups),
            key.public_key(),
            self._issuer,
            _validity(),
            key_usages=KEY_USAGES,
            extended_usages=[tls.SERVER_AUTH] * server + [tls.CLIENT_AUTH] * client,
            alternative_names=names,
        )
        return tls.certificate_pem(certificate), tls.key_pem(key)


def _validity() -> tls.Validity:
    now = datetime.datetime.now(datetime.UTC)
    return tls.Validity(now - datetime.timedelta(minutes=5), now + datetime.timedelta(days=365 * YEARS))


def make_pki(folder: Path, server_names: Iterable[str], local_names: Iterable[str]) -> ClusterPki:
    """Create all certificates in ``folder``.

    ``server_names``: addresses and DNS names of the API server; ``local_names``: of etcd, controller manager and scheduler.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    cluster, proxy, etcd = Authority("thunderfleet"), Authority("thunderfleet-front-proxy"), Authority("thunderfleet-etcd")
    for name, authority in (("ca", cluster), ("front-proxy-ca", proxy), ("etcd-ca", etcd)):
        tls.write_private(folder / f"{name}.key", tls.key_pem(authority.key))
        (folder / f"{name}.crt").write_bytes(authority.pem)

    def put(name: str, pair: tuple[bytes, bytes], chain: bytes = b"") -> None:
        (folder / f"{name}.crt").write_bytes(pair[0] + chain)
        tls.write_private(folder / f"{name}.key", pair[1])

    service_names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    server = cluster.issue("kube-apiserver", names=[*service_names, SERVICE_ADDRESS, *server_names], server=True, client=False)
    # The chain includes the CA: joining machines know its hash and take the CA from the chain.
    put("apiserver", server, chain=cluster.pem)
    put("apiserver-kubelet-client", cluster.issue("kube-apiserver-kubelet-client", groups=["thunderfleet:apiserver"]))
    put("front-proxy-client", proxy.issue("front-proxy-client"))
    local = list(local_names)
    put("etcd", etcd.issue("etcd", names=local, server=True))
    put("etcd-client", etcd.issue("kube-apiserver"))
    for name in ("kube-controller-manager", "kube-scheduler"):
        put(name, cluster.issue(f"system:{name}"))
        put(f"{name}-serving", cluster.issue(name, names=local, server=True, client=False))
    # This identity may only approve certificates of kubelets.
    put("approver", cluster.issue("thunderfleet:approver"))
    admin = cluster.issue("kubernetes-admin", groups=["system:masters"])
    put("admin", admin)
    accounts = tls.new_key()
    tls.write_private(folder / "service-accounts.key", tls.key_pem(accounts))
    (folder / "service-accounts.pub").write_bytes(
        accounts.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return ClusterPki(folder, cluster.hash, cluster.pem, *admin)


def kubeconfig(cluster: str, server: str, ca_pem: bytes, user: str, certificate: bytes, key: bytes) -> str:
    """A kubeconfig with embedded certificates (JSON, which is YAML)."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": encoded(ca_pem)}}],
            "users": [
                {
                    "name": user,
                    "user": {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)},
                }
            ],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        },
        indent=2,
    )
