"""Every architecture of the installed mlx-lm, with small configurations guessed from its arguments: all have sizes."""

import importlib
import inspect
import pkgutil
from typing import Any

import mlx_lm.models
import pytest
from thunderfleet_crds.vocabulary import SizedBy
from thunderfleet_runner.sizing import blank, dryrun, sizes

WORLD_SIZES = (1, 2, 3)
_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "sliding_window_pattern": 2,
    "qk_rope_head_dim": 16,
}
_BY_NAME = (("layer", 2), ("expert", 2), ("dim", 16), ("rank", 16), ("state", 16), ("head", 4), ("kernel", 4), ("vocab", 128))

_LAYERS = ["sliding_attention", "full_attention"]
_ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
_ROPES = {"sliding_attention": _ROPE, "full_attention": _ROPE}
_SCALED = {**_ROPE, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 256}
_YARN = {"type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 256}
_LONG = {"type": "longrope", "factor": 1.0, "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
_DYNAMIC = {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
_ROUTED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1}
_CHOSEN = {**_ROUTED, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
_LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
_LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
_KDA = {"kda_layers": [1], "full_attn_layers": [2], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4}
_KIMI = {
    **_LATENT,
    "linear_attn_config": _KDA,
    "num_key_value_heads": 4,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "first_k_dense_replace": 1,
}
_GEMMA = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": _LAYERS * 2,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    "sliding_window": 32,
}
_GEMMA3N = {
    **_GEMMA,
    "rope_local_base_freq": 10000.0,
    "final_logit_softcapping": 30.0,
    "activation_sparsity_pattern": [0.5, 0.0] * 2,
    "altup_num_inputs": 2,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 16,
}
_GEMMA4 = {**_GEMMA, "global_head_dim": 32}
_CONVOLUTION = {
    "layer_types": ["conv", "full_attention"],
    "conv_L_cache": 3,
    "conv_bias": False,
    "block_dim": 64,
    "block_ff_dim": 128,
    "block_multiple_of": 64,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "norm_eps": 1e-5,
    "num_dense_layers": 1,
}
_QWEN35 = {**_LINEAR, "full_attention_interval": 2, "num_experts": 0}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_n_groups": 1}
_OWN: dict[str, dict[str, Any]] = {
    "afm7": {"num_layers": 4, "num_kv_reuse_layers": 2, "num_kv_heads": 2},
    "afmoe": {"layer_types": _LAYERS, "num_dense_layers": 1},
    "bailing_moe_v3": {
        **_LATENT,
        "n_group": 2,
        "topk_group": 1,
        "layer_group_size": 2,
        "moe_shared_expert_intermediate_size": 32,
    },
    "dbrx": {
        "d_model": 64,
        "ffn_config": {"ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v2": {"rope_scaling": _YARN},
    "exaone4": {"sliding_window": 32, "sliding_window_pattern": "LG", "rope_scaling": None},
    "exaone_moe": {"is_moe_layer": [False, True], "layer_types": _LAYERS},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "gear": {"layer_types": ["conv_mixer", "full_attention"]},
    "gemma3n": {"text_config": _GEMMA3N},
    "gemma4": {"text_config": _GEMMA4},
    "gemma4_text": _GEMMA4,
    "glm_moe_dsa": {
        **_CHOSEN,
        "rope_parameters": _ROPE,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
    },
    "gptj": {"n_embd": 64, "n_head": 4, "rotary_dim": 8, "n_layer": 2},
    "granitemoehybrid": {
        **_MAMBA,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 4,
        "shared_intermediate_size": 32,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
    },
    "hunyuan": {
        "rope_scaling": _DYNAMIC,
        "use_cla": True,
        "cla_share_factor": 2,
        "use_qk_norm": True,
        "num_shared_expert": 1,
        "moe_topk": 2,
        "use_mixed_mlp_moe": True,
    },
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2},
    "kimi_k3": {"text_config": _KIMI},
    "kimi_linear": _KIMI,
    "lfm2": _CONVOLUTION,
    "lfm2-vl": {"text_config": _CONVOLUTION},
    "lfm2_moe": {**_CONVOLUTION, "use_expert_bias": True},
    "llama4": {
        "text_config": {
            "attention_bias": False,
            "attention_chunk_size": 32,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 128,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
        }
    },
    "longcat_flash": {"mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_type": "identity"},
    "longcat_flash_ngram": {"mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    "mellum": {"layer_types": _LAYERS, "rope_parameters": _ROPES},
    "mimo_v2_flash": {
        **_CHOSEN,
        "hybrid_layer_pattern": [0, 1],
        "moe_layer_freq": [0, 1],
        "partial_rotary_factor": 0.5,
        "swa_num_key_value_heads": 2,
        "n_shared_experts": None,
    },
    "minicpm3": {"rope_scaling": {**_LONG, "original_max_position_embeddings": 256}, "num_key_value_heads": 4},
    "ministral3": {"rope_parameters": _SCALED, "layer_types": _LAYERS, "sliding_window": 32},
    "mistral4": {**_LATENT, **_ROUTED, "rope_parameters": _SCALED, "num_key_value_heads": 4},
    "muse_spark": {
        "text_config": {
            "post_norm_eps": 1e-5,
            "rope_parameters": _ROPE,
            "layer_rope_theta": [10000.0, 0.0],
            "layer_types": _LAYERS,
            "sliding_window": 32,
            "final_logit_softcapping": 30.0,
            "output_multiplier": 1.0,
            "num_local_experts": 4,
            "moe_hidden_size": 64,
        }
    },
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
        ]
    },
    "nemotron_h": {
        **_ROUTED,
        "hybrid_override_pattern": ["M", "*", "-", "E"],
        "num_hidden_layers": 4,
        "mamba_num_heads": 4,
        "n_groups": 1,
        "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 32,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    "olmo3": {"layer_types": _LAYERS},
    "phixtral": {"model_dim": 64, "num_heads": 4, "num_layers": 2, "rotary_dim": 8, "num_vocab": 128},
    "plamo": {"n_shared_head": 2},
    "prism_hadamard_qwen35": {
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [{"path": "lm_head", "embedding": False, "dtype": "float16", "block": 0}],
        "text_config": {**_QWEN35, "hidden_size": 128},
    },
    "qwen3_5": {"text_config": _QWEN35},
    "qwen3_5_moe": {"text_config": {**_QWEN35, **_EXPERTS, "shared_expert_intermediate_size": 32}},
    "qwen3_next": {**_LINEAR, "full_attention_interval": 2},
    "qwen3_vl_moe": {"text_config": {**_EXPERTS, "decoder_sparse_step": 1, "mlp_only_layers": []}},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "attention_window_size": 32, "conv1d_width": 4},
    "spark2_5": {"layer_types": _LAYERS, "rope_parameters": _ROPES},
}
"""Arguments that cannot be guessed from names and types, by architecture."""


def _integer(name: str) -> int:
    return next((value for part, value in _BY_NAME if part in name), 64 if "size" in name or "embd" in name else 2)


def _guess(name: str, kind: str) -> Any:
    for word, value in (("bool", False), ("Dict", {}), ("dict", {}), ("List", [1, 1]), ("list", [1, 1]), ("Tuple", [1, 1])):
        if word in kind:
            return value
    if "str" in kind:
        return "silu"
    if "float" in kind:
        return 1e-5 if "eps" in name else 1.0
    return _integer(name) if "int" in kind else None


def _config(module: Any, name: str) -> dict[str, Any]:
    """Small numbers for arguments without a default or with a large one."""
    config: dict[str, Any] = {}
    for field, parameter in inspect.signature(module.ModelArgs).parameters.items():
        if field in _SMALL:
            config[field] = _SMALL[field]
        elif field == "text_config":
            config[field] = {**_SMALL, "model_type": name}
        elif parameter.default is inspect.Parameter.empty:
            config[field] = _guess(field, str(parameter.annotation))
        elif type(parameter.default) is int and parameter.default > 64:
            config[field] = max(_integer(field), 16)
    own = dict(_OWN.get(name, {}))
    if "text_config" in own:
        own["text_config"] = {**config["text_config"], **own["text_config"]}
    return {**config, **own, "model_type": name}


NAMES = [module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)]


def _sized(name: str) -> str | None:
    """The result for this architecture; None if the module is no architecture."""
    try:
        module = importlib.import_module(f"mlx_lm.models.{name}")
    except SystemExit:
        return "cannot be imported here"
    if not hasattr(module, "Model") or not hasattr(module, "ModelArgs"):
        return None
    config = _config(module, name)
    with blank.no_values():
        try:
            model = module.Model(module.ModelArgs.from_dict(config))
        except Exception as error:
            return f"no configuration: {error!r}"
        blank.hollow(model)
        facts = dryrun.of_model(model, WORLD_SIZES, lambda _: None, 512)
    planned = sizes.by_mlx("/model", config, facts, WORLD_SIZES)
    assert planned.sized_by is SizedBy.MLX and planned.bytes > 0
    for size in planned.sizes:
        assert bool(size.refusal) != bool(size.tensor_bytes_per_rank)
        # A share is never more than the whole, and all shares together are not less.
        assert all(nbytes <= planned.bytes for nbytes in size.tensor_bytes_per_rank)
        assert size.refusal or sum(size.tensor_bytes_per_rank) >= planned.bytes * 0.999
    assert planned.pipeline is not None
    assert sum(planned.pipeline.layer_bytes) + planned.pipeline.shared_bytes >= planned.bytes
    return "caches traced" if facts.kv is not None else f"caches estimated: {facts.kv_problem}"


@pytest.mark.parametrize("part", range(4))
def test_an_architecture_has_sizes_or_a_reason(part: int) -> None:
    found = {name: _sized(name) for name in NAMES[part::4]}
    # Kernels that are written for the GPU alone cannot even be traced without one.
    allowed = ("caches traced", "cannot be imported here", "No Metal back-end")
    unlike = {name: what for name, what in found.items() if what is not None and not any(one in what for one in allowed)}
    assert not unlike
    assert "caches traced" in found.values(), found
