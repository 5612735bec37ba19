"""Failures and recovery; the recovery is remembered in status only."""

from typing import Any

import pytest
from thunderfleet_crds.exchange.mounts import PLAN_KEY
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_operator.watch.cache import CONFIGMAPS, LINKS, NODES, PODS

from tests.unit.operator.world import World

GIB = 2**30
CABLE = "studio-1.tb1--studio-2.tb1"


async def running(world: World, **spec: Any) -> None:
    world.deploy(**spec)
    await world.round()
    world.run_pods()


def group(world: World) -> Any:
    return world.md.status.groups[0]


def gave_up(world: World, epoch: int, fault: str = "Bug", reason: str = "Odd", **more: Any) -> None:
    world.say("GaveUp", epoch, failure={"fault": fault, "reason": reason, "message": "it broke", "at": world.now, **more})


async def test_budget_and_backoff_survive_the_operator(world: World) -> None:
    await running(world, recovery={"maxRestarts": 2, "backoffSeconds": 10, "backoffLimitSeconds": 300})
    gave_up(world, 1)
    await world.round()
    until = group(world).next_restart_time
    world.later(9)
    # The process remembers nothing, and the report of rank 0 may be late or missing.
    for reports in (dict(world.reports), {}):
        world.reports = reports
        await world.restarted().deployment("ns/md")
        assert (group(world).epoch, group(world).next_restart_time) == (1, until)
    gave_up(world, 1)
    world.later(1)
    await world.restarted().deployment("ns/md")
    assert (group(world).epoch, group(world).restarts) == (2, 1)
    world.end_pods()
    world.run_pods()
    gave_up(world, 2)
    await world.restarted().deployment("ns/md")
    assert (group(world).next_restart_time - world.now).total_seconds() == 20
    world.later(20)
    await world.restarted().deployment("ns/md")
    assert (group(world).epoch, group(world).restarts) == (3, 2)
    world.end_pods()
    world.run_pods()
    gave_up(world, 3)
    world.later(3600)
    await world.restarted().deployment("ns/md")
    assert (group(world).epoch, group(world).state) == (3, "GaveUp")


@pytest.mark.parametrize(
    ("waiting", "state"),
    [
        ({"phase": "Failed", "message": "x"}, "GaveUp"),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {
                        "name": "runner",
                        "restartCount": 2,
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"message": "NoAPIKeys (Configure): add one"}},
                    }
                ],
            },
            "BackingOff",
        ),
    ],
)
async def test_a_failure_that_lasts_is_written_once(world: World, waiting: dict[str, Any], state: str) -> None:
    """Its time is when it was found first. With the time of each round, each write would cause a round that writes again."""
    await running(world, recovery={"maxRestarts": 0 if state == "GaveUp" else 3})
    world.reports.clear()
    for name in world.pods():
        world.change(PODS, f"ns/{name}", lambda item: item.update(status=waiting))
    await world.round()
    first, writes = group(world), len(world.writes)
    assert first.state == state and first.last_failure is not None
    for _ in range(3):
        world.later(2)
        await world.round()
    assert (group(world), len(world.writes)) == (first, writes)


@pytest.mark.parametrize("phase", ["Waiting", "Preparing", "Forming", "Loading"])
async def test_slowness_is_no_failure(world: World, phase: str) -> None:
    await running(world)
    world.say(phase, 1, message="rank 1 (studio-2) reads its weights")
    for _ in range(4):
        world.later(3 * 3600)
        await world.round()
        assert (group(world).epoch, group(world).state, group(world).restarts) == (1, phase, 0)
    assert world.condition("Degraded")[0] == "False"


async def test_a_pod_whose_image_or_volume_takes_long_is_waited_for(world: World) -> None:
    world.deploy()
    await world.round()

    def pulls(item: Any) -> None:
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "registry does not answer"}}
        item["spec"]["nodeName"] = "studio-2"
        item["status"] = {"phase": "Pending", "containerStatuses": [{"name": "runner", "restartCount": 0, "state": waiting}]}

    world.change(PODS, "ns/md-0-e1-1", pulls)
    for _ in range(4):
        world.later(3600)
        await world.round()
        assert (group(world).epoch, group(world).state) == (1, "Starting")
    assert "ImagePullBackOff: registry does not answer" in world.condition("Ready")[2]


def _plan(world: World, epoch: int) -> Plan:
    return Plan.model_validate_json(world.cache[CONFIGMAPS].items[f"ns/md-0-e{epoch}"]["data"][PLAN_KEY])


