"""Objects that look like the operator's and are not: they claim, create and delete nothing. Keys that are rotated or lost."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from thunderfleet_crds.exchange.plan import PLAN_BYTES, Plan
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.observe.objects.proofs import Keyring, Proof, Purpose
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, PODS, SECRETS, SERVICES

from tests.unit.operator.world import GIB, Json, World

CABLE = "studio-1.tb1--studio-2.tb1"
SIGNATURE = "thunderfleet.io/signature"
LOST = Keyring(b"l" * 32)


async def serve(world: World, epoch: int = 1) -> None:
    """The group of the deployment is placed and Ready, and so are its pods."""
    await world.round()
    world.run_pods()
    for name in world.pods():
        world.change(PODS, f"ns/{name}", lambda item: item["status"].update(conditions=[{"type": "Ready", "status": "True"}]))
    world.say("Ready", epoch)
    await world.round()


async def replace_group(world: World) -> None:
    """The group loses a pod, and its second placement serves."""
    world.remove(PODS, "ns/md-0-e1-1")
    await world.round()
    world.later(10)
    await world.round()
    world.end_pods()
    await serve(world, 2)


def plan_item(world: World, epoch: int = 1) -> Json:
    return copy.deepcopy(world.objects[CONFIGMAPS.item("ns", f"md-0-e{epoch}")])


def changed_plan(item: Json, change: Callable[[Json], None]) -> Json:
    """The ConfigMap with another plan."""
    plan = json.loads(item["data"]["plan.json"])
    change(plan)
    return {**item, "data": {"plan.json": json.dumps(plan)}}


def unsigned(item: Json) -> Json:
    item["metadata"]["annotations"].pop(SIGNATURE, None)
    return item


def paths(world: World, part: str) -> list[str]:
    return sorted(path for path in world.objects if f"/{part}/" in path)


# --- plans of others -------------------------------------------------------------------------------------------------


def greedy(item: Json) -> Json:
    def claim(plan: Json) -> None:
        plan.update(namespace="evil", uid="nobody")
        for rank in plan["ranks"]:
            rank["memoryBytes"] = 2**50

    item["metadata"] = {**item["metadata"], "namespace": "evil", "uid": "uid-evil", "ownerReferences": []}
    return changed_plan(item, claim)


@pytest.mark.parametrize("signed", [True, False], ids=["with a copied signature", "unsigned"])
async def test_a_forged_plan_claims_nothing(world: World, signed: bool) -> None:
    world.deploy()
    await world.round()
    forged = greedy(plan_item(world))
    free = world.index.fleet.macs["studio-1"].free_bytes
    world.put(CONFIGMAPS, forged if signed else unsigned(forged))
    assert world.index.fleet.macs["studio-1"].free_bytes == free > 0
    assert [key for key in world.index.epochs if key.startswith("evil/")] == []
    await serve(world)
    assert world.condition("Ready")[0] == "True"


async def test_a_pending_pod_of_others_claims_nothing(world: World) -> None:
    """The same with a pod: it asks for a whole Mac and is never scheduled."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["studio-1"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    container = {"name": "c", "resources": {"requests": {"memory": str(2**50)}}, "ports": [{"hostPort": 20000}]}
    world.put(PODS, {"metadata": {"name": "x", "namespace": "evil"}, "spec": {"affinity": affinity, "containers": [container]}})
    world.deploy()
    await world.round()
    assert world.condition("Placed")[0] == "True" and world.index.taken.memory["studio-1"] < 6 * GIB


async def test_a_plan_with_the_uid_of_a_victim_yields_no_key_of_it(world: World) -> None:
    world.deploy()
    await world.round()
    (victims,) = paths(world, "secrets")
    stolen = world.objects[victims]["data"]["tls.key"]
    body = copy.deepcopy(world.objects[DEPLOYMENTS.item("ns", "md")])
    body["metadata"] |= {"namespace": "evil", "uid": "uid-evil"}
    body.pop("status")
    world.put(DEPLOYMENTS, body)
    for uid in ("uid-md", "uid-evil"):
        item = changed_plan(plan_item(world), lambda plan: plan.update(namespace="evil"))
        item["metadata"] |= {"namespace": "evil", "uid": f"cm-{uid}"}
        item["metadata"]["ownerReferences"][0]["uid"] = uid
        for one in (item, unsigned(copy.deepcopy(item))):
            world.put(CONFIGMAPS, one)
            await world.reconciler.deployment("evil/md")
            keys = [world.objects[path]["data"]["tls.key"] for path in paths(world, "secrets") if "/evil/" in path]
            assert stolen not in keys
    assert not [pod for pod in world.index.pods.values() if pod.owner == "uid-md" and pod.deployment[0] == "evil"]


