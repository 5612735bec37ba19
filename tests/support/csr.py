"""CertificateSigningRequests of kubelets, honest ones and others."""

import base64
from ipaddress import ip_address
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from thunderfleet_lib.csr.names import SERVING_SIGNER

Json = dict[str, Any]
SERVING = ("digital signature", "server auth")
CREATED = "2026-01-01T00:00:00Z"


def signing_request(
    name: str = "system:node:studio-1",
    organizations: tuple[str, ...] = ("system:nodes",),
    addresses: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    other: x509.GeneralName | None = None,
    extension: x509.ExtensionType | None = None,
) -> str:
    """The PEM of a request in base64. ``extension`` takes the place of the alternative names."""
    subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, value) for value in organizations]
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([*subject, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    alternatives: list[x509.GeneralName] = [x509.IPAddress(ip_address(value)) for value in addresses]
    alternatives += [x509.DNSName(value) for value in names]
    if other is not None:
        alternatives.append(other)
    if extension is not None or alternatives:
        builder = builder.add_extension(extension or x509.SubjectAlternativeName(alternatives), critical=False)
    key = ec.generate_private_key(ec.SECP256R1())
    return base64.b64encode(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)).decode()


def csr(
    *,
    user: str = "system:node:studio-1",
    groups: tuple[str, ...] = ("system:nodes", "system:authenticated"),
    usages: tuple[str, ...] = SERVING,
    signer: str = SERVING_SIGNER,
    request: str | None = None,
    created: str = CREATED,
    object_name: str = "csr-1",
    addresses: tuple[str, ...] = ("192.168.64.11",),
    **content: Any,
) -> Json:
    """What the API server stores. ``content``: as for ``signing_request``."""
    return {
        "metadata": {"name": object_name, "creationTimestamp": created},
        "spec": {
            "username": user,
            "groups": list(groups),
            "signerName": signer,
            "usages": list(usages),
            "request": signing_request(addresses=addresses, **content) if request is None else request,
        },
    }
