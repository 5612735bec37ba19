"""Whether a model computes embeddings. Pure."""

from collections.abc import Mapping
from typing import Any

POOLING_FILE = "1_Pooling/config.json"
"""Configuration file of Sentence Transformers: how a model's hidden states become one vector."""
ARCHITECTURE = "qwen3"
_MODE = "pooling_mode_"
_LAST = "pooling_mode_lasttoken"


def vector_size(config: Mapping[str, Any], pooling: Mapping[str, Any] | None, name: str) -> int | str:
    """The number of values of an embedding, or why there are none. ``pooling``: the content of POOLING_FILE, None without it.

    Models are often converted without that file, so the name is used too: nothing else distinguishes Qwen3-Embedding from
    Qwen3.
    """
    size = config.get("hidden_size")
    if config.get("model_type") != ARCHITECTURE or not isinstance(size, int) or size < 1:
        return f"{name} generates text and cannot compute embeddings; use an embedding model"
    if pooling is None:
        if "embedding" in name.rpartition("/")[2].lower():
            return size
        return f"{name} cannot compute embeddings: it has no {POOLING_FILE}, and its name does not contain 'embedding'"
    modes = sorted(key for key, value in pooling.items() if key.startswith(_MODE) and value)
    if modes != [_LAST]:
        wanted = ", ".join(modes) or "nothing"
        return f"{name} cannot compute embeddings: {POOLING_FILE} requires {wanted}, only {_LAST} is supported"
    return size
