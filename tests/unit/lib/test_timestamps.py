"""Ages of timestamps from clocks that may be wrong."""

import math
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_lib.timestamps import SKEW_SECONDS, age_seconds

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_time_that_is_slightly_ahead_is_now_and_one_far_ahead_is_long_ago() -> None:
    assert age_seconds(NOW - timedelta(seconds=5), NOW) == 5
    assert age_seconds(NOW + timedelta(seconds=SKEW_SECONDS), NOW) == 0
    assert age_seconds(NOW + timedelta(days=365), NOW) == math.inf


@given(st.timedeltas(-timedelta(days=9000), timedelta(days=9000)), st.floats(0, 86400))
def test_nothing_waits_longer_than_its_limit(offset: timedelta, limit: float) -> None:
    assert limit - age_seconds(NOW + offset, NOW) <= limit
