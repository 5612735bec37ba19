"""The test model in several files of weights, as large models are stored."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.host.weightfiles import layer_of

INDEX = "model.safetensors.index.json"
BOTH = 2
"""The file with a layer of either rank, of a model with four layers that is divided in the middle."""
FILES: Sequence[Sequence[int | None]] = ((None,), (0,), (1, 2), (3,))
"""By file, the layers that it has; None for what is outside of layers."""


def header(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and its data."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write(path: Path, tensors: dict[str, tuple[dict[str, Any], bytes]]) -> None:
    """Writes a safetensors file. ``tensors``: entry and data by name."""
    entries: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    body = b""
    for name, (entry, data) in tensors.items():
        entries[name] = {**entry, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def names(count: int) -> list[str]:
    """The names of the files of weights."""
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def make(folder: Path, files: Sequence[Sequence[int | None]] = FILES, *, layers: int = 4, seed: int = tinymodel.SEED) -> None:
    """Writes the model with these layers in each file, and the index."""
    tinymodel.make(folder, layers=layers, seed=seed)
    whole = folder / "model.safetensors"
    entries, data = header(whole)
    weight_map: dict[str, str] = {}
    for name, held in zip(names(len(files)), files, strict=True):
        tensors = {
            tensor: (entry, data[slice(*entry["data_offsets"])])
            for tensor, entry in entries.items()
            if tensor != "__metadata__" and layer_of(tensor) in held
        }
        write(folder / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": len(data)}, "weight_map": weight_map}))
    whole.unlink()
