"""Certificate authorities of one cluster, and the certificates that are needed before the cluster can sign any.

There are three authorities, as in kubeadm: for the cluster (API server, clients, kubelets), for the front proxy (the API server
does not start with the cluster's CA in its place), and for etcd.
"""

import base64
import datetime
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

YEARS = 1
SERVICE_ADDRESS = "10.96.0.1"
"""The first address of the Service network: the ``kubernetes`` Service."""


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key (PEM)."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        public = self.key.public_key()
        self.certificate = (
            _builder(subject, subject, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def hash(self) -> str:
        """``sha256:`` and the hash of the DER SubjectPublicKeyInfo, as in kubeadm."""
        der = self.key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return "sha256:" + hashlib.sha256(der).hexdigest()

    def issue(
        self, name: str, *, groups: Iterable[str] = (), names: Iterable[str] = (), server: bool = False, client: bool = True
    ) -> tuple[bytes, bytes]:
        """A certificate and its key (PEM) for CN ``name``, O ``groups``, SANs ``names`` (addresses or DNS names)."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        usages = [ExtendedKeyUsageOID.SERVER_AUTH] * server + [ExtendedKeyUsageOID.CLIENT_AUTH] * client
        builder = (
            _builder(subject, self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        alternatives = [_san(value) for value in names]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def _san(value: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(value))
    except ValueError:
        return x509.DNSName(value)


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    )


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def write_secret(path: Path, data: bytes) -> Path:
    """Write a file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return path


@dataclass(frozen=True)
class ClusterPki:
    """Files of the control plane's certificates, and what joining machines must know."""

    folder: Path
    ca_hash: str
    ca_pem: bytes
    admin_certificate: bytes
    admin_key: bytes

    def pair(self, name: str) -> Pair:
        return Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"


def make_pki(folder: Path, server_names: Iterable[str], local_names: Iterable[str]) -> ClusterPki:
    """Create all certificates in ``folder``.

    ``server_names``: addresses and DNS names of the API server; ``local_names``: of etcd, controller manager and scheduler.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    cluster, proxy, etcd = Authority("thunderfleet"), Authority("thunderfleet-front-proxy"), Authority("thunderfleet-etcd")
    for name, authority in (("ca", cluster), ("front-proxy-ca", proxy), ("etcd-ca", etcd)):
        write_secret(folder / f"{name}.key", _key_pem(authority.key))
        (folder / f"{name}.crt").write_bytes(authority.pem)

    def put(name: str, pair: tuple[bytes, bytes], chain: bytes = b"") -> None:
        (folder / f"{name}.crt").write_bytes(pair[0] + chain)
        write_secret(folder / f"{name}.key", pair[1])

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
    # This identity may only approve serving certificates of kubelets.
    put("approver", cluster.issue("thunderfleet:approver"))
    admin = cluster.issue("kubernetes-admin", groups=["system:masters"])
    put("admin", admin)
    accounts = ec.generate_private_key(ec.SECP256R1())
    write_secret(folder / "service-accounts.key", _key_pem(accounts))
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
