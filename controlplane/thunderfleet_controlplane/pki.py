"""Certificate authorities of one cluster, and the certificates that are needed before the cluster can sign any.

Existing valid certificates are kept, so that setting up the same control plane again changes nothing.

There are three authorities, as in kubeadm: for the cluster (API server, clients, kubelets), for the front proxy (the API server
does not start with the cluster's CA in its place), and for etcd.
"""

import base64
import contextlib
import datetime
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from thunderfleet_lib.net import tls

from thunderfleet_controlplane.pki_files import ClusterPki

CA_DAYS = 3650
LEAF_DAYS = 365
RENEW_DAYS = 120
"""A certificate with less time left is issued again when the control plane is set up again."""
KEY_USAGES = ("digital_signature",)
SERVICE_ADDRESS = "10.96.0.1"
"""The first address of the Service network: the ``kubernetes`` Service."""
SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


class PkiError(Exception):
    """Existing certificates cannot be used, and replacing them would lock out all machines of the cluster."""


@dataclass(frozen=True)
class Leaf:
    """A certificate that an authority issues: CN ``name``, O ``groups``, SANs ``names`` (addresses or DNS names)."""

    name: str
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    server: bool = False
    client: bool = True


class Authority:
    """A certificate authority."""

    def __init__(self, key: tls.PrivateKey, certificate: x509.Certificate) -> None:
        self.key, self.certificate = key, certificate
        self._issuer = tls.Issuer(certificate.subject, key)

    @classmethod
    def create(cls, name: str, key: tls.PrivateKey, now: datetime.datetime) -> "Authority":
        """A new authority with this key."""
        subject = tls.subject(name)
        usages = (*KEY_USAGES, "key_cert_sign", "crl_sign")
        issuer = tls.Issuer(subject, key)
        return cls(
            key,
            tls.build_certificate(subject, key.public_key(), issuer, _validity(now, CA_DAYS), ca=True, key_usages=usages),
        )

    @property
    def pem(self) -> bytes:
        return tls.certificate_pem(self.certificate)

    @property
    def hash(self) -> str:
        """``sha256:`` and the hash of the DER SubjectPublicKeyInfo, as in kubeadm."""
        return tls.public_key_hash(self.key.public_key())

    def issue(self, leaf: Leaf, now: datetime.datetime) -> tuple[bytes, bytes]:
        """A certificate and its key (PEM)."""
        key = tls.new_key()
        certificate = tls.build_certificate(
            tls.subject(leaf.name, leaf.groups),
            key.public_key(),
            self._issuer,
            _validity(now, LEAF_DAYS),
            key_usages=KEY_USAGES,
            extended_usages=[tls.SERVER_AUTH] * leaf.server + [tls.CLIENT_AUTH] * leaf.client,
            alternative_names=leaf.names,
        )
        return tls.certificate_pem(certificate), tls.key_pem(key)

    def still_good(self, leaf: Leaf, certificate: x509.Certificate, key: tls.PrivateKey, now: datetime.datetime) -> bool:
        """Whether this authority signed it for ``key`` with the contents of ``leaf``, and it does not expire soon."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        names = tls.alternative_names(certificate)
        return (
            certificate.public_key() == key.public_key()
            and certificate.subject == tls.subject(leaf.name, leaf.groups)
            and names == frozenset(map(tls.plain_name, leaf.names))
            and certificate.not_valid_after_utc - now > datetime.timedelta(days=RENEW_DAYS)
        )


def _validity(now: datetime.datetime, days: int) -> tls.Validity:
    return tls.Validity(now - datetime.timedelta(minutes=5), now + datetime.timedelta(days=days))


def _key(file: Path) -> ec.EllipticCurvePrivateKey:
    """The key in a file, which is created with a new key if it is missing. Raises PkiError."""
    if not file.exists():
        key = tls.new_key()
        tls.write_private(file, tls.key_pem(key))
        return key
    try:
        found = serialization.load_pem_private_key(file.read_bytes(), None)
    except ValueError as error:
        raise PkiError(f"{file} is not a private key ({error}); restore it from a backup") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise PkiError(f"{file} is not an elliptic-curve key; restore it from a backup")
    return found


def _authority(folder: Path, name: str, file: str, now: datetime.datetime) -> Authority:
    """The authority in ``folder``, created if it does not exist. Raises PkiError."""
    certificate, key = folder / f"{file}.crt", folder / f"{file}.key"
    if certificate.exists() and not key.exists():
        raise PkiError(f"{certificate} exists and {key} does not; restore the key from a backup")
    # The key is written first: a certificate without a key is useless, a key without a certificate gets one.
    own = _key(key)
    if not certificate.exists():
        made = Authority.create(name, own, now)
        tls.write_private(certificate, made.pem)
        return made
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError as error:
        raise PkiError(f"{certificate} is not a certificate ({error}); restore it from a backup") from None
    if found.public_key() != own.public_key():
        raise PkiError(f"{certificate} is not for {key}; restore both from one backup")
    if found.not_valid_after_utc <= now:
        raise PkiError(
            f"{certificate} expired on {found.not_valid_after_utc:%Y-%m-%d}; remove this control plane, then set it up again"
        )
    return Authority(own, found)


def _leaf(folder: Path, authority: Authority, file: str, leaf: Leaf, chain: bytes, now: datetime.datetime) -> bool:
    """Issue a certificate unless there is a valid one. Returns whether it was issued."""
    certificate, key = folder / f"{file}.crt", folder / f"{file}.key"
    with contextlib.suppress(OSError, ValueError):
        found = serialization.load_pem_private_key(key.read_bytes(), None)
        first = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
        if isinstance(found, ec.EllipticCurvePrivateKey) and authority.still_good(leaf, first, found, now):
            return False
    new_certificate, new_key = authority.issue(leaf, now)
    tls.write_private(key, new_key)
    tls.write_private(certificate, new_certificate + chain)
    return True


def make_pki(
    folder: Path,
    server_names: Iterable[str],
    local_names: Iterable[str],
    now: datetime.datetime | None = None,
    etcd_names: Iterable[str] = (),
) -> ClusterPki:
    """Create the certificates in ``folder`` that do not exist, do not fit, or expire within RENEW_DAYS; keep the others.

    ``server_names``: addresses and DNS names of the API server; ``local_names``: of etcd, controller manager and scheduler;
    ``etcd_names``: further ones of etcd.
    Authorities are never replaced. A call that is interrupted is completed by the next one. Raises PkiError.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    cluster, proxy, etcd = (
        _authority(folder, name, file, now)
        for name, file in (
            ("thunderfleet", "ca"),
            ("thunderfleet-front-proxy", "front-proxy-ca"),
            ("thunderfleet-etcd", "etcd-ca"),
        )
    )
    server, local = (*SERVICE_NAMES, SERVICE_ADDRESS, *server_names), tuple(local_names)
    leaves: dict[str, tuple[Authority, Leaf]] = {
        "apiserver": (cluster, Leaf("kube-apiserver", names=server, server=True, client=False)),
        "apiserver-kubelet-client": (cluster, Leaf("kube-apiserver-kubelet-client", ("thunderfleet:apiserver",))),
        "front-proxy-client": (proxy, Leaf("front-proxy-client")),
        "etcd": (etcd, Leaf("etcd", names=tuple(dict.fromkeys((*local, *etcd_names))), server=True)),
        "etcd-client": (etcd, Leaf("kube-apiserver")),
        # This identity may only approve certificates of kubelets.
        "approver": (cluster, Leaf("thunderfleet:approver")),
        "admin": (cluster, Leaf("kubernetes-admin", ("system:masters",))),
    }
    for name in ("kube-controller-manager", "kube-scheduler"):
        leaves[name] = (cluster, Leaf(f"system:{name}"))
        leaves[f"{name}-serving"] = (cluster, Leaf(name, names=local, server=True, client=False))
    # The API server's chain includes the CA: joining machines have its hash and take the CA from the chain.
    issued = tuple(
        file
        for file, (authority, leaf) in leaves.items()
        if _leaf(folder, authority, file, leaf, cluster.pem if file == "apiserver" else b"", now)
    )
    accounts = _key(folder / "service-accounts.key")
    public = accounts.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    tls.write_private(folder / "service-accounts.pub", public)
    admin = (folder / "admin.crt").read_bytes(), (folder / "admin.key").read_bytes()
    return ClusterPki(folder, cluster.hash, cluster.pem, *admin, issued)


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
