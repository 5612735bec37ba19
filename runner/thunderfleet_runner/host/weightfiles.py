"""The tensors in a model's safetensors files, read from their headers alone.

A safetensors index names files but no sizes, and a truncated file still opens; so this module checks completeness by name
before anything is loaded, and adds up sizes without reading weights. It needs no MLX, so the supervisor's preflight can use it.
The format: 8 bytes little-endian length, that many bytes of JSON (name -> dtype, shape, data_offsets), data.
"""

import math
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_lib import jsonbounds
from thunderfleet_lib.modelstore import parts

INDEX = "model.safetensors.index.json"
PATTERN = "model*.safetensors"
"""The files that mlx-lm loads; other files are not part of the model."""
HEADER_BYTES = 100_000_000
"""Maximum bytes of a header: the limit of the format itself."""
INDEX_BYTES = 64 * 1024 * 1024
VALUES = 2_000_000
"""Maximum values and names in a header or the index: about 200,000 tensors. Parsing them takes less than a second."""
_DEPTH = 8
_DIMENSIONS = 32
_LARGEST = 1 << 63
_NAMED = 5
_NAME_CHARACTERS = 200
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.([0-9]{1,4})\.")
MAX_LAYERS = 512
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


def layer_of(name: str) -> int | None:
    """The layer of a tensor, by its name; None for what is outside of layers, such as the embeddings."""
    match = _LAYER.search(name)
    return int(match[1]) if match is not None and int(match[1]) < MAX_LAYERS else None


def shown(name: str) -> str:
    """A name from a file, or of a file, for messages: shortened, and text that can be encoded."""
    text = name.encode("utf-8", "replace").decode()
    return text if len(text) <= _NAME_CHARACTERS else f"{text[:_NAME_CHARACTERS]}…"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(shown, names[:_NAMED])) + more


def read_regular(path: Path, limit: int) -> bytes:
    """The bytes of a regular file. Raises IncompleteModel for anything else, or for more than ``limit`` bytes; OSError."""
    size = regular_size(path)
    if size > limit:
        raise IncompleteModel(f"{shown(path.name)} has {size} bytes, at most {limit} are allowed")
    with path.open("rb") as file:
        return file.read(limit)


def regular_size(path: Path) -> int:
    """The bytes of a regular file. Raises IncompleteModel for anything else: opening a pipe would wait for a writer."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise IncompleteModel(f"{shown(path.name)} is not a regular file")
    return found.st_size


def _header(path: Path) -> tuple[Mapping[str, Any], int]:
    """The header's JSON and the number of data bytes behind it. Raises IncompleteModel."""
    size, name = regular_size(path), shown(path.name)
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise IncompleteModel(f"{name} has {size} bytes and no safetensors header")
        (length,) = struct.unpack("<Q", start)
        if length > HEADER_BYTES or 8 + length > size:
            raise IncompleteModel(f"{name} has {size} bytes, its header alone needs {length}")
        try:
            header = jsonbounds.loads(file.read(length), values=VALUES, depth=_DEPTH)
        except ValueError as error:
            raise IncompleteModel(f"{name} has a header that is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise IncompleteModel(f"{name} has a header that is not a JSON object")
    return header, size - 8 - length


def _tensor(path: Path, name: str, entry: Any, available: int) -> Tensor:
    file, what = shown(path.name), shown(name)
    try:
        dtype = str(entry["dtype"])[:16]
        shape = _integers(entry["shape"], _DIMENSIONS)
        begin, end = _integers(entry["data_offsets"], 2)
    except (KeyError, TypeError, ValueError) as error:
        raise IncompleteModel(f"tensor {what} in {file} has an invalid header entry") from error
    if begin > end:
        raise IncompleteModel(f"tensor {what} in {file} has invalid offsets {begin} to {end}")
    expected = math.prod(shape) * _BITS[dtype] // 8 if dtype in _BITS else end - begin
    if expected != end - begin:
        raise IncompleteModel(f"tensor {what} in {file} has {end - begin} bytes, its shape needs {expected}")
    if end > available:
        raise IncompleteModel(f"{file} is truncated: tensor {what} ends at byte {end} of the data, the file has {available}")
    return Tensor(name=name, file=path.name, dtype=dtype, shape=shape, nbytes=end - begin)


def _integers(value: Any, limit: int) -> tuple[int, ...]:
    """Raises ValueError for anything but a list of at most ``limit`` integers that a file can have."""
    if not isinstance(value, list) or len(value) > limit:
        raise ValueError
    if not all(type(entry) is int and 0 <= entry < _LARGEST for entry in value):
        raise ValueError
    return tuple(value)


def read(folder: Path) -> tuple[Tensor, ...]:
    """All tensors of the model in ``folder``, sorted by name. Reads headers only.

    Raises IncompleteModel for a missing, truncated or malformed tensor; OSError when a file cannot be read.
    """
    files = sorted(folder.glob(PATTERN))
    if not files:
        raise IncompleteModel(f"{folder} has no {PATTERN}")
    tensors = {tensor.name: tensor for path in files for tensor in _tensors(path)}
    if not is_part(folder):
        _check_index(folder, tensors)
    return tuple(tensors[name] for name in sorted(tensors))


def is_part(folder: Path) -> bool:
    """Whether the folder has some files of a model only. Raises IncompleteModel if it does not name them."""
    return part_of(folder) is not None


def part_of(folder: Path) -> parts.Part | None:
    """Which part of a model the folder has; None for the whole. Raises IncompleteModel if it does not name it."""
    try:
        return parts.read(folder)
    except ValueError as error:
        raise IncompleteModel(str(error)) from error


def _tensors(path: Path) -> Iterator[Tensor]:
    header, available = _header(path)
    for name, entry in header.items():
        if name != "__metadata__":
            yield _tensor(path, name, entry, available)


def by_file(folder: Path) -> dict[str, tuple[frozenset[int], bool]]:
    """The layers in each weight file, by the file's name, and whether it has weights outside of layers.

    Read from the headers alone, because the index may be wrong. Raises IncompleteModel for a tensor that two files have,
    because which of them counts is not defined; OSError.
    """
    found: dict[str, tuple[frozenset[int], bool]] = {}
    seen: dict[str, str] = {}
    for path in sorted(folder.glob(PATTERN)):
        names = [tensor.name for tensor in _tensors(path)]
        for name in names:
            if seen.setdefault(name, path.name) != path.name:
                raise IncompleteModel(f"tensor {shown(name)} is in {shown(seen[name])} and in {shown(path.name)}")
        layers = {layer_of(name) for name in names}
        found[path.name] = frozenset(layer for layer in layers if layer is not None), None in layers or not names
    return found


def _check_index(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    path = folder / INDEX
    if not path.exists():
        return
    try:
        weight_map = jsonbounds.loads(read_regular(path, INDEX_BYTES), values=VALUES, depth=_DEPTH)["weight_map"]
        expected = {str(name): str(file) for name, file in weight_map.items()}
    except IncompleteModel:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IncompleteModel(f"{INDEX} cannot be read: {str(error)[:200] or type(error).__name__}") from error
    missing = sorted(name for name in expected if name not in tensors)
    if missing:
        files = sorted({expected[name] for name in missing})
        raise IncompleteModel(f"tensors are missing: {_names(missing)} (expected in {_names(files)})")
