"""Serving groups are drained before they are replaced: rollouts, evictions, and names that do not collide."""

from typing import Any

import pytest
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.act.drains import NOTICE_SECONDS
from thunderfleet_operator.decide.group.lifecycle import DRAIN_SECONDS
from thunderfleet_operator.decide.group.trouble import STOPPED_SECONDS
from thunderfleet_operator.observe.objects.plans import Report
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, NODES, PODS

from tests.unit.operator.world import World

GIB = 2**30


def states(world: World) -> list[tuple[int, str]]:
    return [(group.epoch, group.state.value) for group in world.md.status.groups]


def draining(world: World, epoch: int, index: int = 0, *, stopped: bool = False, seconds: float = 0.0) -> None:
    """Rank 0 reports that its group drains: streams still run, or the ranks have stopped."""
    phase = "Joined" if stopped else "Serving"
    nodes = [rank.node for group in world.md.status.groups if group.index == index for rank in group.ranks] or ["big-1"]
    ranks = [{"rank": rank, "node": node, "phase": phase} for rank, node in enumerate(nodes)]
    world.say("Draining", epoch, index, ranks=ranks, message="no new requests; 1 still run")
    at, heard = world.reports[index]
    world.reports[index] = (at, Report(heard.state, phase_seconds=seconds))


def asked_to_end(world: World) -> list[str]:
    return sorted(name for name, pod in world.pods().items() if pod["metadata"].get("deletionTimestamp"))


async def test_a_changed_spec_rolls_group_by_group_and_the_endpoint_always_serves(world: World) -> None:
    await world.serve_two_groups()
    second = world.md.status.groups[1].endpoint
    world.edit(memory={"contextTokens": 1024})
    await world.round()
    # The endpoint in status already names another group, and no group has been asked to drain yet.
    assert states(world) == [(1, "Draining"), (1, "Ready")] and world.md.status.endpoint == second
    assert world.drained == [] and asked_to_end(world) == []
    assert "the spec has changed" in world.md.status.groups[0].message
    world.later(NOTICE_SECONDS)
    await world.round()
    assert world.drained == [(0, 1)]
    draining(world, 1)
    world.later(10)
    await world.round()
    assert asked_to_end(world) == [], "a stream still runs"
    assert "1 still run" in world.md.status.groups[0].message
    draining(world, 1, stopped=True)
    await world.round()
    assert asked_to_end(world) == ["md-0-e1-0"] and states(world)[0][0] == 2
    world.end_pods()
    world.run_pods()
    world.say("Loading", 2, 0)
    world.drained.clear()
    for _ in range(3):
        world.later(60)
        await world.round()
        assert states(world) == [(2, "Loading"), (1, "Ready")] and world.md.status.endpoint == second
    assert world.drained == [], "the second group serves until the first does again"
    world.say("Ready", 2, 0)
    await world.round()
    assert states(world) == [(2, "Ready"), (1, "Draining")]
    assert world.md.status.endpoint == world.md.status.groups[0].endpoint
    world.later(NOTICE_SECONDS)
    await world.round()
    assert world.drained == [(1, 1)]
    draining(world, 1, 1, stopped=True)
    await world.round()
    world.end_pods()
    world.run_pods()
    world.say("Ready", 2, 1)
    await world.round()
    assert states(world) == [(2, "Ready"), (2, "Ready")]
    assert [group.restarts for group in world.md.status.groups] == [0, 0]


async def test_what_serves_is_not_given_up_for_a_spec_that_has_no_place(world: World) -> None:
    await world.serve_two_groups()
    world.edit(memory={"contextTokens": 131072, "concurrentRequests": 1024, "cachedTokens": 1000000000})
    for _ in range(3):
        world.later(60)
        await world.round()
    assert states(world) == [(1, "Ready"), (1, "Ready")] and world.drained == [] and asked_to_end(world) == []
    assert world.condition("Placed")[:2] == ("False", "NoRoom") and world.condition("Ready")[0] == "True"


async def test_a_drain_that_never_ends_is_not_waited_for_for_ever(world: World) -> None:
    await world.serve_two_groups()
    world.edit(memory={"contextTokens": 1024})
    await world.round()
    draining(world, 1)
    world.later(DRAIN_SECONDS)
    await world.round()
    assert states(world)[0][0] == 2 and asked_to_end(world) == ["md-0-e1-0"]


async def test_a_group_that_has_no_place_holds_no_rollout_up(world: World) -> None:
    world.mac("big-1", "10.0.0.8", 10 * GIB)
    world.deploy(replicas=2, nodes={"max": 1})
    await world.round()
    world.run_pods()
    world.say("Ready", 1, 0)
    await world.round()
    assert states(world) == [(1, "Ready"), (0, "Pending")]
    world.edit(memory={"contextTokens": 1024})
    await world.round()
    world.later(NOTICE_SECONDS)
    await world.round()
    assert world.drained == [(0, 1)]


async def test_a_spec_put_back_in_the_middle_of_a_drain_does_not_leave_a_stopped_group(world: World) -> None:
    await world.serve_two_groups()
    world.edit(memory={"contextTokens": 1024})
    await world.round()
    world.edit(memory={"contextTokens": 32768})
    draining(world, 1, stopped=True)
    await world.round()
    assert states(world)[0] == (1, "Draining")
    draining(world, 1, stopped=True, seconds=STOPPED_SECONDS)
    await world.round()
    assert world.condition("Degraded")[:2] == ("True", "Stopped")
    world.later(10)
    await world.round()
    assert states(world)[0][0] == 2


