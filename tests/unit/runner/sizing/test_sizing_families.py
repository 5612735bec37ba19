"""Planned and real sizes: small models of many families are made from their configurations, and every rank is loaded."""

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from thunderfleet_crds.kinds.nodeprofile import KVLayer, Model
from thunderfleet_crds.vocabulary import SizedBy, Split
from thunderfleet_runner.rank import loading, mlxlm
from thunderfleet_runner.sizing import blank, dryrun, sizes
from thunderfleet_runner.sizing.arithmetic import StandIn

from tests.support.suite.tiers import quick

Made = Callable[..., tuple[Path, Model]]
WORLD_SIZES = (1, 2, 3, 4)
TOKENS = 256
"""A multiple of the 256 by which caches grow, so that they reserve no extra memory."""
_PLAIN = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
_WIDE = {**_PLAIN, "hidden_size": 512, "intermediate_size": 4096}
"""For quantised models: a share of a small array keeps up to 16 KiB of the whole, which only small models notice."""
_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "head_dim": 32,
}
_LATENT = {
    "moe_intermediate_size": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_key_value_heads": 8,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_PLAIN, "model_type": "llama"},
    "qwen2, 4 bits": {**_WIDE, "vocab_size": 16384, "model_type": "qwen2", "quantization": {"group_size": 32, "bits": 4}},
    "qwen3_moe": {**_PLAIN, **_EXPERTS, "model_type": "qwen3_moe"},
    "deepseek_v3": {**_PLAIN, **_LATENT, "model_type": "deepseek_v3"},
    "deepseek_v3, 4 bits": {
        **_WIDE,
        **_LATENT,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 1024,
        "quantization": {"group_size": 32, "bits": 4},
    },
    "gemma3_text": {
        **_PLAIN,
        "model_type": "gemma3_text",
        "head_dim": 32,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 32,
    },
    "gpt_oss, mxfp4": {
        **_WIDE,
        "model_type": "gpt_oss",
        "head_dim": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    },
    "qwen3_next": {
        **_PLAIN,
        **_EXPERTS,
        "model_type": "qwen3_next",
        "num_hidden_layers": 2,
        "linear_num_value_heads": 8,
        "linear_num_key_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "shared_expert_intermediate_size": 128,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
    },
    "phi3": {**_PLAIN, "model_type": "phi3"},
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 16,
        "head_dim": 32,
        "vocab_size": 1024,
        "hidden_size": 256,
        "intermediate_size": 512,
        "state_size": 32,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": [0.0, 1e9],
        "time_step_rank": "auto",
    },
    "lfm2": {
        **_PLAIN,
        "model_type": "lfm2",
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 256,
        "block_ff_dim": 512,
        "block_multiple_of": 64,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1, 3],
    },
}
QUICK = {"llama", "qwen2, 4 bits", "deepseek_v3", "gemma3_text", "mamba2"}
"""One for each way to compute a size: plain and quantized attention, latent attention with experts, sliding windows, states."""
_NARROW = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024, "moe_intermediate_size": 128, "sliding_window": 32}
NARROW = {
    family: {**config, **{name: value for name, value in _NARROW.items() if name in config}}
    for family, config in FAMILIES.items()
    if "quantization" in config
}
"""Families whose quantized models run here: a CPU takes minutes for the wide ones, and their caches have the same shapes."""
SHALLOW = {family: {**config, "num_hidden_layers": 2} for family, config in FAMILIES.items()}
"""Two layers: one after the other uses the memory of a step, so more of them take time and show nothing more."""
REFUSE_TENSOR = {"gemma3_text", "phi3", "qwen3_next", "mamba2", "lfm2"}
"""Families of which this mlx-lm shards none: measured on one rank only."""


def _save(folder: Path, config: dict[str, Any]) -> None:
    """A model of this configuration with random weights, saved as mlx-lm's own classes have them."""
    mx.random.seed(1)
    model = mlxlm.build(config)
    quantization = config.get("quantization")
    # MLX on a processor has no mixture of experts in 16 bits.
    if quantization or not {"num_experts", "n_routed_experts"} & config.keys():
        model.set_dtype(mx.bfloat16)
    if quantization:
        nn.quantize(model, **quantization)
    weights = dict(tree_flatten(model.parameters()))
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Makes and sizes a family's model once (in this process: other tests cover the child)."""
    kept: dict[str, tuple[Path, Model]] = {}

    def get(family: str, smaller: dict[str, dict[str, Any]] = FAMILIES) -> tuple[Path, Model]:
        config = smaller.get(family, FAMILIES[family])
        key = json.dumps(config)
        if key not in kept:
            folder = tmp_path_factory.mktemp("model")
            _save(folder, config)
            world_sizes = WORLD_SIZES if config is FAMILIES[family] else (1,)
            facts = dryrun.facts(folder, world_sizes, lambda _: None)
            assert facts.kv_problem is None and facts.workspace_problem is None, family
            kept[key] = folder, sizes.by_mlx(str(folder), config, facts, world_sizes)
        return kept[key]

    return get


def _loaded(folder: Path, split: Split, group: Any, ranges: Any = ()) -> tuple[Any, int]:
    """One rank's part, really in memory, and the bytes that MLX counts for it."""
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    model, _ = mlxlm.load_lazily(folder)
    loading.split_model(model, split, group, ranges)
    loading.evaluate(model, lambda *_: None)
    gc.collect()
    return model, mx.get_active_memory() - before


def _close(real: int, planned: int) -> bool:
    return abs(real - planned) <= 0.02 * real


