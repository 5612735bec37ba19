"""How much memory each rank reserves, and whether a model can be divided among Macs with so much free memory.

A rank reserves the weights of its share, the KV cache of everything that the gateway admits and caches, the workspace of one
prefill step, and headroom. The agents publish these figures for each model; this module adds them up.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add
from typing import NamedTuple

from thunderfleet_crds.names import MAX_WORLD_SIZE
from thunderfleet_crds.vocabulary import PlacedSplit, Split

from thunderfleet_operator.placement.inputs.model import KVLayer, ModelFacts
from thunderfleet_operator.placement.inputs.request import MemoryRequest

UNSIZED = "no agent has computed the memory that the model needs; see their logs"
Layers = tuple[tuple[int, int], ...]
"""By rank: first (included) and last (excluded) layer."""


@dataclass(frozen=True, slots=True)
class Division:
    """A model divided among ranks: the bytes that each reserves, and in a pipeline its layers."""

    needs: tuple[int, ...]
    layers: Layers = ()
    by_free_memory: bool = True
    """Whether the layers are in proportion to free memory; if not, at least one rank would not fit with such layers."""


def kv_bytes(layer: KVLayer, memory: MemoryRequest, world_size: int = 1) -> int:
    """Bytes of one layer's cache on one rank, for everything that the gateway admits at once.

    Each running request holds the layer's fixed part and the tokens that its window keeps. Cached prompts count in full,
    since the number of sequences that they form is not known in advance.
    """
    kept = min(memory.context_tokens, layer.window_tokens) if layer.window_tokens else memory.context_tokens
    cached_sequences = -(-memory.cached_tokens // memory.context_tokens)
    total = memory.concurrent_requests * (layer.fixed_bytes + kept * layer.bytes_per_token)
    total += cached_sequences * layer.fixed_bytes + memory.cached_tokens * layer.bytes_per_token
    return -(-total // world_size) if layer.tensor_split else total


def prefill_bytes(model: ModelFacts, memory: MemoryRequest) -> int:
    """Bytes of workspace of one prefill step at the end of the longest admitted sequence, where it is largest."""
    return model.prefill_bytes + model.prefill_bytes_per_token * memory.context_tokens


def _with_headroom(reserved: int, memory: MemoryRequest) -> int:
    return -(-reserved * (100 + memory.headroom_percent) // 100)


class Bounds(NamedTuple):
    """Memory that every division of a model over a number of ranks needs, on any Macs.

    Every Mac needs ``least`` bytes, and all Macs together need ``together`` bytes. If ``even``, the order of ranks does not
    affect whether they fit: they fit exactly when every Mac has ``least`` bytes and their ``room`` adds up to ``wanted``.
    Otherwise both conditions are necessary but not sufficient.
    """

    least: int
    together: int
    even: bool
    wanted: int = 0
    """Size of the model in units of ``room``: layers if all layers have the same size, otherwise bytes."""
    fixed: int = 0
    """Bytes of a rank without any layer, without headroom."""
    unit: int = 1
    """Bytes of one unit of ``room``, without headroom."""
    most: int = 0
    """The most units that one rank can take, since every other needs a layer."""
    percent: int = 100
    """100 plus the headroom."""

    def room(self, free: int) -> int:
        """How much of ``wanted`` a Mac with ``free`` bytes can take."""
        return max(0, min(self.most, (free * 100 // self.percent - self.fixed) // self.unit))


def largest_remainder(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Whole shares of ``total`` in proportion to ``weights``, at least one each.

    61 layers over 512, 256, 256 give 31, 15, 15. Raises ``ValueError`` if there are more shares than units.
    """
    if total < len(weights):
        raise ValueError(f"{len(weights)} ranks need at least {len(weights)} layers, not {total}")
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
    """Layer ranges by rank. Rank 0 holds the last layers, as in mlx-lm's pipelines."""
    ranges: list[tuple[int, int]] = []
    end = sum(shares)
    for share in shares:
        ranges.append((end - share, end))
        end -= share
    return tuple(ranges)


def figures(model: ModelFacts) -> tuple[object, ...]:
    """Equal for models that share, as the same objects, all values with which ``Needs`` computes."""
    parts = (model.tensor, model.layer_bytes, model.kv)
    return (*map(id, parts), model.shared_bytes, model.pipeline_refusal, model.prefill_bytes, model.prefill_bytes_per_token)