async def test_a_plan_for_another_namespace_creates_nothing_there(world: World) -> None:
    world.deploy()
    await world.round()
    real = plan_item(world)

    def plant(plan: Json) -> None:
        plan.update(namespace="kube-system", modelPath="/etc")

    def redirect(plan: Json) -> None:
        plan.update(modelPath="/etc")

    for change, signed in ((plant, True), (plant, False), (redirect, True), (redirect, False)):
        item = changed_plan(copy.deepcopy(real), change)
        world.remove(CONFIGMAPS, "ns/md-0-e1")
        for name in list(world.pods()):
            world.remove(PODS, f"ns/{name}")
        world.put(CONFIGMAPS, item if signed else unsigned(item))
        await world.round()
        assert not [path for path in world.objects if "/namespaces/kube-system/" in path]
        volumes = [volume for pod in world.pods().values() for volume in pod["spec"]["volumes"]]
        assert volumes and not [volume for volume in volumes if volume.get("hostPath", {}).get("path") == "/etc"]
        for key in list(world.cache[CONFIGMAPS].items):
            world.remove(CONFIGMAPS, key)
        world.put(CONFIGMAPS, real)


@pytest.mark.parametrize("signed", [True, False], ids=["with a copied signature", "unsigned"])
async def test_nothing_is_deleted_for_its_name(world: World, signed: bool) -> None:
    world.deploy()
    await serve(world)
    item = plan_item(world)
    item["metadata"] |= {"name": "database", "uid": "uid-forged"}
    item["metadata"]["labels"]["thunderfleet.io/epoch"] = "0"
    world.put(CONFIGMAPS, item if signed else unsigned(item))
    world.objects[SECRETS.item("ns", "database")] = {"metadata": {"name": "database", "namespace": "ns", "uid": "x"}}
    world.writes.clear()
    await world.round()
    assert world.writes == []
    assert {SECRETS.item("ns", "database"), CONFIGMAPS.item("ns", "database")} <= world.objects.keys()


async def test_a_plan_that_was_replaced_since_it_was_read_is_not_deleted(world: World) -> None:
    world.deploy()
    await serve(world)
    world.remove(PODS, "ns/md-0-e1-1")
    await world.round()
    world.later(10)
    await world.round()
    old = world.objects[CONFIGMAPS.item("ns", "md-0-e1")]
    old["metadata"]["uid"] = "uid-of-another"
    world.end_pods()
    await world.round()
    assert CONFIGMAPS.item("ns", "md-0-e1") in world.objects


# --- copies of plans that were the operator's ------------------------------------------------------------------------


async def test_an_old_plan_does_not_come_back(world: World) -> None:
    """The tenant deletes the newest plan and creates the one before it again, pods and all."""
    world.deploy()
    await serve(world)
    first = plan_item(world)
    await replace_group(world)
    world.remove(CONFIGMAPS, "ns/md-0-e2")
    world.put(CONFIGMAPS, first)
    assert world.index.plans == {}
    await world.round()
    assert world.md.status.groups[0].epoch == 3 and {"md-0-e3-0", "md-0-e3-1"} <= world.pods().keys()
    await world.round()
    assert "ns/md-0-e1" not in world.cache[CONFIGMAPS].items, "the copy is the operator's own, and old"


async def test_an_old_plan_does_not_come_back_with_its_pods(world: World) -> None:
    world.deploy()
    await serve(world)
    first, pods = plan_item(world), [copy.deepcopy(pod) for pod in world.pods().values()]
    await replace_group(world)
    for name in list(world.pods()):
        world.remove(PODS, f"ns/{name}")
    world.remove(CONFIGMAPS, "ns/md-0-e2")
    world.put(CONFIGMAPS, first)
    for pod in pods:
        world.put(PODS, {**pod, "spec": {key: value for key, value in pod["spec"].items() if key != "nodeName"}})
    assert world.index.taken.memory == {}
    await world.round()
    assert world.md.status.groups[0].epoch == 3
    assert world.pods()["md-0-e1-0"]["metadata"]["deletionTimestamp"], "the operator signed it, so it deletes it"


