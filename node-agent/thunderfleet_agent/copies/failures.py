"""Which ways and Macs a transfer does not use for a while, because they failed or sent wrong bytes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from thunderfleet_lib.backoff import Backoff

RETRY = Backoff(0.5, 15.0)
# A Mac that sent wrong bytes gets requests again after this time: its file may have been replaced.
DROP_SECONDS = 600.0


@dataclass
class _Trouble:
    """The failures of one way since it last worked."""

    count: int = 0
    again: float = 0.0
    last: str = ""


@dataclass(frozen=True)
class _Dropped:
    """What a node sent wrong, and until when nothing is fetched from it."""

    why: str
    until: float


class Failures:
    """The failures of one transfer. Times are monotonic seconds. Not locked: the transfer's lock guards it."""

    def __init__(self) -> None:
        self._ways: dict[str, _Trouble] = {}
        self._nodes: dict[str, _Dropped] = {}

    def usable(self, way: str, node: str, now: float) -> bool:
        """Whether requests to this node over this way are allowed."""
        dropped = self._nodes.get(node)
        if dropped is not None and now >= dropped.until:
            del self._nodes[node]
            dropped = None
        return dropped is None and now >= self._ways.setdefault(way, _Trouble()).again

    def failed(self, way: str, why: str, now: float) -> bool:
        """Notes a failure of the way. Returns whether it is the first one since the way last worked."""
        trouble = self._ways.setdefault(way, _Trouble())
        trouble.count, trouble.last = trouble.count + 1, why
        trouble.again = now + RETRY.seconds(trouble.count)
        return trouble.count == 1

    def worked(self, way: str) -> None:
        """Correct bytes have arrived over the way."""
        self._ways.setdefault(way, _Trouble()).count = 0

    def drop(self, node: str, why: str, now: float) -> None:
        """The node sent wrong bytes."""
        self._nodes[node] = _Dropped(why, now + DROP_SECONDS)

    def is_dropped(self, node: str) -> bool:
        """Whether the node sent wrong bytes, and has not become usable since."""
        return node in self._nodes

    def texts(self) -> list[str]:
        """What is wrong, in words: first the nodes, then the ways that fail."""
        dropped = [one.why for one in self._nodes.values()]
        return dropped + sorted({one.last for one in self._ways.values() if one.count and one.last})
