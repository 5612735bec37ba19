"""A small random model like Qwen3-Embedding, and its vectors computed by numpy from the published formulas.

The formulas are those of Qwen3's technical report and model card: RMS norms before attention and the MLP, grouped attention
with normed queries and keys and rotary embedding, a gated MLP, a last norm, and of each text the last token's state,
normalized.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy
from numpy.typing import NDArray
from thunderfleet_localcluster.models import tinymodel

HIDDEN, WIDE, LAYERS, HEADS, KV_HEADS, HEAD = 64, 96, 3, 4, 2, 24
EPSILON, THETA, CONTEXT = 1e-6, 10_000.0, 8192
END = 0
"""The token that the tokenizer adds at the end of each text, as Qwen3-Embedding's does."""

Array = NDArray[numpy.float64]


def make(folder: Path, *, pooling: dict[str, Any] | None = None, tied: bool = True) -> None:
    """Writes the model into ``folder``. ``pooling``: the content of ``1_Pooling/config.json``."""
    tinymodel.make(folder, layers=1)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN, "intermediate_size": WIDE,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "max_position_embeddings": CONTEXT, "vocab_size": tinymodel.VOCABULARY, "rms_norm_eps": EPSILON, "rope_theta": THETA,
        "tie_word_embeddings": tied, "torch_dtype": "float32", "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [END], "tokens": ["<|endoftext|>"]}},
    }
    path.write_text(json.dumps(tokenizer))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    arrays = {name: mx.array(value.astype(numpy.float32)) for name, value in weights().items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "mlx"})


def weights(seed: int = 11) -> dict[str, Array]:
    """By name."""
    source = numpy.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (tinymodel.VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (HIDDEN,),
            f"{prefix}self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
            f"{prefix}self_attn.q_norm.weight": (HEAD,),
            f"{prefix}self_attn.k_norm.weight": (HEAD,),
            f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}mlp.gate_proj.weight": (WIDE, HIDDEN),
            f"{prefix}mlp.up_proj.weight": (WIDE, HIDDEN),
            f"{prefix}mlp.down_proj.weight": (HIDDEN, WIDE),
        }
    shapes["model.norm.weight"] = (HIDDEN,)
    found = {name: source.normal(1.0 if len(shape) == 1 else 0.0, 0.15, shape) for name, shape in shapes.items()}
    return {name: value.astype(numpy.float32).astype(numpy.float64) for name, value in found.items()}


def vector(tokens: Sequence[int], size: int = HIDDEN) -> Array:
    """The vector of a text, in double precision."""
    of = weights()
    state = of["model.embed_tokens.weight"][list(tokens)]
    for layer in range(LAYERS):
        mine = {name.removeprefix(f"model.layers.{layer}."): value for name, value in of.items()}
        state = state + _attention(_norm(state, mine["input_layernorm.weight"]), mine)
        inner = _norm(state, mine["post_attention_layernorm.weight"])
        gate = inner @ mine["mlp.gate_proj.weight"].T
        state = (
            state + (gate / (1 + numpy.exp(-gate)) * (inner @ mine["mlp.up_proj.weight"].T)) @ mine["mlp.down_proj.weight"].T
        )
    last: Array = _norm(state, of["model.norm.weight"])[-1][:size]
    return last / numpy.linalg.norm(last)


def _norm(rows: Array, weight: Array) -> Array:
    found: Array = rows / numpy.sqrt((rows**2).mean(-1, keepdims=True) + EPSILON) * weight
    return found


def _attention(rows: Array, mine: dict[str, Array]) -> Array:
    count = len(rows)
    queries = _turned(_norm(_heads(rows, mine["self_attn.q_proj.weight"]), mine["self_attn.q_norm.weight"]))
    keys = _turned(_norm(_heads(rows, mine["self_attn.k_proj.weight"]), mine["self_attn.k_norm.weight"]))
    values = _heads(rows, mine["self_attn.v_proj.weight"])
    later = numpy.triu(numpy.full((count, count), -numpy.inf), 1)
    found = []
    for head in range(HEADS):
        shared = head * KV_HEADS // HEADS
        scores = queries[:, head] @ keys[:, shared].T / numpy.sqrt(HEAD) + later
        shares = numpy.exp(scores - scores.max(-1, keepdims=True))
        found.append(shares / shares.sum(-1, keepdims=True) @ values[:, shared])
    together: Array = numpy.concatenate(found, axis=-1) @ mine["self_attn.o_proj.weight"].T
    return together


def _heads(rows: Array, weight: Array) -> Array:
    return (rows @ weight.T).reshape(len(rows), -1, HEAD)


def _turned(heads: Array) -> Array:
    """Rotary embedding: the first half of a head's values is paired with the second."""
    half = HEAD // 2
    angles = numpy.arange(len(heads))[:, None, None] / THETA ** (numpy.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    cosine, sine = numpy.cos(angles), numpy.sin(angles)
    return numpy.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
