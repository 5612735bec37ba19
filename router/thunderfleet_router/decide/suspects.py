"""Refuses requests that were in flight when two groups failed. Pure: times are arguments.

Otherwise a request that makes ranks crash would be repeated on one group after another. Failures count only
for the caller whose requests they were: otherwise a client that makes groups fail could send the same request as another one at
that moment, and the router would refuse the other's too.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

FAILURES = 2
"""Group failures after which a request is refused."""
FORGET_SECONDS = 900.0
MAX_SUSPECTS = 4096


def digest(uid: str, path: str, body: bytes) -> str:
    """The name of a request in the log: the same for the same body, path and ModelDeployment."""
    return hashlib.sha256(f"{uid} {path} ".encode() + body).hexdigest()


def of_caller(caller_id: str, digest: str) -> str:
    """The name of a request of one caller, by which its failures are counted."""
    return f"{digest} {caller_id}"


@dataclass(slots=True)
class _Failures:
    count: int = 0
    at: float = 0.0
    groups: dict[str, float] = field(default_factory=dict)
    """When each group failed last, at most FAILURES of them."""


class Suspects:
    """Group failures by the name of a caller's request; the oldest are dropped."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, name: str, group: str, sent: float, now: float) -> int:
        """Counts a failure of ``group`` with the request, which was sent at ``sent``. Returns the number of failures.

        Several clients with one key may have sent the same request: one failure counts once for all of them.
        """
        self.count(name, now)
        known = self._failures.setdefault(name, _Failures())
        if known.count < FAILURES and sent >= known.groups.get(group, float("-inf")):
            known.count += 1
            known.groups[group] = now
        known.at = now
        self._failures.move_to_end(name)
        while len(self._failures) > MAX_SUSPECTS:
            self._failures.popitem(last=False)
        return known.count

    def answered(self, name: str) -> None:
        """A group has answered the request, so it did not cause the failures of others."""
        self._failures.pop(name, None)

    def count(self, name: str, now: float) -> int:
        """Number of group failures; 0 if the last one is more than FORGET_SECONDS ago."""
        known = self._failures.get(name)
        if known is None:
            return 0
        if now - known.at > FORGET_SECONDS:
            del self._failures[name]
            return 0
        return known.count

    def refused(self, name: str, now: float) -> bool:
        return self.count(name, now) >= FAILURES
