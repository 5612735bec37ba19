"""How good a placement is: a score whose parts are compared in order; less is better.

Keeping a healthy group where it is comes before any score. Then:

1. ``transport``: a single Mac, then JACCL mesh, JACCL ring, TCP ring on cables, TCP ring with hops over a LAN;
2. ``macs``: the number of Macs;
3. ``split``: the split that suits the transport (Tensor over JACCL, Pipeline over TCP), then the other;
4. ``shared``: Macs and cables that another group uses too;
5. ``speed``: the slowest hop, as measured in the slower direction, or else what a cable of its negotiated speed typically
   carries; faster is better;
6. ``bandwidth``: the slowest measured memory among its Macs, which bounds decoding; faster is better, and a group with an
   unmeasured Mac comes last;
7. ``spread``: the difference between the most and the least free memory of its Macs, so that similar Macs work together;
8. ``room``: the free memory of its Macs in sum, so that big Macs stay free for big models.

Rates are compared in buckets because two measurements are never equal (see ``buckets``). Free memory, then the bytes of the
model that would have to be fetched, then names decide between equal scores, so equal inputs give equal outputs.
"""

from dataclasses import dataclass, field

from thunderfleet_operator.placement.rating.preferences import LABELS, LAN_RING, RANKING
from thunderfleet_operator.placement.units import gbits, gib, gigabytes

PARTS = {
    "transport": "transport",
    "macs": "macs",
    "split": "split",
    "shared": "shared",
    "speed": "neg_speed",
    "bandwidth": "neg_bandwidth",
    "spread": "spread_bytes",
    "room": "room_bytes",
}
"""Display name and field of each part, in the order of comparison."""

ABOUT = {
    "transport": "how the ranks communicate",
    "macs": "fewer is better",
    "split": "whether the split suits the transport",
    "shared": "Macs and cables that other groups use too; fewer is better",
    "speed": "slowest hop; faster is better",
    "bandwidth": "slowest memory of its Macs; faster is better",
    "spread": "difference of free memory among its Macs; less is better",
    "room": "free memory of its Macs; less is better, so that large Macs stay free",
}
"""What each part counts, and what is better."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """The parts of a score; less is better in each."""

    transport: int
    macs: int
    split: int
    shared: int
    neg_speed: int
    """Bucket of the slowest hop in Mb/s, negated."""
    neg_bandwidth: int
    """Bucket of the slowest memory in MB/s, negated; 0 if one is not measured."""
    spread_bytes: int
    room_bytes: int
    speed_mbps: int = field(default=0, compare=False)
    """Exact speed of the slowest hop."""
    unmeasured: int = field(default=0, compare=False)
    """Number of hops whose speed is expected rather than measured."""
    memory_bandwidth: int = field(default=0, compare=False)
    """Exact bandwidth of the slowest memory in MB/s."""

    @property
    def speed(self) -> str:
        """The speed of the slowest hop for people, and how it is known."""
        if self.transport == 0:
            return "none needed"
        speed = gbits(self.speed_mbps) if self.speed_mbps else "unknown"
        if not self.unmeasured:
            return f"{speed}, measured"
        return f"{speed} (expected; hops not measured: {self.unmeasured})"

    def texts(self) -> dict[str, str]:
        """Each part for people, in the order of comparison."""
        alone = self.transport == 0
        return {
            "transport": "TCP ring over a LAN" if self.transport == LAN_RING else LABELS[RANKING[self.transport]],
            "macs": str(self.macs),
            "split": "whole" if alone else "preferred" if self.split == 0 else "fallback",
            "shared": f"{self.shared} in use by others",
            "speed": self.speed,
            "bandwidth": gigabytes(self.memory_bandwidth) if self.neg_bandwidth else "not measured",
            "spread": gib(self.spread_bytes),
            "room": gib(self.room_bytes),
        }

    def why_worse(self, winner: "Score") -> str:
        """The first part in which this score loses."""
        sentences = {
            "transport": "{mine} instead of {theirs}",
            "macs": "needs {mine} Macs instead of {theirs}",
            "split": "uses the split that is less suitable for this transport",
            "shared": "shares {self.shared} Macs and cables with other groups instead of {winner.shared}",
            "speed": "slowest hop {mine} instead of {theirs}",
            "bandwidth": "slowest memory {mine} instead of {theirs}",
            "spread": "free memory of its Macs differs by {mine} instead of {theirs}",
            "room": "uses Macs with more free memory: {mine} instead of {theirs}",
        }
        mine, theirs = self.texts(), winner.texts()
        for part, field_name in PARTS.items():
            if getattr(self, field_name) != getattr(winner, field_name):
                return sentences[part].format(mine=mine[part], theirs=theirs[part], self=self, winner=winner)
        return "equal score; the order of the Macs by free memory, files to fetch, then name, decides"