async def test_a_group_that_is_needed_again_while_it_ends_is_kept(world: World) -> None:
    await world.serve_two_groups()
    world.edit(replicas=1)
    await world.round()
    assert [group.index for group in world.md.status.groups] == [0] and "md-1-e1-0" in world.pods()
    world.edit(replicas=2)
    await world.round()
    assert {group.index: group.epoch for group in world.md.status.groups} == {0: 1, 1: 1}


async def test_a_plan_of_an_earlier_life_of_the_group_does_not_come_back(world: World) -> None:
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.deploy(replicas=2, nodes={"max": 1})
    await world.round()
    second = copy.deepcopy(world.objects[CONFIGMAPS.item("ns", "md-1-e1")])
    world.edit(replicas=1)
    for _ in range(3):
        await world.round()
        world.end_pods()
    assert "ns/md-1-e1" not in world.cache[CONFIGMAPS].items and world.md.status.highest_epoch == 1
    taken = world.index.taken
    world.put(CONFIGMAPS, second)
    assert world.index.taken == taken
    world.edit(replicas=2)
    await world.round()
    assert {group.index: group.epoch for group in world.md.status.groups} == {0: 1, 1: 2}


async def test_plans_of_a_deployment_that_was_made_anew_are_worth_nothing(world: World) -> None:
    world.deploy()
    await serve(world)
    first = plan_item(world)
    world.remove(DEPLOYMENTS, "ns/md")
    world.remove(CONFIGMAPS, "ns/md-0-e1")
    for name in list(world.pods()):
        world.remove(PODS, f"ns/{name}")
    world.deploy()
    world.change(DEPLOYMENTS, "ns/md", lambda item: item["metadata"].update(uid="uid-again"))
    world.put(CONFIGMAPS, first)
    assert world.index.taken.memory == {}
    await world.round()
    assert world.md.status.groups[0].epoch == 2, "the name is taken"


@pytest.mark.parametrize("part", ["index", "epoch", "deployment", "uid"])
async def test_a_plan_is_valid_for_one_group_and_epoch_only(world: World, part: str) -> None:
    world.deploy(replicas=2)
    await serve(world)
    other = {"index": 1, "epoch": 2, "deployment": "other", "uid": "uid-other"}[part]

    def move(plan: Json) -> None:
        plan[part] = other
        name = f"{plan['deployment']}-{plan['index']}-e{plan['epoch']}"
        for rank in plan["ranks"]:
            rank["pod"] = f"{name}-{rank['rank']}"

    item = changed_plan(plan_item(world), move)
    plan = Plan.model_validate_json(item["data"]["plan.json"])
    item["metadata"] |= {"name": plan.name, "uid": "uid-copy"}
    before = dict(world.index.epochs)
    if part == "uid":
        world.change(CONFIGMAPS, "ns/md-0-e1", lambda known: known.update(data=item["data"]))
        assert world.index.epochs == {}
    else:
        world.put(CONFIGMAPS, item)
        assert world.index.epochs == before


# --- pods of others --------------------------------------------------------------------------------------------------


async def test_pods_that_say_that_they_are_runners_are_left_alone(world: World) -> None:
    world.deploy()
    await serve(world)
    real = world.pods()["md-0-e1-0"]
    copies: list[tuple[Json, Json]] = [
        ({"name": "mine", "uid": "uid-mine"}, {}),
        ({"name": "md-0-e7-0", "uid": "uid-e7", "labels": {**real["metadata"]["labels"], "thunderfleet.io/epoch": "7"}}, {}),
        ({"namespace": "evil", "uid": "uid-there"}, {}),
        ({"name": "md-0-e1-9", "uid": "uid-9"}, {"nodeName": "mini"}),
    ]
    for metadata, spec in copies:
        body = {key: value for key, value in real["spec"].items() if key != "nodeName"} | spec
        world.put(PODS, {**real, "metadata": {**real["metadata"], **metadata}, "spec": body})
    assert sorted(pod.name for pod in world.index.pods.values() if pod.owner) == ["md-0-e1-0", "md-0-e1-1"]
    world.edit(model={"path": "/models/org/tiny"})
    for _ in range(3):
        await world.round()
        world.later(50)
    deleted = {key for key, pod in world.cache[PODS].items.items() if pod["metadata"].get("deletionTimestamp")}
    assert deleted == {"ns/md-0-e1-0", "ns/md-0-e1-1"}
    assert world.md.status.groups[0].epoch == 2, "not the one after the copy's"


