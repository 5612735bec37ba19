"""The contents of a kubelet's certificate request."""

import base64
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from thunderfleet_lib.csr.names import NODE_NAME, NODE_PREFIX, NODES
from thunderfleet_lib.csr.rules import Request, plain_address

Json = dict[str, Any]

REQUEST_BYTES = 16 * 1024
"""Maximum size of a request as the API server sends it; a kubelet's has less than one kilobyte."""


def parse(spec: Json) -> Request:
    """The request in the spec of a CertificateSigningRequest. Raises ValueError if it cannot be one of a kubelet."""
    text = str(spec.get("request") or "")
    if len(text) > REQUEST_BYTES:
        raise ValueError(f"the request is larger than {REQUEST_BYTES} bytes")
    try:
        csr = x509.load_pem_x509_csr(base64.b64decode(text))
        node = _node(csr)
        dns_names, addresses = _names(csr)
    except ValueError:
        raise
    except Exception as error:
        # The library has errors of many classes for extensions and keys that it does not support.
        raise ValueError(f"invalid certificate request: {error}") from error
    return Request(
        signer=str(spec.get("signerName")),
        user=str(spec.get("username") or ""),
        groups=frozenset(spec.get("groups") or []),
        usages=frozenset(spec.get("usages") or []),
        node=node,
        dns_names=dns_names,
        addresses=addresses,
    )


def _node(csr: x509.CertificateSigningRequest) -> str:
    if not csr.is_signature_valid:
        raise ValueError("the request is not signed with its own key")
    common = _values(csr.subject, NameOID.COMMON_NAME)
    name = common[0].removeprefix(NODE_PREFIX) if len(common) == 1 and common[0].startswith(NODE_PREFIX) else ""
    if not NODE_NAME.fullmatch(name):
        raise ValueError(f"the common name must be {NODE_PREFIX}NAME")
    if _values(csr.subject, NameOID.ORGANIZATION_NAME) != [NODES]:
        raise ValueError(f"the organization must be {NODES}")
    return name


def _names(csr: x509.CertificateSigningRequest) -> tuple[frozenset[str], frozenset[str]]:
    """DNS names and addresses."""
    try:
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset(), frozenset()
    dns_names = frozenset(names.get_values_for_type(x509.DNSName))
    addresses = frozenset(plain_address(str(value)) for value in names.get_values_for_type(x509.IPAddress))
    if len(list(names)) != len(dns_names) + len(addresses):
        raise ValueError("the subject alternative names must be DNS names and addresses only, without duplicates")
    return dns_names, addresses


def _values(subject: x509.Name, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in subject.get_attributes_for_oid(oid)]
