"""Loads one rank's part of a model: strictly, layer by layer, with progress, in no more memory than the weights.

mlx-lm's ``sharded_load`` does not fit: it loads without ``strict`` (a rank with a missing file generates noise), splits
pipelines evenly, and evaluates everything at once, without progress and with a third more memory than the weights.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from thunderfleet_crds.vocabulary import Split

from thunderfleet_runner.host import priority, weightfiles
from thunderfleet_runner.rank import mlxlm, partial

Report = Callable[[int, int, int], None]
"""Called with loaded bytes, total bytes, loaded layers."""


class CannotSplit(ValueError):
    """The model cannot be split as planned; the text is mlx-lm's where it has one."""


@dataclass(frozen=True)
class Loaded:
    """A rank's part of the model, in memory. ``nbytes`` are its weights."""

    model: Any
    tokenizer: Any
    config: dict[str, Any]
    nbytes: int
    layers: int


def pipeline_split(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """The number of layers of each rank, by rank, for mlx-lm: the last rank holds the first layers.

    ``ranges`` are the plan's, by rank: first layer included, last excluded. Raises CannotSplit when they have a gap, overlap
    or are in the opposite order.
    """
    begin = 0
    for rank in reversed(range(len(ranges))):
        first, last = ranges[rank]
        if first != begin or last <= first:
            raise CannotSplit(
                f"pipeline layers {[list(entry) for entry in ranges]} must be contiguous from the last rank to rank 0"
            )
        begin = last
    return [last - first for first, last in ranges]


def split_model(model: Any, split: Split, group: Any, ranges: Sequence[tuple[int, int]] = ()) -> None:
    """Splits a lazily loaded model in place. ``group`` needs only ``rank()`` and ``size()``. Raises CannotSplit."""
    if split is Split.NONE:
        return
    try:
        if split is Split.TENSOR:
            if not hasattr(model, "shard"):
                raise CannotSplit(f"mlx-lm cannot split {mlxlm.architecture(model)} by tensor parallelism")
            model.shard(group)
            # Some of mlx-lm's shards are slices, which would keep the whole weight in memory.
            model.update(tree_map(mx.contiguous, model.parameters()))
            return
        inner = getattr(model, "model", None)
        if inner is None or not hasattr(inner, "pipeline"):
            raise CannotSplit(f"mlx-lm cannot split {mlxlm.architecture(model)} into a pipeline")
        inner.pipeline(group, pipeline_split(ranges) if ranges else None)
    except CannotSplit:
        raise
    except Exception as error:
        raise CannotSplit(f"{mlxlm.architecture(model)} over {group.size()} ranks: {error}") from error


def _parts(model: Any) -> Iterator[tuple[bool, list[Any]]]:
    """The model's arrays in loading order: layer by layer, then those outside of layers."""
    seen: set[int] = set()
    for layer in mlxlm.layers(model):
        arrays = [array for _, array in tree_flatten(layer.parameters())]
        seen.update(id(array) for array in arrays)
        yield True, arrays
    yield False, [array for _, array in tree_flatten(model.parameters()) if id(array) not in seen]


def evaluate(model: Any, report: Report) -> tuple[int, int]:
    """Reads a lazily loaded model's weights, one evaluation a layer. Returns (bytes, layers)."""
    total = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    loaded = layers = 0
    report(0, total, 0)
    for is_layer, arrays in _parts(model):
        mx.eval(arrays)
        loaded += sum(array.nbytes for array in arrays)
        layers += is_layer
        report(loaded, total, layers)
    return loaded, layers


def load(
    folder: Path, *, split: Split = Split.NONE, group: Any = None, ranges: Sequence[tuple[int, int]] = (), report: Report
) -> Loaded:
    """Loads this rank's part of the model in ``folder``; when it returns, all ranks of ``group`` have loaded theirs.

    Raises IncompleteModel for a missing or truncated tensor, CannotSplit, or ValueError with mlx-lm's text.
    """
    if not folder.is_dir():
        raise weightfiles.IncompleteModel(f"{folder} is not a folder on this Mac")
    weightfiles.read(folder)
    if split is Split.PIPELINE and weightfiles.is_part(folder):
        own = range(*ranges[group.rank()])
        model, config = partial.load(folder, own, lambda whole: split_model(whole, split, group, ranges))
    else:
        model, config = mlxlm.load_lazily(folder)
        split_model(model, split, group, ranges)
    tokenizer = mlxlm.load_tokenizer(folder, config)
    nbytes, layers = evaluate(model, report)
    priority.loaded()
    if group is not None:
        barrier(group)
    return Loaded(model=model, tokenizer=tokenizer, config=config, nbytes=nbytes, layers=layers)


def barrier(group: Any) -> None:
    """Waits for every rank of ``group``. Uses the CPU stream: a GPU stream would time out when a rank is late."""
    mx.eval(mx.distributed.all_sum(mx.array(1.0), group=group, stream=mx.cpu))
