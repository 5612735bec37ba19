"""Which keys a change puts on the queue, and that nobody misses what a filter leaves out."""

import asyncio
import copy
from typing import Any
from unittest.mock import AsyncMock

import pytest
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator import app
from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.app import Configuration, Operator
from thunderfleet_operator.decide.deployment import Settings
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.placing.ports import PortSettings
from thunderfleet_operator.decide.status.events import Occurrence
from thunderfleet_operator.observe.concerns import FLEET_KEY, concerned, work_key
from thunderfleet_operator.watch.cache import DEPLOYMENTS, LINKS, NODEPROFILES, NODES, PODS
from thunderfleet_operator.watch.leader import Identity, Leader

from tests.unit.operator.world import Json, World

DEPLOYMENT = "modeldeployments/ns/md"


async def test_a_pod_concerns_its_owner_its_mac_and_at_its_end_all_that_wait_for_room(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    pod = world.pods()["md-0-e1-1"]

    def keys(before: Json | None, after: Json | None) -> set[str]:
        return set(concerned(world.index, PODS, "ns/md-0-e1-1", before, after, ["ns/waits"]))

    own = {DEPLOYMENT, "nodeprofiles/studio-2"}
    waits = "modeldeployments/ns/waits"
    assert keys(pod, copy.deepcopy(pod)) == keys(None, pod) == own
    assert keys(pod, None) == own | {waits}
    assert keys(pod, {**pod, "status": {"phase": "Failed"}}) == own | {waits}
    foreign = {"metadata": {"name": "x", "namespace": "y"}, "spec": {"nodeName": "mini"}, "status": {}}
    assert keys(foreign, copy.deepcopy(foreign)) == set() and keys(foreign, None) == {waits}
    ended = {**foreign, "status": {"phase": "Succeeded"}}
    assert keys(foreign, ended) == {waits} and keys(ended, None) == set()
    for elsewhere in ({}, {"nodeName": "linux-1"}):
        assert keys({**foreign, "spec": elsewhere}, None) == set(), "it has taken nothing of a Mac"


async def test_pods_that_look_like_routers_concern_nobody_in_other_namespaces(world: World) -> None:
    world.deploy()
    labels = {"app.kubernetes.io/name": "thunderfleet", "app.kubernetes.io/component": "router"}
    waits = {"metadata": {"name": "x", "labels": labels}, "status": {}}
    ready = {**waits, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}

    def keys(namespace: str, routers: str | None) -> set[str]:
        return set(concerned(world.index, PODS, f"{namespace}/x", waits, ready, [], routers=routers))

    assert keys("system", "system") == {DEPLOYMENT}
    assert keys("tenant", "system") == keys("system-2", "system") == keys("system", None) == set()


async def test_a_heartbeat_concerns_nothing(world: World) -> None:
    world.deploy()
    node = world.cache[NODES].items["mini"]
    beat = {**node, "status": {**node["status"], "heartbeat": "now"}}
    assert list(concerned(world.index, NODES, "mini", node, beat, [])) == []
    cordoned = {**node, "spec": {**node["spec"], "unschedulable": True}}
    assert set(concerned(world.index, NODES, "mini", node, cordoned, [])) == {"nodeprofiles/mini", DEPLOYMENT}
    assert set(concerned(world.index, NODES, "mini", None, node, [])) == {"nodeprofiles/mini", DEPLOYMENT}


async def test_which_groups_have_a_mac_concerns_neither_its_cables_nor_who_serves_there(world: World) -> None:
    """The operator writes it of each Mac of each group that gets a place."""
    world.deploy()
    await world.serve()
    cable = next(iter(world.cache[LINKS].items))
    before = world.cache[NODEPROFILES].items["studio-1"]
    metadata = {**before["metadata"], "resourceVersion": "999", "managedFields": [{"manager": "thunderfleet"}]}

    def keys(**status: object) -> set[str]:
        after = {**before, "metadata": metadata, "status": {**before["status"], **status}}
        return set(concerned(world.index, NODEPROFILES, "studio-1", before, after, []))

    own = {"nodeprofiles/studio-1", FLEET_KEY}
    assert keys(groups=[{"name": "ns/other-0", "epoch": 1}]) == keys(groups=[]) == own
    assert keys(rdma={"enabled": False}) == keys(groups=[], rdma={}) == {*own, f"thunderboltlinks/{cable}", DEPLOYMENT}


async def test_the_summary_of_a_cable_concerns_those_who_use_it_but_no_mac(world: World) -> None:
    """A Mac's profile names the cables of groups by their ends. The round that has written the summary knows it."""
    world.deploy()
    await world.serve()
    (key,) = (name for name, link in world.index.links.items() if link is not None and link.spec.a.node == "studio-1")
    before = world.cache[LINKS].items[key]

    def keys(own: bool, **status: object) -> set[str]:
        after = {**before, "status": {**before["status"], **status}}
        return set(concerned(world.index, LINKS, key, before, after, [], own=own))

    users, itself, macs = {DEPLOYMENT, FLEET_KEY}, f"thunderboltlinks/{key}", {"nodeprofiles/studio-1", "nodeprofiles/studio-2"}
    assert keys(True, rdma="Usable", conditions=[]) == users
    assert keys(False, rdma="Usable") == {*users, itself}, "somebody else has written it"
    assert keys(True, endpoints=[]) == keys(False, endpoints=[]) == {*users, itself, *macs}
    assert set(concerned(world.index, LINKS, key, before, None, [], own=True)) == {*users, itself, *macs}


async def test_a_deleted_deployment_makes_room_for_others(world: World) -> None:
    world.deploy()
    item = world.cache[DEPLOYMENTS].items["ns/md"]
    assert list(concerned(world.index, DEPLOYMENTS, "ns/md", None, item, ["ns/waits"])) == [DEPLOYMENT]
    assert set(concerned(world.index, DEPLOYMENTS, "ns/md", item, None, ["ns/waits"])) == {
        DEPLOYMENT,
        "modeldeployments/ns/waits",
    }


async def test_a_benchmark_concerns_all_deployments_whose_predictions_it_corrects(world: World) -> None:
    world.deploy()
    before = world.cache[DEPLOYMENTS].items["ns/md"]
    world.put(DEPLOYMENTS, {**before, "metadata": {**before["metadata"], "name": "other", "uid": "uid-other"}})

    def with_status(**status: object) -> Json:
        return {**before, "status": {"groups": [{"index": 0, "epoch": 1}], **status}}

    def keys(before: Json | None, after: Json | None) -> set[str]:
        return set(concerned(world.index, DEPLOYMENTS, "ns/md", before, after, []))

    everything = {DEPLOYMENT, "modeldeployments/ns/other"}
    first, second = with_status(benchmark={"epoch": 1}), with_status(benchmark={"epoch": 2})
    moved = with_status(benchmark={"epoch": 1}, groups=[{"index": 0, "epoch": 2}])
    assert keys(before, first) == keys(first, second) == keys(first, moved) == keys(first, None) == everything
    assert keys(first, {**first, "message": "other"}) == keys(before, with_status()) == {DEPLOYMENT}
    # At the start all are worked on anyway.
    assert keys(None, first) == {DEPLOYMENT}


async def test_what_the_operator_writes_concerns_others_before_the_watch_tells_of_it(world: World) -> None:
    """The watch is later than the answer to the write, and then has nothing new to tell."""
    world.deploy()
    known = world.cache[DEPLOYMENTS].items["ns/md"]
    world.put(DEPLOYMENTS, {**known, "metadata": {**known["metadata"], "name": "other", "uid": "uid-other"}})
    configuration = Configuration(
        Settings(PodSettings("image"), PortSettings()), "system", Identity("operator-0"), "127.0.0.1", 0, 0
    )
    kube: Any = world
    operator = Operator(kube, configuration, world.cache)
    writer = Writer(kube, world.cache, world.metrics, lambda: True, operator.changed, world.happened)

    name = {"name": "md", "namespace": "ns"}
    await writer.apply_status(DEPLOYMENTS, {"metadata": name, "status": {"benchmark": {"epoch": 1}}})
    operator._event(DEPLOYMENTS, "MODIFIED", world.cache[DEPLOYMENTS].items["ns/md"])
    assert {await operator.queue.get() for _ in range(len(operator.queue))} == {DEPLOYMENT, "modeldeployments/ns/other"}


async def test_changes_of_the_pods_of_a_group_have_one_round(world: World) -> None:
    world.deploy()
    await world.round()
    configuration = Configuration(
        Settings(PodSettings("image"), PortSettings()), "system", Identity("operator-0"), "127.0.0.1", 0, 0
    )
    kube: Any = world
    operator = Operator(kube, configuration, world.cache)
    pods = [(f"ns/{name}", item) for name, item in world.pods().items()]
    assert len(pods) == 2
    for key, item in pods:
        operator.changed(PODS, key, item, {**item, "status": {"phase": "Running"}})
    assert not len(operator.queue)
    assert set(operator.queue._due) == {DEPLOYMENT, "nodeprofiles/studio-1", "nodeprofiles/studio-2"}
    assert await operator.queue.get() == DEPLOYMENT, "before the Macs"


async def test_a_new_leader_works_on_everything_and_looks_for_secrets_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy()
    await world.serve()
    (secret,) = (path for path in world.objects if "/secrets/" in path)
    del world.objects[secret]
    created = asyncio.Event()

    def noticed(_: str, path: str) -> ApiError | None:
        if path == secret:
            created.set()
        return None

    world.refuse = noticed
    monkeypatch.setattr(app, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(app, "GroupClient", lambda *_: world)
    monkeypatch.setattr(app.Operator, "_load_keys", AsyncMock())
    monkeypatch.setattr(Leader, "leading", lambda self: True)
    configuration = Configuration(
        Settings(PodSettings("image"), PortSettings()), "system", Identity("operator-0"), "127.0.0.1", 0, 0
    )
    kube: Any = world
    operator = Operator(kube, configuration, world.cache)
    operator._keys = world.keys
    await operator._take_over()
    assert DEPLOYMENT in operator.queue._ready and operator.reconciler._fleet[0] is operator._index.fleet
    workers = [asyncio.create_task(worker.run()) for worker in operator._workers.values()]
    async with asyncio.timeout(60):
        await created.wait()
    assert secret in world.objects
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def test_a_write_that_removes_an_object_reports_it_once(world: World) -> None:
    world.deploy()
    known = world.cache[DEPLOYMENTS].items["ns/md"]
    kube: Any = world
    writer = Writer(kube, world.cache, world.metrics, lambda: True, world.changed, world.happened)
    for _ in range(2):
        writer.forget(DEPLOYMENTS, "ns/md", known["metadata"]["uid"])
    assert [(collection.name, key, after) for collection, key, _, after in world.changes] == [
        ("modeldeployments", "ns/md", None)
    ]


async def test_of_the_events_of_a_watch_only_news_are_handled(world: World) -> None:
    world.deploy()
    configuration = Configuration(
        Settings(PodSettings("image"), PortSettings()), "system", Identity("operator-0"), "127.0.0.1", 0, 0
    )
    kube: Any = world
    operator = Operator(kube, configuration, world.cache)
    known = world.cache[DEPLOYMENTS].items["ns/md"]
    newer = {**known, "metadata": {**known["metadata"], "resourceVersion": "1000"}}
    assert not operator._is_news(DEPLOYMENTS, "MODIFIED", known), "its own write, which is in the cache"
    assert operator._is_news(DEPLOYMENTS, "MODIFIED", newer)
    assert operator._is_news(DEPLOYMENTS, "DELETED", known)
    assert not operator.lists._relisted
    assert not operator._is_news(DEPLOYMENTS, None, known)
    assert operator.lists._relisted, "deletions that kopf has missed are looked for all the same"


async def test_the_leader_counts_groups_when_its_metrics_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after each round, each of which would go through all ModelDeployments."""
    world.deploy()
    await world.serve()
    configuration = Configuration(
        Settings(PodSettings("image"), PortSettings()), "system", Identity("operator-0"), "127.0.0.1", 0, 0
    )
    kube: Any = world
    operator = Operator(kube, configuration, world.cache)

    def shown() -> dict[str, float]:
        (family,) = operator.metrics.groups.collect()
        return {sample.labels["state"]: sample.value for sample in family.samples if sample.value}

    assert shown() == {}, "a standby counts none: all replicas are summed up"
    monkeypatch.setattr(operator, "leading", lambda: True)
    assert shown() == {"Ready": 1.0}


async def test_events_wait_for_the_rounds_and_are_written_when_the_operator_ends(world: World) -> None:
    configuration = Configuration(
        Settings(PodSettings("image"), PortSettings()), "system", Identity("operator-0"), "127.0.0.1", 0, 0
    )
    kube: Any = world
    operator = Operator(kube, configuration, world.cache)
    assert not operator._events._busy()
    for queue, key in ((operator.queue, DEPLOYMENT), (operator.cables, work_key(LINKS, "cable"))):
        queue.add(key)
        assert operator._events._busy()
        assert await queue.get() == key
        assert not operator._events._busy(), "what is worked on does not wait"
    world.deploy()
    about = ModelDeployment.load(world.cache[DEPLOYMENTS].items["ns/md"])
    operator._events.later(about, Occurrence("Placed", "text"))
    await operator._end([], asyncio.create_task(asyncio.sleep(0)))
    assert [event["reason"] for event in world.events] == ["Placed"], "although it does not lead any more"
