"""Models that the installed mlx-lm is known to load incorrectly, or not at all. Pure.

Without this table, such a model would fail while it loads, with an error about its files, or give wrong answers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True)
class _Broken:
    """Models of a ``kind`` for which ``hits`` their configuration, with mlx-lm up to version ``last``."""

    kind: str
    hits: Callable[[Config], bool]
    last: tuple[int, ...]
    why: str


def _shares_indexers(config: Config) -> bool:
    kinds = config.get("indexer_types")
    return isinstance(kinds, list) and "shared" in kinds


_KNOWN = (
    _Broken(
        "glm_moe_dsa", _shares_indexers, (0, 32, 2),
        "layers of GLM-5.2 share the indexers of others, and mlx-lm expects one in every layer",
    ),
)  # fmt: skip


def why_broken(config: Config, version: str) -> str | None:
    """Why mlx-lm of this ``version`` cannot run a model with this configuration, if that is known."""
    installed = _numbers(version)
    kind = config.get("model_type")
    for known in _KNOWN:
        if kind == known.kind and installed <= known.last and known.hits(config):
            return f"mlx-lm {version} does not support this model: {known.why}"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version; those of an unknown one count as newer than any."""
    found = []
    for part in version.split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found) or (1 << 30,)
