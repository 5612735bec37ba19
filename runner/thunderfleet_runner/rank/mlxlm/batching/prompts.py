"""mlx-lm's prompt cache, bounded in tokens."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as _cache

CACHED_SEQUENCES = 10
_UNBOUNDED = 1 << 30


class PromptCache(_cache.LRUPromptCache):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's prompt cache, bounded in tokens (the same on every rank, unlike bytes), which requests may bypass.

    The newest sequence is never evicted, because a conversation continues with it. mlx-lm's own order could evict the newest
    sequence of one type before an older one of another type.
    """

    def __init__(self, *, tokens: int, trimmable: bool) -> None:
        # Evictions are ours.
        super().__init__(_UNBOUNDED)
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
        if len(tokens) > self._tokens:
            if not self._trimmable:
                # It does not fit, and no part of it can be kept. The other sequences stay.
                return
            _shorten(prompt_cache, len(tokens) - self._tokens)
            tokens = tokens[: self._tokens]
        # A sequence taken out of a batch is lazy until it is evaluated, and keeps the whole batch in memory until then.
        mx.eval([entry.state for entry in prompt_cache])
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
        self._evict_for(cache_type, len(tokens))

    def _evict_for(self, cache_type: str, length: int) -> None:
        """Drops old sequences until the newest one, of this type and number of tokens, has room."""
        queue = self._lru._lrus[cache_type]
        newest = queue.pop()
        while len(self) and (len(self) >= CACHED_SEQUENCES or self._held() + length > self._tokens):
            self.trim_to(n_sequences=len(self) - 1)
        queue.append(newest)

    def _held(self) -> int:
        return sum(len(tokens) for queue in self._lru._lrus.values() for _, tokens in queue)


def _shorten(prompt_cache: list[Any], count: int) -> None:
    """Drops the last ``count`` tokens, and their memory: trimming alone keeps the arrays."""
    _cache.trim_prompt_cache(prompt_cache, count)
    for entry in prompt_cache:
        if isinstance(entry, _cache.KVCache) and entry.keys is not None:
            entry.keys, entry.values = (mx.contiguous(array[..., : entry.offset, :]) for array in (entry.keys, entry.values))
