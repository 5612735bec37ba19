"""Hard rule 1: what a rank reserves. The figures are the model's own; here they are only added up."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add

from thunderfleet_operator.placement.fleet import KVLayer, ModelFacts
from thunderfleet_operator.placement.request import MemoryRequest
from thunderfleet_operator.placement.words import Split

Layers = tuple[tuple[int, int], ...]
"""By rank: first (included) and last (excluded)."""


@dataclass(frozen=True, slots=True)
class Division:
    """A model, divided: by rank the bytes that it reserves, and in a pipeline its layers."""

    needs: tuple[int, ...]
    layers: Layers = ()
    by_free_memory: bool = True


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


@dataclass(frozen=True, slots=True)
class Bounds:
    """What any division of a model over so many ranks needs, before anybody knows who they are: ``least`` bytes on every Mac,
    ``together`` on all of them.

    ``even``: the order of ranks makes no difference to whether they fit. Then they fit exactly when no Mac has less than
    ``least`` and their ``room``, added up, is ``wanted`` or more; otherwise that much is necessary, and not enough.
    """

    least: int
    together: int
    even: bool
    wanted: int = 0
    """Of what ``room`` counts: layers where all cost the same, else bytes."""
    fixed: int = 0
    """Bytes of a rank without any layer, headroom apart."""
    unit: int = 1
    """Bytes of one of what ``room`` counts, headroom apart."""
    most: int = 0
    """What one rank takes at most: the others need a layer each."""
    percent: int = 100

    def room(self, free: int) -> int:
        """How much of ``wanted`` a Mac with so many bytes free can take."""
        return max(0, min(self.most, (free * 100 // self.percent - self.fixed) // self.unit))


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


class Needs:
    """What one model needs, whoever holds it. Adds up once what every stage of a search asks for again."""

    def __init__(self, model: ModelFacts, memory: MemoryRequest) -> None:
        self.model = model
        self.memory = memory
        layers = len(model.layer_bytes)
        caches = [kv_bytes(layer, memory) for layer in model.kv[:layers]] + [0] * max(0, layers - len(model.kv))
        self._costs = list(map(add, model.layer_bytes, caches))
        self._sums = [0, *accumulate(self._costs)]
        self._smallest, self._largest = min(self._costs, default=0), max(self._costs, default=0)
        self._fixed = model.shared_bytes + prefill_bytes(model, memory)
        """Of a rank of a pipeline, beside its layers."""
        self._percent = 100 + memory.headroom_percent
        self._sizes = {entry.world_size: entry for entry in reversed(model.tensor)}
        self._tensor: dict[int, tuple[int, ...]] = {}
        self._bounds: dict[tuple[Split, int], Bounds | str] = {}

    def tensor(self, size: int) -> tuple[int, ...]:
        """Bytes by rank, of one Mac or of tensor parallelism; empty when mlx-lm cannot split the model so."""
        if size not in self._tensor:
            entry = self._sizes.get(size)
            weights = entry.bytes_per_rank if entry is not None and not entry.refusal else ()
            cache = sum(kv_bytes(layer, self.memory, size) for layer in self.model.kv) if weights else 0
            more = cache + prefill_bytes(self.model, self.memory)
            whole = len(weights) == size
            self._tensor[size] = tuple(_with_headroom(part + more, self.memory) for part in weights) if whole else ()
        return self._tensor[size]

    def span(self, first: int, last: int) -> int:
        """What a rank with layers ``first`` (included) to ``last`` (excluded) reserves."""
        return _with_headroom(self._fixed + self._sums[last] - self._sums[first], self.memory)

    def bounds(self, split: Split, size: int) -> Bounds | str:
        """Or why the model cannot be divided so, whatever the Macs."""
        key = (split, size)
        if key not in self._bounds:
            self._bounds[key] = self._pipeline_bounds(size) if split is Split.PIPELINE else self._tensor_bounds(size)
        return self._bounds[key]

    def _pipeline_bounds(self, size: int) -> Bounds | str:
        model, costs = self.model, self._costs
        if model.pipeline_refusal or not costs:
            return f"mlx-lm cannot make a pipeline of it: {model.pipeline_refusal or 'its layers are not known'}"
        if len(costs) < size:
            return f"the model has {len(costs)} layers, fewer than {size} ranks"
        total, small = self._sums[-1], self._smallest
        even = 0 < small == self._largest
        unit = small if even else 1
        # Headroom is rounded up rank by rank, so the sum of any division is no less than this.
        together = (total + size * self._fixed) * self._percent // 100
        most = (total - (size - 1) * small) // unit
        least = _with_headroom(self._fixed + small, self.memory)
        return Bounds(least, together, even, total // unit, self._fixed, unit, most, self._percent)

    def _tensor_bounds(self, size: int) -> Bounds | str:
        needs = self.tensor(size)
        if not needs:
            entry = self._sizes.get(size)
            why = entry.refusal if entry is not None and entry.refusal else "its dry run did not try that size"
            return f"mlx-lm cannot split it over {size} ranks: {why}" if size > 1 else f"its size is not known: {why}"
        return Bounds(min(needs), sum(needs), len(set(needs)) == 1, sum(needs), most=max(needs))

    def advance(self, split: Split, held: int, rank: int, size: int, free: int) -> int:
        """One rank more, from the last one to rank 0; 0 when it has no room.

        ``held`` has bit i when the ranks so far may hold exactly the first i layers, with one each at least: the last rank
        holds the first layers. Where nothing is divided by layers it is 1 while all have had room.
        """
        if split is not Split.PIPELINE:
            return held if self.tensor(size)[rank] <= free else 0
        sums, room = self._sums, free * 100 // self._percent - self._fixed
        following = past = 0
        while held and room >= 0:
            first = (held & -held).bit_length() - 1
            held &= held - 1
            last = min(len(self._costs) - rank, bisect_right(sums, sums[first] + room) - 1)
            if last > max(first, past):
                following |= (1 << last + 1) - (1 << max(first, past) + 1)
                past = last
        return following

    def complete(self, split: Split, held: int) -> bool:
        """Whether everything is held once rank 0 was added."""
        return bool(held >> len(self._costs) & 1) if split is Split.PIPELINE else held > 0

    def divide(self, split: Split, free: Sequence[int]) -> Division | None:
        """Among ranks with so many bytes free, in this order; None when one has no room."""
        if split is not Split.PIPELINE:
            needs = self.tensor(len(free))
            return Division(needs) if all(need <= room for need, room in zip(needs, free, strict=True)) else None
        shared = self.share_layers(free)
        if shared is None:
            return None
        return Division(tuple(self.span(*span) for span in shared[0]), *shared)

    def share_layers(self, free: Sequence[int]) -> tuple[Layers, bool] | None:
        """Layer range of each rank (in the order of ranks), and whether it follows free memory as it should.

        By largest remainder over free memory where that fits; else the division nearest to it in which every rank fits and
        has a layer; None when there is none.
        """
        layers, sums = len(self._costs), self._sums
        if layers < len(free):
            return None
        ranges = _ranges(largest_remainder(layers, free))
        if all(self.span(*span) <= room for span, room in zip(ranges, free, strict=True)):
            return ranges, True
        # From the last rank, which holds the first layers: where its layers can end, how far from the ideal, by which cuts.
        cuts: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
        for position in reversed(range(len(free))):
            ideal, room = ranges[position][1], free[position] * 100 // self._percent - self._fixed
            following: dict[int, tuple[int, tuple[int, ...]]] = {}
            for first, (distance, path) in cuts.items():
                furthest = bisect_right(sums, sums[first] + room) - 1 if room >= 0 else first
                for last in range(first + 1, min(layers - position, furthest) + 1):
                    found = (distance + abs(last - ideal), (*path, last))
                    if last not in following or found < following[last]:
                        following[last] = found
            cuts = following
        if layers not in cuts:
            return None
        return tuple(reversed(list(pairwise(cuts[layers][1])))), False
