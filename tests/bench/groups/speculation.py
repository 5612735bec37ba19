"""Speculative decoding with mlx-lm's own generator: how many drafted tokens are accepted, and what it gains.

``python -m tests.bench.groups.speculation``. The models are generated, because no real ones are available. The large one has
the small one's two layers, which continue what they have read before, and LAYERS more, so it takes about ten times as long. On
easy text, which repeats itself, both agree. On hard text the small one is replaced by one that always predicts another token:
the worst case. Real text is between the two. mlx-lm drafts for one sequence at a time, so four answers are drafted one after
the other, against a batch of four.
"""

import functools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import generate
from mlx_lm.generate import BatchGenerator
from thunderfleet_runner.rank import mlxlm

from tests.bench.figures import Bound, Figure, table
from tests.support.models import copymodel

LAYERS = 22
VOCABULARY = 4096
PROMPT = 96
PERIOD = 24
"""Tokens after which easy text repeats itself."""
TOKENS = 64
DRAFTED = 3
BATCH = 4
ROUNDS = 2
BOUND = 1.2
"""Below this gain on easy or hard text it is not worth its memory."""

Say = Callable[[str], None]


def _large(small: Any, config: dict[str, Any]) -> Any:
    """The small model with more layers of random weights."""
    more = mlxlm.build(config | {"num_hidden_layers": 2 + LAYERS})
    more.load_weights(list(_flat(small)), strict=False)
    mx.random.seed(5)
    for layer in more.model.layers[2:]:
        for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
            module.weight = mx.random.normal(module.weight.shape) * 0.15
    mx.eval(more.parameters())
    return more


def _flat(model: Any) -> Sequence[tuple[str, Any]]:
    from mlx.utils import tree_flatten

    found: list[tuple[str, Any]] = tree_flatten(model.parameters())
    return found


def _prompts(easy: bool) -> list[list[int]]:
    source = random.Random(easy)
    found = []
    for _ in range(BATCH):
        tokens = [source.randrange(300, VOCABULARY) for _ in range(PERIOD if easy else PROMPT)]
        found.append((tokens * PROMPT)[:PROMPT])
    return found


def _plain(model: Any, prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], float]:
    """Greedy answers of a batch, and their tokens a second after the first."""
    batch = BatchGenerator(model, max_tokens=TOKENS, completion_batch_size=len(prompts), prefill_batch_size=len(prompts))
    uids = batch.insert([list(prompt) for prompt in prompts])
    found: dict[int, list[int]] = {uid: [] for uid in uids}
    began = 0.0
    while any(len(tokens) < TOKENS for tokens in found.values()):
        _, responses = batch.next()
        for response in responses:
            found[response.uid].append(int(response.token))
        if responses and not began:
            began = time.perf_counter()
    seconds = time.perf_counter() - began
    batch.close()
    return list(found.values()), len(prompts) * (TOKENS - 1) / seconds


def _drafted(model: Any, small: Any, prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], float, float]:
    """Greedy answers one after the other, tokens a second after the first of each, and the share of accepted drafts."""
    answers, seconds, accepted = [], 0.0, 0
    for prompt in prompts:
        tokens: list[int] = []
        began = 0.0
        steps = generate.__globals__["speculative_generate_step"]
        for token, _, from_draft in steps(mx.array(list(prompt)), model, small, num_draft_tokens=DRAFTED, max_tokens=TOKENS):
            tokens.append(int(token))
            accepted += bool(from_draft)
            began = began or time.perf_counter()
        seconds += time.perf_counter() - began
        answers.append(tokens)
    total = len(prompts) * TOKENS
    # Each verified token that is not a draft's own has been preceded by DRAFTED drafts.
    drafts = (total - accepted) * DRAFTED
    return answers, len(prompts) * (TOKENS - 1) / seconds, accepted / drafts if drafts else 1.0


def figures(say: Say) -> list[Figure]:
    """Gain and acceptance on easy and hard text, for one answer and for four."""
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory(prefix="speculation-") as name:
        folder = Path(name) / "small"
        copymodel.make(folder, VOCABULARY)
        small, config = mlxlm.load_lazily(folder)
        mx.eval(small.parameters())
        large = _large(small, config)
        stranger, _ = mlxlm.load_lazily(folder)
        head = stranger.lm_head.weight
        stranger.lm_head.weight = mx.concatenate([head[1:], head[:1]])
        mx.eval(stranger.parameters())
        found = []
        for kind, draft in (("easy", small), ("hard", stranger)):
            prompts = _prompts(kind == "easy")
            for batch in (1, BATCH):
                found.append(_gain(functools.partial(_plain, large), large, draft, prompts[:batch], kind))
                say(f"speculation: {found[-1].name}: {found[-1].ratio or 0:.2f} times, {found[-1].note}")
        return found


def _gain(plainly: Callable[..., Any], large: Any, small: Any, prompts: Sequence[Sequence[int]], kind: str) -> Figure:
    plain, drafted, share, equal = list[float](), list[float](), 0.0, True
    for number in range(ROUNDS + 1):
        answers, rate = plainly(prompts)
        others, faster, share = _drafted(large, small, prompts)
        equal = equal and answers == others
        if number:
            plain.append(rate)
            drafted.append(faster)
    note = f"{100 * share:.0f} % of {DRAFTED} drafted tokens accepted; {'equal' if equal else 'DIFFERENT'} greedy tokens"
    name = f"speculation, {kind}, batch {len(prompts)}"
    return Figure(name, "tokens/s", tuple(drafted), tuple(plain), "without drafts", Bound(">=", BOUND), note)


def run(_: object, repeats: int, say: Say) -> list[Figure]:
    """As one of the benchmarks; it needs no line."""
    return figures(say)


if __name__ == "__main__":
    print(table(figures(lambda text: print(text, file=sys.stderr, flush=True))))
