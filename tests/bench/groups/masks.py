"""What forced formats cost on a rank: compiling them, and the masks of a step, over 150,000 tokens.

The tokenizer is generated, because no real one is available. ``python -m tests.bench.groups.masks`` measures these alone.
"""

import gc
import importlib
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy
from thunderfleet_runner.rank import grammar
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.bench.figures import Bound, Figure

VOCABULARY = 150_000
STEPS = 60
STEP_MILLISECONDS = 10.0
"""A step of a large model; masks may take a tenth of it."""
PUBLISHED = (
    "openai.types.chat:ChatCompletion", "openai.types.chat:ChatCompletionChunk", "openai.types:Batch",
    "openai.types.fine_tuning:FineTuningJob", "openai.types:VectorStore", "openai.types:ImagesResponse",
    "openai.types:ModerationCreateResponse", "openai.types.responses:ResponseOutputMessage", "anthropic.types:Message",
    "anthropic.types:ModelInfo",
)  # fmt: skip
"""Types whose schemas their SDKs publish: up to 32 KB, with references, unions and recursion."""
WALKED = (
    {"type": "object"},
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {}}},
        "required": ["name", "age", "tags"],
    },
)
"""What the answers of a batch are: an object of anything, and one with a few fields, in turn."""


def schema(name: str) -> str:
    """The schema of a published type."""
    module, _, kind = name.partition(":")
    return json.dumps(getattr(importlib.import_module(module), kind).model_json_schema())


def made_up() -> Any:
    """A tokenizer of byte pairs of random letters, up to a dozen characters long."""
    source = random.Random(1)
    vocabulary = {sign: at for at, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = list(vocabulary)
    letters = [sign for sign in words if sign.isascii() and sign.isalpha()]
    merges: list[tuple[str, str]] = []
    while len(vocabulary) < VOCABULARY:
        pair = source.choice(words), source.choice(letters)
        word = "".join(pair)
        if word not in vocabulary and len(word) <= 12:
            vocabulary[word] = len(vocabulary)
            words.append(word)
            merges.append(pair)
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    return SimpleNamespace(_tokenizer=fast, eos_token_ids={fast.eos_token_id})


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def _resident_megabytes() -> float:
    """Zero where there is no /proc."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * 4096 / 1e6 if file.exists() else 0.0


def figures(say: Callable[[str], None] = print) -> list[Figure]:
    """The figures; each sample is one step, or one schema."""
    mx.set_default_device(mx.cpu)
    tokenizer = made_up()
    say(f"masks: a tokenizer of {VOCABULARY} tokens is made")
    gc.collect()
    before = _resident_megabytes()
    formats = grammar.Formats(tokenizer)
    seconds = _milliseconds(formats.make) / 1000
    grown = _resident_megabytes() - before
    found = [
        Figure("mask table", "s", (seconds,), note="once in a rank's life, by its first format"),
        Figure("mask table, memory", "MB", (grown,), note="resident, with what the allocator keeps"),
        _compiled(formats, say),
    ]
    for batch in (1, 4):
        found += _masked(formats, batch)
        say(f"masks: batch {batch}: {', '.join(f'{one.value:.3f}' for one in found[-3:])} ms")
    return found


def _compiled(formats: grammar.Formats, say: Callable[[str], None]) -> Figure:
    samples = []
    for name in PUBLISHED:
        source = schema(name)
        samples.append(_milliseconds(lambda source=source: _compile(formats, source)))  # type: ignore[misc]
        say(f"masks: {name}, {len(source)} bytes: {samples[-1]:.1f} ms")
    note = f"median of {len(samples)} published schemas with their first masks; the slowest takes {max(samples):.1f} ms"
    return Figure("mask compile", "ms", tuple(samples), bound=Bound("<=", 1000 * grammar.COMPILE_SECONDS), note=note)


def _compile(formats: grammar.Formats, source: str) -> None:
    formats.check(grammar.compiled("json", source, (), lenient=False))


def _masked(formats: grammar.Formats, batch: int) -> list[Figure]:
    """Computing, applying, and both together, for the answers of a batch that random logits lead through their formats."""
    compiled = [grammar.compiled("json", json.dumps(form), (), lenient=False) for form in WALKED]
    masks = [(row, grammar.Mask(formats, compiled[row % len(compiled)], (), _failed)) for row in range(batch)]
    mx.random.seed(batch)
    chosen: Sequence[int] = [0] * batch
    computing, applying, whole = [], [], []
    for _ in range(STEPS):
        logits = mx.random.normal((batch, VOCABULARY + 1))
        rows = [logits[row : row + 1] for row in range(batch)]
        mx.eval(logits, rows)
        began = time.perf_counter()
        active, packed = grammar.bitmasks(masks, chosen)
        computed = time.perf_counter()
        masked = [row + grammar.addend(packed[number], VOCABULARY + 1, row.dtype) for number, row in enumerate(rows)]
        mx.eval(masked)
        ended = time.perf_counter()
        assert len(active) == batch
        computing.append(1000 * (computed - began))
        applying.append(1000 * (ended - computed))
        whole.append(1000 * (ended - began))
        chosen = [int(numpy.argmax(numpy.array(row))) for row in masked]
    bound = Bound("<=", STEP_MILLISECONDS / 10)
    worst = f"from {min(whole):.2f} to {max(whole):.2f} ms"
    return [
        Figure(f"mask compute, batch {batch}", "ms", tuple(computing), note="while the device computes the logits"),
        Figure(f"mask apply, batch {batch}", "ms", tuple(applying), note="with MLX's CPU build"),
        Figure(f"mask of a step, batch {batch}", "ms", tuple(whole), bound=bound, note=worst),
    ]


def _failed(reason: str) -> None:
    raise RuntimeError(reason)


if __name__ == "__main__":
    for figure in figures():
        held = "" if figure.holds is None else figure.holds
        print(
            f"{figure.name}: {figure.value:.3f} {figure.unit}",
            held,
            figure.note,
            f"max {statistics.fmean(figure.ours):.3f} mean",
        )
