"""The best arrangements that a search has found so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from thunderfleet_operator.placement.graph.hops import Hop
from thunderfleet_operator.placement.search.hop_graph import HopGraph, Key, Tie


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A set of Macs that takes the group, in the ``order`` of ranks."""

    key: Key
    tie: Tie
    graph: HopGraph
    order: tuple[int, ...]
    places: tuple[int, ...]
    """The same positions, sorted: within one graph they compare as ties do."""
    hops: tuple[Hop, ...] = ()
    """In a ring from each rank to the next, in a mesh one per pair."""
    coordinator: Mapping[str, str] = field(default_factory=dict)
    """By name of each other Mac: where it dials rank 0."""


class Shortlist:
    """The best few arrangements, each set of Macs once. The search skips what cannot get on it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: list[Arrangement] = []

    @property
    def full(self) -> bool:
        """Whether only what is better than an entry gets on the list."""
        return len(self.entries) >= self.size

    def admits(self, key: Key, graph: HopGraph, places: Callable[[], tuple[int, ...]]) -> bool:
        """Whether an arrangement with ``key`` at best could get on the list.

        ``places``: the first Macs that it could consist of, sorted by position; called only when they decide.
        """
        if not self.full:
            return True
        last = self.entries[-1]
        if key != last.key:
            return key < last.key
        return places() < last.places if graph is last.graph else graph.tie(places()) < last.tie

    def add(self, found: Arrangement) -> None:
        """Adds an arrangement, unless the list has a better one of the same Macs."""
        same = next((entry for entry in self.entries if entry.tie == found.tie), None)
        if same is not None:
            if same.key <= found.key:
                return
            self.entries.remove(same)
        self.entries.append(found)
        self.entries.sort(key=lambda entry: (entry.key, entry.tie))
        del self.entries[self.size :]
