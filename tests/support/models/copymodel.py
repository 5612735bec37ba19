"""A model whose weights are constructed to continue what it has read before: two layers of attention, an induction head.

Layer 0 writes the code of the token before into each position: constant queries and keys, which rotary embedding turns so that
they fit at a distance of one. Layer 1 looks for the position after an earlier occurrence of the present token, in dimensions
that the embedding hardly turns, and adds that position's code, of which the output matrix makes the token.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

import mlx.core as mx
from thunderfleet_localcluster.models import tinymodel

HEADS, HEAD = 2, 64
WIDTH = HEADS * HEAD
CODE = WIDTH // 2
"""The first half of a position's vector is its token's code of 1 and -1, the second half that of the token before."""
PAIRS = HEAD // 2
FAST = 8
"""Pairs of dimensions that tell positions apart."""
SLOW = tuple(range(PAIRS // 2, PAIRS))
"""Pairs that turn by less than a hundredth in the longest context."""
THETA = 1e12
SHARP = 60.0
COPIED = 4.0
SEED = 5


def make(folder: Path, vocabulary: int, seed: int = SEED, context: int = 32_768) -> None:
    """Writes the model into ``folder``."""
    tinymodel.make(folder, layers=2)
    _change(folder / "tokenizer.json", lambda told: told["model"]["vocab"].update(_words(vocabulary)))
    _change(
        folder / "config.json",
        lambda told: told.update(
            hidden_size=WIDTH, intermediate_size=HEADS, num_attention_heads=HEADS, num_key_value_heads=HEADS,
            vocab_size=vocabulary, rope_theta=THETA, max_position_embeddings=context,
        ),
    )  # fmt: skip
    mx.save_safetensors(str(folder / "model.safetensors"), weights(vocabulary, seed), metadata={"format": "mlx"})


def _words(vocabulary: int) -> dict[str, int]:
    return {f"w{number}": number for number in range(tinymodel.VOCABULARY, vocabulary)}


def _change(file: Path, change: Any) -> None:
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))


def weights(vocabulary: int, seed: int) -> dict[str, mx.array]:
    """By name, in float32."""
    source = random.Random(seed)
    codes = mx.array([[source.choice((-1.0, 1.0)) for _ in range(CODE)] for _ in range(vocabulary)])
    nothing = mx.zeros((vocabulary, CODE))
    found = {"model.embed_tokens.weight": mx.concatenate([codes, nothing], axis=1), "model.norm.weight": mx.ones(WIDTH)}
    found["lm_head.weight"] = found["model.embed_tokens.weight"]
    for layer, attention in enumerate((_before(), _matching())):
        prefix = f"model.layers.{layer}."
        found |= {f"{prefix}self_attn.{name}": mx.array(rows) for name, rows in attention.items()}
        found |= {f"{prefix}{name}.weight": mx.ones(WIDTH) for name in ("input_layernorm", "post_attention_layernorm")}
        found |= {f"{prefix}mlp.{name}_proj.weight": mx.zeros((HEADS, WIDTH)) for name in ("gate", "up")}
        found[f"{prefix}mlp.down_proj.weight"] = mx.zeros((WIDTH, HEADS))
    return found


def _empty() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {f"{name}_proj.weight": _square() for name in "qkvo"}
    return found | {f"{name}_proj.bias": [0.0] * WIDTH for name in "qkv"}


def _square() -> list[list[float]]:
    return [[0.0] * WIDTH for _ in range(WIDTH)]


def _before() -> dict[str, list[Any]]:
    """Each head copies half of the code of the token before."""
    found, size = _empty(), math.sqrt(SHARP * math.sqrt(HEAD))
    for head in range(HEADS):
        for pair in range(FAST):
            angle = THETA ** (-pair / PAIRS)
            found["q_proj.bias"][head * HEAD + pair] = size
            found["k_proj.bias"][head * HEAD + pair] = size * math.cos(angle)
            found["k_proj.bias"][head * HEAD + pair + PAIRS] = size * math.sin(angle)
        for index in range(CODE // HEADS):
            code = head * CODE // HEADS + index
            # Half of the vector is zero, so its normalized code is the square root of two.
            found["v_proj.weight"][head * HEAD + index][code] = 1 / math.sqrt(2)
            found["o_proj.weight"][CODE + code][head * HEAD + index] = 1.0
    return found


def _matching() -> dict[str, list[Any]]:
    """Each head compares half of the code, and copies the whole of it."""
    found = _empty()
    slow = [*SLOW, *(pair + PAIRS for pair in SLOW)]
    for head in range(HEADS):
        for index, place in enumerate(slow):
            code = head * CODE // HEADS + index
            found["q_proj.weight"][head * HEAD + place][code] = SHARP
            found["k_proj.weight"][head * HEAD + place][CODE + code] = 1.0
        for code in range(CODE):
            found["v_proj.weight"][head * HEAD + code][code] = 1.0
            found["o_proj.weight"][code][head * HEAD + code] = COPIED / HEADS
    return found
