"""How good a place is: one score, whose parts are compared in order, each the less the better.

Keeping a healthy place comes before any score. Then:

1. ``transport``: nothing to carry on one Mac, then JACCL mesh, JACCL ring, TCP ring on cables, TCP ring with hops over a LAN;
2. ``macs``: the fewest that fit;
3. ``split``: what fits the transport best (Tensor over JACCL, Pipeline over TCP), else the other;
4. ``shared``: Macs and cables that another group uses too;
5. ``speed``: the slowest hop, as measured the worse way, else as negotiated; the higher the better, in steps of an eighth;
6. ``bandwidth``: the slowest memory among its Macs, as measured, which decoding waits for; the higher the better, in steps of
   a quarter; a Mac that has not been measured comes after all that have;
7. ``spread``: most less least free memory among its Macs: like Macs are used evenly;
8. ``room``: free memory of its Macs together: big Macs stay free for big models.

Steps, since two measurements of one thing never agree: else noise would decide, and memory never. Equal scores are decided
by free memory and names, so that equal inputs give equal outputs. Only Macs that hold the weights on their disks are
considered (nothing here downloads them), so weights to fetch are no part of it.
"""

from dataclasses import dataclass, field

from thunderfleet_operator.placement.units import gbits, gib, gigabytes
from thunderfleet_operator.placement.words import Transport

RANKING = (Transport.NONE, Transport.JACCL, Transport.JACCL_RING, Transport.RING)
LAN_RING = len(RANKING)
"""After all of them: a TCP ring, some hops of which cross a LAN."""
LABELS = {
    Transport.NONE: "one Mac",
    Transport.JACCL: "JACCL mesh",
    Transport.JACCL_RING: "JACCL ring",
    Transport.RING: "TCP ring",
}


PARTS = {
    "transport": "transport",
    "macs": "macs",
    "split": "split",
    "shared": "shared",
    "speed": "slowness",
    "bandwidth": "drag",
    "spread": "spread_bytes",
    "room": "room_bytes",
}
"""The name of each part for people, and of its field, in the order of comparison."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """Less is better, part by part."""

    transport: int
    macs: int
    split: int
    shared: int
    slowness: int
    """The slowest hop in Mbit/s, negative, on its step."""
    drag: int
    """The slowest memory in MB/s, negative, on its step; 0 where one has not been measured."""
    spread_bytes: int
    room_bytes: int
    speed_mbps: int = field(default=0, compare=False)
    """The slowest hop as it is."""
    unmeasured: int = field(default=0, compare=False)
    """Hops whose speed is that which was negotiated, for want of a measurement."""
    memory_megabytes: int = field(default=0, compare=False)
    """The slowest memory as it is, in MB/s."""

    @property
    def speed(self) -> str:
        """The slowest hop for people, and what is known of it."""
        if self.transport == 0:
            return "none needed"
        told = gbits(self.speed_mbps) if self.speed_mbps else "unknown"
        if not self.unmeasured:
            return f"{told}, measured"
        return f"{told} ({self.unmeasured} of its hops not measured: as negotiated)"

    def texts(self) -> dict[str, str]:
        """Each part for people, in the order of comparison."""
        alone = self.transport == 0
        return {
            "transport": "TCP ring over a LAN" if self.transport == LAN_RING else LABELS[RANKING[self.transport]],
            "macs": str(self.macs),
            "split": "whole" if alone else "preferred" if self.split == 0 else "fallback",
            "shared": f"{self.shared} in use by others",
            "speed": self.speed,
            "bandwidth": gigabytes(self.memory_megabytes) if self.drag else "not measured",
            "spread": gib(self.spread_bytes),
            "room": gib(self.room_bytes),
        }

    def why_worse(self, winner: "Score") -> str:
        """The first part in which this one loses."""
        mine, theirs = self.texts(), winner.texts()
        if self.transport != winner.transport:
            return f"{mine['transport']}, the winner: {theirs['transport']}"
        if self.macs != winner.macs:
            return f"takes {self.macs} Macs, the winner {winner.macs}"
        if self.split != winner.split:
            return "can be split only in the way that suits this transport less"
        if self.shared != winner.shared:
            return f"shares {self.shared} Macs and cables with other groups, the winner {winner.shared}"
        if self.slowness != winner.slowness:
            return f"its slowest hop has {mine['speed']}, the winner's {theirs['speed']}"
        if self.drag != winner.drag:
            return f"its slowest memory: {mine['bandwidth']}, the winner's: {theirs['bandwidth']}"
        if self.spread_bytes != winner.spread_bytes:
            return f"its Macs differ by {mine['spread']} of free memory, the winner's by {theirs['spread']}"
        if self.room_bytes != winner.room_bytes:
            return f"takes Macs with {mine['room']} free, the winner's have {theirs['room']}"
        return "equal in every part; the winner comes first by free memory and name"
