"""What is asked of the planner, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class WantedSplit(StrEnum):
    AUTO = "Auto"
    TENSOR = "Tensor"
    PIPELINE = "Pipeline"


class WantedTransport(StrEnum):
    AUTO = "Auto"
    JACCL = "JACCL"
    JACCL_RING = "JACCLRing"
    RING = "Ring"


class Split(StrEnum):
    NONE = "None"
    TENSOR = "Tensor"
    PIPELINE = "Pipeline"


class Transport(StrEnum):
    NONE = "None"
    RING = "Ring"
    JACCL = "JACCL"
    JACCL_RING = "JACCLRing"


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
    this group is not to go there."""

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

    @property
    def model(self) -> str:
        return self.path or self.repository or ""


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One rank. ``layers`` (first included, last excluded) in a pipeline; ``ring_address`` in a ring."""

    rank: int
    node: str
    address: str
    memory_bytes: int
    layers: tuple[int, int] | None = None
    ring_address: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a group goes and why. The ring's hop i → i+1 runs over ``cables[i]``."""

    model_path: str
    transport: Transport
    split: Split
    ranks: tuple[RankPlacement, ...]
    cables: tuple[str, ...] = ()
    reason: str = ""

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
    """A set of Macs that nearly did."""

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
