"""Whether a rank's work makes progress: written by the working thread, read by the heartbeat thread.

MLX waits for a dead peer without a limit, so the working thread cannot report that it is stuck. It marks the start and the end
of each step here; the heartbeat thread keeps running and reports how long the step has taken.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from thunderfleet_runner.rank.step_times import Expected, Step, StepTimes

COLLECTIVE = Step("collective")
"""Ranks exchange something small and compute nothing, as at the start of a turn."""
LOADING = Step("loading")


@dataclass(frozen=True)
class Reading:
    """``steps`` completed since the start, the running step's seconds so far, and what it should take by earlier steps."""

    steps: int
    in_step: bool
    step_seconds: float
    expected: Expected


class StepClock:
    """Written by the working thread, read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0
        self._working = False
        self._step = LOADING
        self._since = time.monotonic()
        self._times = StepTimes()

    @contextmanager
    def work(self, step: Step) -> Iterator[None]:
        """While the rank works (a load, a turn) rather than idles."""
        self.wake(step)
        try:
            yield
        finally:
            self.rest()

    def wake(self, step: Step) -> None:
        """Work starts, with this step."""
        with self._lock:
            self._working, self._step, self._since = True, step, time.monotonic()

    def rest(self) -> None:
        """The rank is idle."""
        with self._lock:
            self._working = False

    def step(self, ended: Step | None = None) -> None:
        """The running step has ended, and another one like it starts. ``ended``: what it was, if not what ``begin`` got."""
        with self._lock:
            self._steps += 1
            self._add(ended or self._step)

    def begin(self, step: Step) -> None:
        """A step starts. The exchange before it, if there was one, has ended."""
        with self._lock:
            if self._step.shape == "collective":
                self._add(self._step)
            self._step, self._since = step, time.monotonic()

    def _add(self, step: Step) -> None:
        now = time.monotonic()
        self._times.add(step, now - self._since)
        self._since = now

    def read(self) -> Reading:
        """The current figures."""
        with self._lock:
            return Reading(
                steps=self._steps,
                in_step=self._working,
                step_seconds=time.monotonic() - self._since if self._working else 0.0,
                expected=self._times.expected(self._step),
            )
