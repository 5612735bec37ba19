"""The order of waiting requests: by priority, then callers take turns, then by arrival. Pure."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from thunderfleet_crds.vocabulary import KeyPriority

_ORDER = (KeyPriority.HIGH, KeyPriority.NORMAL, KeyPriority.LOW)


class Waiting(Protocol):
    """A request that waits."""

    @property
    def caller_id(self) -> str:
        """Requests of one caller share its turn."""

    @property
    def priority(self) -> KeyPriority:
        """The priority of its key."""


T = TypeVar("T", bound=Waiting)


class FairQueue(Generic[T]):
    """Waiting requests."""

    def __init__(self) -> None:
        self._lines: dict[KeyPriority, OrderedDict[str, deque[T]]] = {priority: OrderedDict() for priority in _ORDER}

    def __len__(self) -> int:
        return sum(len(line) for lines in self._lines.values() for line in lines.values())

    def __bool__(self) -> bool:
        return any(self._lines.values())

    def __iter__(self) -> Iterator[T]:
        for lines in self._lines.values():
            for line in lines.values():
                yield from line

    def add(self, one: T, *, first: bool = False) -> None:
        """Appends a request to the line of its caller; ``first``: before the others there, because it has waited already."""
        lines = self._lines[one.priority]
        line = lines.setdefault(one.caller_id, deque())
        if first:
            line.appendleft(one)
            lines.move_to_end(one.caller_id, last=False)
        else:
            line.append(one)

    def remove(self, one: T) -> None:
        """Removes a request, if it is in the queue."""
        lines = self._lines[one.priority]
        line = lines.get(one.caller_id)
        if line is not None and one in line:
            line.remove(one)
            if not line:
                del lines[one.caller_id]

    def first(self) -> T | None:
        """Whose turn it is."""
        return next((line[0] for lines in self._lines.values() for line in lines.values()), None)

    def take(self, fits: Callable[[T], bool]) -> T | None:
        """The next request that can be admitted. The next turn of its caller comes after those of the other callers.

        Only the first request of each caller is considered. None if none of them can be admitted.
        """
        for lines in self._lines.values():
            for caller_id, line in lines.items():
                if fits(line[0]):
                    taken = line.popleft()
                    lines.move_to_end(caller_id)
                    if not line:
                        del lines[caller_id]
                    return taken
        return None
