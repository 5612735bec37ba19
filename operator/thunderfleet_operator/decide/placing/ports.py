"""The allocation of ports. Pods share their Mac's network, so a port is a resource like memory.

The ports in use are read from pods and plans, so an operator that restarts finds them.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from thunderfleet_operator.observe.objects.pods import RankPorts


@dataclass(frozen=True, slots=True)
class PortRange:
    """A range of ports, both ends included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """Reads ``20000-20999``. Raises ``ValueError`` that names what is allowed."""
        first, _, last = text.partition("-")
        try:
            found = cls(int(first), int(last))
        except ValueError:
            raise ValueError(f"a port range is written FIRST-LAST, such as 20000-20999, not {text!r}") from None
        if not 1024 <= found.first <= found.last <= 65535:
            raise ValueError(f"a port range must be ascending and within 1024-65535, not {text!r}")
        return found


@dataclass(frozen=True, slots=True)
class PortSettings:
    """The ports that runner pods may use."""

    lasting: PortRange = PortRange(20000, 20999)
    """Gateway and control ports."""
    ring: PortRange = PortRange(21000, 29999)
    """Blocks of ring ports: two ports for each attempt."""


class NoPortsLeft(Exception):
    """A Mac has no free port. ``lack`` is the rest of a sentence that begins with the Mac's name."""

    def __init__(self, node: str, lack: str) -> None:
        super().__init__(f"{node} {lack}")
        self.node = node
        self.lack = lack


def _lowest(settings: PortRange, taken: AbstractSet[int], node: str, what: str) -> int:
    for port in range(settings.first, settings.last + 1):
        if port not in taken:
            return port
    remedy = "widen the chart's value operator.ports"
    raise NoPortsLeft(node, f"has no {what} port left in {settings.first}-{settings.last} ({remedy})")


def _gateway(settings: PortRange, taken: AbstractSet[int], node: str, wanted: int | None, before: RankPorts | None) -> int:
    if wanted is not None and wanted in taken:
        raise NoPortsLeft(node, f"has port {wanted} in use already (unset spec.server.port, or set a free one)")
    if wanted is not None:
        return wanted
    if before and before.gateway not in taken and settings.first <= before.gateway <= settings.last:
        return before.gateway
    return _lowest(settings, taken, node, "gateway")


def _block(settings: PortRange, taken: AbstractSet[int], node: str, size: int) -> tuple[int, ...]:
    first = settings.first
    while first + size - 1 <= settings.last:
        clash = next((port for port in range(first + size - 1, first - 1, -1) if port in taken), None)
        if clash is None:
            return tuple(range(first, first + size))
        first = clash + 1
    remedy = "widen the chart's value operator.ringPorts, or lower spec.bootstrap.attempts"
    raise NoPortsLeft(node, f"has no block of {size} free ports in {settings.first}-{settings.last} ({remedy})")


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
    """Ports for each rank, in the order of ``nodes``. Raises ``NoPortsLeft``.

    ``taken``: by Mac, the ports that others hold. ``ring_size``: size of each block of ring ports, 0 for none.
    ``ring_ranks``: how many ranks, from rank 0 on, get a block; None for all. ``gateway``: the port that the spec sets.
    ``kept``: by Mac, the ports of the group's last placement, reused where they are free so that its endpoint stays the same.
    """
    result: list[RankPorts] = []
    given: dict[str, set[int]] = {}
    for rank, node in enumerate(nodes):
        used = set(taken.get(node, frozenset())) | given.setdefault(node, set())
        before = (kept or {}).get(node)
        public = _gateway(settings.lasting, used, node, gateway, before)
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
