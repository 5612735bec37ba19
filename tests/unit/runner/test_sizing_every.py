"""Every architecture of the installed mlx-lm, from configurations guessed out of its own arguments: sizes or a reason, never a
crash."""

import importlib
import inspect
import pkgutil
from typing import Any

import mlx_lm.models
import pytest
from thunderfleet_crds.nodeprofile import SizedBy
from thunderfleet_runner.sizing import arithmetic, blank, dryrun

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
    """Small numbers for what has no default or a large one."""
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
    return {**config, "model_type": name}


NAMES = [module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)]


def _sized(name: str) -> str | None:
    """What became of this architecture; None when it is none."""
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
        except Exception:
            return "no configuration guessed"
        blank.hollow(model)
        facts = dryrun.of_model(model, WORLD_SIZES, lambda _: None, 512)
    planned = arithmetic.by_mlx("/model", config, facts, WORLD_SIZES)
    assert planned.sized_by is SizedBy.MLX and planned.bytes > 0
    for size in planned.sizes:
        assert bool(size.refusal) != bool(size.tensor_bytes_per_rank)
        # A share is never more than the whole, and all shares together are not less.
        assert all(nbytes <= planned.bytes for nbytes in size.tensor_bytes_per_rank)
        assert size.refusal or sum(size.tensor_bytes_per_rank) >= planned.bytes * 0.999
    assert planned.pipeline is not None
    assert sum(planned.pipeline.layer_bytes) + planned.pipeline.shared_bytes >= planned.bytes
    return "caches traced" if facts.kv is not None else "caches estimated"


@pytest.mark.parametrize("part", range(4))
def test_an_architecture_has_sizes_or_a_reason(part: int) -> None:
    found = {name: _sized(name) for name in NAMES[part::4]}
    ran = [what for what in found.values() if what is not None]
    # A guessed configuration does not suit every architecture; it must suit most, or little is tested here.
    assert sum("caches" in what for what in ran) > len(ran) / 2, found
    assert "caches traced" in ran, found
