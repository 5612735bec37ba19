"""What a model needs of memory, split over so many ranks, from mlx-lm itself: the planner only adds up.

Whether heads divide does not decide whether a model splits, and an index holds no sizes. So the model is built lazily from
its own files (no weight is read), split by its own ``shard()`` and ``pipeline()`` with a stand-in group, and asked how many
bytes are left; a refusal is kept in mlx-lm's own words. A short lazy forward with a stand-in for every collective gives the
bytes of the key-value caches. Output: the size fields of ``NodeProfile.status.models[]``. A kind of model that mlx-lm does
not know is sized by its files alone, and says so.
"""

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_crds.nodeprofile import KVLayer, Model, PipelineSize, SizedBy, TensorSize

from thunderfleet_runner import weightfiles
from thunderfleet_runner.weightfiles import IncompleteModel, Tensor

log = logging.getLogger(__name__)

SHORT, LONG = 256, 512
"""Tokens of the two traced forwards (caches grow by 256); what grows between them grows with the sequence."""
_REFUSAL = 500
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_CONTEXT_NAMES = ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length", "model_max_length")


@dataclass(frozen=True)
class StandIn:
    """As much of MLX's group as splitting a model asks for."""

    place: int
    members: int

    def rank(self) -> int:
        return self.place

    def size(self) -> int:
        return self.members


def size(folder: Path, world_sizes: Sequence[int]) -> Model:
    """The model in ``folder``, sized for tensor parallelism over each of ``world_sizes``, for pipelines, and its caches.

    Raises IncompleteModel when its files are not whole, ValueError when its configuration cannot be read, OSError.
    """
    tensors = weightfiles.read(folder)
    config = _config(folder)
    try:
        return _by_mlx(folder, config, world_sizes)
    except Exception as error:
        # Anything can come out of an architecture that mlx-lm does not know; files can be added up whatever it is.
        why = f"mlx-lm cannot build this model: {type(error).__name__}: {error}"
        log.warning("%s: %s; it is sized by its files", folder, why)
        return _by_files(folder, config, tensors, why)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object")
    return config


def _number(config: dict[str, Any], names: Iterable[str]) -> int | None:
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    found = [part[name] for part in parts for name in names if isinstance(part.get(name), int)]
    return next((int(value) for value in found if value > 0), None)


def _quantization(config: dict[str, Any]) -> tuple[bool, int | None]:
    section = config.get("quantization") or config.get("quantization_config")
    if not isinstance(section, dict):
        return False, None
    bits = section.get("bits")
    return True, int(bits) if isinstance(bits, int) and 1 <= bits <= 64 else None


def _text(error: Exception | str) -> str:
    return " ".join(str(error).split())[:_REFUSAL] or type(error).__name__


def _common(folder: Path, config: dict[str, Any], tensors_bytes: int) -> dict[str, Any]:
    quantized, bits = _quantization(config)
    kind = config.get("model_type")
    return {
        "path": str(folder.absolute()),
        "bytes": tensors_bytes,
        "complete": True,
        "architecture": kind if isinstance(kind, str) else None,
        "quantized": quantized,
        "bits": bits,
        "context_length_tokens": _number(config, _CONTEXT_NAMES),
    }


def _by_files(folder: Path, config: dict[str, Any], tensors: Sequence[Tensor], why: str) -> Model:
    layer_bytes: dict[int, int] = {}
    for tensor in tensors:
        match = _LAYER.search(tensor.name)
        if match is not None:
            layer_bytes[int(match[1])] = layer_bytes.get(int(match[1]), 0) + tensor.nbytes
    total = sum(tensor.nbytes for tensor in tensors)
    layers = max(layer_bytes, default=-1) + 1
    return Model(
        **_common(folder, config, total),
        layers=layers or None,
        sizes=(TensorSize(world_size=1, tensor_bytes_per_rank=(total,)),),
        pipeline=PipelineSize(
            layer_bytes=tuple(layer_bytes.get(layer, 0) for layer in range(layers)),
            shared_bytes=total - sum(layer_bytes.values()),
            refusal=_text(why),
        ),
        sized_by=SizedBy.FILES,
    )


