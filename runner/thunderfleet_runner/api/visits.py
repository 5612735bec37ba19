"""The number of clients' requests at the gateway, and for how long there has been none."""

from collections.abc import Callable


class Visits:
    """``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self.inside = 0
        """Number of requests that are received, wait or run."""

    def opened(self) -> None:
        """The group begins to serve; earlier time does not count as idle."""
        self._last = self._clock()

    def enter(self) -> None:
        """A request has come."""
        self.inside += 1

    def leave(self) -> None:
        """A request has ended."""
        self.inside -= 1
        self._last = self._clock()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request ended; 0 while there is one."""
        return 0.0 if self.inside else max(0.0, self._clock() - self._last)
