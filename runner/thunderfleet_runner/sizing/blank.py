"""Models without values: enough to split and trace them, with nothing read and nothing computed.

MLX is lazy, so shapes are known without values, unless code reads one (routing in Python, a check of the weights). Within
``no_values`` such code gets zeros, and collectives are replaced by functions with the right shapes.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map


def nbytes(module: Any) -> int:
    """Bytes of a module's parameters; one that several layers share counts once."""
    return sum(unique(module).values())


def unique(module: Any) -> dict[int, int]:
    """Identity and bytes of each array of a module."""
    return {id(array): int(array.nbytes) for _, array in tree_flatten(module.parameters())}


def hollow(model: Any) -> None:
    """Replaces each weight by a stand-in of its shape and type, without memory and without the file it came from."""
    stand_ins: dict[int, Any] = {}

    def stand_in(array: Any) -> Any:
        if id(array) not in stand_ins:
            # Keeps the array with its stand-in, so that its id is not reused.
            stand_ins[id(array)] = (mx.broadcast_to(mx.zeros((), array.dtype), array.shape), array)
        return stand_ins[id(array)][0]

    model.update(tree_map(stand_in, model.parameters()))


def twin(model: Any) -> Any:
    """A copy of the model that can be split while the original stays whole. Arrays are shared."""
    return copy.deepcopy(model, {id(array): array for _, array in tree_flatten(model.parameters())})


@contextmanager
def replaced(owner: Any, stubs: dict[str, Any]) -> Iterator[None]:
    """Replaces attributes of ``owner`` within the context."""
    kept = {name: getattr(owner, name) for name in stubs}
    try:
        for name, stub in stubs.items():
            setattr(owner, name, stub)
        yield
    finally:
        for name, real in kept.items():
            setattr(owner, name, real)


def _zero(array: Any) -> Any:
    return False if array.dtype == mx.bool_ else 0.0 if mx.issubdtype(array.dtype, mx.floating) else 0


def _zeros(array: Any) -> Any:
    value: Any = _zero(array)
    for length in reversed(array.shape):
        value = [copy.deepcopy(value) for _ in range(length)]
    return value


def _gathered(x: Any, *, group: Any = None, stream: Any = None) -> Any:
    return mx.concatenate([x] * (group.size() if group is not None else 1))


@contextmanager
def no_values() -> Iterator[None]:
    """Nothing is evaluated within the context, and collectives return arrays of the right shape."""
    collectives = {
        "all_sum": lambda x, **_: x,
        "all_max": lambda x, **_: x,
        "all_min": lambda x, **_: x,
        "all_gather": _gathered,
        "send": lambda x, dst, **_: x,
        "recv_like": lambda x, src, **_: x,
    }
    with (
        replaced(mx.distributed, collectives),
        replaced(mx.array, {"item": _zero, "tolist": _zeros}),
        replaced(mx, {"eval": lambda *_: None, "async_eval": lambda *_: None}),
    ):
        yield
