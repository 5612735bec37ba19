"""What a model needs, as the agent of one Mac has published it. Sizes are bytes."""

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

T = TypeVar("T")


class Share(Protocol):
    """Returns an equal value: the same object for all equal values."""

    def __call__(self, value: T, /) -> T: ...


@dataclass(frozen=True, slots=True)
class KVLayer:
    """The KV cache of one layer. ``window_tokens`` None: it keeps every token."""

    fixed_bytes: int = 0
    bytes_per_token: int = 0
    window_tokens: int | None = None
    tensor_split: bool = False
    """Whether tensor parallelism divides this cache among the ranks."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Tensor parallelism over one world size: bytes of weights per rank, or why mlx-lm refuses it."""

    world_size: int
    bytes_per_rank: tuple[int, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model on one Mac's disk. ``sized`` is False until the agent has computed the figures."""

    path: str
    repository: str | None = None
    revision: str | None = None
    bytes: int = 0
    complete: bool = True
    problem: str | None = None
    unsupported: str | None = None
    """Why the mlx-lm of its Mac cannot run it, if that is known."""
    sized: bool = True
    tensor: tuple[TensorFacts, ...] = ()
    layer_bytes: tuple[int, ...] = ()
    shared_bytes: int = 0
    """Bytes that every rank of a pipeline holds in addition to its layers."""
    pipeline_refusal: str | None = None
    kv: tuple[KVLayer, ...] = ()
    active_bytes: int = 0
    """Bytes of weights that are read for one token; 0 if not known."""
    mixture: bool = False
    """Whether it is a mixture of experts."""
    bits: int | None = None
    """Bits per quantized weight; None if weights are not quantized."""
    prefill_bytes: int = 0
    """Workspace of one prefill step at the start of a sequence."""
    prefill_bytes_per_token: int = 0
    """Additional workspace per token of context."""

    @property
    def usable(self) -> bool:
        """Whether a rank can be placed with it."""
        return self.complete and self.sized and self.unsupported is None

    def __hash__(self) -> int:
        """Leaves out the caches of hundreds of layers, which take long to hash: thousands of Macs may have different files."""
        return hash((self.path, self.revision, self.bytes, self.active_bytes, self.layer_bytes, self.shared_bytes))

    def sharing(self, share: Share) -> "ModelFacts":
        """The same model with the large values that ``share`` returns, so that copies in other folders share them in memory."""
        tensor, layers, kv = share(self.tensor), share(self.layer_bytes), share(self.kv)
        return replace(self, tensor=tensor, layer_bytes=layers, kv=kv)