# --- mlx-lm's own answer --------------------------------------------------------------------------------------------


def _by_mlx(folder: Path, config: dict[str, Any], world_sizes: Sequence[int]) -> Model:
    from thunderfleet_runner import mlxlm

    model, _ = mlxlm.load_lazily(folder)
    total = _nbytes(model)
    pipeline = _pipeline(folder, model, total)
    kv, workspace = _caches(folder, config)
    return Model(
        **_common(folder, config, total),
        layers=len(mlxlm.layers(model)) or None,
        prefill_workspace_bytes=workspace,
        sizes=tuple(_tensor(folder, world_size, total) for world_size in world_sizes),
        pipeline=pipeline,
        kv=kv,
        sized_by=SizedBy.MLX,
    )


def _nbytes(module: Any) -> int:
    from mlx.utils import tree_flatten

    return sum(int(array.nbytes) for _, array in tree_flatten(module.parameters()))


def _tensor(folder: Path, world_size: int, total: int) -> TensorSize:
    """Splits a fresh lazy model for each rank; ranks are alike unless the model says otherwise, so first and last are asked."""
    from thunderfleet_crds.plan import Split

    from thunderfleet_runner import loading, mlxlm

    if world_size == 1:
        return TensorSize(world_size=1, tensor_bytes_per_rank=(total,))
    per_rank: dict[int, int] = {}
    try:
        for rank in (0, world_size - 1):
            model, _ = mlxlm.load_lazily(folder)
            loading.split_model(model, Split.TENSOR, StandIn(rank, world_size))
            _try(model, world_size)
            per_rank[rank] = _nbytes(model)
            del model
    except Exception as error:
        return TensorSize(world_size=world_size, refusal=_text(error))
    middle = max(per_rank.values())
    return TensorSize(
        world_size=world_size,
        tensor_bytes_per_rank=tuple(per_rank.get(rank, middle) for rank in range(world_size)),
    )


def _try(model: Any, world_size: int) -> None:
    """A forward of a split model. Heads that do not divide are found here only; mlx-lm's text then speaks of shapes."""
    from thunderfleet_runner import mlxlm

    try:
        _forward(model, 4)
    except Exception as error:
        raise ValueError(f"{mlxlm.architecture(model)} over {world_size} ranks can be split but not run: {error}") from error


def _pipeline(folder: Path, model: Any, total: int) -> PipelineSize:
    from thunderfleet_crds.plan import Split

    from thunderfleet_runner import loading, mlxlm

    layer_bytes = tuple(_nbytes(layer) for layer in mlxlm.layers(model))
    refusal: str | None = None
    if len(layer_bytes) < 2:
        refusal = "a pipeline needs at least two layers"
    else:
        try:
            half, _ = mlxlm.load_lazily(folder)
            loading.split_model(half, Split.PIPELINE, StandIn(1, 2))
        except Exception as error:
            refusal = _text(error)
    return PipelineSize(layer_bytes=layer_bytes, shared_bytes=total - sum(layer_bytes), refusal=refusal)


@contextmanager
def _no_peers() -> Iterator[None]:
    """Collectives that answer from here: shapes are what they would be, values do not matter. Lazy, so nothing is computed."""
    import mlx.core as mx

    def gathered(x: Any, *, group: Any = None, stream: Any = None) -> Any:
        return mx.concatenate([x] * (group.size() if group is not None else 1))

    stubs = {
        "all_sum": lambda x, **_: x,
        "all_gather": gathered,
        "send": lambda x, dst, **_: x,
        "recv_like": lambda x, src, **_: x,
    }
    module: Any = mx.distributed
    kept = {name: getattr(module, name) for name in stubs}
    try:
        for name, stub in stubs.items():
            setattr(module, name, stub)
        yield
    finally:
        for name, real in kept.items():
            setattr(module, name, real)


