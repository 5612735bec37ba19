"""Builds the model lazily with mlx-lm, splits it for each world size, and traces it. Runs in the child process only."""

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from thunderfleet_crds.names import MAX_WORLD_SIZE
from thunderfleet_crds.vocabulary import Split

from thunderfleet_runner.rank import loading, mlxlm, partial
from thunderfleet_runner.sizing import arithmetic, blank, graph
from thunderfleet_runner.sizing.arithmetic import Cache, Facts, Held, Node, Sample, StandIn, Workspace

log = logging.getLogger(__name__)

TRY = 8
"""Tokens of the forward pass that shows whether a split model runs, and which caches it divides."""
FEW, MANY = 128, 256
"""Tokens of the two forward passes that show how caches grow: multiples of all models' cache compression groups."""
STEPS = (64, 128)
BEFORE = 128
"""Numbers of tokens of the steps that show whether a trace grows with its tokens. If it does, these steps are traced for the
workspace, at the start of a sequence and after BEFORE tokens. mlx-lm's mixtures of experts sort their tokens from 64 choices
on, one more operation, which must not count as growth: with one expert per token, 64 tokens are the first that are sorted like
a full step."""
LONGEST = 131072
"""Maximum context in tokens for which the workspace is traced; beyond it, growth continues linearly."""
LAYER_LIMIT = 512
Report = Callable[[Facts], None]


def facts(folder: Path, world_sizes: Sequence[int], report: Report) -> Facts:
    """All facts about the model in ``folder``. ``report`` gets the facts so far after each step.

    Raises mlx-lm's error when it cannot build the model.
    """
    with blank.no_values():
        model, config = mlxlm.load_lazily(folder)
        blank.hollow(model)
        found = of_model(model, world_sizes, report, arithmetic.context_length(config) or LONGEST)
        refusal = found.pipeline_refusal
        found.no_parts = refusal if refusal is not None else no_parts(folder, len(found.layer_bytes))
        report(found)
        return found


