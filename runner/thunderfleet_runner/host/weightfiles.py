"""The tensors in a model's safetensors files, read from their headers alone.

A safetensors index names files but no sizes, and a truncated file still opens; so this module checks completeness by name
before anything is loaded, and adds up sizes without reading weights. It needs no MLX, so the supervisor's preflight can use it.
The format: 8 bytes little-endian length, that many bytes of JSON (name -> dtype, shape, data_offsets), data.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
PATTERN = "model*.safetensors"
"""The files that mlx-lm loads; other files are not part of the model."""
_HEADER_LIMIT = 256 * 1024 * 1024
_NAMED = 5
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16,
    "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "C64": 64,
}  # fmt: skip


class IncompleteModel(ValueError):
    """The model's files are incomplete or inconsistent; the text names the tensor and the file."""


@dataclass(frozen=True)
class Tensor:
    """One tensor in one file. ``nbytes`` is its size in bytes."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _header(path: Path) -> tuple[Mapping[str, Any], int]:
    """The header's JSON and the number of data bytes behind it. Raises IncompleteModel."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise IncompleteModel(f"{path.name} has {size} bytes and no safetensors header")
        (length,) = struct.unpack("<Q", start)
        if length > _HEADER_LIMIT or 8 + length > size:
            raise IncompleteModel(f"{path.name} has {size} bytes, its header alone needs {length}")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise IncompleteModel(f"{path.name} has a header that is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise IncompleteModel(f"{path.name} has a header that is not a JSON object")
    return header, size - 8 - length


def _tensor(path: Path, name: str, entry: Any, available: int) -> Tensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise IncompleteModel(f"tensor {name} in {path.name} has an invalid header entry") from error
    if not 0 <= begin <= end:
        raise IncompleteModel(f"tensor {name} in {path.name} has invalid offsets {begin} to {end}")
    expected = math.prod(shape) * _BITS[dtype] // 8 if dtype in _BITS else end - begin
    if expected != end - begin:
        raise IncompleteModel(f"tensor {name} in {path.name} has {end - begin} bytes, its shape needs {expected}")
    if end > available:
        raise IncompleteModel(
            f"{path.name} is truncated: tensor {name} ends at byte {end} of the data, the file has {available}"
        )
    return Tensor(name=name, file=path.name, dtype=dtype, shape=shape, nbytes=end - begin)


def read(folder: Path) -> tuple[Tensor, ...]:
    """All tensors of the model in ``folder``, sorted by name. Reads headers only.

    Raises IncompleteModel for a missing, truncated or malformed tensor; OSError when a file cannot be read.
    """
    files = sorted(folder.glob(PATTERN))
    if not files:
        raise IncompleteModel(f"{folder} has no {PATTERN}")
    tensors: dict[str, Tensor] = {}
    for path in files:
        header, available = _header(path)
        for name, entry in header.items():
            if name != "__metadata__":
                tensors[name] = _tensor(path, name, entry, available)
    _check_index(folder, tensors)
    return tuple(tensors[name] for name in sorted(tensors))


def _check_index(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    path = folder / INDEX
    if not path.exists():
        return
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        expected = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IncompleteModel(f"{INDEX} cannot be read: {error!r}") from error
    missing = sorted(name for name in expected if name not in tensors)
    if missing:
        files = sorted({expected[name] for name in missing})
        raise IncompleteModel(f"tensors are missing: {_names(missing)} (expected in {_names(files)})")
