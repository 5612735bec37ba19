"""mlx-lm's models: loading, layers, caches, and the limits that we take over from it."""

from pathlib import Path
from typing import Any

from mlx_lm import server as _server
from mlx_lm import utils as _utils
from mlx_lm.models import cache as _cache

from thunderfleet_runner.rank.mlxlm import families
from thunderfleet_runner.rank.mlxlm.generate import generate as _generate


def load_lazily(folder: Path, *, strict: bool = True) -> tuple[Any, dict[str, Any]]:
    """The whole model with no weight read. Returns (model, configuration). Raises mlx-lm's errors.

    ``strict``: checked that the files have the weights of all parameters, and no others.
    """
    model, config = _utils.load_model(folder, lazy=True, strict=strict)
    return model, config


def load_tokenizer(folder: Path, config: dict[str, Any]) -> Any:
    """mlx-lm's wrapper around the model's tokenizer. Code that comes with a model is not run."""
    tokenizer = _utils.load_tokenizer(folder, {"trust_remote_code": False}, eos_token_ids=config.get("eos_token_id"))
    families.adopt(tokenizer)
    return tokenizer


def layers(model: Any) -> list[Any]:
    """The layers that this rank holds; a pipeline keeps None for the others."""
    return [layer for layer in getattr(model, "layers", ()) if layer is not None]


def architecture(model: Any) -> str:
    """mlx-lm's name of the kind of model, such as qwen2."""
    return str(getattr(model, "model_type", type(model).__module__.rsplit(".", 1)[-1]))


def build(config: dict[str, Any]) -> Any:
    """The model of a configuration with no weights read (its arrays are lazy). Raises ValueError for an unknown kind."""
    model_class, arguments = _utils._get_classes(config)
    return model_class(arguments.from_dict(config))


def prompt_cache(model: Any) -> list[Any]:
    """A fresh cache for one sequence: one object a layer that this rank holds."""
    return list(_cache.make_prompt_cache(model))


def forget_wired_limit() -> None:
    """Stops mlx-lm from setting the wired limit; the rank sets it to its reservation."""
    modules: tuple[Any, ...] = (_utils, _generate, _server)
    for module in modules:
        module.maybe_set_recommended_wired_limit = _no_wired_limit


def _no_wired_limit() -> None:
    return None


def always_trimmable(model: Any) -> bool:
    """Whether every cache of this rank's layers can drop its last tokens at any time, as plain attention can."""
    plain = (_cache.KVCache, _cache.QuantizedKVCache)
    return all(type(entry) in plain for entry in prompt_cache(model))


def _never_trim(_cache_entries: Any) -> bool:
    return False


def forbid_trimming() -> None:
    """Makes the prompt cache reuse prefixes whole or not at all: some rank has layers that cannot be trimmed."""
    _cache.can_trim_prompt_cache = _never_trim


def vocabulary(config: dict[str, Any]) -> int:
    """The number of token ids in a model's configuration; 0 when it has none."""
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return 0
