"""Progress of work as heartbeats report it."""

from thunderfleet_runner.rank.step_clock import StepClock


def test_a_pulse_tells_work_from_idleness_and_keeps_the_longest_step_of_a_shape() -> None:
    clock = StepClock()
    assert not clock.read().in_step and clock.read().step_seconds == 0
    with clock.work("prefill"):
        clock.step("prefill")
        longest = clock.read().longest_step_seconds
        assert longest > 0
        clock.begin("decode")
        reading = clock.read()
        assert reading.in_step and reading.steps == 1 and reading.step_seconds > 0
        assert reading.longest_step_seconds == 0, "no step of this shape has ended"
        clock.begin("prefill")
        assert clock.read().longest_step_seconds == longest
    assert not clock.read().in_step and clock.read().step_seconds == 0
