"""Progress of a transfer: rate, time left, and where most bytes come from. Pure; the time is an argument."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

WINDOW_SECONDS = 10.0
# One entry per step, whatever the number of chunks.
STEP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class From:
    """A Node, and the ThunderboltLink that the bytes came over; empty for the LAN."""

    node: str
    link: str


class Rates:
    """The bytes of the last seconds by source."""

    def __init__(self, now: float) -> None:
        self._steps: deque[tuple[float, Counter[From]]] = deque()
        self._started = now
        self._total: Counter[From] = Counter()

    def add(self, source: From, count: int, now: float) -> None:
        if not self._steps or now - self._steps[-1][0] >= STEP_SECONDS:
            self._steps.append((now, Counter()))
        self._steps[-1][1][source] += count
        self._total[source] += count
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._steps and now - self._steps[0][0] > WINDOW_SECONDS:
            self._steps.popleft()

    def bytes_per_second(self, now: float) -> int:
        """Mean over the last seconds."""
        self._forget(now)
        total = sum(sum(step.values()) for _, step in self._steps)
        return round(total / max(STEP_SECONDS, min(WINDOW_SECONDS, now - self._started)))

    def main(self, now: float) -> From | None:
        """Where most bytes of the last seconds came from; None if there were none."""
        self._forget(now)
        total: Counter[From] = sum((step for _, step in self._steps), Counter())
        return _most(total)

    def most(self) -> From | None:
        """Where most of all bytes came from; None if there were none."""
        return _most(self._total)


def _most(total: Counter[From]) -> From | None:
    return max(total, key=lambda source: (total[source], source.node, source.link), default=None)


def seconds_left(left: int, rate: int) -> int | None:
    """None if nothing arrives."""
    return None if rate <= 0 else -(-left // rate)
