"""GPU memory as an extended resource: what pods request, what counts, and groups that were placed before there was one."""

from typing import Any

import pytest
from thunderfleet_crds.names import RESOURCE_GPU_MEMORY
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.act import refusals
from thunderfleet_operator.observe.objects.nodes import read_node
from thunderfleet_operator.observe.objects.pods import pod_memory
from thunderfleet_operator.watch.cache import NODEPROFILES, NODES, PODS

from tests.unit.operator.values import plan
from tests.unit.operator.world import World

GIB = 2**30
MACS = ("studio-1", "studio-2")
KNOWS = "process://2+gpu-memory"
EXCEEDED = (
    'pods "md-0-e1-1" is forbidden: exceeded quota: models, requested: requests.thunderfleet.io/gpu-memory=3221225472,'
    "requests.memory=3221225472, used: requests.thunderfleet.io/gpu-memory=3Gi,requests.memory=3Gi, limited: "
    "requests.thunderfleet.io/gpu-memory=5Gi,requests.memory=5Gi"
)


def publish(world: World, node: str, size: int) -> None:
    def change(item: dict[str, Any]) -> None:
        item["status"]["allocatable"][RESOURCE_GPU_MEMORY] = str(size)
        item["status"].setdefault("nodeInfo", {})["containerRuntimeVersion"] = KNOWS

    world.change(NODES, node, change)


def requested(item: dict[str, Any]) -> tuple[dict[str, str], dict[str, str] | None]:
    resources = item["spec"]["containers"][0]["resources"]
    return resources["requests"], resources.get("limits")


async def test_pods_request_it_where_the_node_has_it(world: World) -> None:
    publish(world, "studio-2", 6 * GIB)
    world.deploy()
    await world.round()
    first, second = (world.pods()[f"md-0-e1-{rank}"] for rank in (0, 1))
    assert requested(first)[0].keys() == {"memory"} and requested(first)[1] is None, "it would not be scheduled to studio-1"
    asked, limits = requested(second)
    assert asked[RESOURCE_GPU_MEMORY] == asked["memory"] and limits == {RESOURCE_GPU_MEMORY: asked["memory"]}


async def test_pods_request_it_no_longer_after_a_return_to_a_kubelet_that_does_not_know_it(world: World) -> None:
    for name in MACS:
        publish(world, name, 1)
    world.change(NODES, "studio-2", lambda item: item["status"]["nodeInfo"].update(containerRuntimeVersion="process://1"))
    world.change(NODES, "studio-1", lambda item: item["status"]["allocatable"].update({RESOURCE_GPU_MEMORY: str(6 * GIB)}))
    world.deploy()
    await world.round()
    first, second = (requested(world.pods()[f"md-0-e1-{rank}"])[0] for rank in (0, 1))
    assert RESOURCE_GPU_MEMORY in first
    assert second.keys() == {"memory"}, "that kubelet fails pods that request more than it knows"


