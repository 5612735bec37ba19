"""The fleet as the planner sees it: one immutable value, taken at one moment.

Only what a decision needs stands here. Sizes are bytes, speeds Mbit/s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a Node; ``effect`` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class KVLayer:
    """What one layer's cache takes. ``window_tokens`` None: every token is kept."""

    fixed_bytes: int = 0
    bytes_per_token: int = 0
    window_tokens: int | None = None
    tensor_split: bool = False


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Tensor parallelism over one world size: bytes of weights per rank, or why mlx-lm refuses it."""

    world_size: int
    bytes_per_rank: tuple[int, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model on one Mac's disk, and what it needs. ``sized`` is False while the figures are not known."""

    path: str
    repository: str | None = None
    revision: str | None = None
    bytes: int = 0
    complete: bool = True
    problem: str | None = None
    sized: bool = True
    tensor: tuple[TensorFacts, ...] = ()
    layer_bytes: tuple[int, ...] = ()
    shared_bytes: int = 0
    pipeline_refusal: str | None = None
    kv: tuple[KVLayer, ...] = ()
    prefill_bytes: int = 0

    def tensor_size(self, world_size: int) -> TensorFacts | None:
        return next((size for size in self.tensor if size.world_size == world_size), None)


@dataclass(frozen=True, slots=True)
class Mac:
    """One Mac. ``free_bytes`` is what a new rank may reserve there (allocatable less what is requested)."""

    name: str
    address: str | None
    free_bytes: int
    allocatable_bytes: int = 0
    ready: bool = True
    schedulable: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    backends: frozenset[str] = frozenset({"ring"})
    mlx_version: str | None = None
    profiled: bool = True
    """Whether its agent has published a NodeProfile."""
    models: tuple[ModelFacts, ...] = ()
    in_use: bool = False
    """Whether another group has a rank there."""
    quarantine: str | None = None
    reached: frozenset[str] = frozenset()
    """Names of the Macs whose own address this Mac has dialled."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of a cable; no address yet: None."""

    node: str
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Cable:
    """One Thunderbolt cable, the same in both directions. ``connected``: at least one end sees the other."""

    name: str
    a: End
    b: End
    speed_mbps: int = 0
    connected: bool = True

    def end(self, node: str) -> End:
        return self.a if self.a.node == node else self.b

    @property
    def usable(self) -> bool:
        """Fit for a ring: it is there, and both ends can be dialled."""
        return self.connected and bool(self.a.address) and bool(self.b.address) and self.a.node != self.b.node


@dataclass(frozen=True, slots=True)
class Fleet:
    macs: tuple[Mac, ...] = ()
    cables: tuple[Cable, ...] = ()
