"""Whether groups as fast as published measurements count as stalled while they work, and soon after they stop."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from thunderfleet_runner.group.decide.attempts import Phase
from thunderfleet_runner.group.decide.stall import STALL_SECONDS, STALL_UNKNOWN_SECONDS, TICK_SECONDS, StallDetector
from thunderfleet_runner.net import peers
from thunderfleet_runner.rank.step_times import Step, StepTimes

CHUNK = 2048
PROMPTS = (10, 12, 300, 290, 3 * CHUNK + 100, 20, 30_000, 5_000, 64_000)
ANSWER_TOKENS = 30
COMPILE_SECONDS = 15.0
"""What the first prompt step and the first token take in addition."""


@dataclass(frozen=True)
class Model:
    """Seconds a prompt token at a short context, the growth of that a token of context, and seconds a token of an answer."""

    name: str
    prompt: float
    growth: float
    answer: float


# The rates are those of docs/speeds.md; those of DeepSeek-V3 at three lengths of the prompt give its growth. Where only one
# length is published, the growth is that of DeepSeek-V3 in proportion.
GROWTH = 0.085e-3
MODELS = [
    Model("Devstral 2 123B on two M3 Ultra", 1 / 119, GROWTH / 119, 1 / 11),
    Model("Devstral 2 123B on an M3 Ultra", 1 / 91.5, GROWTH / 91.5, 1 / 6),
    Model("DeepSeek-V3 on an M3 Ultra", 1 / 245, GROWTH / 245, 1 / 20.6),
    Model("Qwen3 30B-A3B on an M4 Max", 1 / 1732, GROWTH / 1732, 1 / 100),
    Model("Qwen3 4B on an M3 Pro", 1 / 615, GROWTH / 615, 1 / 44.6),
    Model("Phi-4 mini on an M3 Ultra", 1 / 2197, GROWTH / 2197, 1 / 167.9),
    # The rate of its answers is published for the slower M4 Pro.
    Model("Qwen3 0.6B on an M4 Max", 1 / 10279, GROWTH / 10279, 1 / 284.2),
]


def served(model: Model) -> Iterator[tuple[Step, float]]:
    """The steps of all prompts and their answers, one after the other, with their seconds."""
    first = COMPILE_SECONDS
    for length in PROMPTS:
        for start in range(0, length, CHUNK):
            tokens = min(CHUNK, length - start)
            step = Step("prefill", tokens, start + tokens)
            # A step of few tokens reads all weights, as one token of an answer does.
            yield step, first + max(model.answer, tokens * (model.prompt + model.growth * step.context))
            first = 0.0
        for token in range(ANSWER_TOKENS):
            yield Step("decode", 1, length + token), model.answer + (COMPILE_SECONDS if token == 0 and length == 10 else 0)


class Group:
    """Two ranks in step, watched every half second of simulated time."""

    def __init__(self) -> None:
        self.times, self.detector = StepTimes(), StallDetector()
        self.now, self.next_tick, self.steps = 0.0, TICK_SECONDS, 0

    def run(self, step: Step, seconds: float) -> str:
        """Runs a step; returns why the group counted as stalled before its end, "" if it did not."""
        end = self.now + seconds
        while self.next_tick < end:
            self.now, self.next_tick = self.next_tick, self.next_tick + TICK_SECONDS
            expected = self.times.expected(step)
            pulse = peers.Pulse(
                attempt=1,
                steps=self.steps,
                in_step=True,
                expected_step_seconds=expected.seconds,
                step_known=expected.known,
            )
            pulses = {0: pulse, 1: pulse}
            self.detector.tick(Phase.READY, pulses)
            if (stalled := self.detector.stalled(Phase.READY, pulses)) is not None:
                return stalled[1].message
        self.now, self.steps = end, self.steps + 1
        self.times.add(step, seconds)
        return ""


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_group_that_works_is_never_stalled_and_one_that_stops_soon_is(model: Model) -> None:
    group = Group()
    for step, seconds in served(model):
        assert group.run(step, seconds) == "", f"{step} of {seconds:.1f} s, after {group.steps} steps"
    began = group.now
    assert "no rank has completed a step for 10 s while the group served" in group.run(Step("decode", 1, 100), 1e6)
    assert group.now - began <= STALL_SECONDS + 2 * TICK_SECONDS


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_full_step_of_a_prompt_that_hangs_is_noticed_after_four_times_what_it_takes(model: Model) -> None:
    group = Group()
    whole = CHUNK * (model.prompt + model.growth * CHUNK)
    assert group.run(Step("prefill", CHUNK, CHUNK), whole) == ""
    began = group.now
    assert "no rank has completed" in group.run(Step("prefill", CHUNK, CHUNK), 1e6)
    assert group.now - began <= max(STALL_SECONDS, 4 * whole) + 2 * TICK_SECONDS
    assert whole < STALL_UNKNOWN_SECONDS / 4