def _forward(model: Any, tokens: int) -> list[Any]:
    """A lazy forward over so many tokens; the caches that it filled (their shapes are known, nothing is computed)."""
    import mlx.core as mx

    from thunderfleet_runner import mlxlm

    cache = mlxlm.prompt_cache(model)
    with _no_peers():
        model(mx.zeros((1, tokens), mx.int32), cache=cache)
    return cache


def _held(entry: Any) -> int:
    """Bytes of what one layer's cache holds for the tokens it has seen, without the room that it keeps in reserve."""
    from mlx.utils import tree_flatten

    state = entry.state
    arrays = [value for _, value in tree_flatten(state)] if isinstance(state, list | tuple | dict) else [state]
    return sum(int(array.nbytes) for array in arrays if hasattr(array, "nbytes"))


def _caches(folder: Path, config: dict[str, Any]) -> tuple[tuple[KVLayer, ...], int | None]:
    """Each layer's cache, and the peak workspace of a prefill step in bytes."""
    from thunderfleet_runner import mlxlm

    whole, _ = mlxlm.load_lazily(folder)
    short, long = _forward(whole, SHORT), _forward(whole, LONG)
    divided = _divided(folder)
    layers: list[KVLayer] = []
    for number, (few, many) in enumerate(zip(short, long, strict=True)):
        fixed, per_token = _growth(few, many)
        window = getattr(many, "max_size", None)
        layers.append(
            KVLayer(
                fixed_bytes=fixed,
                bytes_per_token=per_token,
                window_tokens=int(window) if isinstance(window, int) and window > 0 else None,
                tensor_split=number < len(divided) and divided[number],
            )
        )
    return tuple(layers), _workspace(config)


def _growth(short: Any, long: Any) -> tuple[int, int]:
    """(fixed bytes, bytes a token) of a layer's cache, from what it holds after SHORT and after LONG tokens."""
    keys: Any = getattr(long, "keys", None)
    values: Any = getattr(long, "values", None)
    if getattr(keys, "ndim", 0) == 4 and getattr(values, "ndim", 0) == 4:
        # Attention: (sequences, heads, tokens, width). A sliding window does not grow, so its tokens are counted.
        return 0, (int(keys.nbytes) + int(values.nbytes)) // int(keys.shape[2])
    small, large = _held(short), _held(long)
    per_token = max(large - small, 0) // (LONG - SHORT)
    return max(small - per_token * SHORT, 0), per_token


def _divided(folder: Path) -> tuple[bool, ...]:
    """For each layer, whether its cache is smaller when tensor parallelism divides the model in two."""
    from thunderfleet_crds.plan import Split

    from thunderfleet_runner import loading, mlxlm

    try:
        model, _ = mlxlm.load_lazily(folder)
        whole = [_held(entry) for entry in _forward(model, SHORT)]
        loading.split_model(model, Split.TENSOR, StandIn(0, 2))
        half = [_held(entry) for entry in _forward(model, SHORT)]
    except Exception as error:
        log.info("whether tensor parallelism divides the caches cannot be said: %s", error)
        return ()
    return tuple(after < before for before, after in zip(whole, half, strict=True))


def _workspace(config: dict[str, Any]) -> int | None:
    """An upper estimate of what one prefill step needs besides weights and caches.

    The widest activations of a step (hidden, MLP's three, queries and the rest of attention in float32) and the logits of one
    position; attention itself is fused. Unknown configurations get none.
    """
    from thunderfleet_runner import mlxlm

    hidden = _number(config, ("hidden_size", "n_embd", "d_model"))
    if hidden is None:
        return None
    wide = _number(config, ("intermediate_size", "n_inner", "ffn_dim")) or 4 * hidden
    vocabulary = _number(config, ("vocab_size",)) or 0
    return 4 * (mlxlm.PREFILL_STEP * (6 * hidden + 3 * wide) + 2 * vocabulary)


def main(path: Path, world_sizes: Sequence[int]) -> int:
    """Prints the sizes as JSON. Returns the exit code: 2 when the folder holds no whole model."""
    try:
        found = size(path, world_sizes)
    except (IncompleteModel, ValueError, OSError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    json.dump(found.model_dump(mode="json", by_alias=True, exclude_none=True), sys.stdout)
    print()
    return 0
