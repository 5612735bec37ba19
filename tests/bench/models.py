"""The models that the benchmarks serve: the tiny one, and one whose tokens take long enough to be measured."""

import json
from pathlib import Path

import numpy
from safetensors import safe_open
from safetensors.numpy import save_file
from thunderfleet_localcluster.models import tinymodel

TINY = "thunderfleet/tiny-qwen2"
SMALL = "thunderfleet/small-qwen2"

_WIDE = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def _index(folder: Path, names: list[str]) -> None:
    """The index that mlx-lm's pipelines require even for a single file."""
    path = folder / "model.safetensors"
    if not names:
        with safe_open(path, "numpy") as file:
            names = sorted(file.keys())
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, path.name)}
    (folder / f"{path.name}.index.json").write_text(json.dumps(index), encoding="utf-8")


def make_tiny(folder: Path) -> None:
    """The demo's model, so small that MLX's own work takes almost no time."""
    tinymodel.make(folder)
    _index(folder, [])


def make_small(folder: Path) -> None:
    """The tiny model's tokenizer on 17 million parameters (70 MB): milliseconds a token, not fractions of one."""
    tinymodel.make(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | _WIDE
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    key_value = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", hidden), ("k", key_value), ("v", key_value)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (rows, hidden)
            shapes[f"{prefix}self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    source = numpy.random.default_rng(tinymodel.SEED)
    tensors = {
        name: numpy.ones(shape, numpy.float32)
        if "norm" in name
        else (source.standard_normal(shape, numpy.float32) * numpy.float32(0.05))
        for name, shape in shapes.items()
    }
    _index(folder, sorted(tensors))
    weights = folder / "model.safetensors"
    save_file(tensors, str(weights), metadata={"format": "mlx"})
    # safetensors keeps its files to their owner; pods run as another user.
    weights.chmod(0o644)
