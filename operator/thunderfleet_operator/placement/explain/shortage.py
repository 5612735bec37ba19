"""The smallest memory with which a model can be divided among given Macs.

Layers are whole: memory that suffices in sum may fit no division.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice, pairwise

from thunderfleet_crds.vocabulary import PlacedSplit, Split

from thunderfleet_operator.placement.inputs.fleet import Mac
from thunderfleet_operator.placement.memory import Bounds, Needs
from thunderfleet_operator.placement.units import distinct_gib


def alone_text(mac: Mac, need: int) -> str:
    """Why a Mac cannot hold a model of ``need`` bytes alone, as the end of a sentence that begins with its name.

    If some memory is in use, the text has the allocatable memory too, because then waiting may help instead of buying.
    """
    free, needed, allocatable = distinct_gib(mac.free_bytes, need, max(mac.allocatable_bytes, mac.free_bytes))
    of = f" of {allocatable}" if mac.allocatable_bytes > mac.free_bytes else ""
    return f"has {free}{of} free, the whole model needs {needed}"


def rank_text(mac: Mac, need: int, split: PlacedSplit, size: int) -> str:
    """Why a Mac cannot hold a rank that needs ``need`` bytes, like ``alone_text``."""
    free, needed, allocatable = distinct_gib(mac.free_bytes, need, max(mac.allocatable_bytes, mac.free_bytes))
    of = f" of {allocatable}" if mac.allocatable_bytes > mac.free_bytes else ""
    has = f"has {free}{of} free, " if mac.free_bytes or of else ""
    return f"{has}needs {needed} as one of {size} ranks ({split})"


def least_missing(free: Sequence[int], need: Bounds) -> int:
    """A lower bound of the memory that these Macs are missing. ``free``: bytes."""
    return max(need.together - sum(free), sum(max(0, need.least - room) for room in free), 0)


def smallest_needs(needs: Needs, split: PlacedSplit, free: Sequence[int]) -> tuple[int, ...] | None:
    """Bytes of each rank in the division that needs least memory beyond ``free``, in this order of ranks.

    None if mlx-lm cannot divide the model this way.
    """
    need = needs.bounds(split, len(free))
    if isinstance(need, str):
        return None
    if split is not Split.PIPELINE:
        return needs.tensor(len(free))
    if not need.even:
        return _uneven(needs, free)
    shares = _even(needs, need, free)
    return tuple(needs.span(0, share) for share in shares)


def _even(needs: Needs, need: Bounds, free: Sequence[int]) -> list[int]:
    """Layers of each rank. All layers cost the same, so each goes where it adds least."""
    shares = [max(1, need.room(room)) for room in free]
    while sum(shares) > need.wanted:
        shares[shares.index(max(shares))] -= 1

    def added(rank: int) -> tuple[int, int, int]:
        more, now = (max(0, needs.span(0, shares[rank] + extra) - free[rank]) for extra in (1, 0))
        return more - now, shares[rank], rank

    while sum(shares) < need.wanted:
        shares[min(range(len(free)), key=added)] += 1
    return shares


def _uneven(needs: Needs, free: Sequence[int]) -> tuple[int, ...]:
    """Dynamic programming from the last rank, which holds the first layers: by end of a rank's layers, what is missing then."""
    layers = len(needs.model.layer_bytes)
    cuts: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for position in reversed(range(len(free))):
        starts = _Starts(needs, free[position])
        following: dict[int, tuple[int, tuple[int, ...]]] = {}
        for last in range(1, layers - position + 1):
            if last - 1 in cuts:
                starts.add(last - 1, cuts[last - 1][0])
            best = starts.best(last)
            if best is not None:
                following[last] = best[0], (*cuts[best[1]][1], last)
        cuts = following
    return tuple(needs.span(*span) for span in reversed(list(pairwise(cuts[layers][1]))))


class _Starts:
    """Where the layers of a rank can start, each with the memory that the ranks before it are missing; of ties, the first.

    A rank with room adds nothing, so the start with the least missing memory is best, which is the first of a queue. If the
    rank has too little memory, the sum of both decides, and a start that is better than another one is better for all ends.
    """

    def __init__(self, needs: Needs, free: int) -> None:
        self._needs = needs
        self._free = free
        self._with_room: deque[tuple[int, int]] = deque()
        self._short: tuple[int, int] | None = None

    def add(self, first: int, missing: int) -> None:
        """The starts are added in order."""
        while self._with_room and self._with_room[-1][0] > missing:
            self._with_room.pop()
        self._with_room.append((missing, first))

    def best(self, last: int) -> tuple[int, int] | None:
        """Returns the least missing memory for layers that end at ``last``, and its start. ``last`` never decreases."""
        while self._with_room and self._added(self._with_room[0][1], last):
            missing, first = self._with_room.popleft()
            if self._short is None or missing + self._added(first, last) < self._short[0] + self._added(self._short[1], last):
                self._short = missing, first
        starts = [*islice(self._with_room, 1), *([self._short] if self._short is not None else ())]
        return min(((missing + self._added(first, last), first) for missing, first in starts), default=None)

    def _added(self, first: int, last: int) -> int:
        return max(0, self._needs.span(first, last) - self._free)
