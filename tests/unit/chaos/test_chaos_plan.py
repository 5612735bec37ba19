"""The fault suite's planner: a seed always gives the same sequence, and a long sequence contains every fault."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout

from tests.chaos import fleet, plan
from tests.chaos.plan import (
    EPISODES_PER_FLEET,
    FLEETS,
    HELD,
    LONG_FAULTS,
    LONG_SECONDS,
    SERVING,
    SHAPES,
    START,
    Action,
    Deck,
    Fault,
    Stage,
    Target,
)
from tests.support.generated import examples

SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.integers(1, 40))
@settings(max_examples=examples(30))
def test_the_same_seed_gives_the_same_sequence_and_a_longer_run_begins_like_a_shorter(seed: int, faults: int) -> None:
    short = plan.first(seed, faults)
    assert plan.first(seed, faults + 7)[: len(short)] == short
    assert faults <= sum(len(episode.steps) for episode in short) < faults + 3


def test_seeds_differ() -> None:
    assert plan.first(1, 9) != plan.first(2, 9)


@given(SEEDS)
@settings(max_examples=examples(20))
def test_steps_are_in_the_order_of_a_life_and_hit_what_is_there(seed: int) -> None:
    for episode in plan.first(seed, 90):
        start, serving, end = episode.steps
        assert start.stage in START
        assert serving.stage in SERVING
        assert end.stage is Stage.DRAINING
        assert episode.shape.ranks <= episode.macs
        for step in episode.steps:
            assert step.seconds < LONG_SECONDS
            for blow in step.blows:
                assert blow.rank in plan.victims(step.stage, episode.shape.ranks)
                assert not (step.stage in HELD and blow.fault.target is Target.RANK)
                assert blow.fault.target is not Target.INTAKE or (step.stage in SERVING and blow.rank == 0)


@given(SEEDS)
@settings(max_examples=examples(20))
def test_two_faults_at_once_have_different_targets_and_are_undone_together(seed: int) -> None:
    double = [step for episode in plan.first(seed, 120) for step in episode.steps if len(step.blows) > 1]
    assert double
    for step in double:
        first, second = (blow.fault for blow in step.blows)
        assert first.target is not second.target
        assert not step.does(Action.LOSE)
        assert not step.does(Action.UPDATE)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_whole_deck_has_every_fault_at_every_stage_on_every_fleet(seed: int) -> None:
    wanted = set(plan.cards((*START, *SERVING, Stage.DRAINING)))
    found = plan.first(seed, 3 * len(plan.cards(START)))
    assert {(step.stage, step.blows[0].fault) for episode in found for step in episode.steps} == wanted
    assert {episode.shape for episode in found} == set(SHAPES)
    assert {episode.macs for episode in found} == set(FLEETS)


def test_episodes_of_one_cluster_have_one_fleet() -> None:
    found = plan.first(4, 180)
    sizes = {episode.fleet: {other.macs for other in found if other.fleet == episode.fleet} for episode in found}
    assert all(len(macs) == 1 for macs in sizes.values())
    assert len(sizes) == -(-len(found) // EPISODES_PER_FLEET)


def test_faults_by_name_hit_one_deployment_that_serves() -> None:
    found = plan.named(["kill etcd", "kill intake"])
    assert [(step.stage, [str(blow) for blow in step.blows]) for step in found.steps] == [
        (Stage.STREAMS, ["kill etcd (rank 1)"]),
        (Stage.STREAMS, ["kill intake (rank 0)"]),
    ]
    assert plan.named([str(fault) for fault in plan.FAULTS]).steps
    with pytest.raises(ValueError, match="there is no fault 'kill all'"):
        plan.named(["kill all"])


def test_long_faults_only_when_asked_for() -> None:
    long = [step for episode in plan.first(5, 300, long=True) for step in episode.steps if step.seconds == LONG_SECONDS]
    assert long
    assert {step.blows[0].fault for step in long} <= set(LONG_FAULTS)


def test_a_fault_touches_other_groups_on_its_mac_if_the_mac_itself_is_hit_or_silent_for_long() -> None:
    assert Fault(Action.FILL, Target.MAC).touches_mac(2)
    assert Fault(Action.LOSE, Target.KUBELET).touches_mac(2)
    assert Fault(Action.KILL, Target.KUBELET).touches_mac(LONG_SECONDS)
    assert not Fault(Action.KILL, Target.KUBELET).touches_mac(12)
    assert not Fault(Action.KILL, Target.RANK).touches_mac(LONG_SECONDS)


def test_running_requests_must_not_notice_faults_beside_the_group() -> None:
    assert Fault(Action.FILL, Target.ETCD).beside
    assert Fault(Action.CUT, Target.KUBELET).beside
    assert not Fault(Action.LOSE, Target.KUBELET).beside
    assert not Fault(Action.AHEAD, Target.MAC).beside
    assert not Fault(Action.KILL, Target.INTAKE).beside


def test_a_deck_deals_every_card_before_one_again() -> None:
    deck = Deck((1, 2, 3), random.Random(0))
    for _ in range(5):
        assert {deck.deal() for _ in range(3)} == {1, 2, 3}


@pytest.mark.parametrize("macs", FLEETS)
def test_every_mac_of_a_fleet_has_a_cable_to_every_other(macs: int) -> None:
    layout = plan_layout(parse_fleet(fleet.text(macs)), "namespaces")
    peers = {machine.name: {end.peer for end in machine.ends} for machine in layout.machines if machine.machine.kind == "mac"}
    assert peers == {name: peers.keys() - {name} for name in peers}
    assert len(peers) == macs
