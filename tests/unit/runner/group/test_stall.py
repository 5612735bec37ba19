"""When a group counts as stalled, by the pulses of its ranks."""

from collections.abc import Callable

import pytest
from thunderfleet_runner.group.decide.attempts import Phase
from thunderfleet_runner.group.decide.stall import STILL_SECONDS, TICK_SECONDS, StallDetector
from thunderfleet_runner.net import peers

CHECK = "if this recurs, check the cables with `kubectl get tbl`"


def ticks_until_stalled(
    size: int,
    steps: Callable[[int], int],
    *,
    working: bool,
    expected: float = 0.0,
    known: bool = True,
    phase: Phase = Phase.READY,
) -> tuple[int, str] | None:
    """Ticks until a group counts as stalled, and the fault's message; None when it does not within 2,000 ticks."""
    detector = StallDetector()
    for tick in range(1, 2000):
        pulse = peers.Pulse(attempt=1, steps=steps(tick), in_step=working, expected_step_seconds=expected, step_known=known)
        pulses = dict.fromkeys(range(size), pulse)
        detector.tick(phase, pulses)
        if (stalled := detector.stalled(phase, pulses)) is not None:
            return tick, stalled[1].message
    return None


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("expected", "known", "seconds"),
    [
        (0.001, True, 10.0),
        (2.0, True, 10.0),
        (4.0, True, 16.0),
        (30.0, True, 120.0),
        (0.0, False, 120.0),
        (4.0, False, 120.0),
        (35.0, False, 140.0),
        (300.0, True, 900.0),
    ],
)
def test_a_stall_takes_four_times_what_the_step_should_take(size: int, expected: float, known: bool, seconds: float) -> None:
    # The first tick sees the steps for the first time.
    ticks = round(seconds / TICK_SECONDS) + 2
    text = f"no rank has completed a step for {seconds:g} s while the group served; {CHECK}"
    for phase in (Phase.READY, Phase.DRAINING):
        found = ticks_until_stalled(size, lambda _: 7, working=True, expected=expected, known=known, phase=phase)
        assert found == (ticks, text)


def test_the_rank_that_expects_the_longest_step_decides_and_idle_ranks_do_not() -> None:
    def limit(*pulses: peers.Pulse) -> str:
        detector, by_rank = StallDetector(), dict(enumerate(pulses))
        while (found := detector.stalled(Phase.READY, by_rank)) is None:
            detector.tick(Phase.READY, by_rank)
        return found[1].message

    short = peers.Pulse(attempt=1, in_step=True, expected_step_seconds=0.1, step_known=True)
    long = short.model_copy(update={"expected_step_seconds": 9.0})
    new = short.model_copy(update={"step_known": False})
    idle = new.model_copy(update={"in_step": False, "expected_step_seconds": 200.0})
    assert "for 10 s" in limit(short, short)
    assert "for 36 s" in limit(short, long)
    assert "for 120 s" in limit(long, new)
    assert "for 10 s" in limit(short, idle)


def test_loading_may_take_two_minutes_a_step_and_needs_no_word_that_a_rank_works() -> None:
    found = ticks_until_stalled(2, lambda _: 7, working=False, expected=90.0, phase=Phase.LOADING)
    assert found == (242, f"no rank has completed a step for 120 s while the model was loaded; {CHECK}")
    found = ticks_until_stalled(2, lambda _: 7, working=True, phase=Phase.COMPARING)
    assert found == (22, f"no rank has completed a step for 10 s during the test prompt; {CHECK}")


def test_a_group_that_makes_steps_or_is_idle_is_not_stalled() -> None:
    # A long prefill: a chunk every nine seconds.
    assert ticks_until_stalled(2, lambda tick: tick // 18, working=True) is None
    assert ticks_until_stalled(2, lambda _: 99, working=False) is None
    for phase in set(Phase) - {Phase.LOADING, Phase.COMPARING, Phase.PROVING, Phase.READY, Phase.DRAINING}:
        assert ticks_until_stalled(2, lambda _: 7, working=True, phase=phase) is None


def test_the_slowest_rank_is_named_and_devices_are_probed_once_after_two_seconds() -> None:
    detector, probes = StallDetector(), []
    pulses = {
        rank: peers.Pulse(attempt=1, steps=steps, in_step=True, step_known=True) for rank, steps in ((0, 9), (1, 8), (2, 9))
    }
    while (stalled := detector.stalled(Phase.READY, pulses)) is None:
        detector.tick(Phase.READY, pulses)
        probes.append(detector.probe_due)
    assert stalled[0] == 1
    assert [tick for tick, due in enumerate(probes) if due] == [4]
    detector.reset()
    assert detector.stalled(Phase.READY, pulses) is None
    again = 0
    while detector.stalled(Phase.READY, pulses) is None:
        detector.tick(Phase.READY, pulses)
        again += 1
    # The first tick with these steps, which began to count, is not repeated.
    assert again == len(probes) - 1


def test_ranks_that_never_say_anything_stall_after_the_limit_of_loading() -> None:
    detector, ticks = StallDetector(), 0
    while (stalled := detector.stalled(Phase.LOADING, {})) is None:
        detector.tick(Phase.LOADING, {})
        ticks += 1
    assert (ticks, stalled[0]) == (round(120 / TICK_SECONDS) + 1, 0)


def test_a_group_is_still_long_before_it_counts_as_stalled() -> None:
    detector = StallDetector()
    pulses = {0: peers.Pulse(attempt=1, steps=3, in_step=True, expected_step_seconds=0.0, step_known=False)}
    ticks = round(STILL_SECONDS / TICK_SECONDS)
    for tick in range(ticks + 1):
        assert detector.still is False, tick
        detector.tick(Phase.PROVING, pulses)
    assert detector.still and detector.stalled(Phase.PROVING, pulses) is None
    detector.tick(Phase.PROVING, {0: pulses[0].model_copy(update={"steps": 4})})
    assert not detector.still
