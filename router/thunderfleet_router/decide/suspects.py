"""Requests that were in flight when groups failed. A request that was there twice is refused. Pure: times are arguments.

The request that makes a rank crash would otherwise be repeated on one group after the other.
"""

import hashlib
from collections import OrderedDict

FAILURES = 2
"""Group failures after which a request is refused."""
FORGET_SECONDS = 900.0
MAX_SUSPECTS = 4096


def digest(uid: str, path: str, body: bytes) -> str:
    """The name of a request: the same for the same body, path and ModelDeployment."""
    return hashlib.sha256(f"{uid} {path} ".encode() + body).hexdigest()


class Suspects:
    """Failures by digest; the oldest are forgotten."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, name: str, now: float) -> int:
        """The request was in flight when a group failed. Returns how often that has happened."""
        count = self.count(name, now) + 1
        self._failures[name] = (count, now)
        self._failures.move_to_end(name)
        while len(self._failures) > MAX_SUSPECTS:
            self._failures.popitem(last=False)
        return count

    def count(self, name: str, now: float) -> int:
        """Number of group failures, none of them long ago."""
        count, last = self._failures.get(name, (0, now))
        if now - last > FORGET_SECONDS:
            del self._failures[name]
            return 0
        return count

    def refused(self, name: str, now: float) -> bool:
        return self.count(name, now) >= FAILURES
