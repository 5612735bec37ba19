"""Clocks that also count the time in which this machine sleeps.

``time.monotonic`` stops while a Mac sleeps, as does Linux's CLOCK_MONOTONIC. What may have expired during a sleep, such as a
Lease, needs a clock that goes on. A machine that is stopped from outside, such as a virtual one, may not notice it on any
clock but the wall clock, once that has been corrected.
"""

import sys
import time
from dataclasses import dataclass


def since_boot() -> float:
    """Seconds since an arbitrary point, sleep included. Unaffected by changes of the wall clock."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    # On macOS this clock goes on during sleep.
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time by both clocks, in seconds."""

    boot: float
    wall: float

    @classmethod
    def now(cls) -> "Moment":
        """The present."""
        return cls(since_boot(), time.time())

    def elapsed(self, earlier: "Moment") -> float:
        """At most this many seconds have passed since ``earlier``, by the clock that says more."""
        return max(self.boot - earlier.boot, self.wall - earlier.wall)

    def jump(self, earlier: "Moment") -> float:
        """By how much the wall clock has been set forward (positive) or back (negative) since ``earlier``."""
        return (self.wall - earlier.wall) - (self.boot - earlier.boot)
