"""The operator's part of a NodeProfile: the groups on the Mac, their cables, and whether placements avoid it."""

import asyncio
import json
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import GroupUse, NodeProfile, NodeProfileStatus
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.vocabulary import ConditionType
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.app import Configuration, Operator
from thunderfleet_operator.decide import mac_usage
from thunderfleet_operator.decide.deployment import Settings
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.placing.ports import PortSettings
from thunderfleet_operator.observe.concerns import FLEET_KEY, concerned, macs_of
from thunderfleet_operator.observe.observed import MacPlacement, ObservedMac
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, LINKS, NODEPROFILES, NODES, PODS
from thunderfleet_operator.watch.leader import Identity

from tests.unit.operator.values import NOW, plan
from tests.unit.operator.world import World

CABLE = "studio-1.tb1--studio-2.tb1"


def status(world: World, name: str) -> NodeProfileStatus:
    return NodeProfile.load(world.cache[NODEPROFILES].items[name]).status


def groups(world: World, name: str) -> list[tuple[str, int, tuple[str, ...], tuple[str, ...]]]:
    return [(use.name, use.epoch, use.nodes, use.links) for use in status(world, name).groups]


def events(world: World) -> list[tuple[str, str, str]]:
    return [(event["involvedObject"]["kind"], event["type"], event["reason"]) for event in world.events]


async def settle(world: World) -> None:
    await world.macs.settle(world.cache[NODEPROFILES].items)


async def test_a_mac_lists_its_group_before_the_pods_are_created(world: World) -> None:
    world.deploy()
    await world.round()
    told = ("ns/md-0", 1, ("studio-1", "studio-2"), (CABLE,))
    assert groups(world, "studio-1") == groups(world, "studio-2") == [told]
    assert groups(world, "mini") == []
    order = [path for _, path in world.writes]
    last = max(index for index, path in enumerate(order) if "nodeprofiles" in path)
    assert last < min(index for index, path in enumerate(order) if "/pods/" in path)


async def test_the_macs_of_a_group_are_told_at_the_same_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, both = world.apply, asyncio.Barrier(2)

    async def answered_together(path: str, body: Any, manager: str) -> Any:
        if "nodeprofiles" in path:
            await both.wait()
        return await apply(path, body, manager)

    monkeypatch.setattr(world, "apply", answered_together)
    world.deploy()
    async with asyncio.timeout(5):
        await world.round()
    assert len(groups(world, "studio-1")) == len(groups(world, "studio-2")) == 1


async def test_a_mac_that_cannot_be_told_keeps_no_other_from_it_and_the_pods_wait(world: World) -> None:
    def refuse(verb: str, path: str) -> ApiError | None:
        return ApiError(500, "InternalError", "etcdserver: request timed out") if "nodeprofiles/studio-1" in path else None

    world.refuse = refuse
    world.deploy()
    with pytest.raises(ApiError, match="timed out"):
        await world.round()
    assert not groups(world, "studio-1")
    assert len(groups(world, "studio-2")) == 1
    assert not world.pods()


