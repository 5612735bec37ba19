"""A token bucket: limits how often something happens, and allows short bursts. Pure; the time is an argument."""

from __future__ import annotations


class TokenBucket:
    """``rate`` tokens per second, at most ``burst`` of them; full at first."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._filled_at: float | None = None

    def take(self, now: float) -> bool:
        """Takes one token; False if there is none. ``now`` is in monotonic seconds."""
        if self._filled_at is not None:
            self._tokens = min(self._burst, self._tokens + self._rate * (now - self._filled_at))
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
