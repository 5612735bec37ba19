"""The ModelDeployments that wait for an answer. Each change and each look takes time for the logarithm of their number."""

import heapq
from collections.abc import Mapping
from typing import Generic, TypeVar

SPARE = 64
"""Outdated entries that a heap may have, in addition to as many as it has current ones."""

T = TypeVar("T")
Order = tuple[float, int]


class _Lowest(Generic[T]):
    """Names with an order each, and the name with the lowest one."""

    def __init__(self) -> None:
        self._orders: dict[str, T] = {}
        self._heap: list[tuple[T, str]] = []
        """Entries that differ from ``_orders`` are outdated."""

    def put(self, name: str, order: T) -> None:
        """Adds a name, or changes its order."""
        if self._orders.get(name) == order:
            return
        self._orders[name] = order
        heapq.heappush(self._heap, (order, name))
        if len(self._heap) > 2 * len(self._orders) + SPARE:
            self._heap = [(order, name) for name, order in self._orders.items()]
            heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        """Removes a name, if it is there."""
        self._orders.pop(name, None)

    @property
    def first(self) -> tuple[T, str] | None:
        """The lowest order and its name; None if there is no name."""
        while self._heap and self._orders.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None


class FairQueue:
    """Those that wait for one kind of answer. Among the due ones, the namespace that has waited longest for an answer is first.

    ``served``: by namespace, the number of the last answer to it; 0 if it got none.
    """

    def __init__(self, served: Mapping[str, int]) -> None:
        self._served = served
        self._waiting: dict[str, tuple[float, Order]] = {}
        """When each key is due, and its order."""
        self._later: _Lowest[float] = _Lowest()
        """Those that are not due yet."""
        self._ready: dict[str, _Lowest[Order]] = {}
        """By namespace, those that are due."""
        self._namespaces: _Lowest[tuple[int, Order]] = _Lowest()

    def put(self, key: str, due: float, order: Order) -> None:
        """Adds a key, or replaces it. ``due``: monotonic seconds. ``order``: among the due keys of its namespace."""
        if self._waiting.get(key) != (due, order):
            self.drop(key)
            self._waiting[key] = due, order
            self._later.put(key, due)

    def drop(self, key: str) -> None:
        """Removes a key, if it is there."""
        if self._waiting.pop(key, None) is None:
            return
        self._later.drop(key)
        namespace = namespace_of(key)
        if namespace in self._ready:
            self._ready[namespace].drop(key)
            self.reorder(namespace)

    def reorder(self, namespace: str) -> None:
        """Follows a change of ``served``, or of the keys of a namespace."""
        ready = self._ready.get(namespace)
        first = ready.first if ready is not None else None
        if first is not None:
            self._namespaces.put(namespace, (self._served.get(namespace, 0), first[0]))
        else:
            self._ready.pop(namespace, None)
            self._namespaces.drop(namespace)

    def first(self, now: float) -> str | None:
        """The key that is next; None if none is due. ``now`` does not decrease from call to call."""
        while (soonest := self._later.first) is not None and soonest[0] <= now:
            key = soonest[1]
            self._later.drop(key)
            namespace = namespace_of(key)
            self._ready.setdefault(namespace, _Lowest()).put(key, self._waiting[key][1])
            self.reorder(namespace)
        turn = self._namespaces.first
        found = self._ready[turn[1]].first if turn is not None else None
        return found[1] if found is not None else None

    @property
    def due(self) -> float | None:
        """When the first key is due; None if there is no key."""
        if self._ready:
            return float("-inf")
        soonest = self._later.first
        return soonest[0] if soonest is not None else None


def namespace_of(key: str) -> str:
    """The namespace of a ModelDeployment: the part of its key before the slash."""
    return key.rpartition("/")[0]