async def test_a_signed_pod_that_names_another_node_is_not_the_operators(world: World) -> None:
    world.deploy()
    await world.round()
    real = world.pods()["md-0-e1-0"]
    assert world.index.pods["ns/md-0-e1-0"].proof is Proof.VALID
    world.remove(PODS, "ns/md-0-e1-0")
    world.put(PODS, {**real, "spec": {**real["spec"], "nodeName": "mini"}})
    assert world.index.pods["ns/md-0-e1-0"].owner is None
    assert "mini" not in world.index.running_on


async def test_labels_taken_off_a_plan_replace_the_group_and_nothing_else(world: World) -> None:
    world.deploy()
    await serve(world)
    world.remove(CONFIGMAPS, "ns/md-0-e1")
    taken = dict(world.index.taken.memory)
    assert taken == {node: taken[node] for node in ("studio-1", "studio-2")}, "its pods run"
    await world.round()
    assert world.md.status.groups[0].epoch == 2


# --- names that are taken --------------------------------------------------------------------------------------------


def another_service(**more: Any) -> Json:
    return {"metadata": {"name": "md", "namespace": "ns", **more}, "spec": {"clusterIP": "None"}}


@pytest.mark.parametrize("labelled", [False, True], ids=["unlabelled", "with the label"])
async def test_a_service_of_somebody_else_is_left_as_it_is(world: World, labelled: bool) -> None:
    labels = {"app.kubernetes.io/managed-by": "thunderfleet-operator"}
    service = another_service(uid="uid-theirs", **({"labels": labels} if labelled else {}))
    world.deploy()
    if labelled:
        world.put(SERVICES, service)
    else:
        world.objects[SERVICES.item("ns", "md")] = copy.deepcopy(service)
    await serve(world)
    assert world.objects[SERVICES.item("ns", "md")]["spec"] == {"clusterIP": "None"}
    assert world.condition("Ready")[0] == "True"
    status, reason, message = world.condition("Degraded")
    assert (status, reason) == ("True", "NameTaken")
    assert "Service ns/md exists, and the operator did not create it" in message
    assert [event["reason"] for event in world.events].count("NameTaken") == 1
    recheck = await world.round()
    assert recheck is not None and recheck <= 10
    if labelled:
        world.remove(SERVICES, "ns/md")
    else:
        del world.objects[SERVICES.item("ns", "md")]
    await world.round()
    assert world.objects[SERVICES.item("ns", "md")]["spec"]["selector"]
    assert world.condition("Degraded")[:2] == ("False", "AsExpected")


async def test_a_service_that_the_garbage_collector_is_about_to_delete_is_waited_for(world: World) -> None:
    owner = {"kind": "ModelDeployment", "name": "md", "uid": "uid-gone", "controller": True}
    world.put(SERVICES, another_service(uid="uid-old", ownerReferences=[owner]))
    world.deploy()
    await serve(world)
    assert world.condition("Degraded")[:2] == ("False", "AsExpected")
    world.remove(SERVICES, "ns/md")
    await world.round()
    assert world.objects[SERVICES.item("ns", "md")]["metadata"]["ownerReferences"][0]["uid"] == "uid-md"