async def test_nothing_new_is_not_written_and_a_lost_word_is(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    writes = len(world.writes)
    await settle(world)
    world.restarted()
    await settle(world)
    assert len(world.writes) == writes
    world.change(NODEPROFILES, "studio-1", lambda item: item["status"].pop("groups"))
    await world.macs.round("studio-1")
    assert [use[0] for use in groups(world, "studio-1")] == ["ns/md-0"]


async def test_it_goes_with_the_last_pod_and_not_before(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    world.remove(DEPLOYMENTS, "ns/md")
    # The garbage collector takes the plan first, then asks the pods to end.
    world.remove(CONFIGMAPS, "ns/md-0-e1")
    for name in world.pods():
        world.change(PODS, f"ns/{name}", lambda item: item["metadata"].update(deletionTimestamp=world.now.isoformat()))
    await settle(world)
    assert groups(world, "studio-1") == [("ns/md-0", 1, ("studio-1", "studio-2"), (CABLE,))]
    world.remove(PODS, "ns/md-0-e1-0")
    await settle(world)
    assert groups(world, "studio-1") == [] and groups(world, "studio-2")
    world.remove(PODS, "ns/md-0-e1-1")
    await settle(world)
    assert groups(world, "studio-2") == []


async def test_a_wait_without_pods_holds_no_mac(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    world.say("Ready", 1)
    await world.round()
    world.remove(PODS, "ns/md-0-e1-1")
    await world.round()
    assert world.md.status.groups[0].state == "BackingOff"
    assert groups(world, "studio-1") and not groups(world, "studio-2")
    world.later(10)
    await world.round()
    assert [use[1] for use in (*groups(world, "studio-1"), *groups(world, "studio-2"))] == [2, 2]


@pytest.mark.parametrize(
    ("change", "listed"),
    [
        ({}, True),
        ({"running": True, "newest_epoch": 3}, True),
        ({"newest_epoch": 3}, False),
        ({"newest_epoch": -1}, False),
        ({"deployment": None}, False),
        ({"deployment": {"uid": "another"}}, False),
        ({"deployment": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False),
        ({"deployment": {}, "replicas": 0}, False),
        ({"status": {"epoch": 2, "state": "BackingOff"}}, False),
        ({"status": {"epoch": 2, "state": "GaveUp"}}, False),
        ({"status": {"epoch": 2, "state": "Starting"}}, True),
        ({"status": {"epoch": 1, "state": "BackingOff"}}, True),
    ],
)
def test_a_plan_without_pods_holds_a_mac_while_they_are_about_to_be_created(change: dict[str, Any], listed: bool) -> None:
    made = plan(2)
    metadata = {"name": "md", "namespace": "ns", "uid": "uid"}
    spec = {"model": {"repository": "x"}, "replicas": change.get("replicas", 1)}
    status = {"groups": [{"index": 0, **change["status"]}]} if "status" in change else {}
    body = {"metadata": {**metadata, **(change.get("deployment") or {})}, "spec": spec, "status": status}
    deployment = None if change.get("deployment", body) is None else ModelDeployment.load(body)
    running, newest = change.get("running", False), change.get("newest_epoch", 2)
    placement = MacPlacement(("ns", "md", 0, 2), made, running, newest, deployment)
    profile = NodeProfile.load({"metadata": {"name": "a"}})
    found = mac_usage.uses(ObservedMac(profile, None, NOW, (placement,), (), {}))
    assert found == ((GroupUse(name="ns/md-0", epoch=2, model_path="/models/tiny", nodes=("a", "b")),) if listed else ())


async def test_a_refused_pod_is_no_reason_to_write_again_and_again(world: World) -> None:
    world.deploy()
    world.refuse = lambda verb, path: ApiError(403, "Forbidden", "violates PodSecurity") if "/pods/" in path else None
    await world.round()
    written = world.versions()
    await world.round()
    await settle(world)
    assert world.versions() == written


async def test_what_changes_puts_the_macs_that_it_is_about_on_the_queue(world: World) -> None:
    world.deploy()
    await world.round()
    (plan,) = world.cache[CONFIGMAPS]
    pod, agent = world.pods()["md-0-e1-1"], {"metadata": {"name": "agent", "namespace": "x"}, "spec": {"nodeName": "mini"}}
    (link,) = world.cache[LINKS]
    assert macs_of(CONFIGMAPS, "ns/md-0-e1", plan) == macs_of(LINKS, CABLE, link) == {"studio-1", "studio-2"}
    assert macs_of(PODS, "ns/md-0-e1-1", pod) == {"studio-2"}
    assert macs_of(PODS, "x/agent", agent) == macs_of(DEPLOYMENTS, "ns/md", world.cache[DEPLOYMENTS].items["ns/md"]) == set()
    for collection in (NODES, NODEPROFILES):
        assert macs_of(collection, "mini", None) == {"mini"}


async def test_a_profile_concerns_its_own_cables_its_deployments_and_the_fleet(world: World) -> None:
    world.deploy()
    configuration = Configuration(
        Settings(PodSettings("image"), PortSettings()), "system", Identity("operator-0"), "127.0.0.1", 0, 0
    )
    kube: Any = world
    operator = Operator(kube, configuration, world.cache)
    found = {}
    for node in ("studio-1", "mini"):
        operator.changed(NODEPROFILES, node, None, world.cache[NODEPROFILES].items[node])
        found[node] = set(operator.queue._due)
        operator.queue._due.clear()
        for queue in (operator.queue, operator.cables):
            keys = {await queue.get() for _ in range(len(queue))}
            found[node] |= keys
            for key in keys:
                queue.done(key)
    assert found["mini"] == {"nodeprofiles/mini", FLEET_KEY}
    assert found["studio-1"] == {"nodeprofiles/studio-1", FLEET_KEY, f"thunderboltlinks/{CABLE}"}
    for _ in range(3):
        operator.changed(NODEPROFILES, "mini", None, world.cache[NODEPROFILES].items["mini"])
    assert not len(operator.queue) and set(operator.queue._due) == {"nodeprofiles/mini", FLEET_KEY}, "one round, a moment later"
    operator.queue._due.clear()
    await operator.reconciler.fleet("all")
    assert [await operator.queue.get() for _ in range(len(operator.queue))] == ["modeldeployments/ns/md"], "it has no place yet"
    operator.queue.done("modeldeployments/ns/md")
    await world.round()
    for node, more in (("studio-1", {"modeldeployments/ns/md", f"thunderboltlinks/{CABLE}"}), ("mini", set[str]())):
        keys = set(concerned(operator._index, NODEPROFILES, node, None, world.cache[NODEPROFILES].items[node], []))
        assert keys == {f"nodeprofiles/{node}", FLEET_KEY, *more}


def jaccl(devices: list[list[str | None]]) -> Plan:
    ranks = [
        {"rank": rank, "node": "abc"[rank], "pod": f"p{rank}", "address": "10.0.0.1", "controlPort": 1, "gatewayPort": 2,
         "devices": row, "memoryBytes": 1}
        for rank, row in enumerate(devices)
    ]  # fmt: skip
    return Plan.model_validate_json(json.dumps({
        "namespace": "ns", "deployment": "md", "uid": "u", "index": 0, "epoch": 3, "model": "m", "modelPath": "/m",
        "backend": "jaccl", "split": "Tensor", "ranks": ranks,
        "memory": {"contextTokens": 1, "concurrentRequests": 1, "cachedTokens": 0},
    }))  # fmt: skip


def cable(a: str, a_device: str, b: str, b_device: str, port: int = 1) -> ThunderboltLink:
    ends = [
        {"node": node, "port": port, "rdmaDevice": device, "address": f"169.254.{port}.{number}"}
        for number, (node, device) in enumerate(((a, a_device), (b, b_device)))
    ]
    spec = {"a": {"node": a, "port": port}, "b": {"node": b, "port": port}}
    return ThunderboltLink.load(
        {"metadata": {"name": f"{a}.tb{port}--{b}.tb{port}"}, "spec": spec, "status": {"endpoints": ends}}
    )


def test_over_rdma_the_cables_are_those_of_the_device_matrix() -> None:
    plan = jaccl([[None, "rdma_en2", "rdma_en3"], ["rdma_en2", None, None], ["rdma_en2", None, None]])
    links = [
        cable("a", "rdma_en2", "b", "rdma_en2"),
        cable("a", "rdma_en3", "c", "rdma_en2"),
        cable("b", "rdma_en4", "c", "rdma_en4"),
        cable("a", "rdma_en5", "b", "rdma_en5", port=2),
        cable("a", "rdma_en2", "z", "rdma_en2", port=3),
    ]
    assert mac_usage.cables(plan, links, {}) == {
        "a": ("a.tb1--b.tb1", "a.tb1--c.tb1"),
        "b": ("a.tb1--b.tb1",),
        "c": ("a.tb1--c.tb1",),
    }


# --- quarantine ---


def boot(world: World, name: str, identity: str) -> None:
    world.change(NODES, name, lambda item: item["status"].update(nodeInfo={"bootID": identity}))


async def stuck(world: World) -> None:
    """The second Studio's RDMA is stuck, and rank 0 has reported it."""
    for name in ("studio-1", "studio-2"):
        boot(world, name, "boot-1")
    world.deploy()
    await world.round()
    world.run_pods()
    failure = {"fault": "Reboot", "reason": "ProtectionDomain", "message": "Couldn't allocate protection domain", "rank": 1}
    world.say("GaveUp", 1, failure={**failure, "node": "studio-2", "at": world.now})
    await world.round()


async def test_a_mac_that_only_a_reboot_helps_is_avoided_until_it_has_booted(world: World) -> None:
    await stuck(world)
    found = status(world, "studio-2")
    assert found.quarantine is not None
    assert (found.quarantine.boot_id, found.quarantine.reason) == ("boot-1", "ProtectionDomain")
    assert "ns/md-0" in found.quarantine.evidence and "protection domain" in found.quarantine.evidence
    said = find_condition(found.conditions, ConditionType.QUARANTINED)
    assert said is not None and (said.status, said.reason) == ("True", "ProtectionDomain")
    assert "until it reboots" in said.message
    assert ("NodeProfile", "Warning", "Quarantined") in events(world)
    assert status(world, "studio-1").quarantine is None
    assert "studio-2 is quarantined until it reboots" in world.condition("Degraded")[2]

    world.later(10)
    await world.round()
    group = world.md.status.groups[0]
    assert group.epoch == 1 and "studio-2 is quarantined until it reboots" in group.message
    written = world.versions()
    await world.round()
    await settle(world)
    assert world.versions() == written

    world.later(120)
    boot(world, "studio-2", "boot-2")
    await world.macs.round("studio-2")
    found = status(world, "studio-2")
    said = find_condition(found.conditions, ConditionType.QUARANTINED)
    assert found.quarantine is None and said is not None and (said.status, said.reason) == ("False", "Rebooted")
    assert ("NodeProfile", "Normal", "Rebooted") in events(world)
    # Rank 0 still reports the failure from before the reboot: that starts no new quarantine.
    await world.round()
    assert status(world, "studio-2").quarantine is None
    assert world.md.status.groups[0].epoch == 2

    world.run_pods()
    world.later(60)
    failure = {"fault": "Reboot", "reason": "MemoryStranded", "message": "9 GiB stay wired", "node": "studio-2", "rank": 1}
    world.say("GaveUp", 2, failure={**failure, "at": world.now})
    await world.round()
    again = status(world, "studio-2").quarantine
    assert again is not None and (again.boot_id, again.reason) == ("boot-2", "MemoryStranded")


@pytest.mark.parametrize("fault", ["Replan", "Bug", "Configure"])
async def test_other_failures_quarantine_no_mac(world: World, fault: str) -> None:
    boot(world, "studio-2", "boot-1")
    world.deploy()
    await world.round()
    world.run_pods()
    failure = {"fault": fault, "reason": "Odd", "message": "odd", "node": "studio-2", "rank": 1, "at": world.now}
    world.say("GaveUp", 1, failure=failure)
    await world.round()
    assert status(world, "studio-2").quarantine is None
