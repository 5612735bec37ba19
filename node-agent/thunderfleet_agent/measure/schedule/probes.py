"""The probes: what is measured, on what, how long a result is valid, and the limits. Pure.

To add a probe of this Mac alone:

1. Add its kind to ``ProbeKind`` and ``NEEDS``, and a field with the name of the kind to ``settings``, to ``agent.measure`` of
   the chart's ``values.yaml`` and to ``values.schema.json``.
2. Add its figure to ``figures`` (not one of another probe: metrics are named after figures; ``moved`` decides when a new value
   is published) and to the agent's ``metrics``.
3. Add a module for the measurement to ``worker``, and list it in ``worker.child``. ``prober`` needs no change.
4. Add a field to ``Benchmarks`` of the NodeProfile, which ``published`` writes and reads back.
5. Add the kind to the choices of ``measure`` in ``cli``, and its unit to ``measure_cli``.

``tests/unit/agent/measure/test_measure_due.py`` and ``tests/unit/chart`` fail while one of these is missing. A probe of
two Macs also needs a module in ``session``, and is started in ``prober`` and admitted in ``admission``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from thunderfleet_agent.measure.schedule.settings import Device, MeasureSettings

ECHO_SECONDS = 1.0
SETUP_SECONDS = 5.0
# Time for a pair of processes to form a group and to end, in addition to the measurement.
FORM_SECONDS = 20.0


class ProbeKind(StrEnum):
    """The kind of a probe."""

    GPU = "gpu"
    MEMORY = "memory"
    SOCKET = "socket"
    RDMA = "rdma"


class Need(StrEnum):
    """What a probe uses while it runs, and what therefore must be free."""

    GPU = "GPU"
    LINK = "link"
    PEER = "peer"


NEEDS: Final[Mapping[ProbeKind, frozenset[Need]]] = {
    ProbeKind.GPU: frozenset({Need.GPU}),
    ProbeKind.MEMORY: frozenset({Need.GPU}),
    ProbeKind.SOCKET: frozenset({Need.PEER}),
    # A rank keeps a core busy and wires memory.
    ProbeKind.RDMA: frozenset({Need.PEER, Need.GPU}),
}

LOCAL: Final = tuple(kind for kind in ProbeKind if Need.PEER not in NEEDS[kind])
"""The probes of this Mac alone."""


@dataclass(frozen=True, order=True)
class Target:
    """This Mac alone (all empty), an address of a node, or a cable to a node."""

    node: str = ""
    address: str = ""
    link: str = ""

    def __str__(self) -> str:
        if not self.node:
            return "this Mac"
        return f"{self.node} at {self.address}" if self.address else f"{self.node} over {self.link}"


@dataclass(frozen=True)
class CableEnd:
    """One end of a cable: its RDMA device and its IPv4 address, each empty if it has none."""

    device: str = ""
    address: str = ""


@dataclass(frozen=True, order=True)
class Key:
    """Identifies a probe and its result; two addresses of one peer are two probes."""

    kind: ProbeKind
    target: Target = Target()

    def __str__(self) -> str:
        return f"{self.kind}: {self.target}" if self.target.node else str(self.kind)


@dataclass(frozen=True)
class Probe:
    """One probe: its result is valid for ``ttl`` seconds; it takes at most ``seconds`` and moves at most ``bytes``."""

    key: Key
    ttl: float
    seconds: float
    bytes: int = 0

    @property
    def kind(self) -> ProbeKind:
        return self.key.kind

    @property
    def target(self) -> Target:
        return self.key.target

    @property
    def shared_bytes(self) -> int:
        """The bytes that count against the budget of the shared network; a cable is not shared."""
        return 0 if self.target.link else self.bytes

    @property
    def needs(self) -> frozenset[Need]:
        """What must be free while the probe runs; the cable of its target too."""
        return NEEDS[self.kind] | ({Need.LINK} if self.target.link else set())


def local_settings(settings: MeasureSettings, kind: ProbeKind) -> Device:
    """The settings of a probe of this Mac alone: the field with the name of the kind."""
    found = getattr(settings, kind.value)
    assert isinstance(found, Device)
    return found


def local_probes(settings: MeasureSettings) -> tuple[Probe, ...]:
    """The probes of this Mac alone that are enabled."""
    devices = ((kind, local_settings(settings, kind)) for kind in LOCAL)
    return tuple(Probe(Key(kind), each.every_seconds, each.seconds) for kind, each in devices if each.enabled)


def socket_probe(settings: MeasureSettings, target: Target) -> Probe:
    """Round trip and throughput both ways between this Mac and an address."""
    chosen = settings.sockets
    each = chosen.cable_bytes if target.link else chosen.bytes
    seconds = SETUP_SECONDS + ECHO_SECONDS + 2 * (chosen.seconds + 3.0)
    return Probe(Key(ProbeKind.SOCKET, target), chosen.every_seconds, seconds, 2 * each)


def rdma_probe(settings: MeasureSettings, target: Target) -> Probe:
    """A group of two ranks over a cable."""
    chosen = settings.rdma
    return Probe(Key(ProbeKind.RDMA, target), chosen.every_seconds, chosen.seconds + FORM_SECONDS, 2 * chosen.bytes)
