"""Finds the certificate authority of a server that is not trusted yet, by the hash of its public key."""

import contextlib
import ssl
from collections.abc import Iterable
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from thunderfleet_lib.net import tls

_DER = 2


def unverified() -> ssl.SSLContext:
    """A context that trusts any server. Send nothing secret with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def shown(connection: Any) -> list[x509.Certificate]:
    """The certificates that a server sent, from a connection of the module ``ssl``, without those that cannot be read."""
    # The method is public since Python 3.13; before, it exists on ``_sslobj``.
    holder = connection if hasattr(connection, "get_unverified_chain") else connection._sslobj
    raw = [one if isinstance(one, bytes) else one.public_bytes(_DER) for one in holder.get_unverified_chain() or []]
    found = []
    for one in raw:
        # The server may be a stranger, and TLS reads the key of its own certificate only.
        with contextlib.suppress(ValueError, UnsupportedAlgorithm):
            certificate = x509.load_der_x509_certificate(bytes(one))
            ca_hash(certificate)
            found.append(certificate)
    return found


def ca_hash(certificate: x509.Certificate) -> str:
    """Kubeadm's hash of a CA: SHA-256 of its DER SubjectPublicKeyInfo."""
    return tls.public_key_hash(certificate.public_key())


def choose_ca(candidates: Iterable[x509.Certificate], wanted: str) -> x509.Certificate | None:
    """The CA with hash ``wanted``, or None. A certificate with that hash that is not a CA does not count."""
    for one in candidates:
        if ca_hash(one) == wanted:
            try:
                constraints = one.extensions.get_extension_for_class(x509.BasicConstraints).value
            except x509.ExtensionNotFound:
                continue
            if constraints.ca:
                return one
    return None
