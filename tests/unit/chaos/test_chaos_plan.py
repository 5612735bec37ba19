"""The fault suite's planner: a seed always gives the same sequence, and a long sequence contains every fault."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import plan
from tests.chaos.plan import HELD, LONG_FAULTS, LONG_SECONDS, SERVING, SHAPES, START, Deck, Stage, Target

SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.integers(1, 40))
@settings(max_examples=30)
def test_the_same_seed_gives_the_same_sequence_and_a_longer_run_begins_like_a_shorter(seed: int, faults: int) -> None:
    short = plan.first(seed, faults)
    assert plan.first(seed, faults + 7)[: len(short)] == short
    assert faults <= sum(len(episode.steps) for episode in short) < faults + 3


def test_seeds_differ() -> None:
    assert plan.first(1, 9) != plan.first(2, 9)


@given(SEEDS)
@settings(max_examples=20)
def test_steps_are_in_the_order_of_a_life_and_hit_ranks_that_are_there(seed: int) -> None:
    for episode in plan.first(seed, 90):
        start, serving, end = episode.steps
        assert start.stage in START
        assert serving.stage in SERVING
        assert end.stage is Stage.DRAINING
        for step in episode.steps:
            assert step.rank in plan.victims(step.stage, episode.shape.ranks)
            assert step.rank < episode.shape.ranks
            assert not (step.stage in HELD and step.fault.target is Target.RANK)
            assert step.seconds < LONG_SECONDS


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_whole_deck_has_every_fault_at_every_stage_in_every_shape(seed: int) -> None:
    wanted = set(plan.cards((*START, *SERVING, Stage.DRAINING)))
    found = plan.first(seed, 3 * len(plan.cards(START)))
    assert {(step.stage, step.fault) for episode in found for step in episode.steps} == wanted
    assert {episode.shape for episode in found} == set(SHAPES)


def test_long_faults_only_when_asked_for() -> None:
    long = [step for episode in plan.first(5, 300, long=True) for step in episode.steps if step.seconds == LONG_SECONDS]
    assert long
    assert {step.fault for step in long} <= set(LONG_FAULTS)


def test_a_deck_deals_every_card_before_one_again() -> None:
    deck = Deck((1, 2, 3), random.Random(0))
    for _ in range(5):
        assert {deck.deal() for _ in range(3)} == {1, 2, 3}
