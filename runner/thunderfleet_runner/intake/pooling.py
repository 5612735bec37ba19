"""Whether a model makes vectors of texts. Pure."""

from collections.abc import Mapping
from typing import Any

POOLING_FILE = "1_Pooling/config.json"
"""Of Sentence Transformers: how a model's hidden states become one vector."""
ARCHITECTURE = "qwen3"
_MODE = "pooling_mode_"
_LAST = "pooling_mode_lasttoken"


def vector_size(config: Mapping[str, Any], pooling: Mapping[str, Any] | None, name: str) -> int | str:
    """Values of the model's vectors, or why it makes none. ``pooling``: the content of POOLING_FILE, None without one.

    Models are often converted without that file, so the name counts as well: nothing else tells Qwen3-Embedding from Qwen3.
    """
    size = config.get("hidden_size")
    if config.get("model_type") != ARCHITECTURE or not isinstance(size, int) or size < 1:
        return f"{name} generates text and makes no embeddings; send them to a server of an embedding model"
    if pooling is None:
        if "embedding" in name.rpartition("/")[2].lower():
            return size
        return f"{name} makes no embeddings: it has no {POOLING_FILE}, and its name does not say that it is an embedding model"
    modes = sorted(key for key, value in pooling.items() if key.startswith(_MODE) and value)
    if modes != [_LAST]:
        return (
            f"{name} makes no embeddings here: {POOLING_FILE} asks for {', '.join(modes) or 'nothing'}, only {_LAST} is known"
        )
    return size
