"""Back-off: the schedule, its limit, its jitter, and bad settings."""

from __future__ import annotations

import pytest
from thunderfleet_lib.backoff import Backoff


def test_waits_grow_from_the_first_to_the_limit() -> None:
    backoff = Backoff(0.5, 10.0)
    assert [backoff.seconds(failures) for failures in range(8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_the_factor_is_the_growth() -> None:
    backoff = Backoff(1.0, 100.0, factor=3.0)
    assert [backoff.seconds(failures) for failures in (1, 2, 3, 4, 5, 6)] == [1.0, 3.0, 9.0, 27.0, 81.0, 100.0]
    assert Backoff(2.0, 2.0, factor=1.0).seconds(9) == 2.0


def test_any_number_of_failures_has_a_finite_wait() -> None:
    assert Backoff(1.0, 300.0).seconds(10**9) == 300.0
    assert Backoff(0.0, 5.0).seconds(10**9) == 0.0
    assert Backoff(1e-6, 1e9).seconds(41) == pytest.approx(1e-6 * 2**40)
    assert Backoff(1.0, 300.0).seconds(-1) == 0.0


@pytest.mark.parametrize(("draw", "wait"), [(0.0, 4.0), (0.5, 3.4), (1.0, 2.8)])
def test_jitter_shortens_the_wait_by_its_share(draw: float, wait: float) -> None:
    backoff = Backoff(1.0, 60.0, jitter=0.3)
    assert backoff.jittered(3, lambda: draw) == pytest.approx(wait)
    assert Backoff(1.0, 60.0).jittered(3, lambda: draw) == 4.0


def test_jitter_draws_a_new_number_every_time() -> None:
    backoff = Backoff(1.0, 60.0, jitter=0.5)
    waits = {backoff.jittered(4) for _ in range(50)}
    assert len(waits) > 1
    assert all(4.0 <= wait <= 8.0 for wait in waits)


@pytest.mark.parametrize(
    ("first", "limit", "factor", "jitter"),
    [
        (-1.0, 1.0, 2.0, 0.0),
        (2.0, 1.0, 2.0, 0.0),
        (1.0, 2.0, 0.5, 0.0),
        (1.0, 2.0, 10.5, 0.0),
        (1.0, 2.0, 2.0, -0.1),
        (1.0, 2.0, 2.0, 1.0),
    ],
)
def test_settings_without_sense_are_refused(first: float, limit: float, factor: float, jitter: float) -> None:
    with pytest.raises(ValueError, match="a back-off needs"):
        Backoff(first, limit, factor, jitter)
    assert Backoff(0.0, 0.0, 1.0, 0.0).seconds(1) == 0.0
