"""From the facts of a dry run, or the sizes of files, to ``NodeProfile.status.models[]``. Pure: no MLX and no files."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thunderfleet_crds.kinds.nodeprofile import KVLayer, Model, PipelineSize, TensorSize
from thunderfleet_crds.vocabulary import SizedBy

from thunderfleet_runner.host.weightfiles import Tensor, layer_of
from thunderfleet_runner.sizing import arithmetic
from thunderfleet_runner.sizing.arithmetic import Cache, Facts


def by_files(path: str, config: Mapping[str, Any], tensors: Sequence[Tensor], why: str) -> Model:
    """A model that mlx-lm cannot build: sized by its files, for one Mac."""
    layer_bytes: dict[int, int] = {}
    for tensor in tensors:
        layer = layer_of(tensor.name)
        if layer is not None:
            layer_bytes[layer] = layer_bytes.get(layer, 0) + tensor.nbytes
    total = sum(tensor.nbytes for tensor in tensors)
    layers = max(layer_bytes, default=-1) + 1
    workspace = arithmetic.workspace_by_configuration(config, 2048)
    return Model(
        **_common(path, config, total, tensors),
        layers=layers or None,
        prefill_workspace_bytes=workspace.nbytes if workspace else None,
        sizes=(TensorSize(world_size=1, tensor_bytes_per_rank=(total,)),),
        pipeline=PipelineSize(
            layer_bytes=tuple(layer_bytes.get(layer, 0) for layer in range(layers)),
            shared_bytes=total - sum(layer_bytes.values()),
            refusal=arithmetic.text(why),
        ),
        kv=_layers(arithmetic.caches_by_configuration(config)),
        sized_by=SizedBy.FILES,
    )


def by_mlx(
    path: str, config: Mapping[str, Any], facts: Facts, world_sizes: Sequence[int], tensors: Sequence[Tensor] = ()
) -> Model:
    """A model sized by the dry run; results it did not reach are refused, or estimated from above. ``tensors``: its files'."""
    total = facts.total_bytes or 0
    ended = arithmetic.text(facts.ended or "the dry run of mlx-lm ended before it tried this number of Macs")
    workspace = facts.workspace or arithmetic.workspace_by_configuration(config, 2048)
    return Model(
        **_common(path, config, total, tensors),
        layers=facts.layers,
        prefill_workspace_bytes=workspace.nbytes if workspace else None,
        prefill_workspace_bytes_per_token=workspace.per_token if workspace else None,
        sizes=tuple(_tensor_size(world_size, facts.tensor.get(world_size, ended), total) for world_size in world_sizes),
        pipeline=PipelineSize(
            layer_bytes=facts.layer_bytes,
            shared_bytes=facts.shared_bytes,
            refusal=facts.pipeline_refusal if facts.pipeline_asked else ended,
        ),
        kv=_layers(facts.kv if facts.kv is not None else arithmetic.caches_by_configuration(config)),
        sized_by=SizedBy.MLX,
    )


def _tensor_size(world_size: int, found: tuple[int, ...] | str, total: int) -> TensorSize:
    if world_size == 1:
        return TensorSize(world_size=1, tensor_bytes_per_rank=(total,))
    if isinstance(found, str):
        return TensorSize(world_size=world_size, refusal=arithmetic.text(found))
    return TensorSize(world_size=world_size, tensor_bytes_per_rank=found)


def _layers(caches: Iterable[Cache]) -> tuple[KVLayer, ...]:
    return tuple(KVLayer(**vars(cache)) for cache in caches)


def _common(path: str, config: Mapping[str, Any], nbytes: int, tensors: Sequence[Tensor]) -> dict[str, Any]:
    quantized, bits = arithmetic.quantization(config)
    kind = config.get("model_type")
    return {
        "path": path,
        "bytes": nbytes,
        "complete": True,
        "architecture": kind if isinstance(kind, str) else None,
        "quantized": quantized,
        "bits": bits,
        "context_length_tokens": arithmetic.context_length(config),
        "active_bytes": arithmetic.active_bytes(config, tensors),
        "experts": arithmetic.experts(config),
    }
