"""Keys, signing requests and contents of certificates: everything that needs the cryptography library.

A kubelet does this a few times a year, so it runs this module as a process instead of keeping the library's 9 MB.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from thunderfleet_lib.csr.names import NODE_PREFIX, NODES
from thunderfleet_lib.net import tls


def new_key() -> bytes:
    """A new private key (PEM)."""
    return tls.key_pem(tls.new_key())


def signing_request(key: bytes, node: str, addresses: Sequence[str] = ()) -> bytes:
    """A signing request (PEM) for a node's kubelet: a server with ``addresses``, a client without."""
    private = serialization.load_pem_private_key(key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return tls.build_request(tls.subject(NODE_PREFIX + node, [NODES]), private, addresses)


def says(key: bytes, certificate: bytes) -> dict[str, Any]:
    """The contents of the first certificate, as JSON values; times in seconds since the Unix epoch.

    Only a ``problem`` if one of the two cannot be read, or if they do not match.
    """
    try:
        return _says(key, certificate)
    except ValueError as error:
        return {"problem": str(error)}


def _says(key: bytes, certificate: bytes) -> dict[str, Any]:
    private, leaf = serialization.load_pem_private_key(key, None), x509.load_pem_x509_certificate(certificate)
    encoding = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*encoding) != leaf.public_key().public_bytes(*encoding):
        raise ValueError("the certificate does not match the key")
    names = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return {
        "user": str(names[0].value) if names else "",
        "starts": leaf.not_valid_before_utc.timestamp(),
        "ends": leaf.not_valid_after_utc.timestamp(),
        "addresses": _addresses(leaf),
    }


def _addresses(leaf: x509.Certificate) -> list[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(address) for address in names.get_values_for_type(x509.IPAddress)]


def ends(certificates: Sequence[str]) -> list[float | str]:
    """When the first certificate in each text (PEM) expires (seconds since the Unix epoch), or why that cannot be read."""
    found: list[float | str] = []
    for text in certificates:
        try:
            # A server or client presents the first certificate of a chain.
            found.append(x509.load_pem_x509_certificates(text.encode("latin-1"))[0].not_valid_after_utc.timestamp())
        except ValueError as error:
            found.append(str(error))
    return found


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """Does the ``work`` of an order: ``request``, ``ends`` or ``say``."""
    match order["work"]:
        case "request":
            key = new_key()
            return {"key": key.decode(), "request": signing_request(key, order["node"], order["addresses"]).decode()}
        case "ends":
            return {"ends": ends(order["certificates"])}
        case _:
            return {"say": [says(key.encode("latin-1"), text.encode("latin-1")) for key, text in order["pairs"]]}


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