@pytest.mark.parametrize("family", quick(QUICK, FAMILIES))
def test_ranks_load_what_was_planned(made: Made, family: str) -> None:
    folder, planned = made(family)
    assert planned.sized_by is SizedBy.MLX and planned.quantized == ("quantization" in FAMILIES[family])
    split = 0
    for size in planned.sizes:
        if size.refusal:
            continue
        split += size.world_size > 1
        for rank, nbytes in enumerate(size.tensor_bytes_per_rank):
            mode = Split.NONE if size.world_size == 1 else Split.TENSOR
            _, real = _loaded(folder, mode, StandIn(rank, size.world_size))
            assert _close(real, nbytes), f"rank {rank} of {size.world_size}: {real} bytes, planned {nbytes}"
    assert (split == 0) == (family in REFUSE_TENSOR), [size.refusal for size in planned.sizes]


@pytest.mark.parametrize("family", quick(QUICK, FAMILIES))
def test_stages_load_what_was_planned(made: Made, family: str) -> None:
    folder, planned = made(family)
    pipeline = planned.pipeline
    assert pipeline is not None and len(pipeline.layer_bytes) == FAMILIES[family]["num_hidden_layers"]
    if pipeline.refusal:
        assert "pipeline" in pipeline.refusal
        return
    last_layer = len(pipeline.layer_bytes) - 1
    ranges = [(last_layer, last_layer + 1), (0, last_layer)]
    for rank, (first, last) in enumerate(ranges):
        _, real = _loaded(folder, Split.PIPELINE, StandIn(rank, 2), ranges)
        nbytes = pipeline.shared_bytes + sum(pipeline.layer_bytes[first:last])
        assert _close(real, nbytes), f"layers {first} to {last}: {real} bytes, planned {nbytes}"


def _planned_cache(layer: KVLayer, tokens: int, parts: int) -> int:
    kept = min(tokens, layer.window_tokens) if layer.window_tokens else tokens
    return (layer.fixed_bytes + kept * layer.bytes_per_token) // (parts if layer.tensor_split else 1)


@pytest.fixture
def without_compiler() -> Iterator[None]:
    """MLX's CPU build calls the C++ compiler for each fused kernel, and caches have the same sizes without them."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("family", quick(QUICK, FAMILIES))
def test_caches_hold_what_was_planned(made: Made, family: str) -> None:
    """A real prefill and one real token more, on the whole model."""
    folder, planned = made(family, NARROW)
    model, _ = _loaded(folder, Split.NONE, None)
    cache = mlxlm.prompt_cache(model)
    # Caches allocate TOKENS at once. Windows take effect only after they are full; a CPU is slow with quantized weights.
    windows = [layer.window_tokens for layer in planned.kv if layer.window_tokens]
    prompt = TOKENS - 1 if family not in NARROW else max(windows) + 2 if windows else 31
    for tokens in (prompt, 1):
        model(mx.zeros((1, tokens), mx.int32), cache=cache)
        mx.eval([entry.state for entry in cache])
    assert len(cache) == len(planned.kv)
    for number, (entry, layer) in enumerate(zip(cache, planned.kv, strict=True)):
        real, expected = int(entry.nbytes), _planned_cache(layer, TOKENS, 1)
        assert _close(real, expected), f"layer {number}: {real} bytes, planned {expected} ({layer})"


@pytest.mark.parametrize("family", quick(QUICK - REFUSE_TENSOR, sorted(FAMILIES.keys() - REFUSE_TENSOR)))
def test_caches_of_ranks_hold_what_was_planned(made: Made, family: str) -> None:
    folder, planned = made(family)
    model, _ = _loaded(folder, Split.TENSOR, StandIn(1, 2))
    with blank.no_values():
        cache = dryrun.forward(model, TOKENS)
    for entry, layer in zip(cache, planned.kv, strict=True):
        expected = _planned_cache(layer, TOKENS, 2)
        # A prompt that is processed in one step stays in a sliding window's cache as a whole until the next token.
        real = int(entry.nbytes) * (min(TOKENS, layer.window_tokens) if layer.window_tokens else TOKENS) // TOKENS
        assert _close(real, expected) or (not layer.bytes_per_token and _close(int(entry.nbytes), expected)), layer
    latent = "kv_lora_rank" in FAMILIES[family]
    assert all(layer.tensor_split != latent for layer in planned.kv)


def test_windows_and_fixed_states_are_distinguished(made: Made) -> None:
    gemma, hybrid = made("gemma3_text")[1].kv, made("qwen3_next")[1].kv
    assert [layer.window_tokens for layer in gemma] == [128, None, 128, None]
    assert all(layer.bytes_per_token == 2 * 2 * 4 * 32 and layer.fixed_bytes == 0 for layer in gemma)
    assert [(layer.bytes_per_token > 0, layer.fixed_bytes > 0) for layer in hybrid] == [(False, True), (True, False)]
    assert all(layer.bytes_per_token == 0 for layer in made("mamba2")[1].kv)


@pytest.mark.parametrize("family", quick(["llama", "deepseek_v3"], ["llama", "deepseek_v3", "qwen3_moe"]))
def test_the_workspace_is_enough_for_a_real_step(made: Made, family: str) -> None:
    folder, planned = made(family, SHALLOW)
    model, _ = _loaded(folder, Split.NONE, None)
    cache = mlxlm.prompt_cache(model)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    model(mx.zeros((1, mlxlm.PREFILL_STEP), mx.int32), cache=cache)
    mx.eval([entry.state for entry in cache])
    used = mx.get_peak_memory() - before - sum(int(entry.nbytes) for entry in cache)
    assert planned.prefill_workspace_bytes is not None
    assert used <= planned.prefill_workspace_bytes <= 4 * used
