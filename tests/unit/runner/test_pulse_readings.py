"""Whether work moves, as the heartbeat tells it."""

from thunderfleet_runner.rank.step_clock import Pulse


def test_a_pulse_tells_work_from_idleness_and_keeps_the_longest_step_of_a_shape() -> None:
    pulse = Pulse()
    assert not pulse.read().in_step and pulse.read().step_seconds == 0
    with pulse.work("prefill"):
        pulse.step("prefill")
        longest = pulse.read().longest_step_seconds
        assert longest > 0
        pulse.begin("decode")
        reading = pulse.read()
        assert reading.in_step and reading.steps == 1 and reading.step_seconds > 0
        assert reading.longest_step_seconds == 0, "no step of this shape has ended"
        pulse.begin("prefill")
        assert pulse.read().longest_step_seconds == longest
    assert not pulse.read().in_step and pulse.read().step_seconds == 0
