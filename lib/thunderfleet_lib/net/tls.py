"""Keys, certificates and signing requests, as PEM.

One function builds every certificate of the project, so that all of them have the extensions that OpenSSL's strict checks
require: basic constraints, key identifiers and, where the names matter, subject alternative names.
"""

import hashlib
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thunderfleet_lib.host.privatefiles import write_private as write_private

PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey

SERVER_AUTH = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH

_KEY_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@dataclass(frozen=True)
class Validity:
    """When a certificate is valid."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Issuer:
    """Who signs a certificate."""

    name: x509.Name
    key: PrivateKey


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new P-256 key. With an elliptic curve a certificate needs no key encipherment, which approvers then refuse."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    """The private key as PEM (PKCS #8, not encrypted)."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def subject(common_name: str, organizations: Iterable[str] = ()) -> x509.Name:
    """A distinguished name; Kubernetes takes the organizations as groups and the common name as the user."""
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def public_key_hash(key: CertificatePublicKeyTypes) -> str:
    """``sha256:`` and the hash of the DER SubjectPublicKeyInfo, as kubeadm prints it for a CA."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return "sha256:" + hashlib.sha256(der).hexdigest()


def build_certificate(
    name: x509.Name,
    key: PublicKey,
    issuer: Issuer,
    validity: Validity,
    *,
    serial: int | None = None,
    ca: bool = False,
    key_usages: Sequence[str] = (),
    extended_usages: Sequence[x509.ObjectIdentifier] = (),
    alternative_names: Iterable[str] = (),
) -> x509.Certificate:
    """A certificate for ``key``. Equal inputs with a ``serial`` and an Ed25519 issuer give equal bytes.

    ``key_usages`` are names of RFC 5280 (``digital_signature``); none leaves the extension out, as for the other two.
    ``alternative_names`` are IP addresses or DNS names.
    """
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.name)
        .public_key(key)
        .serial_number(x509.random_serial_number() if serial is None else serial)
        .not_valid_before(validity.start)
        .not_valid_after(validity.end)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
    )
    if key_usages:
        usage = x509.KeyUsage(**{one: one in key_usages for one in _KEY_USAGES})
        builder = builder.add_extension(usage, critical=True)
    if extended_usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(extended_usages), critical=False)
    if names := _general_names(alternative_names):
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if ca:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
    return builder.add_extension(authority, critical=False).sign(issuer.key, _digest(issuer.key))


def build_request(name: x509.Name, key: PrivateKey, alternative_names: Iterable[str] = ()) -> bytes:
    """A certificate signing request (PEM)."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    if names := _general_names(alternative_names):
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, _digest(key)).public_bytes(serialization.Encoding.PEM)


def _digest(key: PrivateKey) -> hashes.SHA256 | None:
    return None if isinstance(key, Ed25519PrivateKey) else hashes.SHA256()


def _general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    return [_general_name(one) for one in names]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def plain_name(name: str) -> str:
    """An alternative name in the one form in which names are compared."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name


def alternative_names(certificate: x509.Certificate) -> frozenset[str]:
    """The IP addresses and DNS names of a certificate, as ``plain_name`` writes them."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset((*map(str, found.get_values_for_type(x509.IPAddress)), *found.get_values_for_type(x509.DNSName)))


def pinned(certificate: str, key: str, *, server: bool) -> ssl.SSLContext:
    """TLS 1.3 between two sides that have the same pair (PEM): each presents the certificate and trusts no other one.

    Raises OSError or ValueError for a pair that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    load_pair(context, certificate.encode(), key.encode())
    return context


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Presents this pair (PEM) from now on. Raises OSError for one that cannot be used."""
    # The ssl module loads a certificate chain from files only.
    with _readable(certificate) as certificate_file, _readable(key) as key_file:
        context.load_cert_chain(certificate_file, key_file)


@contextmanager
def _readable(content: bytes) -> Iterator[str]:
    """The path of a file with this content, which only this user can read, while the block runs."""
    with tempfile.NamedTemporaryFile(prefix="thunderfleet-") as file:
        file.write(content)
        file.flush()
        yield file.name
