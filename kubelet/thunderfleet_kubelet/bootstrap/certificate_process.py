"""Runs the process that works with keys and certificates."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from thunderfleet_kubelet import oneoff

_WORK = "thunderfleet_kubelet.bootstrap.certificate_work"


class CertificateError(Exception):
    """There is no certificate; the message gives the reason and the fix."""


class BadPair(CertificateError):
    """Key and certificate cannot be read, or do not match."""


@dataclass(frozen=True)
class Facts:
    """Contents of a node's certificate: its ``user``, when it is valid, and the ``addresses`` of a server."""

    user: str
    starts: datetime
    ends: datetime
    addresses: tuple[str, ...]


def new_request(node: str, addresses: Sequence[str] = ()) -> tuple[bytes, bytes]:
    """A new key and its signing request (both PEM), for a server with ``addresses`` or for a client."""
    made = oneoff.done(_WORK, {"work": "request", "node": node, "addresses": list(addresses)})
    return made["key"].encode(), made["request"].encode()


# Enough for both certificates and some successors of each.
@lru_cache(maxsize=16)
def facts(key: bytes, certificate: bytes) -> Facts:
    """The contents of the first certificate (PEM). Raises BadPair."""
    said = oneoff.done(_WORK, {"work": "says", "key": key.decode("latin-1"), "certificate": certificate.decode("latin-1")})
    if "problem" in said:
        raise BadPair(said["problem"])
    starts, ends = (datetime.fromtimestamp(said[name], UTC) for name in ("starts", "ends"))
    return Facts(said["user"], starts, ends, tuple(said["addresses"]))


def ends(certificates: Sequence[str]) -> list[float | str]:
    """When each certificate (PEM) expires, in seconds since the Unix epoch, or why that cannot be read."""
    found: list[float | str] = oneoff.done(_WORK, {"work": "ends", "certificates": list(certificates)})["ends"]
    return found
