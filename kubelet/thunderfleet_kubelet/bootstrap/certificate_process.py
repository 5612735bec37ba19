"""Runs the process that works with keys and certificates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from thunderfleet_kubelet import oneoff
from thunderfleet_kubelet.answers import Answers

WORK = "thunderfleet_kubelet.bootstrap.certificate_work"
_KEPT = 16
"""Enough for both certificates and some successors of each."""
_Pair = tuple[bytes, bytes]
_FACTS = {"user", "starts", "ends", "addresses"}
_known: dict[_Pair, dict[str, Any]] = {}


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
    made = oneoff.done(WORK, {"work": "request", "node": node, "addresses": list(addresses)})
    return made["key"].encode(), made["request"].encode()


def read(pairs: Sequence[_Pair], answers: Answers | None = None) -> list[dict[str, Any]]:
    """What certificates say, or a ``problem``. One process reads all pairs (of key and certificate, PEM) that are new.

    ``answers``: those of earlier starts, which get all pairs.
    """
    known = {pair: _known[pair] for pair in pairs if pair in _known and answers is None}
    if new := [pair for pair in pairs if pair not in known]:
        asked = _order(new)
        said = answers.done(WORK, asked, _facts_of) if answers is not None else _facts_of(oneoff.done(WORK, asked))
        known |= zip(new, said, strict=True)
        _known.update(known)
    for old in list(_known)[:-_KEPT]:
        _known.pop(old, None)
    return [known[pair] for pair in pairs]


def keep(pairs: Sequence[_Pair], answers: Answers) -> None:
    """Keeps what these pairs say for the next start, which will read the same ones, in this order."""
    answers.replace(WORK, _order(pairs), {"say": read(pairs)})
    answers.save()


def _order(pairs: Sequence[_Pair]) -> dict[str, Any]:
    return {"work": "say", "pairs": [[part.decode("latin-1") for part in pair] for pair in pairs]}


def _facts_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = answer["say"]
    if not all("problem" in one or one.keys() >= _FACTS for one in said):
        raise KeyError("a certificate's contents are incomplete")
    return said


def facts(key: bytes, certificate: bytes) -> Facts:
    """The contents of the first certificate (PEM). Raises BadPair."""
    (said,) = read([(key, certificate)])
    if "problem" in said:
        raise BadPair(said["problem"])
    starts, ends = (datetime.fromtimestamp(said[name], UTC) for name in ("starts", "ends"))
    return Facts(said["user"], starts, ends, tuple(said["addresses"]))


def ends(certificates: Sequence[str]) -> list[float | str]:
    """When each certificate (PEM) expires, in seconds since the Unix epoch, or why that cannot be read."""
    found: list[float | str] = oneoff.done(WORK, {"work": "ends", "certificates": list(certificates)})["ends"]
    return found
