"""Ages of timestamps that were written by another machine, or by this one while its clock was wrong."""

import math
from datetime import datetime

SKEW_SECONDS = 60.0
"""A time at most this far in the future comes from a clock that is slightly ahead; beyond it, from a clock that was wrong."""


def age_seconds(written: datetime, now: datetime) -> float:
    """Seconds since ``written``, never negative.

    A time far in the future counts as infinitely long ago. Otherwise code that waits for this time would wait as long as the
    clock was wrong.
    """
    age = (now - written).total_seconds()
    return max(0.0, age) if age >= -SKEW_SECONDS else math.inf
