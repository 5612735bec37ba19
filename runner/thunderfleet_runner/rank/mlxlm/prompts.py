"""mlx-lm's prompt cache, bounded in tokens."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as _cache

CACHED_SEQUENCES = 10


class PromptCache(_cache.LRUPromptCache):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's prompt cache, bounded in tokens (the same on every rank, unlike bytes), which requests may bypass."""

    def __init__(self, *, tokens: int, trimmable: bool) -> None:
        super().__init__(CACHED_SEQUENCES)
        self._tokens = tokens
        self._trimmable = trimmable
        self.bypass = False
        """Whether the request being admitted neither reads nor fills the cache."""
        self.uncached: list[list[int]] = []
        """Prompts whose caches are not kept."""
        self.on_hit: Callable[[int], None] = lambda count: None

    def fetch_nearest_cache(self, model: Any, tokens: list[int]) -> tuple[Any, list[int]]:
        found, rest = (None, tokens) if self.bypass else super().fetch_nearest_cache(model, tokens)
        if found is not None and not rest:
            if self._trimmable:
                _cache.trim_prompt_cache(found, 1)
                rest = tokens[-1:]
            else:
                found, rest = None, tokens
        self.on_hit(len(tokens) - len(rest))
        return found, rest

    def insert_cache(self, model: Any, tokens: list[int], prompt_cache: list[Any], *, cache_type: str = "assistant") -> None:
        if self._tokens <= 0 or any(tokens[: len(prompt) - 1] == prompt[:-1] for prompt in self.uncached):
            return
        # A sequence taken out of a batch is lazy until it is evaluated, and keeps the whole batch in memory until then.
        mx.eval([entry.state for entry in prompt_cache])
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
        while len(self) and self._held() > self._tokens:
            self.trim_to(n_sequences=len(self) - 1)

    def _held(self) -> int:
        return sum(len(tokens) for queue in self._lru._lrus.values() for _, tokens in queue)
