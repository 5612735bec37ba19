"""One round for the certificate requests of a Node's kubelet. ``thunderfleet_lib.csr.rules`` has the rules."""

from dataclasses import dataclass

from thunderfleet_lib.csr.rules import WAIT_SECONDS, Surroundings, Verdict, decide_serving
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.observe.objects.requests import ObservedRequests, ReadRequest, SentRequest

RECHECK_SECONDS = 5.0
"""Interval at which a waiting request is decided again: it may wait for a change of another Node."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The verdict on one request; never ``Wait``."""

    request: SentRequest
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CertificatesDecision:
    """What to do about the requests of one Node."""

    rulings: tuple[Ruling, ...] = ()
    recheck_seconds: float | None = None


def decide(observed: ObservedRequests) -> CertificatesDecision:
    """The verdicts on the requests of this round."""
    verdicts = [(read.sent, _verdict(observed, read)) for read in observed.requests]
    rulings = tuple(Ruling(sent, verdict) for sent, verdict in verdicts if verdict.action != "Wait")
    if observed.left and rulings:
        return CertificatesDecision(rulings, 0.0)
    waits = [
        min(RECHECK_SECONDS, max(0.1, WAIT_SECONDS - age_seconds(sent.created, observed.now)))
        for sent, verdict in verdicts
        if verdict.action == "Wait"
    ]
    return CertificatesDecision(rulings, min(waits, default=None))


def _verdict(observed: ObservedRequests, read: ReadRequest) -> Verdict:
    if isinstance(read.content, str):
        return Verdict(action="Deny", reason=read.content)
    node = observed.node
    others = {
        address: next(iter(names))
        for address in read.content.addresses
        if (names := [name for name in observed.addresses.get(address, ()) if name != node.name])
    }
    around = Surroundings(node.addresses, others, frozenset() if node.control_plane else observed.api_server)
    return decide_serving(read.content, around, age_seconds(read.sent.created, observed.now))
