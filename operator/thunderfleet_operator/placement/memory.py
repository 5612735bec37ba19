"""Hard rule 1: what a rank reserves. The figures are the model's own; here they are only added up."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add

from thunderfleet_operator.placement.fleet import KVLayer, ModelFacts
from thunderfleet_operator.placement.request import MemoryRequest
from thunderfleet_operator.placement.words import Split


def kv_bytes(layer: KVLayer, memory: MemoryRequest, world_size: int = 1) -> int:
    """Bytes of one layer's cache on one rank, for everything that the gateway admits at once.

    Each running request holds the layer's fixed part and as many tokens as its window keeps; cached prompts are counted in
    full, since how many sequences they make up is not known beforehand.
    """
    kept = min(memory.context_tokens, layer.window_tokens) if layer.window_tokens else memory.context_tokens
    cached_sequences = -(-memory.cached_tokens // memory.context_tokens)
    total = memory.concurrent_requests * (layer.fixed_bytes + kept * layer.bytes_per_token)
    total += cached_sequences * layer.fixed_bytes + memory.cached_tokens * layer.bytes_per_token
    return -(-total // world_size) if layer.tensor_split else total


def prefill_bytes(model: ModelFacts, memory: MemoryRequest) -> int:
    """Bytes of workspace of one prefill step at the end of the longest sequence that is admitted, where it needs the most."""
    return model.prefill_bytes + model.prefill_bytes_per_token * memory.context_tokens


def _with_headroom(reserved: int, memory: MemoryRequest) -> int:
    return -(-reserved * (100 + memory.headroom_percent) // 100)


def tensor_bytes(model: ModelFacts, memory: MemoryRequest, world_size: int, rank: int) -> int | None:
    """What ``rank`` of so many reserves, or None when mlx-lm cannot split the model so. World size 1: the whole model."""
    size = model.tensor_size(world_size)
    if size is None or size.refusal or len(size.bytes_per_rank) != world_size:
        return None
    cache = sum(kv_bytes(layer, memory, world_size) for layer in model.kv)
    return _with_headroom(size.bytes_per_rank[rank] + cache + prefill_bytes(model, memory), memory)


def pipeline_bytes(model: ModelFacts, memory: MemoryRequest, first: int, last: int) -> int:
    """What a rank with layers ``first`` (included) to ``last`` (excluded) reserves."""
    weights = model.shared_bytes + sum(model.layer_bytes[first:last])
    cache = sum(kv_bytes(layer, memory) for layer in model.kv[first:last])
    return _with_headroom(weights + cache + prefill_bytes(model, memory), memory)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What any division of a model over so many ranks needs, before anybody knows who they are: ``least`` on every Mac,
    ``together`` on all of them. ``even``: the order of ranks makes no difference to whether they fit."""

    least: int
    together: int
    even: bool


def bounds(model: ModelFacts, memory: MemoryRequest, split: Split, size: int) -> Bounds | str:
    """Or why the model cannot be divided so, whatever the Macs."""
    if split is Split.PIPELINE:
        count = len(model.layer_bytes)
        if model.pipeline_refusal or not count:
            return f"mlx-lm cannot make a pipeline of it: {model.pipeline_refusal or 'its layers are not known'}"
        if count < size:
            return f"the model has {count} layers, fewer than {size} ranks"
        costs = _layer_costs(model, memory)
        fixed = model.shared_bytes + prefill_bytes(model, memory)
        # Headroom is rounded up rank by rank, so the sum of any division is no less than these.
        together = (sum(costs) + size * fixed) * (100 + memory.headroom_percent) // 100
        return Bounds(_with_headroom(fixed + min(costs), memory), together, len(set(costs)) == 1)
    needs = [tensor_bytes(model, memory, size, rank) for rank in range(size)]
    known = [need for need in needs if need is not None]
    if len(known) < size:
        entry = model.tensor_size(size)
        why = entry.refusal if entry is not None and entry.refusal else "its dry run did not try that size"
        return f"mlx-lm cannot split it over {size} ranks: {why}" if size > 1 else f"its size is not known: {why}"
    return Bounds(min(known), sum(known), len(set(known)) == 1)


def _layer_costs(model: ModelFacts, memory: MemoryRequest) -> list[int]:
    layers = len(model.layer_bytes)
    caches = [kv_bytes(layer, memory) for layer in model.kv[:layers]] + [0] * max(0, layers - len(model.kv))
    return list(map(add, model.layer_bytes, caches))


def largest_remainder(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """``total`` shared out in proportion to ``weights``, whole numbers, at least one each.

    61 layers over 512, 256, 256 are 31, 15, 15. Raises ``ValueError`` when there are more shares than units.
    """
    if total < len(weights):
        raise ValueError(f"{total} layers cannot be shared by {len(weights)} ranks")
    whole = sum(weights)
    if whole <= 0:
        weights, whole = [1] * len(weights), len(weights)
    shares = [total * weight // whole for weight in weights]
    # Ties go to the earlier rank, so that equal inputs give equal shares.
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in order[: total - sum(shares)]:
        shares[i] += 1
    while 0 in shares:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] += 1
    return tuple(shares)


def _ranges(shares: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Layer ranges by rank: the last layers are rank 0's, as mlx-lm's pipelines have it."""
    ranges: list[tuple[int, int]] = []
    end = sum(shares)
    for share in shares:
        ranges.append((end - share, end))
        end -= share
    return tuple(ranges)


def share_layers(
    model: ModelFacts, memory: MemoryRequest, free: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], bool] | None:
    """Layer range of each rank (in the order of ranks), and whether it follows free memory as it should.

    By largest remainder over free memory where that fits; else the division nearest to it in which every rank fits and has a
    layer; None when there is none.
    """
    layers = len(model.layer_bytes)
    if layers < len(free):
        return None
    ranges = _ranges(largest_remainder(layers, free))
    if all(pipeline_bytes(model, memory, *span) <= room for span, room in zip(ranges, free, strict=True)):
        return ranges, True
    sums = [0, *accumulate(_layer_costs(model, memory))]
    fixed = model.shared_bytes + prefill_bytes(model, memory)
    # From the last rank, which holds the first layers: where its layers can end, how far from the ideal, by which cuts.
    cuts: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for position in reversed(range(len(free))):
        ideal = ranges[position][1]
        following: dict[int, tuple[int, tuple[int, ...]]] = {}
        for first, (distance, path) in cuts.items():
            for last in range(first + 1, layers - position + 1):
                if _with_headroom(fixed + sums[last] - sums[first], memory) > free[position]:
                    break
                found = (distance + abs(last - ideal), (*path, last))
                if last not in following or found < following[last]:
                    following[last] = found
        cuts = following
    if layers not in cuts:
        return None
    ends = cuts[layers][1]
    return tuple(reversed(list(pairwise(ends)))), False
