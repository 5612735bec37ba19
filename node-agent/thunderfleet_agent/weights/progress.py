"""Rates of transfers, from how much had arrived when."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 20.0
MAX_SAMPLES = 64


class Rate:
    """Bytes per second over the last seconds. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=MAX_SAMPLES)

    def add(self, now: float, done: int) -> None:
        """Notes how many bytes had arrived."""
        if self._samples and done < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def bytes_per_second(self) -> int | None:
        """The rate; None while it is not known."""
        if len(self._samples) < 2:
            return None
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return int((after - before) / (end - start)) if end - start >= 1.0 else None

    def seconds_left(self, total: int) -> int | None:
        """The time until ``total`` bytes have arrived at this rate; None if nothing arrives."""
        rate = self.bytes_per_second
        if not rate or not self._samples:
            return None
        return max(0, total - self._samples[-1][1]) // rate