def _crashes(world: World, name: str, restarts: int, words: str) -> None:
    ended = {"terminated": {"exitCode": 1, "message": words}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    told = {"name": "runner", "restartCount": restarts, "state": waiting, "lastState": ended}
    world.change(PODS, f"ns/{name}", lambda item: item["status"].update(containerStatuses=[told]))


async def test_a_supervisor_that_leaves_typed_last_words_is_given_other_ports(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    before = _plan(world, 1).ranks[0]
    assert world.pods()["md-0-e1-0"]["spec"]["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"
    words = f"the control port {before.control_port} on 10.0.0.1 is in use by another program on node studio-1"
    _crashes(world, "md-0-e1-0", 1, f"PortTaken (Replan): {words}")
    await world.round()
    assert group(world).state == "BackingOff"
    failure = group(world).last_failure
    assert (failure.reason, failure.class_, failure.node, failure.message) == ("PortTaken", "Replan", "studio-1", words)
    assert words in world.condition("Degraded")[2]
    for _ in range(3):
        world.later(600)
        await world.round()
    after = {rank.node: rank for rank in _plan(world, 2).ranks}
    assert "studio-1" not in after or after["studio-1"].control_port != before.control_port


async def test_a_supervisor_that_crashes_is_quoted(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    _crashes(world, "md-0-e1-0", 4, "Traceback (most recent call last):\nKeyError: 'odd'")
    await world.round()
    assert (group(world).epoch, group(world).state) == (1, "Starting")
    assert "CrashLoopBackOff: back-off 10s; last output: KeyError: 'odd'" in world.condition("Ready")[2]
    _crashes(world, "md-0-e1-0", 5, "Traceback (most recent call last):\nKeyError: 'odd'")
    await world.round()
    assert group(world).last_failure.reason == "CrashLoop"
    assert "exited 5 times: KeyError: 'odd'; see `kubectl logs -n ns --previous md-0-e1-0`" in world.condition("Degraded")[2]


async def test_away_from_a_cable_that_is_out_and_back_when_it_is_in(world: World) -> None:
    await running(world)
    world.say("Ready", 1)
    await world.round()
    pulled = world.cache[LINKS].items[CABLE]["status"]
    world.change(LINKS, CABLE, lambda item: item.update(status={"endpoints": []}))
    gave_up(world, 1, "Replan", "CableGone", rank=1, node="studio-2")
    await world.round()
    world.later(10)
    await world.round()
    assert (group(world).epoch, group(world).state) == (1, "BackingOff")
    status, reason, message = world.condition("Placed")
    assert status == "False" and "studio-1" in message and "studio-2" in message and reason != "Placed"
    assert world.condition("Ready")[1] == reason and "CableGone" in world.condition("Degraded")[2]
    for _ in range(3):
        world.later(600)
        await world.round()
        assert (group(world).epoch, group(world).restarts) == (1, 0), "waiting for a place spends no budget"
    world.change(LINKS, CABLE, lambda item: item.update(status=pulled))
    await world.round()
    assert (group(world).epoch, group(world).restarts) == (2, 1)


async def test_a_bad_mac_is_taken_again_when_it_is_the_only_one(world: World) -> None:
    await running(world)
    gave_up(world, 1, "Replan", "AddressLost", rank=1, node="studio-2")
    await world.round()
    world.later(10)
    await world.round()
    assert group(world).epoch == 2 and {rank.node for rank in group(world).ranks} == {"studio-1", "studio-2"}


@pytest.mark.parametrize(("silent", "moves"), [(59.0, False), (60.0, True)])
async def test_a_mac_that_is_not_ready_and_a_rank_0_that_does_not_answer(world: World, silent: float, moves: bool) -> None:
    await running(world)
    world.say("Ready", 1)
    await world.round()
    _, heard = world.reports[0]
    world.heard_of(0, 1, heard.state, silent)
    world.change(NODES, "studio-1", lambda item: item["status"]["conditions"][0].update(status="Unknown"))
    await world.round()
    assert (group(world).state == "BackingOff") == moves
    if moves:
        assert (
            world.condition("Degraded")[1] == "NodeNotReady" and "not answered for a minute" in world.condition("Degraded")[2]
        )


async def test_a_silent_rank_0_on_macs_that_are_ready_is_waited_for(world: World) -> None:
    """Its supervisor restarts, or only the operator cannot reach its control port: the group may still serve."""
    await running(world)
    world.say("Ready", 1)
    await world.round()
    _, heard = world.reports[0]
    world.heard_of(0, 1, heard.state, 3600)
    await world.round()
    assert group(world).epoch == 1 and group(world).state == "Starting"
    assert "does not answer" in world.condition("Ready")[2]
