"""Which files of a repository belong to a model."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

PATTERNS = ("*.json", "model*.safetensors", "tokenizer.model", "tiktoken.model", "*.tiktoken", "*.txt", "*.jsonl", "*.jinja")
"""What mlx-lm reads, without Python: a repository's code would run as the user of the agent."""
HEADERS = "model*.safetensors"
CONFIG = "config.json"


def belongs(path: str) -> bool:
    """Whether a file of a repository is part of the model. mlx-lm reads no folders below that of the model."""
    return "/" not in path and any(fnmatchcase(path, pattern) for pattern in PATTERNS)


def is_weights(path: str) -> bool:
    """Whether mlx-lm loads weights from the file."""
    return fnmatchcase(path, HEADERS)


def problem(paths: Iterable[str]) -> str | None:
    """Why these files are no model for mlx-lm; None if they may be one."""
    names = set(paths)
    if CONFIG not in names:
        return f"it has no {CONFIG}"
    if not any(map(is_weights, names)):
        return f"it has no {HEADERS}: mlx-lm loads no other weights, such as .bin or .gguf"
    return None
