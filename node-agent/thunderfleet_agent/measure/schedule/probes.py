"""What there is to measure: every probe says what, on whom, fresh for how long, and bounded by what. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from thunderfleet_crds.vocabulary import MeasurementTransport

from thunderfleet_agent.measure.schedule.settings import Settings

ECHO_SECONDS = 1.0
SETUP_SECONDS = 5.0
# What a pair of processes may take to form and to end, beside measuring.
FORM_SECONDS = 20.0


class Kind(StrEnum):
    """What is measured."""

    GPU = "gpu"
    MEMORY = "memory"
    SOCKET = "socket"
    RDMA = "rdma"


class Need(StrEnum):
    """What a probe occupies while it runs, and so what must be free."""

    GPU = "GPU"
    LINK = "link"
    PEER = "peer"


@dataclass(frozen=True, order=True)
class Target:
    """On whom: nobody else (all empty), an address of a node, or a cable to a node."""

    node: str = ""
    address: str = ""
    link: str = ""

    def __str__(self) -> str:
        if not self.node:
            return "this Mac"
        return f"{self.node} at {self.address}" if self.address else f"{self.node} over {self.link}"


@dataclass(frozen=True, order=True)
class Key:
    """What a result is of: two addresses of one pair are two results."""

    kind: Kind
    target: Target = Target()

    def __str__(self) -> str:
        return f"{self.kind}: {self.target}" if self.target.node else str(self.kind)


@dataclass(frozen=True)
class Probe:
    """One thing to measure: fresh for ``ttl`` seconds, over after ``seconds``, moving at most ``bytes`` between Macs."""

    key: Key
    ttl: float
    seconds: float
    bytes: int = 0

    @property
    def kind(self) -> Kind:
        return self.key.kind

    @property
    def target(self) -> Target:
        return self.key.target

    @property
    def shared_bytes(self) -> int:
        """Those that others pay for too. A cable is nobody else's: what runs there is bounded by itself."""
        return 0 if self.target.link else self.bytes

    @property
    def needs(self) -> frozenset[Need]:
        """RDMA counts as a use of the GPU: a rank spins a core and wires memory wherever its cable leads."""
        if self.kind in (Kind.GPU, Kind.MEMORY):
            return frozenset({Need.GPU})
        needs = {Need.PEER}
        if self.target.link:
            needs.add(Need.LINK)
        if self.kind is Kind.RDMA:
            needs.add(Need.GPU)
        return frozenset(needs)


def own(settings: Settings) -> tuple[Probe, ...]:
    """Those of this Mac alone."""
    devices = ((Kind.GPU, settings.gpu), (Kind.MEMORY, settings.memory))
    return tuple(Probe(Key(kind), each.every_seconds, each.seconds) for kind, each in devices if each.enabled)


def socket(settings: Settings, target: Target) -> Probe:
    """Echoes and throughput both ways between this Mac and an address."""
    chosen = settings.sockets
    each = chosen.cable_bytes if target.link else chosen.bytes
    seconds = SETUP_SECONDS + ECHO_SECONDS + 2 * (chosen.seconds + 3.0)
    return Probe(Key(Kind.SOCKET, target), chosen.every_seconds, seconds, 2 * each)


def rdma(settings: Settings, target: Target) -> Probe:
    """A two-rank group over a cable."""
    chosen = settings.rdma
    return Probe(Key(Kind.RDMA, target), chosen.every_seconds, chosen.seconds + FORM_SECONDS, 2 * chosen.bytes)


def transport(settings: Settings, kind: Kind) -> MeasurementTransport:
    """How a result of this kind is published."""
    return settings.rdma.transport if kind is Kind.RDMA else MeasurementTransport.SOCKET