async def test_a_group_that_was_placed_before_it_keeps_running(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    world.say("Ready", 1)
    await world.round()
    before = {name: item["metadata"]["uid"] for name, item in world.pods().items()}
    for name in MACS:
        publish(world, name, 6 * GIB)
    await world.round()
    await world.restarted().deployment("ns/md")
    assert {name: item["metadata"]["uid"] for name, item in world.pods().items()} == before
    assert not any(item["metadata"].get("deletionTimestamp") for item in world.pods().values())
    assert world.md.status.groups[0].epoch == 1 and world.condition("Ready")[0] == "True"


async def test_a_pod_of_others_that_requests_only_gpu_memory_takes_room(world: World) -> None:
    for name in MACS:
        publish(world, name, 6 * GIB)
        other = {"requests": {RESOURCE_GPU_MEMORY: "6Gi"}, "limits": {RESOURCE_GPU_MEMORY: "6Gi"}}
        spec = {"nodeName": name, "containers": [{"name": "c", "resources": other}]}
        world.put(
            PODS, {"metadata": {"name": f"other-{name}", "namespace": "ns"}, "spec": spec, "status": {"phase": "Running"}}
        )
    world.remove(NODES, "mini")
    world.deploy()
    await world.round()
    assert world.condition("Placed")[:2] == ("False", "NoRoom")


async def test_a_smaller_limit_of_the_gpu_leaves_no_room_and_moves_nothing(world: World) -> None:
    for name in MACS:
        publish(world, name, 6 * GIB)
    world.remove(NODES, "mini")
    world.deploy()
    await world.round()
    world.run_pods()
    world.say("Ready", 1)
    await world.round()
    for name in MACS:
        publish(world, name, 1024**2)
    await world.round()
    assert world.md.status.groups[0].epoch == 1 and world.condition("Ready")[0] == "True"
    world.edit(replicas=2)
    await world.round()
    status, reason, message = world.condition("Placed")
    assert (status, reason) == ("False", "NoRoom") and message.startswith("group 1: ")


async def test_two_groups_on_one_mac_request_at_most_what_it_has(world: World, make_model: Any) -> None:
    for name in ("studio-2", "mini"):
        world.remove(NODES, name)
    status = {"runtime": {"backends": ["ring"]}, "models": [make_model(2 * GIB)]}
    world.put(NODEPROFILES, {"metadata": {"name": "studio-1"}, "status": status})
    publish(world, "studio-1", 6 * GIB)
    world.deploy(replicas=3, nodes={"max": 1})
    await world.round()
    asked = [int(requested(item)[0][RESOURCE_GPU_MEMORY]) for item in world.pods().values()]
    assert len(asked) == 2 and sum(asked) <= 6 * GIB
    assert world.condition("Placed")[:2] == ("False", "NoRoom") and world.condition("Placed")[2].startswith("group 2: ")


async def test_an_exceeded_quota_is_a_condition_and_the_group_goes_on_when_it_is_raised(world: World) -> None:
    world.deploy()
    world.refuse = lambda verb, path: ApiError(403, "Forbidden", EXCEEDED) if path.endswith("/md-0-e1-1") else None
    again = await world.round()
    status, reason, message = world.condition("Placed")
    assert (status, reason) == ("False", "QuotaExceeded") and again is not None
    assert "ResourceQuota models of namespace ns" in message
    assert (
        "requests.thunderfleet.io/gpu-memory: a pod requests 3.0 GiB, pods and other objects use 3.0 GiB of 5.0 GiB" in message
    )
    world.refuse = lambda verb, path: None
    await world.round()
    assert world.condition("Placed")[0] == "True" and len(world.pods()) == 2
    assert world.md.status.groups[0].epoch == 1


@pytest.mark.parametrize(
    "message",
    [
        'pods "a" is forbidden: failed quota: models: must specify limits.cpu',
        'pods "a" is forbidden: maximum memory usage per Container is 1Gi',
    ],
)
def test_other_refusals_are_shown_as_they_are(message: str) -> None:
    blocked = refusals.of_pods(plan(), ApiError(403, "Forbidden", message))
    assert blocked.reason == "PodRefused" and message in blocked.message


def test_an_amount_that_is_no_quantity_is_shown_as_it_is() -> None:
    text = "exceeded quota: q, requested: pods=1,memory=x, used: pods=4, limited: pods=4,memory=1Gi"
    blocked = refusals.of_plan(plan(), ApiError(403, "Forbidden", text))
    assert blocked.reason == "QuotaExceeded"
    assert "pods: a pod requests 1, pods and other objects use 4 of 4; memory: a pod requests x" in blocked.message


def test_the_memory_of_a_pod_is_counted_once_under_both_names() -> None:
    def container(memory: str, gpu: str) -> dict[str, Any]:
        return {"resources": {"requests": {"memory": memory}, "limits": {RESOURCE_GPU_MEMORY: gpu}}}

    assert pod_memory({"spec": {"containers": [container("3", "2"), container("1", "1")]}}) == 4
    assert pod_memory({"spec": {"containers": [container("1", "2"), container("1", "3")]}}) == 5


@pytest.mark.parametrize(("gpu", "least"), [("4Gi", 4 * GIB), ("9Gi", 8 * GIB), ("0", 0)])
def test_the_smaller_of_both_resources_of_a_node_counts(gpu: str, least: int) -> None:
    status = {"allocatable": {"memory": "8Gi", RESOURCE_GPU_MEMORY: gpu}, "nodeInfo": {"containerRuntimeVersion": KNOWS}}
    node = read_node({"metadata": {"name": "a"}, "status": status})
    assert node.allocatable_bytes == least and node.counts_gpu_memory
    bare = read_node({"metadata": {"name": "a"}, "status": {"allocatable": {"memory": "8Gi"}}})
    assert bare.allocatable_bytes == 8 * GIB and not bare.counts_gpu_memory
