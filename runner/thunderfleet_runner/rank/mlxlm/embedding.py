"""Vectors of texts, as Qwen3-Embedding's model card defines them: the normalized hidden state of a text's last token."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from thunderfleet_runner.rank.mlxlm.generate import generate as _generate
from thunderfleet_runner.rank.mlxlm.models import architecture, prompt_cache

ARCHITECTURE = "qwen3"
"""mlx-lm's inner model of this architecture returns normed hidden states, the same on every rank."""
_LEAST_LENGTH = 1e-12
"""Shorter vectors are not scaled up further."""
Pace = Callable[[int, int], None]
"""Called before each step with its tokens and the tokens that it attends to."""


class CannotEmbed(ValueError):
    """The model makes no vectors of texts."""


def embed(model: Any, texts: Sequence[Sequence[int]], size: int, step: int, pace: Pace = lambda tokens, seen: None) -> mx.array:
    """A float32 array (texts, size): the vectors' first ``size`` values, scaled to length 1.

    Texts of at most ``step`` tokens, padded to the longest and all together, are computed at once; a longer one must be the
    only one, and is computed in steps. Raises CannotEmbed.
    """
    if architecture(model) != ARCHITECTURE:
        raise CannotEmbed(f"{architecture(model)} models cannot compute embeddings")
    # The stream of mlx-lm's steps: exchanges of ranks happen in one order.
    with mx.stream(_generate.generation_stream):
        last = _together(model, texts, pace) if len(texts) > 1 or len(texts[0]) <= step else _long(model, texts[0], step, pace)
        kept = last.astype(mx.float32)[:, :size]
        found = kept / mx.maximum(mx.linalg.norm(kept, axis=-1, keepdims=True), _LEAST_LENGTH)
        mx.eval(found)
    # Texts have all lengths: MLX would keep memory for each.
    mx.clear_cache()
    return found


def _together(model: Any, texts: Sequence[Sequence[int]], pace: Pace) -> mx.array:
    """Attention is causal: what pads a text at its end changes nothing before it."""
    width = max(map(len, texts))
    pace(width * len(texts), width)
    hidden = model.model(mx.array([[*text, *[0] * (width - len(text))] for text in texts], mx.int32))
    return hidden[mx.arange(len(texts)), mx.array([len(text) - 1 for text in texts])]  # type: ignore[no-any-return]


def _long(model: Any, text: Sequence[int], step: int, pace: Pace) -> mx.array:
    cache = prompt_cache(model)
    hidden: Any = None
    for first in range(0, len(text), step):
        part = text[first : first + step]
        pace(len(part), first + len(part))
        hidden = model.model(mx.array([part], mx.int32), cache=cache)
        mx.eval([entry.state for entry in cache])
        mx.clear_cache()
    return hidden[:, -1, :]  # type: ignore[no-any-return]
