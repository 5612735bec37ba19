"""What forced formats cost on a rank: compiling one, computing a mask, applying it, over 150,000 tokens.

The tokenizer is made up: a real one is not to be had here. ``python -m tests.bench.masks`` measures these alone.
"""

import functools
import random
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from thunderfleet_runner.rank import grammar
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.bench.figures import Bound, Figure

VOCABULARY = 150_000
STEPS = 60
STEP_MILLISECONDS = 10.0
"""A step of a large model; masks may take a tenth of it."""
SCHEMAS: dict[str, str] = {
    "any object": '{"type": "object"}',
    "a person": '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": '
    '{"type": "array", "items": {"type": "string"}}}, "required": ["name", "age"], "additionalProperties": false}',
    "a tree": '{"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "properties": {"v": {"type": "number"}, "c": '
    '{"type": "array", "items": {"$ref": "#/$defs/N"}}}, "required": ["v", "c"], "additionalProperties": false}}}',
}


def _tokenizer() -> Any:
    """Byte pairs of random letters, up to a dozen characters long."""
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


def figures(say: Callable[[str], None] = print) -> list[Figure]:
    """The figures; each sample is one step, or one schema."""
    mx.set_default_device(mx.cpu)
    formats = grammar.Formats(_tokenizer())
    say(f"masks: a tokenizer of {VOCABULARY} tokens is made")
    compiled = {name: grammar.compiled("json", schema, (), lenient=False) for name, schema in SCHEMAS.items()}
    formats.check(compiled["any object"])
    compiling = tuple(_milliseconds(functools.partial(formats.check, each)) for each in compiled.values())
    found = [Figure("mask compile", "ms", compiling, note=f"median of {len(SCHEMAS)} schemas, first masks included")]
    matcher = formats.matcher(compiled["a person"])
    computing = tuple(_milliseconds(matcher.compute_bitmask) for _ in range(STEPS))
    found.append(Figure("mask compute", "ms", computing, bound=Bound("<=", STEP_MILLISECONDS / 10)))
    for batch in (1, 4):
        found.append(_applied(formats, compiled["any object"], batch))
        say(f"masks: batch {batch}: {statistics.median(found[-1].ours):.2f} ms a step")
    return found


def _applied(formats: grammar.Formats, compiled: str, batch: int) -> Figure:
    """Computing and applying the masks of ``batch`` answers, without the model."""
    masks = [grammar.Mask(formats.matcher(compiled), (), _failed) for _ in range(batch)]
    logits = mx.random.normal((batch, VOCABULARY + 1))
    tokens = mx.array([0])
    mx.eval(logits, tokens)

    def step() -> None:
        rows = [mask(tokens, logits[row : row + 1]) for row, mask in enumerate(masks)]
        chosen = mx.argmax(mx.concatenate(rows), axis=-1)
        mx.eval(chosen)
        nonlocal tokens
        tokens = chosen[:1]

    def plain() -> None:
        rows = [logits[row : row + 1] for row in range(batch)]
        mx.eval(mx.argmax(mx.concatenate(rows), axis=-1))

    without = statistics.median(_milliseconds(plain) for _ in range(STEPS))
    samples = tuple(max(_milliseconds(step) - without, 0.0) for _ in range(STEPS))
    bound = Bound("<=", STEP_MILLISECONDS / 10) if batch == 1 else None
    return Figure(f"mask of a step, batch {batch}", "ms", samples, bound=bound, note="with MLX's CPU build")


def _failed(reason: str) -> None:
    raise RuntimeError(reason)


if __name__ == "__main__":
    for figure in figures():
        print(figure.name, f"{figure.value:.3f}", figure.unit, "" if figure.holds is None else figure.holds)
