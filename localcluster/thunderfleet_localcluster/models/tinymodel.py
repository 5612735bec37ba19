"""A model that is generated in a second and whose output can be compared token by token.

Tests need a real model that mlx-lm loads without access to a hub. Three properties are important:
- float32, unquantised: in half precision two ranks and one process round differently and their greedy answers differ;
- wide weights (standard deviation 0.3) and a seed for which the best two logits stay more than 1e-3 apart all through the
  answer to ``MESSAGES``, so that summing in another order cannot change a token;
- a tokenizer in which every id is a different printable string; otherwise a wrong token could look right.

Only the standard library is used, and the generator of random numbers is written out, so every machine makes the same files.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import string
import struct
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_lib.helpformat import HelpFormatter

SEED = 17
MESSAGES: tuple[dict[str, str], ...] = ({"role": "user", "content": "Which Macs are wired together?"},)
"""A chat for tests; the gap between logits was measured for its answer."""
TOKENS = 48
"""Number of tokens of the answer for which the gap holds."""

HIDDEN = 64
INTERMEDIATE = 128
LAYERS = 4
HEADS = 4
KV_HEADS = 2
CONTEXT = 32768
DEVIATION = 0.3
VOCABULARY = 256

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unknown|>")
_END_OF_TEXT, _END_OF_TURN, _UNKNOWN = _SPECIAL[0], _SPECIAL[2], _SPECIAL[3]
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ': ' + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant: ' }}{% endif %}"
)


def vocabulary() -> tuple[str, ...]:
    """Every token's string, by id: the special ones, the printable ASCII characters, then syllables until VOCABULARY.

    Other characters (line breaks, letters with accents) have no token: the model answers in printable ASCII only.
    """
    # Byte-level tokenizers write a space as Ġ; mlx-lm's streaming decoder for qwen2 expects that.
    characters = ["Ġ", *(chr(code) for code in range(0x21, 0x7F))]
    syllables = [first + second for first in string.ascii_lowercase for second in "aeiouy" if first not in "aeiouy"]
    syllables += [first + second for first in "aeiou" for second in "nrstlm"]
    words = [*_SPECIAL, *characters, *dict.fromkeys(syllables)]
    words += [first + second for first in "AEIOU" for second in string.ascii_lowercase]
    return tuple(words[:VOCABULARY])


def _tokenizer() -> dict[str, object]:
    words = vocabulary()
    special = [
        {"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, word in enumerate(_SPECIAL)
    ]
    merges = [[word[0], word[1]] for word in words[len(_SPECIAL) :] if len(word) == 2]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": _UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: i for i, word in enumerate(words)},
            "merges": merges,
        },
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "eos_token": _END_OF_TURN,
        "pad_token": _END_OF_TEXT,
        "unk_token": _UNKNOWN,
        "chat_template": _TEMPLATE,
    }


def _config(layers: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": _SPECIAL.index(_END_OF_TURN),
    }


def _shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Every tensor's shape, in the order in which they are drawn and stored."""
    key_value = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (HIDDEN,),
            f"{prefix}self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}self_attn.q_proj.bias": (HIDDEN,),
            f"{prefix}self_attn.k_proj.weight": (key_value, HIDDEN),
            f"{prefix}self_attn.k_proj.bias": (key_value,),
            f"{prefix}self_attn.v_proj.weight": (key_value, HIDDEN),
            f"{prefix}self_attn.v_proj.bias": (key_value,),
            f"{prefix}self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    shapes |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}
    return shapes


def _normals(source: random.Random, count: int) -> array[float]:
    """``count`` draws of normal(0, DEVIATION) as float32 (Box and Muller: ``gauss`` may change between Pythons)."""
    values = array("f")
    while len(values) < count:
        radius = DEVIATION * math.sqrt(-2.0 * math.log(1.0 - source.random()))
        angle = 2.0 * math.pi * source.random()
        values.append(radius * math.cos(angle))
        values.append(radius * math.sin(angle))
    return values[:count]


def _safetensors(seed: int, layers: int) -> bytes:
    source = random.Random(seed)
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    body = bytearray()
    for name, shape in _shapes(layers).items():
        count = math.prod(shape)
        values = array("f", [1.0]) * count if "norm" in name else _normals(source, count)
        if sys.byteorder == "big":
            values.byteswap()
        start = len(body)
        body += values.tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(body)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def make(folder: Path, *, seed: int = SEED, layers: int = LAYERS) -> None:
    """Writes the model into ``folder`` (created if it does not exist; existing files are replaced). 0.9 MB for four layers."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"config.json": _config(layers), "tokenizer.json": _tokenizer(), "tokenizer_config.json": _tokenizer_config()}
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(_safetensors(seed, layers))


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m thunderfleet_localcluster.models.tinymodel FOLDER``."""
    parser = argparse.ArgumentParser(
        prog="python -m thunderfleet_localcluster.models.tinymodel",
        description="Write the test model (qwen2, float32) to a folder.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="output folder; created if it does not exist")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the weights; tests rely on the default")
    parser.add_argument("--layers", type=int, default=LAYERS, help="number of layers")
    options = parser.parse_args(arguments)
    if options.layers < 1:
        print("--layers must be at least 1", file=sys.stderr)
        return 2
    try:
        make(options.folder, seed=options.seed, layers=options.layers)
    except OSError as error:
        print(f"cannot write the model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