async def test_an_own_service_is_updated_and_one_that_replaced_it_is_not(world: World) -> None:
    world.deploy()
    await world.round()
    world.change(SERVICES, "ns/md", lambda item: item["metadata"]["annotations"].update({"thunderfleet.io/hash": "older"}))
    await world.round()
    assert world.cache[SERVICES].items["ns/md"]["metadata"]["annotations"]["thunderfleet.io/hash"] != "older"
    world.change(SERVICES, "ns/md", lambda item: item["metadata"]["annotations"].update({"thunderfleet.io/hash": "older"}))
    world.objects[SERVICES.item("ns", "md")] = another_service(uid="uid-theirs")
    await world.round()
    assert world.objects[SERVICES.item("ns", "md")]["spec"] == {"clusterIP": "None"}
    assert world.condition("Degraded")[:2] == ("True", "NameTaken")


async def test_pods_of_somebody_else_with_the_names_of_a_placement_are_avoided(world: World) -> None:
    for name in ("md-0-e1-1", "md-0-e2-0"):
        world.put(PODS, {"metadata": {"name": name, "namespace": "ns"}, "spec": {"containers": []}})
    world.deploy()
    await world.round()
    assert world.md.status.groups[0].epoch == 3
    assert {"md-0-e3-0", "md-0-e3-1"} <= world.pods().keys()


async def test_a_pod_of_somebody_else_in_place_of_one_that_is_missing_is_named(world: World) -> None:
    world.deploy()
    world.put(PODS, {"metadata": {"name": "other", "namespace": "ns"}, "spec": {"containers": []}})
    await world.round()
    world.remove(PODS, "ns/md-0-e1-1")
    world.put(PODS, {"metadata": {"name": "md-0-e1-1", "namespace": "ns"}, "spec": {"containers": []}})
    await world.round()
    world.later(11)
    await world.round()
    assert world.md.status.groups[0].epoch == 2 and "deletionTimestamp" not in world.pods()["md-0-e1-1"]["metadata"]


async def test_a_placement_whose_names_are_all_taken_says_so(world: World) -> None:
    for epoch in range(1, 20):
        world.objects[CONFIGMAPS.item("ns", f"md-0-e{epoch}")] = {"metadata": {"name": f"md-0-e{epoch}", "uid": f"x{epoch}"}}
    world.deploy()
    recheck = await world.round()
    status, reason, message = world.condition("Placed")
    assert (status, reason) == ("False", "NameTaken") and "already exists, and the operator did not create it" in message
    assert recheck is not None and recheck <= 10 and world.pods() == {}


# --- keys that are rotated, lost, or not used yet --------------------------------------------------------------------


async def test_a_rotated_key_changes_nothing_until_the_next_epoch(world: World) -> None:
    world.deploy()
    await serve(world)
    before = world.versions()
    old = world.keys
    world.keys = Keyring(b"n" * 32, *old.keys)
    await world.restarted().deployment("ns/md")
    assert world.versions() == before and 0 in world.listened
    assert world.condition("Degraded")[:2] == ("False", "AsExpected")
    world.remove(PODS, "ns/md-0-e1-1")
    await world.round()
    world.later(10)
    await world.round()
    made = world.cache[CONFIGMAPS].items["ns/md-0-e2"]["metadata"]["annotations"][SIGNATURE]
    assert made.split(".")[1] != plan_item(world)["metadata"]["annotations"][SIGNATURE].split(".")[1]


async def test_a_lost_key_stops_nothing_and_is_said(world: World) -> None:
    world.deploy()
    await serve(world)
    taken = world.index.taken
    before = {path: item for path, item in world.versions().items() if "/modeldeployments/" not in path}
    world.keys = LOST
    world.writes.clear()
    await world.restarted().deployment("ns/md")
    assert world.index.taken == taken, "memory, ports and cables are still in use"
    assert {path: item for path, item in world.versions().items() if "/modeldeployments/" not in path} == before
    assert world.listened == {}, "nobody can be asked"
    assert world.condition("Ready")[0] == "True" and world.md.status.endpoint
    status, reason, message = world.condition("Degraded")
    assert (status, reason) == ("True", "OperatorKeyLost") and "to place it again with the new key" in message
    assert [event["reason"] for event in world.events].count("OperatorKeyLost") == 1
    writes = len(world.writes)
    world.later(3600)
    await world.round()
    assert len(world.writes) == writes, "and it stays so"
    world.remove(PODS, "ns/md-0-e1-1")
    await world.round()
    world.later(10)
    await world.round()
    assert world.md.status.groups[0].epoch == 2 and {"md-0-e2-0", "md-0-e2-1"} <= world.pods().keys()
    assert world.pods()["md-0-e1-0"]["metadata"]["deletionTimestamp"]
    world.end_pods()
    await serve(world, 2)
    assert world.condition("Degraded")[:2] == ("False", "AsExpected")
    assert list(world.cache[CONFIGMAPS].items) == ["ns/md-0-e2"]


