"""Clocks that also count the time in which this machine sleeps.

``time.monotonic`` stops while a Mac sleeps, as does Linux's CLOCK_MONOTONIC. A Lease can expire during sleep, so its age needs
a clock that continues. If a virtual machine is paused, only its wall clock shows the pause, after it has been corrected.
"""

import sys
import time
from dataclasses import dataclass


def since_boot() -> float:
    """Seconds since an arbitrary point, sleep included. Unaffected by changes of the wall clock."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    # On macOS this clock continues during sleep.
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time by both clocks, in seconds."""

    boot: float
    wall: float

    @classmethod
    def now(cls) -> "Moment":
        """The current time."""
        return cls(since_boot(), time.time())

    def elapsed(self, earlier: "Moment") -> float:
        """Seconds since ``earlier``, by the clock that shows more."""
        return max(self.boot - earlier.boot, self.wall - earlier.wall)

    def jump(self, earlier: "Moment") -> float:
        """By how much the wall clock has been set forward (positive) or back (negative) since ``earlier``."""
        return (self.wall - earlier.wall) - (self.boot - earlier.boot)