def no_parts(folder: Path, layers: int) -> str | None:
    """Why a rank of a pipeline cannot be loaded from the weights of its own layers alone; None if it can: tried with halves."""
    ranges = [(layers // 2, layers), (0, layers // 2)]
    try:
        for rank, (first, last) in enumerate(ranges):
            group = StandIn(rank, len(ranges))
            split = functools.partial(loading.split_model, split=Split.PIPELINE, group=group, ranges=ranges)
            partial.load(folder, range(first, last), split)
    except Exception as error:
        return arithmetic.text(f"mlx-lm cannot load a rank from its own layers alone: {error}")
    return None


def of_model(model: Any, world_sizes: Sequence[int], report: Report, context: int = LONGEST) -> Facts:
    """As ``facts``, for a lazily built model. Only within ``blank.no_values``."""
    found = Facts()
    _weights(model, found)
    report(found)
    whole: list[int] | None
    try:
        whole = _bytes_of_caches(forward(model, TRY))
    except Exception as error:
        whole, found.kv_problem = None, arithmetic.text(f"a forward pass cannot be traced: {type(error).__name__}: {error}")
        log.info("%s: %s", mlxlm.architecture(model), found.kv_problem)
    divided = [True] * len(whole or ())
    split_at_all = False
    for world_size in world_sizes:
        if world_size == 1:
            continue
        try:
            found.tensor[world_size], caches = _tensor(model, world_size, runs=whole is not None)
        except Exception as error:
            found.tensor[world_size] = arithmetic.refused(error)
        else:
            split_at_all = True
            if whole is not None:
                divided = [
                    was and after * world_size <= before
                    for was, before, after in zip(divided, whole, caches or whole, strict=True)
                ]
        report(found)
    _pipeline(model, found, runs=whole is not None)
    report(found)
    if whole is not None:
        _caches(model, found, divided if split_at_all else [False] * len(whole))
        report(found)
        _set_workspace(model, found, min(context, LONGEST))
        report(found)
    return found


def forward(model: Any, tokens: int, cache: list[Any] | None = None) -> list[Any]:
    """A lazy forward pass over ``tokens`` tokens; returns the caches it filled. Shapes are known, nothing is computed."""
    cache = _fine_caches(model) if cache is None else cache
    model(mx.zeros((1, tokens), mx.int32), cache=cache)
    return cache


def _fine_caches(model: Any) -> list[Any]:
    """New caches that grow token by token instead of in steps of 256, so that they hold no reserve."""
    caches = mlxlm.prompt_cache(model)
    for leaf in (leaf for entry in caches for leaf in _leaves(entry)):
        if isinstance(getattr(leaf, "step", None), int):
            leaf.step = 1
    return caches


def _leaves(entry: Any) -> list[Any]:
    parts = getattr(entry, "caches", None)
    if isinstance(parts, list | tuple):
        return [leaf for part in parts for leaf in _leaves(part)]
    return [] if entry is None else [entry]


def _bytes_of(value: Any) -> int:
    return sum(int(array.nbytes) for array in graph.arrays(value) if array.size > 1)


def _bytes_of_caches(caches: Sequence[Any]) -> list[int]:
    return [_bytes_of(entry) for entry in caches]


def _weights(model: Any, found: Facts) -> None:
    every = blank.unique(model)
    layers = mlxlm.layers(model)[:LAYER_LIMIT]
    in_layers: set[int] = set()
    sizes: list[int] = []
    for layer in layers:
        own = blank.unique(layer)
        sizes.append(sum(own.values()))
        in_layers |= own.keys()
    found.total_bytes = sum(every.values())
    found.layers = len(layers) or None
    found.layer_bytes = tuple(sizes)
    found.shared_bytes = sum(nbytes for name, nbytes in every.items() if name not in in_layers)


def _tensor(model: Any, world_size: int, *, runs: bool) -> tuple[tuple[int, ...], list[int] | None]:
    """Bytes of each rank, and the maximum over ranks of each layer's cache. Raises the refusal."""
    per_rank: dict[int, int] = {}
    caches: list[int] | None = None
    ranks: Sequence[int] = arithmetic.asked_ranks(world_size)
    while ranks:
        for rank in ranks:
            part = blank.twin(model)
            loading.split_model(part, Split.TENSOR, StandIn(rank, world_size))
            per_rank[rank] = blank.nbytes(part)
            if runs:
                held = _bytes_of_caches(_try(part, world_size))
                caches = held if caches is None else list(map(max, caches, held))
        alike = len(set(per_rank.values())) == 1
        ranks = [] if alike else [rank for rank in range(world_size) if rank not in per_rank]
    some = next(iter(per_rank.values()))
    return tuple(per_rank.get(rank, some) for rank in range(world_size)), caches


def _try(part: Any, world_size: int) -> list[Any]:
    """A forward pass of a split model. It fails with an error about shapes if the heads cannot be divided."""
    try:
        return forward(part, TRY)
    except Exception as error:
        what = mlxlm.architecture(part)
        raise ValueError(f"{what} over {world_size} ranks can be split but not run: {error}") from error


def _pipeline(model: Any, found: Facts, *, runs: bool) -> None:
    """Whether the model can be a pipeline: tries two ranks, and the most that are useful."""
    found.pipeline_asked = True
    layers = len(found.layer_bytes)
    if layers < 2:
        found.pipeline_refusal = "a pipeline needs at least two layers"
        return
    try:
        for world_size in sorted({2, min(layers, MAX_WORLD_SIZE)}):
            split = [layers // world_size + (rank < layers % world_size) for rank in range(world_size)]
            end = layers
            for rank, count in enumerate(split):
                first, end_here, end = end - count, end, end - count
                if rank not in arithmetic.asked_ranks(world_size):
                    continue
                part = blank.twin(model)
                ranges = [(sum(split[place + 1 :]), sum(split[place:])) for place in range(world_size)]
                loading.split_model(part, Split.PIPELINE, StandIn(rank, world_size), ranges)
                beyond = blank.nbytes(part) - sum(found.layer_bytes[first:end_here]) - found.shared_bytes
                found.shared_bytes += max(beyond, 0)
                if runs:
                    _try(part, world_size)
    except Exception as error:
        found.pipeline_refusal = arithmetic.refused(error)


# --- caches and workspace -------------------------------------------------------------------------------------------


def _caches(model: Any, found: Facts, divided: Sequence[bool]) -> None:
    try:
        seen = list(zip(*(map(_parts, forward(model, tokens)) for tokens in (FEW, MANY)), strict=True))
    except Exception as error:
        found.kv_problem = arithmetic.text(f"the caches cannot be traced: {type(error).__name__}: {error}")
        return
    layers: list[Cache] = []
    for (window, small_windowed, small), (_, large_windowed, large), split in zip(
        (few for few, _ in seen), (many for _, many in seen), divided, strict=True
    ):
        held = Held(window, (small_windowed, large_windowed), (small, large))
        layers.append(arithmetic.cache_of(held, FEW, MANY, split))
    found.kv = tuple(layers[:LAYER_LIMIT])


def _set_workspace(model: Any, found: Facts, context: int) -> None:
    try:
        found.workspace = _workspace(model, found.kv or (), context)
    except Exception as error:
        found.workspace_problem = arithmetic.text(f"the workspace cannot be traced: {type(error).__name__}: {error}")
        log.info("%s: %s", mlxlm.architecture(model), found.workspace_problem)


def _parts(entry: Any) -> tuple[int | None, int, int]:
    """(window in tokens, bytes of what it bounds, other bytes) of one layer's cache."""
    windows = [_window(leaf) for leaf in _leaves(entry)]
    windowed = sum(_bytes_of(leaf) for leaf, window in zip(_leaves(entry), windows, strict=True) if window)
    return max((window for window in windows if window), default=None), windowed, _bytes_of(entry) - windowed


def _window(leaf: Any) -> int | None:
    sizes = [getattr(leaf, name, None) for name in ("max_size", "chunk_size")]
    return next((int(size) for size in sizes if isinstance(size, int) and size > 0), None)


def _workspace(model: Any, kv: Sequence[Cache], context: int) -> Workspace:
    """Traces a full step; extrapolates from short ones where the trace grows with its tokens (recurrences as loops)."""
    small, large = (_step(model, tokens, 0) for tokens in STEPS)
    step = mlxlm.PREFILL_STEP
    if len(small[0]) == len(large[0]):
        near = _sample(step, 0, _step(model, step, 0))
        far = _sample(step, context - step, _step(model, step, context - step)) if context > 2 * step else None
        return arithmetic.workspace_of_steps(near, far, kv)
    samples = [_sample(STEPS[0], 0, small), _sample(STEPS[1], 0, large)]
    samples += [_sample(tokens, BEFORE, _step(model, tokens, BEFORE)) for tokens in STEPS]
    return arithmetic.workspace_of_samples(samples, step, kv)


def _sample(tokens: int, before: int, traced: tuple[list[Node], set[str]]) -> Sample:
    return Sample(tokens, before + tokens, arithmetic.peak_bytes(traced[0], frozenset(traced[1])))


def _step(model: Any, tokens: int, before: int) -> tuple[list[Node], set[str]]:
    """The operations of a prefill step, which evaluates the caches but not the logits, and the names of its results."""
    cache = _fine_caches(model)
    if before:
        forward(model, before, cache)
        graph.blanked(cache)
    weights = tree_flatten(model.parameters())
    names = [name for name, _ in weights]

    def step(prompt: Any, *given: Any) -> list[Any]:
        # Weights are operands; otherwise their loading would be part of the trace.
        model.load_weights(list(zip(names, given, strict=True)), strict=False)
        model(prompt, cache=cache)
        return [array for entry in cache for array in graph.arrays(entry)]

    try:
        return graph.nodes(step, mx.zeros((1, tokens), mx.int32), *(array for _, array in weights))
    finally:
        model.load_weights(weights, strict=False)
