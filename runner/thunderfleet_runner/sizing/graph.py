"""The operations of a forward pass as nodes with bytes, from MLX's export: nothing is computed."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from thunderfleet_runner.sizing.arithmetic import Node
from thunderfleet_runner.sizing.blank import replaced


def nodes(function: Callable[..., list[Any]], *operands: Any) -> tuple[list[Node], set[str]]:
    """The operations of ``function(*operands)`` in evaluation order, and the names of its results."""
    found: list[Node] = []
    results: set[str] = set()

    def called(entry: dict[str, Any]) -> None:
        match entry["type"]:
            case "primitive":
                writes = tuple((name, math.prod(shape) * dtype.size) for name, shape, dtype in entry["outputs"])
                found.append(Node(entry["name"], tuple(read[0] for read in entry["inputs"]), writes))
            case "outputs":
                results.update(output[0] for output in entry["outputs"])

    with replaced(mx, {"contiguous": _rewritten}):
        mx.export_function(called, function, *operands)
    return found, results


def _rewritten(array: Any, *_: Any, **__: Any) -> Any:
    """An operation that copies its operand, as ``contiguous`` does, which MLX cannot export."""
    return mx.where(True, array, array)


def arrays(value: Any, depth: int = 6) -> list[Any]:
    """All arrays in a cache, whatever its structure."""
    if isinstance(value, mx.array):
        return [value]
    if depth == 0 or value is None or isinstance(value, str | int | float | bool):
        return []
    if isinstance(value, dict):
        return [array for part in value.values() for array in arrays(part, depth - 1)]
    if isinstance(value, list | tuple):
        return [array for part in value for array in arrays(part, depth - 1)]
    return arrays(vars(value), depth - 1) if hasattr(value, "__dict__") else []


def blanked(value: Any, depth: int = 6) -> Any:
    """The cache with each array replaced by one without memory or history; objects are changed in place."""
    if isinstance(value, mx.array):
        return mx.broadcast_to(mx.zeros((), value.dtype), value.shape)
    if depth == 0 or value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict):
        return {key: blanked(part, depth - 1) for key, part in value.items()}
    if isinstance(value, list):
        return [blanked(part, depth - 1) for part in value]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(blanked(part, depth - 1) for part in value)
    if hasattr(value, "__dict__"):
        for name, part in list(vars(value).items()):
            vars(value)[name] = blanked(part, depth - 1)
    return value
