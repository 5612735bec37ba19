"""Whether a rank's work makes progress: written by the working thread, read by the heartbeat thread.

MLX waits for a dead peer without a limit, so the working thread cannot report that it is stuck. It marks the start and the end
of each step here; the heartbeat thread keeps running and reports how long the step has taken.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Shape = Literal["loading", "prefill", "decode"]


@dataclass(frozen=True)
class Reading:
    """``steps`` completed since the start, the running step's seconds so far, and the longest completed step of its shape."""

    steps: int
    in_step: bool
    step_seconds: float
    longest_step_seconds: float


class StepClock:
    """Written by the working thread, read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0
        self._working = False
        self._shape: Shape = "loading"
        self._since = time.monotonic()
        self._longest: dict[Shape, float] = {}

    @contextmanager
    def work(self, shape: Shape) -> Iterator[None]:
        """While the rank works (a load, a turn) rather than idles."""
        self.wake(shape)
        try:
            yield
        finally:
            self.rest()

    def wake(self, shape: Shape) -> None:
        """Work starts, with a step of this shape."""
        with self._lock:
            self._working, self._shape, self._since = True, shape, time.monotonic()

    def rest(self) -> None:
        """The rank is idle."""
        with self._lock:
            self._working = False

    def step(self, shape: Shape) -> None:
        """A step of this shape has ended and the next one starts."""
        now = time.monotonic()
        with self._lock:
            self._steps += 1
            self._longest[shape] = max(self._longest.get(shape, 0.0), now - self._since)
            self._since = now

    def begin(self, shape: Shape) -> None:
        """The running step has this shape."""
        with self._lock:
            self._shape, self._since = shape, time.monotonic()

    def read(self) -> Reading:
        """The current figures."""
        with self._lock:
            return Reading(
                steps=self._steps,
                in_step=self._working,
                step_seconds=time.monotonic() - self._since if self._working else 0.0,
                longest_step_seconds=self._longest.get(self._shape, 0.0),
            )