class Needs:
    """Memory needs of one model, independent of the Macs. Caches the sums that every stage of a search uses."""

    def __init__(self, model: ModelFacts, memory: MemoryRequest) -> None:
        self.model = model
        self.memory = memory
        layers = len(model.layer_bytes)
        caches = [kv_bytes(layer, memory) for layer in model.kv[:layers]] + [0] * max(0, layers - len(model.kv))
        self._costs = list(map(add, model.layer_bytes, caches))
        self._sums = [0, *accumulate(self._costs)]
        self._smallest, self._largest = min(self._costs, default=0), max(self._costs, default=0)
        # A model may publish more caches than layers.
        self._caches = sum(caches) + sum([kv_bytes(layer, memory) for layer in model.kv[layers:]])
        """Bytes of all caches on a single Mac."""
        self._fixed = model.shared_bytes + prefill_bytes(model, memory)
        """Bytes of a pipeline's rank beside its layers."""
        self._percent = 100 + memory.headroom_percent
        self._sizes = {entry.world_size: entry for entry in reversed(model.tensor)}
        self._tensor: dict[int, tuple[int, ...]] = {}
        self._bounds: dict[tuple[PlacedSplit, int], Bounds | str] = {}
        self._fitting: dict[int, int] = {}
        self._divided: dict[tuple[int, ...], Division | None] = {}
        """By free bytes of the ranks; a search divides only for the sets that it reports."""

    def alike(self, model: ModelFacts) -> "Needs":
        """The needs of a model with the same ``figures``, which may be in another folder. Computed values are shared."""
        other = object.__new__(Needs)
        other.__dict__.update(self.__dict__)
        other.model = model
        return other

    def tensor(self, size: int) -> tuple[int, ...]:
        """Bytes by rank of tensor parallelism, or of a single Mac; empty if it cannot be used."""
        if size not in self._tensor:
            entry = self._sizes.get(size)
            weights = entry.bytes_per_rank if entry is not None and not entry.refusal else ()
            cache = self._cache(size) if weights else 0
            more = cache + prefill_bytes(self.model, self.memory)
            whole = len(weights) == size
            self._tensor[size] = tuple(_with_headroom(part + more, self.memory) for part in weights) if whole else ()
        return self._tensor[size]

    def _cache(self, size: int) -> int:
        """Bytes of all caches on one of ``size`` ranks that divide every layer."""
        return sum([kv_bytes(layer, self.memory, size) for layer in self.model.kv]) if size > 1 else self._caches

    def span(self, first: int, last: int) -> int:
        """Bytes that a rank with layers ``first`` (included) to ``last`` (excluded) reserves."""
        return _with_headroom(self._fixed + self._sums[last] - self._sums[first], self.memory)

    def bounds(self, split: PlacedSplit, size: int) -> Bounds | str:
        """What any such division needs, or why the model cannot be divided this way on any Macs."""
        key = (split, size)
        if key not in self._bounds:
            self._bounds[key] = self._pipeline_bounds(size) if split is Split.PIPELINE else self._tensor_bounds(size)
        return self._bounds[key]

    def _pipeline_bounds(self, size: int) -> Bounds | str:
        model, costs = self.model, self._costs
        if model.pipeline_refusal or not costs:
            return model.pipeline_refusal or UNSIZED
        if len(costs) < size:
            return f"{size} ranks need at least {size} layers, the model has {len(costs)}"
        total, small = self._sums[-1], self._smallest
        even = 0 < small == self._largest
        unit = small if even else 1
        # Headroom is rounded up rank by rank, so no division needs less than this in sum.
        together = (total + size * self._fixed) * self._percent // 100
        most = (total - (size - 1) * small) // unit
        least = _with_headroom(self._fixed + small, self.memory)
        return Bounds(least, together, even, total // unit, self._fixed, unit, most, self._percent)

    def _tensor_bounds(self, size: int) -> Bounds | str:
        needs = self.tensor(size)
        if not needs:
            entry = self._sizes.get(size)
            why = entry.refusal if entry is not None else self._unsized(size)
            return why or UNSIZED
        return Bounds(min(needs), sum(needs), len(set(needs)) == 1, sum(needs), most=max(needs))

    def _unsized(self, size: int) -> str | None:
        """Why the agents publish no size for this number of ranks. A model sized by its files has the size of one rank only."""
        if size > MAX_WORLD_SIZE:
            return f"agents compute the memory that a rank needs for at most {MAX_WORLD_SIZE} Macs"
        return self.model.pipeline_refusal

    def advance(self, split: PlacedSplit, held: int, rank: int, size: int, free: int) -> int:
        """The state after one more rank, from the last rank to rank 0; 0 if the rank has no room.

        In a pipeline, bit i of ``held`` is set if the ranks so far can hold exactly the first i layers, at least one each (the
        last rank holds the first layers). For other splits ``held`` is 1 while every rank has room.
        """
        if split is not Split.PIPELINE:
            return held if self.tensor(size)[rank] <= free else 0
        sums, room = self._sums, free * 100 // self._percent - self._fixed
        most, following = len(self._costs) - rank, 0
        held &= self._movable(room)
        while held:
            # Consecutive counts of layers: from each of them on, this rank can hold the layers up to the end that the last
            # count allows.
            first = held & -held
            rest = held + first
            last = min(most, bisect_right(sums, sums[(rest & -rest).bit_length() - 2] + room) - 1)
            following |= max(0, (1 << last + 1) - (first << 1))
            held &= rest
        return following

    def _movable(self, room: int) -> int:
        """Bit i is set if layer i alone fits into this room."""
        if room >= self._largest:
            return (1 << len(self._costs) + 1) - 1
        found = self._fitting.get(room)
        if found is None:
            self._fitting[room] = found = sum([1 << i for i, cost in enumerate(self._costs) if cost <= room])
        return found

    def complete(self, split: PlacedSplit, held: int) -> bool:
        """Whether the ranks hold the whole model after rank 0 was added."""
        return bool(held >> len(self._costs) & 1) if split is Split.PIPELINE else held > 0

    def divide(self, split: PlacedSplit, free: Sequence[int]) -> Division | None:
        """The division among ranks with ``free`` bytes, in this order; None if one has no room."""
        if split is not Split.PIPELINE:
            needs = self.tensor(len(free))
            return Division(needs) if all(need <= room for need, room in zip(needs, free, strict=True)) else None
        key = tuple(free)
        if key not in self._divided:
            shared = self.share_layers(free)
            self._divided[key] = (
                Division(tuple(self.span(*span) for span in shared[0]), *shared) if shared is not None else None
            )
        return self._divided[key]

    def share_layers(self, free: Sequence[int]) -> tuple[Layers, bool] | None:
        """Layer range of each rank, and whether it is proportional to free memory.

        Proportional by largest remainder where that fits. Otherwise the nearest division in which every rank fits and has a
        layer, or None if there is none.
        """
        layers = len(self._costs)
        if layers < len(free):
            return None
        ranges = _ranges(largest_remainder(layers, free))
        if all(self.span(*span) <= room for span, room in zip(ranges, free, strict=True)):
            return ranges, True
        held = 1
        for rank in reversed(range(len(free))):
            held = self.advance(Split.PIPELINE, held, rank, len(free), free[rank])
        if not self.complete(Split.PIPELINE, held):
            return None
        cuts = self._nearest([end for _, end in ranges], free)
        return tuple(reversed(list(pairwise(cuts)))), False

    def _nearest(self, ideals: Sequence[int], free: Sequence[int]) -> tuple[int, ...]:
        """The ends of the ranks' layers, from the last rank to rank 0, nearest to the ideals. At least one division must exist.

        Of equally near divisions, the first is returned. Dynamic programming from the last rank, which holds the first layers:
        for each end of its layers, it keeps the distance from the ideals, the position among all paths to such ends, and the
        path. The best path that an end can continue is the first of a queue, which only moves forward.
        """
        layers, sums = len(self._costs), self._sums
        paths: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, (0,))}
        for position in reversed(range(len(free))):
            room = free[position] * 100 // self._percent - self._fixed
            queue: deque[tuple[tuple[int, int, tuple[int, ...]], int]] = deque()
            found: list[tuple[int, int, int, tuple[int, ...]]] = []
            for last in range(1, layers - position + 1):
                path = paths.get(last - 1)
                if path is not None:
                    while queue and queue[-1][0] > path:
                        queue.pop()
                    queue.append((path, last - 1))
                while queue and sums[last] - sums[queue[0][1]] > room:
                    queue.popleft()
                if queue:
                    distance, order, before = queue[0][0]
                    found.append((order, last, distance + abs(last - ideals[position]), before))
            ranked = enumerate(sorted(found))
            paths = {last: (distance, order, (*before, last)) for order, (_, last, distance, before) in ranked}
        return paths[layers][2]
