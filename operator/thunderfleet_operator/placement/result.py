"""The planner's answer: a placement and why it was chosen, or why there is none."""

from dataclasses import dataclass

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport

from thunderfleet_operator.placement.rating.score import Score
from thunderfleet_operator.placement.rating.speed import Speed


@dataclass(frozen=True, slots=True)
class Relay:
    """A ring's hop into a rank, carried by the supervisors.

    The supervisor of the previous rank dials this rank's at ``address``. When the hop is ``backwards``, this rank's supervisor
    dials the previous one's at ``address`` instead.
    """

    address: str
    backwards: bool


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One rank on one Mac."""

    rank: int
    node: str
    address: str
    memory_bytes: int
    layers: tuple[int, int] | None = None
    """First (included) and last (excluded) layer of a pipeline's rank."""
    ring_address: str | None = None
    """In a TCP ring: where the previous rank dials this one, unless the hop is relayed."""
    relay: Relay | None = None
    devices: tuple[str | None, ...] = ()
    """Over JACCL, by rank: the local RDMA device that faces it; None for itself and for ranks without a cable."""
    coordinator: str | None = None
    """Where this rank reaches rank 0; None for rank 0."""


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A possible placement with a worse score."""

    nodes: tuple[str, ...]
    transport: PlacedTransport
    split: PlacedSplit
    why: str
    predicted: Speed | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a group goes and why."""

    model_path: str
    transport: PlacedTransport
    split: PlacedSplit
    ranks: tuple[RankPlacement, ...]
    cables: tuple[str, ...] = ()
    """Names by hop, empty for a hop over a LAN.

    In a ring, hop i leads from rank i to rank i + 1. In a mesh there is one hop per pair: (0, 1), (0, 2), …, (1, 2), …
    """
    speeds: tuple[tuple[int, bool], ...] = ()
    """Mb/s of each hop, and whether it was measured rather than expected."""
    reason: str = ""
    basis: str = ""
    """The criterion by which it was chosen, which begins the reason."""
    score: Score | None = None
    runners_up: tuple[RunnerUp, ...] = ()
    kept: bool = False
    proven: bool = True
    """Whether the search completed, so that no better placement exists."""
    predicted: Speed | None = None
    """None if the rates of a Mac or the weights of the model are not known."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The Macs, by rank."""
        return tuple(rank.node for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class MacReason:
    """Why a Mac takes no rank: the end of a sentence that begins with its name."""

    node: str
    message: str


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that turn a near miss into a placement. All of them are needed."""

    macs: tuple[str, ...] = ()
    """Macs that must be fixed or joined. Their files, software and ports are then like those of the others."""
    free_bytes: tuple[tuple[str, int], ...] = ()
    """What each Mac with too little free memory needs."""
    hops: tuple[tuple[str, str], ...] = ()
    """Pairs of Macs that must be connected as the transport needs it."""
    queue_pairs: tuple[tuple[str, str], ...] = ()
    """Mac and RDMA device with too few free queue pairs."""
    reach: bool = False
    """Whether a rank 0 that all others reach is missing."""

    def __bool__(self) -> bool:
        return bool(self.macs or self.free_bytes or self.hops or self.queue_pairs or self.reach)


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A rejected placement that almost fits, and what it is missing."""

    nodes: tuple[str, ...]
    transport: PlacedTransport
    split: PlacedSplit
    message: str
    missing_bytes: int = 0
    """Missing bytes, summed over its Macs."""
    changes: Changes = Changes()
    """Empty if no change of Macs, memory and cables helps, as when mlx-lm refuses a split."""


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Why there is no placement. ``message`` is short enough for a condition."""

    reason: Reason
    message: str
    macs: tuple[MacReason, ...] = ()
    """Every Mac of the fleet."""
    near_misses: tuple[NearMiss, ...] = ()
    """The best of each transport comes first."""
    proven: bool = True
    """Whether the search completed, so that no placement exists."""
