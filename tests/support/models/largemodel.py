"""The test model with weights of several gigabytes, which answers with the same tokens.

What is added contributes nothing to a sum: the feed-forward layers are wider, with random rows of gate and up and zero columns
of down, and more layers follow, whose down and output projections are zero.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from thunderfleet_localcluster.models import tinymodel

from tests.support.models.shardedmodel import header

LAYERS = 64
SLICE_BYTES = 64 * 2**20
ZERO = ("mlp.down_proj.weight", "self_attn.o_proj.weight")


def make(folder: Path, size: int) -> int:
    """Writes the model, in one file of weights of about ``size`` bytes. Returns its bytes."""
    tinymodel.make(folder)
    path = folder / "model.safetensors"
    entries, data = header(path)
    config = json.loads((folder / "config.json").read_text())
    # Of float32, for each layer: gate, up and down.
    wide = size // (4 * tinymodel.HIDDEN * 3 * LAYERS)
    config |= {"intermediate_size": wide, "num_hidden_layers": LAYERS}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: entry for name, entry in entries.items() if name != "__metadata__"}
    first = {name: entry for name, entry in tensors.items() if name.startswith("model.layers.0.")}
    for layer in range(tinymodel.LAYERS, LAYERS):
        tensors |= {name.replace(".0.", f".{layer}.", 1): entry for name, entry in first.items()}
    about, offset = {"__metadata__": entries["__metadata__"]}, 0
    for name, entry in tensors.items():
        shape = [wide if extent == tinymodel.INTERMEDIATE else extent for extent in entry["shape"]]
        count = 4 * int(np.prod(shape))
        about[name] = {**entry, "shape": shape, "data_offsets": [offset, offset + count]}
        offset += count
    text = json.dumps(about).encode()
    random = np.random.default_rng(5)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, entry in tensors.items():
            small = data[slice(*entry["data_offsets"])]
            if name not in entries and name.endswith(ZERO):
                small = bytes(len(small))
            for part in _wider(small, entry["shape"], about[name]["shape"], random):
                file.write(part)
    return path.stat().st_size


def _wider(data: bytes, shape: list[int], wanted: list[int], random: np.random.Generator) -> Iterator[bytes]:
    """The bytes of a tensor with more rows, which are random, or more columns, which are zero."""
    if shape == wanted:
        yield data
    elif shape[0] != wanted[0]:
        yield data
        left = int(np.prod(wanted)) - int(np.prod(shape))
        while left:
            count = min(left, SLICE_BYTES // 4)
            yield random.standard_normal(count, dtype=np.float32).tobytes()
            left -= count
    else:
        for row in np.frombuffer(data, np.float32).reshape(shape):
            yield np.concatenate([row, np.zeros(wanted[1] - shape[1], np.float32)]).tobytes()
