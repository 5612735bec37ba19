"""A limit on Events: for each object, a burst and then one a minute. Pure.

Events are objects in etcd, and a failure that repeats would otherwise create one each time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

BURST: Final = 100
"""More than the number of groups of a ModelDeployment, because each placed group has an Event."""
REFILL_SECONDS: Final = 60.0
MAX_OBJECTS: Final = 4096
"""Maximum number of objects in the table. The one whose last Event is oldest is dropped first."""


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class EventLimit:
    """Decides whether an Event about an object may be written. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, uid: str, now: float) -> bool:
        """Whether one more Event about the object with this uid may be written."""
        bucket = self._buckets.setdefault(uid, _Bucket(BURST, now))
        self._buckets.move_to_end(uid)
        if len(self._buckets) > MAX_OBJECTS:
            self._buckets.popitem(last=False)
        bucket.left = min(BURST, bucket.left + max(0.0, now - bucket.at) / REFILL_SECONDS)
        bucket.at = now
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True
