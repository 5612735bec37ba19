"""When a group counts as stalled, by the pulses of its ranks."""

from collections.abc import Callable

import pytest
from thunderfleet_runner.group.attempts import Phase
from thunderfleet_runner.group.stall import TICK_SECONDS, StallDetector
from thunderfleet_runner.net import peers


def ticks_until_stalled(
    size: int,
    steps: Callable[[int], int],
    *,
    working: bool,
    longest: float,
    of_rank_0: float | None = None,
    phase: Phase = Phase.READY,
) -> tuple[int, str] | None:
    """Ticks until a group counts as stalled, and the fault's message; None when it does not within a thousand ticks."""
    detector = StallDetector()
    for tick in range(1, 1000):
        pulse = peers.Pulse(attempt=1, steps=steps(tick), in_step=working, longest_step_seconds=longest)
        own = pulse if of_rank_0 is None else pulse.model_copy(update={"longest_step_seconds": of_rank_0})
        pulses = {0: own, **dict.fromkeys(range(1, size), pulse)}
        detector.tick(phase, pulses)
        if (stalled := detector.stalled(phase, pulses)) is not None:
            return tick, stalled[1].message
    return None


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("longest", "seconds"), [(0.001, 10.0), (0.05, 10.0), (2.0, 10.0), (4.0, 20.0), (30.0, 150.0)])
def test_a_stall_takes_ten_seconds_or_five_of_the_longest_step(size: int, longest: float, seconds: float) -> None:
    # The first tick sees the steps for the first time.
    ticks = round(seconds / TICK_SECONDS) + 2
    text = f"no rank has completed a step for {seconds:g} s while the group served"
    assert ticks_until_stalled(size, lambda _: 7, working=True, longest=longest) == (ticks, text)
    assert ticks_until_stalled(size, lambda _: 7, working=True, longest=longest, phase=Phase.DRAINING) == (ticks, text)


@pytest.mark.parametrize(("of_rank_0", "longest", "seconds"), [(0.0, 0.0, 30.0), (0.2, 0.0, 30.0), (9.0, 0.0, 45.0)])
def test_the_first_step_of_a_shape_may_take_thirty_seconds(of_rank_0: float, longest: float, seconds: float) -> None:
    found = ticks_until_stalled(2, lambda _: 7, working=True, longest=longest, of_rank_0=of_rank_0)
    assert found == (
        round(seconds / TICK_SECONDS) + 2,
        f"no rank has completed a step for {seconds:g} s while the group served",
    )


def test_loading_may_take_two_minutes_a_step_and_needs_no_word_that_a_rank_works() -> None:
    found = ticks_until_stalled(2, lambda _: 7, working=False, longest=90.0, phase=Phase.LOADING)
    assert found == (242, "no rank has completed a step for 120 s while the model was loaded")
    found = ticks_until_stalled(2, lambda _: 7, working=True, longest=0.001, phase=Phase.COMPARING)
    assert found == (22, "no rank has completed a step for 10 s during the test prompt")


def test_a_group_that_makes_steps_or_is_idle_is_not_stalled() -> None:
    # A long prefill: a chunk every nine seconds.
    assert ticks_until_stalled(2, lambda tick: tick // 18, working=True, longest=0.01) is None
    assert ticks_until_stalled(2, lambda _: 99, working=False, longest=0.0) is None
    for phase in set(Phase) - {Phase.LOADING, Phase.COMPARING, Phase.READY, Phase.DRAINING}:
        assert ticks_until_stalled(2, lambda _: 7, working=True, longest=0.001, phase=phase) is None


def test_the_slowest_rank_is_named_and_devices_are_probed_once_after_two_seconds() -> None:
    detector, probes = StallDetector(), []
    pulses = {rank: peers.Pulse(attempt=1, steps=steps, in_step=True) for rank, steps in ((0, 9), (1, 8), (2, 9))}
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
