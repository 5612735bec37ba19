"""Checks that the layers of a model that is split by tensor parallelism compute the same as whole layers.

If a model fits on no single Mac, its output cannot be compared with that of one Mac. So the group computes one dense layer and
one layer with experts for a few random tokens, and rank 0 computes the same with the whole layer, which it reads from its own
files. There is enough memory, because caches are still empty.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from thunderfleet_runner.rank import mlxlm

TOKENS = 8
ALLOWED = 0.1
"""Allowed relative difference of what a layer adds to a token, as lengths of vectors. Sums in another order differ by about
0.01. The median over the tokens is used, because a token may be routed to another expert if two are about equally suitable."""
ROUNDED = 2.0**-7
"""Allowed difference relative to the token itself, because the sum is rounded."""
MOST_BYTES = 8 << 30
"""A larger layer would take seconds to read."""
_KEY = 20_242


class LayerWrong(RuntimeError):
    """The ranks together compute other values than the whole layer."""


@dataclass(frozen=True)
class Compared:
    """Numbers of the layers that were compared, and why others were not."""

    layers: tuple[int, ...]
    left: str
    seconds: float


def check(model: Any, folder: Path, group: Any, *, room: int, step: Callable[[], None]) -> Compared:
    """Collective. ``room``: bytes that rank 0 may use for a whole layer. Raises LayerWrong on rank 0.

    The ranks must be at about the same step, because each waits for the others within GPU commands. So rank 0 reads whole
    layers only when no rank waits for it any more.
    """
    began = time.monotonic()
    left = ""
    together: dict[int, tuple[Any, Any]] = {}
    for number in chosen(model):
        try:
            together[number] = _computed(mlxlm.layers(model)[number], _width(model))
        except _UNLIKE as error:
            # Every rank gets the same error, because all run the same code.
            left = _unlike(number, error)
        step()
    done = []
    if group.rank() == 0 and together:
        whole = mlxlm.layers(mlxlm.load_lazily(folder)[0])
        for number, (tokens, sums) in together.items():
            problem = _compare(number, whole[number], tokens, sums, min(room, MOST_BYTES))
            if problem:
                left = problem
            else:
                done.append(number)
            # Only one whole layer is in memory at a time.
            whole[number] = None
            step()
    together.clear()
    mx.clear_cache()
    return Compared(tuple(done), left, time.monotonic() - began)


_UNLIKE = (TypeError, ValueError, AttributeError, IndexError)
"""Exceptions of layers with other arguments or other results."""


def _unlike(number: int, error: Exception) -> str:
    return f"layer {number} cannot be computed by itself: {error}"


def _compare(number: int, alone: Any, tokens: Any, together: Any, room: int) -> str:
    """Why the layer was not compared, "" if it was. Raises LayerWrong."""
    size = sum(array.nbytes for _, array in tree_flatten(alone.parameters()))
    if size > room:
        return f"the whole layer {number} of {size / 2**30:.1f} GiB is too large"
    try:
        differs = _difference(tokens, together, alone(tokens, None, None))
    except _UNLIKE as error:
        return _unlike(number, error)
    if not differs <= ALLOWED:
        raise LayerWrong(
            f"layer {number}: what the ranks together add to a token differs by {100 * differs:.0f} % from what the whole "
            "layer adds"
        )
    return ""


def chosen(model: Any) -> list[int]:
    """The first dense layer and the first one with experts."""
    kinds: dict[bool, int] = {}
    for number, layer in enumerate(mlxlm.layers(model)):
        experts = any("Switch" in type(module).__name__ for module in layer.modules())
        kinds.setdefault(experts, number)
    return sorted(kinds.values())


def _width(model: Any) -> tuple[int, Any]:
    """Values of a token between layers, and their type: those of a norm's weight."""
    for name, array in tree_flatten(model.parameters()):
        if array.ndim == 1 and name.endswith("input_layernorm.weight"):
            return int(array.shape[0]), array.dtype
    raise AttributeError("it has no input_layernorm")


def _computed(layer: Any, width: tuple[int, Any]) -> tuple[Any, Any]:
    size, kind = width
    tokens = mx.random.normal((1, TOKENS, size), key=mx.random.key(_KEY)).astype(kind)
    together = layer(tokens, None, None)
    if not isinstance(together, mx.array):
        raise TypeError("it has several results")
    mx.eval(tokens, together)
    return tokens, together


def _difference(tokens: Any, together: Any, alone: Any) -> float:
    """The median over the tokens of how much two results differ, relative to what the second one has added."""
    tokens, together, alone = (array.astype(mx.float32) for array in (tokens, together, alone))
    added = mx.linalg.norm(alone - tokens, axis=-1)
    apart = mx.linalg.norm(together - alone, axis=-1)
    relative = apart / mx.maximum(added, ROUNDED * mx.linalg.norm(tokens, axis=-1))
    found: Any = mx.sort(relative.reshape(-1))[TOKENS // 2].item()
    return float(found)