async def test_a_refused_secret_does_not_make_a_group_that_serves_wait(world: World) -> None:
    world.deploy()
    await serve(world)
    world.refuse = lambda verb, path: ApiError(403, "Forbidden", "exceeded quota") if "/secrets/" in path else None
    await world.restarted().deployment("ns/md")
    assert world.condition("Ready")[0] == "True" and world.condition("Placed")[0] == "True"
    assert world.unchecked == ["ns/md"]
    await world.executor.check_secrets("ns/md")
    assert world.condition("Ready")[0] == "True" and world.condition("Placed")[0] == "True"


async def test_a_lost_key_with_pods_that_are_missing_places_the_group_again(world: World) -> None:
    world.deploy()
    await world.round()
    for name in list(world.pods()):
        world.remove(PODS, f"ns/{name}")
    world.keys = LOST
    await world.restarted().deployment("ns/md")
    world.later(11)
    await world.round()
    assert world.md.status.groups[0].epoch == 2 and {"md-0-e2-0", "md-0-e2-1"} <= world.pods().keys()


async def test_a_changed_spec_replaces_a_group_whose_key_is_lost(world: World) -> None:
    world.deploy()
    await serve(world)
    world.keys = LOST
    await world.restarted().deployment("ns/md")
    world.edit(memory={"contextTokens": 128})
    for _ in range(3):
        await world.round()
        world.later(46)
    assert world.md.status.groups[0].epoch == 2


async def test_a_plan_signed_with_an_unknown_key_is_accepted_only_as_it_was_recorded(world: World) -> None:
    world.deploy()
    await serve(world)
    world.keys = LOST
    world.restarted()
    assert list(world.index.epochs) == ["ns/md-0-e1"]
    item = plan_item(world)
    world.put(CONFIGMAPS, changed_plan(item, lambda plan: plan.update(modelPath="/etc")))
    assert world.index.epochs == {}


def older(world: World) -> None:
    """Everything as a version left it that signed nothing."""

    def strip(item: Json) -> None:
        unsigned(item)

    for collection in (CONFIGMAPS, PODS):
        for key in list(world.cache[collection].items):
            world.change(collection, key, strip)

    def forget(item: Json) -> None:
        item["status"].pop("highestEpoch")
        for group in item["status"]["groups"]:
            group.pop("planDigest")

    world.change(DEPLOYMENTS, "ns/md", forget)


async def test_an_upgrade_from_unsigned_plans_restarts_nothing(world: World) -> None:
    world.deploy()
    await serve(world)
    older(world)
    taken, pods = world.index.taken, world.pods()
    world.writes.clear()
    await world.restarted().deployment("ns/md")
    assert [path for _, path in world.writes if "/status" not in path] == []
    assert world.pods() == pods and world.index.taken == taken
    assert world.md.status.groups[0].plan_digest and world.condition("Degraded")[:2] == ("False", "AsExpected")
    assert 0 in world.listened, "with the keys that it was made with"
    world.remove(PODS, "ns/md-0-e1-1")
    await world.round()
    world.later(10)
    await world.round()
    assert world.index.epochs["ns/md-0-e2"].proven
    world.end_pods()
    await world.round()
    assert list(world.cache[CONFIGMAPS].items) == ["ns/md-0-e2"]


def widened(plan: Json) -> None:
    plan["ranks"][0]["memoryBytes"] = 2**50


def moved(plan: Json) -> None:
    plan["ranks"][0]["node"] = "mini"


@pytest.mark.parametrize("change", [widened, moved], ids=["memory", "node"])
async def test_a_forger_cannot_use_the_upgrade(world: World, change: Callable[[Json], None]) -> None:
    world.deploy()
    await serve(world)
    older(world)
    world.put(CONFIGMAPS, changed_plan(plan_item(world), change))
    world.restarted()
    assert world.index.epochs == {}


