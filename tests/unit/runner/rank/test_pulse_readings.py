"""Progress of work as heartbeats report it."""

from thunderfleet_runner.rank.step_clock import COLLECTIVE, LOADING, StepClock
from thunderfleet_runner.rank.step_times import Expected, Step, StepTimes


def test_a_pulse_tells_work_from_idleness_and_expects_of_a_step_what_steps_of_its_shape_took() -> None:
    clock = StepClock()
    assert not clock.read().in_step and clock.read().step_seconds == 0
    prompt, answer = Step("prefill", 2048, 2048), Step("decode", 1, 2049)
    with clock.work(LOADING):
        clock.begin(prompt)
        assert clock.read().expected == Expected(), "no step of this shape has ended"
        clock.step()
        expected = clock.read().expected
        assert expected.known and expected.seconds > 0
        clock.begin(answer)
        reading = clock.read()
        assert reading.in_step and reading.steps == 1 and reading.step_seconds > 0
        assert reading.expected == Expected(), "no step of this shape has ended"
        clock.begin(prompt)
        assert clock.read().expected == expected
        clock.step(Step("prefill", 300, 300))
        assert clock.read().steps == 2
    assert not clock.read().in_step and clock.read().step_seconds == 0


def test_an_exchange_ends_when_a_step_begins() -> None:
    clock = StepClock()
    clock.wake(COLLECTIVE)
    assert not clock.read().expected.known
    clock.begin(Step("prefill", 5, 5))
    clock.wake(COLLECTIVE)
    assert clock.read().expected.known and clock.read().steps == 0


def test_a_step_is_expected_to_take_as_long_for_each_token_as_the_slowest_at_its_context() -> None:
    times = StepTimes()
    times.add(Step("prefill", 2048, 2048), 8.0)
    times.add(Step("prefill", 1024, 3072), 5.0)
    times.add(Step("prefill", 2048, 9000), 16.0)
    assert times.expected(Step("prefill", 2048, 4000)) == Expected(10.0, known=True)
    assert times.expected(Step("prefill", 512, 3000)) == Expected(2.5, known=True)
    assert times.expected(Step("prefill", 2048, 8192)) == Expected(16.0, known=True)
    # Between two contexts that were seen, in proportion to the shorter one; beyond all, to the longest.
    assert times.expected(Step("prefill", 2048, 5000)) == Expected(20.0, known=True)
    assert times.expected(Step("prefill", 2048, 40_000)) == Expected(64.0, known=True)
    # A shorter context than any takes no longer than the shortest.
    assert times.expected(Step("prefill", 2048, 1000)) == Expected(10.0, known=True)
    assert times.expected(Step("decode", 1, 9000)) == Expected()


def test_a_step_larger_than_any_before_is_not_known() -> None:
    times = StepTimes()
    times.add(Step("prefill", 10, 10), 0.5)
    assert times.expected(Step("prefill", 256, 10)) == Expected(0.5, known=True)
    assert times.expected(Step("prefill", 257, 10)).known is False
    assert times.expected(Step("prefill", 2048, 10)) == Expected(4.0, known=False)
    times.add(Step("prefill", 2048, 2050), 1.0)
    assert times.expected(Step("prefill", 2048, 10)) == Expected(4.0, known=True)