async def test_scaling_down_drains_before_the_pods_end(world: World) -> None:
    await world.serve_two_groups()
    world.edit(replicas=1)
    again = await world.round()
    assert again is not None and again <= 1 and asked_to_end(world) == []
    assert [group.index for group in world.md.status.groups] == [0]
    world.later(NOTICE_SECONDS)
    await world.round()
    assert world.drained == [(1, 1)] and 1 in world.listened
    draining(world, 1, 1, stopped=True)
    await world.round()
    assert asked_to_end(world) == ["md-1-e1-0"]
    world.end_pods()
    await world.round()
    assert "ns/md-1-e1" not in world.cache[CONFIGMAPS].items
    assert world.condition("Ready")[:2] == ("True", "Ready")


def evict(world: World, name: str) -> None:
    def change(item: Any) -> None:
        item["metadata"].update(deletionTimestamp=world.now.isoformat(), deletionGracePeriodSeconds=0)
        item["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]

    world.change(PODS, f"ns/{name}", change)


@pytest.mark.parametrize("seen", [True, False])
async def test_the_eviction_of_one_rank_drains_all_and_costs_nothing(world: World, seen: bool) -> None:
    world.deploy(recovery={"maxRestarts": 0, "backoffSeconds": 300})
    await world.round()
    world.run_pods()
    world.say("Ready", 1)
    await world.round()
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.change(NODES, "studio-2", lambda item: item["spec"].update(unschedulable=True))
    evict(world, "md-0-e1-1")
    await world.round()
    assert world.drained == [(0, 1)] and states(world) == [(1, "Draining")]
    assert "evicted from studio-2" in world.md.status.groups[0].message
    draining(world, 1)
    await world.round()
    assert asked_to_end(world) == ["md-0-e1-1"], "rank 0 still answers requests"
    draining(world, 1, stopped=True)
    if not seen:
        world.end_pods()
        world.restarted()
    await world.round()
    group = world.md.status.groups[0]
    assert group.last_failure is not None
    assert (group.epoch, group.restarts, group.last_failure.reason) == (2, 0, "Evicted")
    assert [rank.node for rank in group.ranks] == ["big-1"]


async def test_an_eviction_from_a_mac_that_takes_other_pods_drains_and_costs_nothing_either(world: World) -> None:
    world.deploy(recovery={"maxRestarts": 0, "backoffSeconds": 300})
    await world.round()
    world.run_pods()
    world.say("Ready", 1)
    await world.round()
    evict(world, "md-0-e1-1")
    await world.round()
    assert world.drained == [(0, 1)] and states(world) == [(1, "Draining")]
    draining(world, 1, stopped=True)
    await world.round()
    group = world.md.status.groups[0]
    assert group.last_failure is not None
    assert (group.epoch, group.restarts, group.last_failure.reason) == (2, 0, "Evicted")


async def test_an_evicted_group_without_another_place_says_so_and_comes_back(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    world.say("Ready", 1)
    await world.round()
    world.change(NODES, "studio-2", lambda item: item["spec"].update(unschedulable=True))
    evict(world, "md-0-e1-1")
    draining(world, 1, stopped=True)
    await world.round()
    world.end_pods()
    for _ in range(3):
        world.later(400)
        await world.round()
        assert states(world) == [(1, "BackingOff")] and world.md.status.groups[0].restarts == 0
        status, reason, message = world.condition("Ready")
        assert (status, reason) == ("False", "NoRoom") and "Evicted" in message and "studio-2" in message
        assert "studio-2 is cordoned" in world.condition("Placed")[2]
    written = world.versions()
    await world.round()
    assert world.versions() == written, "a wait is written once"
    world.change(NODES, "studio-2", lambda item: item["spec"].update(unschedulable=False))
    await world.round()
    assert states(world)[0][0] == 2 and world.md.status.groups[0].restarts == 0


async def test_a_restarted_operator_asks_before_it_takes_a_silent_group_for_an_idle_one(world: World) -> None:
    await world.serve_two_groups()
    world.edit(memory={"contextTokens": 1024})
    world.reports.clear()
    await world.restarted().deployment("ns/md")
    assert asked_to_end(world) == [] and [group.epoch for group in world.md.status.groups] == [1, 1]
    for index in (0, 1):
        world.heard_of(index, 1, None, silent=60)
    await world.round()
    assert world.md.status.groups[0].epoch == 2, "what has not answered for a minute serves nobody"


# --- names ---


async def test_a_recreated_deployment_reuses_no_name_of_the_old_one(world: World) -> None:
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.deploy()
    await world.round()
    world.run_pods()
    assert "md-0-e1-0" in world.pods()
    world.remove(DEPLOYMENTS, "ns/md")
    world.remove(CONFIGMAPS, "ns/md-0-e1")
    world.change(PODS, "ns/md-0-e1-0", lambda item: item["metadata"].update(deletionTimestamp=world.now.isoformat()))
    world.deploy()
    world.change(DEPLOYMENTS, "ns/md", lambda item: item["metadata"].update(uid="uid-again"))
    await world.round()
    assert "md-0-e2-0" in world.pods() and states(world)[0][0] == 2
    assert world.pods()["md-0-e2-0"]["metadata"]["ownerReferences"][0]["uid"] == "uid-again"


async def test_a_left_over_plan_of_that_name_is_passed_by(world: World) -> None:
    world.deploy()
    taken = ApiError(409, "AlreadyExists", 'configmaps "md-0-e1" already exists')
    world.refuse = lambda verb, path: taken if path.endswith("configmaps/md-0-e1") else None
    await world.round()
    assert sorted(world.pods()) == ["md-0-e2-0", "md-0-e2-1"] and states(world)[0][0] == 2