async def test_an_unsigned_plan_is_what_it_was_when_the_upgrade_recorded_it(world: World) -> None:
    """What no status of an older version tells can be forged before the upgrade, but it creates nothing, and not after it."""
    world.deploy()
    await serve(world)
    older(world)
    world.put(CONFIGMAPS, changed_plan(plan_item(world), lambda plan: plan.update(modelPath="/etc")))
    await world.restarted().deployment("ns/md")
    assert list(world.index.epochs) == ["ns/md-0-e1"]
    world.put(CONFIGMAPS, changed_plan(plan_item(world), lambda plan: plan.update(modelPath="/var")))
    assert world.index.epochs == {}
    world.put(CONFIGMAPS, changed_plan(plan_item(world), lambda plan: plan.update(modelPath="/etc")))
    for name in list(world.pods()):
        world.remove(PODS, f"ns/{name}")
    await world.round()
    world.later(30)
    await world.round()
    volumes = [volume for pod in world.pods().values() for volume in pod["spec"]["volumes"]]
    assert volumes and not [volume for volume in volumes if volume.get("hostPath", {}).get("path") == "/etc"]


def test_signatures_are_of_one_purpose_and_one_key() -> None:
    mine, other = Keyring(b"a" * 32), Keyring(b"b" * 32)
    said = {"plan": "x"}
    signature = mine.sign(Purpose.PLAN, said)
    assert mine.check(Purpose.PLAN, said, signature).proof is Proof.VALID
    assert Keyring(b"c" * 32, *mine.keys).check(Purpose.PLAN, said, signature).proof is Proof.VALID
    assert mine.check(Purpose.POD, said, signature).proof is Proof.WRONG
    assert mine.check(Purpose.PLAN, {"plan": "y"}, signature).proof is Proof.WRONG
    assert other.check(Purpose.PLAN, said, signature).proof is Proof.UNKNOWN_KEY
    for broken in ("v2" + signature[2:], "x", signature[:-1], "v1..", signature + "é"):
        assert mine.check(Purpose.PLAN, said, broken).proof in (Proof.WRONG, Proof.UNKNOWN_KEY)
    assert mine.check(Purpose.PLAN, said, "").proof is Proof.NONE
    assert repr(mine).count("a" * 8) == 0 and "61616161" not in repr(mine)
    with pytest.raises(ValueError, match="has not been read"):
        Keyring().sign(Purpose.PLAN, said)


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_labelled_config_maps_of_a_megabyte_take_little_memory(world: World) -> None:
    plan = "x" * 2**20
    notes = {"other": "y" * 2**17, "thunderfleet.io/reason": "z" * 2**17}
    for number in range(1000):
        metadata = {"name": f"n{number}", "namespace": "evil", "annotations": notes, "labels": {"l": "v" * 63}}
        item = {"metadata": {**metadata, "uid": f"u{number}", "resourceVersion": str(number + 1)}}
        data = {"plan.json": plan} if number % 2 else {"plan.json": "{}", "other": plan}
        world.cache[CONFIGMAPS].put({**item, "data": data})
    assert len(json.dumps(list(world.cache[CONFIGMAPS]))) < 1000 * 2**14 + 2**20
    assert world.index.epochs == {}


async def test_the_largest_plan_fits(world: World) -> None:
    world.deploy()
    await world.round()
    plan = Plan.model_validate_json(plan_item(world)["data"]["plan.json"])
    rank = plan.ranks[0].model_copy(
        update={
            "node": "n" * 63,
            "address": "fe80:1234:5678:9abc:def0:1234:5678:9abc%bridge100",
            "ring_ports": tuple(range(29000, 29064)),
            "devices": ("rdma_en123",) * 64,
        }
    )
    ranks = tuple(rank.model_copy(update={"rank": number}) for number in range(64))
    largest = plan.model_copy(update={"ranks": ranks, "model_path": "/" + "m" * 1023})
    assert len(largest.model_dump_json(by_alias=True, exclude_none=True, indent=1)) < PLAN_BYTES
    with pytest.raises(ValidationError):
        Plan.model_validate({**plan.model_dump(), "ranks": [rank.model_dump() | {"rank": n} for n in range(65)]})
