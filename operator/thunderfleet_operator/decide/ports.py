"""Ports, given out: pods share their Mac's network, so a port is a resource like memory. Pure.

What pods declare is the source of truth: after a restart the ports in use are read off the pods, nothing is remembered.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from thunderfleet_operator.observe.snapshot import RankPorts


@dataclass(frozen=True, slots=True)
class PortRange:
    """Both ends included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """``20000-20999``. Raises ``ValueError`` with a sentence."""
        first, _, last = text.partition("-")
        try:
            found = cls(int(first), int(last))
        except ValueError:
            raise ValueError(f"a range of ports is written FIRST-LAST, such as 20000-20999, not {text!r}") from None
        if not 1024 <= found.first <= found.last <= 65535:
            raise ValueError(f"a range of ports lies in 1024-65535 and does not run backwards, not {text!r}")
        return found


@dataclass(frozen=True, slots=True)
class PortSettings:
    lasting: PortRange = PortRange(20000, 20999)
    """Gateway and control ports."""
    ring: PortRange = PortRange(21000, 29999)
    """Blocks of ring ports, a port an attempt and as many again."""


class NoPortsLeft(Exception):
    """A Mac has no port left; ``lack`` is the end of a sentence that begins with its name."""

    def __init__(self, node: str, lack: str) -> None:
        super().__init__(f"{node} {lack}")
        self.node = node
        self.lack = lack


def _lowest(settings: PortRange, taken: AbstractSet[int], node: str, what: str) -> int:
    for port in range(settings.first, settings.last + 1):
        if port not in taken:
            return port
    raise NoPortsLeft(node, f"has no {what} port left in {settings.first}-{settings.last}")


def _block(settings: PortRange, taken: AbstractSet[int], node: str, size: int) -> tuple[int, ...]:
    first = settings.first
    while first + size - 1 <= settings.last:
        clash = next((port for port in range(first + size - 1, first - 1, -1) if port in taken), None)
        if clash is None:
            return tuple(range(first, first + size))
        first = clash + 1
    raise NoPortsLeft(node, f"has no block of {size} ring ports left in {settings.first}-{settings.last}")


def allocate(
    settings: PortSettings,
    nodes: Sequence[str],
    taken: Mapping[str, AbstractSet[int]],
    *,
    ring_size: int,
    ring_ranks: int | None = None,
    gateway: int | None = None,
    kept: Mapping[str, RankPorts] | None = None,
) -> tuple[RankPorts, ...]:
    """Ports for each rank, in the order of ``nodes``.

    ``taken``: per Mac what others hold. ``kept``: per Mac what this group held in its last epoch; kept where it is free, so
    that an endpoint stays what it was. ``gateway``: the port that the deployment asks for. ``ring_size`` 0: no ring;
    ``ring_ranks``: only so many ranks, from rank 0 on, get a block.
    Raises ``NoPortsLeft``.
    """
    result: list[RankPorts] = []
    given: dict[str, set[int]] = {}
    for rank, node in enumerate(nodes):
        used = set(taken.get(node, frozenset())) | given.setdefault(node, set())
        before = (kept or {}).get(node)
        if gateway is not None:
            if gateway in used:
                raise NoPortsLeft(node, f"has port {gateway}, which server.port asks for, taken by another pod")
            public = gateway
        elif before and before.gateway not in used and settings.lasting.first <= before.gateway <= settings.lasting.last:
            public = before.gateway
        else:
            public = _lowest(settings.lasting, used, node, "gateway")
        used.add(public)
        kept_control = before is not None and before.control not in used
        control = before.control if before and kept_control else _lowest(settings.lasting, used, node, "control")
        used.add(control)
        ring: tuple[int, ...] = ()
        if ring_size and (ring_ranks is None or rank < ring_ranks):
            if before and len(before.ring) == ring_size and not used.intersection(before.ring):
                ring = before.ring
            else:
                ring = _block(settings.ring, used, node, ring_size)
        ports = RankPorts(public, control, ring)
        given[node] |= ports.all
        result.append(ports)
    return tuple(result)
