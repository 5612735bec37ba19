"""What is asked of the planner, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunderfleet_operator.placement.score import Score
from thunderfleet_operator.placement.words import Split, Transport, WantedSplit, WantedTransport


@dataclass(frozen=True, slots=True)
class Toleration:
    """As in a pod; ``key`` None with ``exists`` tolerates everything, ``effect`` None every effect."""

    key: str | None = None
    exists: bool = False
    value: str = ""
    effect: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    context_tokens: int = 32768
    concurrent_requests: int = 4
    cached_tokens: int = 65536
    headroom_percent: int = 10


@dataclass(frozen=True, slots=True)
class Request:
    """One group of one ModelDeployment. Exactly one of ``path`` and ``repository`` is set.

    ``current`` is where the group is now, rank by rank: kept if it still fits. ``avoid`` maps a Mac to the sentence why
    this group is not to go there, ``no_ring_ports`` one that has no ports for a ring: it is in no TCP ring, and not rank 0 over
    JACCL.
    """

    path: str | None = None
    repository: str | None = None
    revision: str = "main"
    min_nodes: int = 1
    max_nodes: int | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    split: WantedSplit = WantedSplit.AUTO
    transport: WantedTransport = WantedTransport.AUTO
    memory: MemoryRequest = MemoryRequest()
    current: tuple[str, ...] = ()
    avoid: Mapping[str, str] = field(default_factory=dict)
    no_ring_ports: Mapping[str, str] = field(default_factory=dict)
    ring_without_relay: bool = False
    """Whether ring traffic may cross a LAN as it is, rather than between supervisors."""

    @property
    def model(self) -> str:
        return self.path or self.repository or ""


@dataclass(frozen=True, slots=True)
class Relay:
    """The hop into a rank, carried by supervisors. ``address`` is where the one of the rank before dials the other, or, when it
    goes ``backwards``, is dialled by it.
    """

    address: str
    backwards: bool


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One rank. ``layers`` (first included, last excluded) in a pipeline; ``ring_address`` in a ring: where the rank before
    this one dials it, or ``relay`` where the supervisors carry that hop; ``devices`` over JACCL: the RDMA device that faces
    each rank, None for itself and for ranks that it has no cable to in a JACCL ring; ``coordinator``: where this rank reaches
    rank 0, None for rank 0.
    """

    rank: int
    node: str
    address: str
    memory_bytes: int
    layers: tuple[int, int] | None = None
    ring_address: str | None = None
    relay: Relay | None = None
    devices: tuple[str | None, ...] = ()
    coordinator: str | None = None


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A place that was possible and lost."""

    nodes: tuple[str, ...]
    transport: Transport
    split: Split
    why: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a group goes and why. ``cables`` join ranks: of a ring, hop i → i+1 runs over ``cables[i]`` (empty for a hop over
    a LAN); of a mesh, one a pair, in the order (0, 1), (0, 2), …, (1, 2), …
    """

    model_path: str
    transport: Transport
    split: Split
    ranks: tuple[RankPlacement, ...]
    cables: tuple[str, ...] = ()
    speeds: tuple[tuple[int, bool], ...] = ()
    """Of ``cables``: Mbit/s, and whether that was measured; else it is what was negotiated."""
    reason: str = ""
    score: Score | None = None
    runners_up: tuple[RunnerUp, ...] = ()
    kept: bool = False
    proven: bool = True
    """Whether the search ended before its limit: nothing better was left out."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(rank.node for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Lack:
    """A Mac that cannot take a rank, and what it lacks."""

    node: str
    message: str


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A way that nearly worked, and what it lacks: the best of its transport stands first."""

    nodes: tuple[str, ...]
    transport: Transport
    split: Split
    message: str
    missing_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Why there is no placement. ``reason`` is one CamelCase word, ``message`` a text short enough to read."""

    reason: str
    message: str
    lacks: tuple[Lack, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    proven: bool = True
