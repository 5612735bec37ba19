"""Exponential back-off: how long to wait after the nth failure in a row. Pure but for the jitter's random number."""

import random
from collections.abc import Callable
from dataclasses import dataclass

_MAX_DOUBLINGS = 64
"""Maximum exponent, so that the power stays finite; every limit is reached long before."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A schedule of waits in seconds: ``first``, then ``factor`` times longer after every failure, up to ``limit``.

    ``jitter`` is the random share of a wait: 0.3 makes it 70 % to 100 % of the schedule, so that many clients that failed at
    the same moment do not retry at the same moment. The caller counts failures and resets the count on success.
    """

    first: float
    limit: float
    factor: float = 2.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.first < 0 or self.limit < self.first or not 1 <= self.factor <= 10 or not 0 <= self.jitter < 1:
            raise ValueError(f"a back-off needs 0 <= first <= limit, 1 <= factor <= 10 and 0 <= jitter < 1, not {self}")

    def seconds(self, failures: int) -> float:
        """The wait after that many failures in a row, without jitter. 0 after no failure."""
        if failures <= 0:
            return 0.0
        return min(self.limit, self.first * self.factor ** min(failures - 1, _MAX_DOUBLINGS))

    def jittered(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """The wait with jitter. ``draw`` returns a number in [0, 1)."""
        return self.seconds(failures) * (1.0 - self.jitter * draw())
