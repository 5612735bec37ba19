"""Hard rule 1: what a rank reserves. The figures are the model's own; here they are only added up."""

from collections.abc import Sequence

from thunderfleet_operator.placement.fleet import KVLayer, ModelFacts
from thunderfleet_operator.placement.request import MemoryRequest

GIB = 2**30


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


def _with_headroom(reserved: int, memory: MemoryRequest) -> int:
    return -(-reserved * (100 + memory.headroom_percent) // 100)


def tensor_bytes(model: ModelFacts, memory: MemoryRequest, world_size: int, rank: int) -> int | None:
    """What ``rank`` of so many reserves, or None when mlx-lm cannot split the model so. World size 1: the whole model."""
    size = model.tensor_size(world_size)
    if size is None or size.refusal or len(size.bytes_per_rank) != world_size:
        return None
    cache = sum(kv_bytes(layer, memory, world_size) for layer in model.kv)
    return _with_headroom(size.bytes_per_rank[rank] + cache + model.prefill_bytes, memory)


def pipeline_bytes(model: ModelFacts, memory: MemoryRequest, first: int, last: int) -> int:
    """What a rank with layers ``first`` (included) to ``last`` (excluded) reserves."""
    weights = model.shared_bytes + sum(model.layer_bytes[first:last])
    cache = sum(kv_bytes(layer, memory) for layer in model.kv[first:last])
    return _with_headroom(weights + cache + model.prefill_bytes, memory)


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

    By largest remainder over free memory where that fits; else moved until every rank fits, else None. The second way fills
    from the first layer on, each rank as far as it goes while one layer is left for each that follows: with ranges in a fixed
    order and costs that only grow, whoever takes more never makes it harder for the rest, so if any division fits, this does.
    """
    layers = len(model.layer_bytes)
    if layers < len(free):
        return None
    ranges = _ranges(largest_remainder(layers, free))
    if all(pipeline_bytes(model, memory, *span) <= room for span, room in zip(ranges, free, strict=True)):
        return ranges, True
    found: list[tuple[int, int]] = []
    first = 0
    for position in reversed(range(len(free))):
        most = layers - position
        last = first
        while last < most and pipeline_bytes(model, memory, first, last + 1) <= free[position]:
            last += 1
        if last == first:
            return None
        found.append((first, last))
        first = last
    return (tuple(reversed(found)), False) if first == layers else None


def gib(size: int) -> str:
    """Bytes as owners of Macs read them."""
    if size >= 10 * GIB:
        return f"{size / GIB:.0f} GiB"
    if size >= GIB // 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / 2**20:.1f} MiB"
