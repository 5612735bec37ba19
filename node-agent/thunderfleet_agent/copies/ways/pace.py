"""Limits the rate at which bytes are read over a way that others use too. Pure; the time is an argument."""

from __future__ import annotations

# Bytes that may be read at once after a pause.
BURST_SECONDS = 0.1


class Pace:
    """At most ``rate`` bytes per second over time; None is no limit. Shared by the connections of one kind of way."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._free_at = 0.0

    def delay(self, count: int, now: float) -> float:
        """Counts ``count`` bytes that were just read. Returns how many seconds to wait before the next read."""
        if self.rate is None:
            return 0.0
        self._free_at = max(self._free_at, now - BURST_SECONDS) + count / self.rate
        return max(0.0, self._free_at - now)
