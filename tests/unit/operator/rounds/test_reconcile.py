"""Whole rounds over an API server in memory: the objects, what stays unchanged, status and Events."""

import json
from datetime import timedelta
from typing import Any

import pytest
from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.act import executor, keys
from thunderfleet_operator.act.writer import NotLeading
from thunderfleet_operator.decide.deployment import EPOCHS_TRIED
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, LINKS, NODEPROFILES, NODES, PODS, SERVICES

from tests.unit.operator.world import World

GIB = 2**30


def plan_of(world: World, epoch: int, index: int = 0) -> Plan:
    item = world.cache[CONFIGMAPS].items[f"ns/md-{index}-e{epoch}"]
    return Plan.model_validate_json(item["data"]["plan.json"])


async def test_from_deployment_to_pods_to_ready(world: World) -> None:
    world.deploy()
    await world.round()
    plan = plan_of(world, 1)
    assert [(rank.node, rank.layers) for rank in plan.ranks] == [("studio-1", (2, 4)), ("studio-2", (0, 2))]
    assert sorted(world.pods()) == ["md-0-e1-0", "md-0-e1-1"]
    spec = world.pods()["md-0-e1-1"]["spec"]
    assert spec["runtimeClassName"] == "macos" and spec["hostNetwork"] and not spec["automountServiceAccountToken"]
    assert "nodeName" not in spec
    container = spec["containers"][0]
    assert container["resources"]["requests"]["memory"] == str(plan.ranks[1].memory_bytes)
    declared = {port["hostPort"] for port in container["ports"]}
    assert declared == {plan.ranks[1].gateway_port, plan.ranks[1].control_port, *plan.ranks[1].ring_ports}
    assert len(plan.ranks[1].ring_ports) == 16
    owner = world.pods()["md-0-e1-0"]["metadata"]["ownerReferences"][0]
    assert owner["controller"] and not owner["blockOwnerDeletion"] and owner["uid"] == "uid-md"
    assert world.condition("Placed")[:2] == ("True", "Placed")
    assert world.condition("Ready")[:2] == ("False", "Starting")
    assert list(world.listened) == [0]

    world.run_pods()
    told = {
        "prefillTokensPerSecond": 900.0,
        "decodeTokensPerSecond": 37.42,
        "timeToFirstTokenMicroseconds": 4000,
        "promptTokens": 512,
        "generationTokens": 128,
        "measuredAt": world.now,
    }
    world.say("Ready", 1, benchmark=told)
    await world.round()
    status = world.md.status
    assert status.ready == "1/1" and status.tokens_per_second == "37.4" and status.nodes == "studio-1,studio-2"
    assert status.endpoint == f"http://10.0.0.1:{plan.ranks[0].gateway_port}/v1"
    assert world.condition("Ready")[0] == world.condition("Bootstrapped")[0] == world.condition("Benchmarked")[0] == "True"


async def test_a_benchmark_without_a_decode_rate_leaves_the_column_empty(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    told = {"prefillTokensPerSecond": 900.0, "timeToFirstTokenMicroseconds": 4000, "promptTokens": 512, "generationTokens": 2}
    world.say("Ready", 1, benchmark={**told, "measuredAt": world.now, "ran": "one request"})
    await world.round()
    status = world.md.status
    assert status.tokens_per_second is None and status.benchmark is not None
    assert status.benchmark.decode_tokens_per_second is None
    assert status.benchmark.prefill_tokens_per_second == "900.0"
    wanted = ("True", "Measured", "too few tokens to compute a generation rate: one request")
    assert world.condition("Benchmarked")[:3] == wanted


async def test_load_progress_is_reported_in_bytes_and_layers_of_each_rank(world: World) -> None:
    world.deploy()
    await world.round()
    world.run_pods()
    ranks = [
        {"rank": 0, "node": "studio-1", "phase": "Loading", "loadedBytes": GIB, "totalBytes": 4 * GIB, "loadedLayers": 1},
        {"rank": 1, "node": "studio-2", "phase": "Loading", "loadedBytes": 4 * GIB, "totalBytes": 4 * GIB, "loadedLayers": 2},
    ]
    world.say("Loading", 1, ranks=ranks)
    await world.round()
    told = [(rank.loaded_bytes, rank.total_bytes, rank.loaded_layers) for rank in world.md.status.groups[0].ranks]
    assert told == [(GIB, 4 * GIB, 1), (4 * GIB, 4 * GIB, 2)]
    status, reason, message = world.condition("Ready")
    assert (status, reason) == ("False", "Loading")
    assert message.endswith("loading the model: rank 0 on studio-1 (25 % of 4Gi, 1 layers)")
    # A restarted operator without a report does not revoke it.
    world.reports.clear()
    await world.restarted().deployment("ns/md")
    assert [rank.loaded_bytes for rank in world.md.status.groups[0].ranks] == [GIB, 4 * GIB]


async def test_progress_is_written_once_a_second_and_everything_else_at_once(world: World) -> None:
    world.pace = 1.0
    world.restarted()

    def loaded(count: int) -> None:
        rank = {"rank": 0, "node": "studio-1", "phase": "Loading", "loadedBytes": count * GIB, "totalBytes": 4 * GIB}
        world.say("Loading", 1, ranks=[rank, {"rank": 1, "node": "studio-2", "phase": "Joined"}])

    def shown() -> int | None:
        return world.md.status.groups[0].ranks[0].loaded_bytes

    world.deploy()
    await world.round()
    world.run_pods()
    loaded(1)
    world.later(1)
    await world.round()
    assert shown() == GIB
    world.later(0.25)
    loaded(2)
    writes = len(world.writes)
    assert await world.round() == pytest.approx(0.75)
    assert shown() == GIB and len(world.writes) == writes
    world.later(0.5)
    loaded(3)
    assert await world.round() == pytest.approx(0.25)
    world.later(0.25)
    await world.round()
    assert shown() == 3 * GIB and len(world.writes) == writes + 1
    loaded(4)
    assert await world.round() == pytest.approx(1.0)
    world.say("Ready", 1)
    await world.round()
    assert world.condition("Ready")[0] == "True", "at once"
    world.reports.clear()


async def test_quiet_rounds_and_restarts_write_nothing(world: World) -> None:
    world.deploy()
    await world.serve()
    before, writes = world.versions(), len(world.writes)
    world.later(3600)
    await world.round()
    assert len(world.writes) == writes
    await world.restarted().deployment("ns/md")
    assert world.versions() == before and len(world.writes) == writes
    # The derived Secret alone is created again, later, and exists.
    assert world.unchecked == ["ns/md"]
    await world.executor.check_secrets("ns/md")
    assert world.versions() == before
    ((verb, path),) = world.writes[writes:]
    assert verb == "create" and path.startswith("/api/v1/namespaces/ns/secrets/md-0-e1-")
    await world.executor.check_secrets("ns/md")
    await world.round()
    assert len(world.writes) == writes + 1 and world.unchecked == ["ns/md"], "once in the life of a process"


async def test_a_secret_that_somebody_deleted_is_created_again_after_a_restart(world: World) -> None:
    world.deploy()
    await world.serve()
    (path,) = (path for path in world.objects if "/secrets/" in path)
    data = world.objects.pop(path)["data"]
    await world.restarted().deployment("ns/md")
    world.refuse = lambda verb, where: ApiError(500, "Internal", "no") if where == path else None
    with pytest.raises(ApiError):
        await world.executor.check_secrets("ns/md")
    world.refuse = lambda verb, where: None
    await world.executor.check_secrets("ns/md")
    assert world.objects[path]["data"] == data


async def test_pods_wait_for_their_secret_after_a_restart(world: World) -> None:
    world.deploy()
    world.refuse = lambda verb, path: ApiError(500, "Internal", "no") if path.endswith("e1-1") else None
    with pytest.raises(ApiError):
        await world.round()
    (path,) = (path for path in world.objects if "/secrets/" in path)
    del world.objects[path]
    world.refuse = lambda verb, path: None
    world.writes.clear()
    await world.restarted().deployment("ns/md")
    created = [where for verb, where in world.writes if verb == "create" and ("/secrets/" in where or "/pods/" in where)]
    assert created[0] == path and len(created) == 2 and world.unchecked == []


async def test_no_secret_is_created_for_a_group_that_has_another_placement_by_now(world: World) -> None:
    world.deploy()
    await world.serve()
    await world.restarted().deployment("ns/md")
    assert world.unchecked == ["ns/md"]
    world.remove(PODS, "ns/md-0-e1-1")
    await world.round()
    world.later(10)
    await world.round()
    world.end_pods()
    await world.round()
    assert list(world.cache[CONFIGMAPS].items) == ["ns/md-0-e2"]
    writes = len(world.writes)
    await world.executor.check_secrets("ns/md")
    assert len(world.writes) == writes


async def test_the_keys_of_a_placement_are_derived_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round of a group needs them, and with many groups the signatures would be most of the operator's work."""
    derived: list[int] = []

    def counted(master: bytes, plan: Plan) -> keys.KeyPair:
        derived.append(plan.epoch)
        return keys.group_keys(master, plan)

    monkeypatch.setattr(executor, "group_keys", counted)
    world.deploy()
    await world.round()
    pair = world.listened[0][1]
    before = len(derived)
    for _ in range(3):
        await world.round()
    assert len(derived) <= before + 1 and world.listened[0][1] == pair
    world.keys = Keyring(b"n" * 32, *world.keys.keys)
    await world.round()
    assert world.listened[0][1] == pair, "the key that the placement was signed with is still there"


async def test_a_restarted_operator_without_a_report_keeps_the_status(world: World) -> None:
    world.deploy()
    await world.serve()
    before = world.versions()
    world.reports.clear()
    status = world.md.status
    await world.restarted().deployment("ns/md")
    assert world.md.status == status
    assert world.versions() == before


async def test_pods_lost_between_plan_and_pods_are_made(world: World) -> None:
    world.deploy()
    world.refuse = lambda verb, path: ApiError(500, "Internal", "no") if path.endswith("e1-1") else None
    with pytest.raises(ApiError):
        await world.round()
    world.refuse = lambda verb, path: None
    await world.restarted().deployment("ns/md")
    assert sorted(world.pods()) == ["md-0-e1-0", "md-0-e1-1"]
    assert len(world.cache[CONFIGMAPS].items) == 1


async def test_deleted_pod_replaces_the_whole_group_after_the_backoff(world: World) -> None:
    world.deploy()
    await world.serve()
    ports = [(rank.gateway_port, rank.control_port) for rank in plan_of(world, 1).ranks]
    world.remove(PODS, "ns/md-0-e1-1")
    again = await world.round()
    assert world.md.status.groups[0].state == "BackingOff"
    assert again is not None and again <= 10
    assert world.condition("Degraded")[:2] == ("True", "PodGone")
    assert "md-0-e2-0" not in world.pods()
    world.later(10)
    await world.round()
    assert world.pods()["md-0-e1-0"]["metadata"]["deletionTimestamp"]
    assert {"md-0-e2-0", "md-0-e2-1"} <= set(world.pods())
    group = world.md.status.groups[0]
    assert (group.epoch, group.restarts, group.next_restart_time) == (2, 1, None)
    assert [(rank.gateway_port, rank.control_port) for rank in plan_of(world, 2).ranks] == ports
    assert "ns/md-0-e1" in world.cache[CONFIGMAPS].items
    assert [pod.name for pod in world.md.status.terminating_pods] == ["md-0-e1-0"]
    world.end_pods()
    await world.round()
    assert list(world.cache[CONFIGMAPS].items) == ["ns/md-0-e2"]
    assert not any("secrets/md-0-e1-" in path for path in world.objects)
    assert world.md.status.terminating_pods == ()


async def test_backoff_doubles_and_the_budget_ends(world: World) -> None:
    world.deploy(recovery={"maxRestarts": 2, "backoffSeconds": 10, "backoffLimitSeconds": 300})
    await world.round()
    for epoch, wait in ((1, 10), (2, 20)):
        world.run_pods()
        failure = {"fault": "Bug", "reason": "Odd", "message": "odd", "at": world.now}
        world.say("GaveUp", epoch, failure=failure)
        await world.round()
        world.later(wait - 1)
        await world.round()
        assert world.md.status.groups[0].epoch == epoch
        world.later(1)
        await world.round()
        assert world.md.status.groups[0].epoch == epoch + 1
        world.end_pods()
    world.run_pods()
    world.say("GaveUp", 3, failure={"fault": "Bug", "reason": "Odd", "message": "odd", "at": world.now})
    world.later(1000)
    await world.round()
    assert world.md.status.groups[0].state == "GaveUp" and world.md.status.groups[0].epoch == 3
    assert "2 of 2 restarts used; to retry, raise spec.recovery.maxRestarts" in world.condition("Degraded")[2]
    world.edit(memory={"contextTokens": 1024})
    await world.round()
    assert world.md.status.groups[0].epoch == 4 and world.md.status.groups[0].restarts == 0


async def test_a_cluster_without_macs_says_so_in_every_condition(world: World) -> None:
    for name in ("studio-1", "studio-2", "mini"):
        world.remove(NODES, name)
    world.deploy()
    await world.round()
    for kind in ("ModelResolved", "Placed", "Ready"):
        status, reason, message = world.condition(kind)
        assert (status, reason) == ("False", "NoMacs"), kind
        assert "thunderfleet-kubelet join" in message or kind == "Ready"


async def test_missing_model_is_named_and_mends_itself(world: World, make_model: Any) -> None:
    world.deploy(model={"path": "/nope/x"})
    await world.round()
    status, reason, message = world.condition("ModelResolved")
    assert (status, reason) == ("False", "ModelNotFound")
    assert "/nope/x" in message and "studio-1 has 1 model in /models/org" in message
    assert "the path must be below a folder of the chart's value agent.modelFolders" in message
    assert world.condition("Placed")[0] == "False" and not world.pods()
    world.put(
        NODEPROFILES,
        {"metadata": {"name": "mini"}, "status": {"runtime": {"backends": ["ring"]}, "models": [make_model(GIB, "/nope/x")]}},
    )
    await world.round()
    assert world.condition("ModelResolved")[0] == world.condition("Placed")[0] == "True"
    assert plan_of(world, 1).ranks[0].node == "mini" and plan_of(world, 1).model == "nope/x"


@pytest.mark.parametrize(("wanted", "named"), [("org/tiny-qwen3", True), ("org/llama", False)])
async def test_a_model_with_almost_the_same_name_is_named(world: World, make_model: Any, wanted: str, named: bool) -> None:
    copies = [{**make_model(GIB, f"/hub/{name}"), "repository": f"org/{name}"} for name in ("tiny-qwen2", "gpt-oss")]
    for mac in ("mini", "studio-1"):
        world.put(NODEPROFILES, {"metadata": {"name": mac}, "status": {"runtime": {"backends": ["ring"]}, "models": copies}})
    world.deploy(model={"repository": wanted})
    await world.round()
    status, reason, message = world.condition("ModelResolved")
    assert (status, reason) == ("False", "ModelNotFound")
    advice = "org/tiny-qwen2 is on mini, studio-1: if you mean that, correct spec.model.repository; otherwise copy it to "
    assert (advice in message) == named, message


async def test_another_commit_of_the_model_is_named(world: World, make_model: Any) -> None:
    copy = {**make_model(GIB, "/hub/x"), "repository": "org/x", "revision": "abc"}
    world.put(NODEPROFILES, {"metadata": {"name": "mini"}, "status": {"runtime": {"backends": ["ring"]}, "models": [copy]}})
    world.deploy(model={"repository": "org/x", "revision": "def"})
    await world.round()
    assert world.condition("ModelResolved") == (
        "False",
        "ModelNotFound",
        "commit def of repository org/x was not found on any Mac; found: commit abc on mini. Set spec.model.revision to the "
        "full hash of a commit that was found, or to main for any commit",
    )
    assert world.condition("Placed")[1:] == (
        "ModelNotResolved",
        "no Mac has a complete copy of the model: see condition ModelResolved",
    )
    world.edit(model={"repository": "org/x", "revision": "main"})
    await world.round()
    assert world.condition("ModelResolved")[0] == world.condition("Placed")[0] == "True"


async def test_no_room_names_every_mac_and_mends_itself(world: World) -> None:
    world.deploy(memory={"contextTokens": 131072, "concurrentRequests": 1000})
    await world.round()
    status, reason, message = world.condition("Placed")
    assert (status, reason) == ("False", "NoRoom")
    for name in ("studio-1", "studio-2", "mini"):
        assert f"{name} has" in message
    assert "ns/md" in world.reconciler.unplaced and world.md.status.unplaceable
    world.mac("big", "10.0.0.9", 64 * GIB)
    await world.round()
    assert world.condition("Placed")[0] == "True" and world.md.status.nodes == "big"
    assert world.md.status.unplaceable == () and not world.reconciler.unplaced


async def test_groups_share_neither_memory_nor_ports(world: World, make_model: Any) -> None:
    for name in ("studio-1", "studio-2"):
        world.put(
            NODEPROFILES,
            {"metadata": {"name": name}, "status": {"runtime": {"backends": ["ring"]}, "models": [make_model(2 * GIB)]}},
        )
    world.remove(NODEPROFILES, "mini")
    world.deploy(replicas=5, nodes={"max": 1})
    await world.round()
    placed = [group for group in world.md.status.groups if group.ranks]
    assert len(placed) == 4, "two of 2.5 GiB on each Mac of 6"
    held: dict[str, list[int]] = {}
    used: dict[str, int] = {}
    for group in placed:
        for rank in plan_of(world, 1, group.index).ranks:
            held.setdefault(rank.node, []).extend((rank.gateway_port, rank.control_port, *rank.ring_ports))
            used[rank.node] = used.get(rank.node, 0) + rank.memory_bytes
    assert all(len(ports) == len(set(ports)) for ports in held.values())
    assert all(size <= 6 * GIB for size in used.values())
    assert world.condition("Placed")[:2] == ("False", "NoRoom") and world.condition("Placed")[2].startswith("group 4: ")
    assert world.md.status.replicas == 4


async def test_scaling_down_drains_and_clears(world: World, make_model: Any) -> None:
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.deploy(replicas=2)
    await world.round()
    assert {"md-0-e1-0", "md-1-e1-0"} <= set(world.pods())
    world.edit(replicas=1)
    await world.round()
    assert world.pods()["md-1-e1-0"]["metadata"]["deletionTimestamp"]
    assert not world.pods()["md-0-e1-0"]["metadata"].get("deletionTimestamp")
    assert plan_of(world, 1, 0).epoch == 1, "replicas are no reason for another placement"
    world.end_pods()
    await world.round()
    assert [group.index for group in world.md.status.groups] == [0]
    assert "ns/md-1-e1" not in world.cache[CONFIGMAPS].items


async def test_a_faulty_mac_is_avoided_while_others_will_do(world: World) -> None:
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.mac("big-2", "10.0.0.9", 64 * GIB)
    world.deploy()
    await world.round()
    world.run_pods()
    failure = {"fault": "Replan", "reason": "DeviceMissing", "message": "gone", "node": "big-1", "rank": 0, "at": world.now}
    world.say("GaveUp", 1, failure=failure)
    await world.round()
    world.later(10)
    await world.round()
    assert plan_of(world, 2).ranks[0].node == "big-2"
    failed = world.md.status.groups[0].last_failure
    assert failed is not None and failed.reason == "DeviceMissing"


async def test_an_unready_node_alone_replans_nothing(world: World) -> None:
    world.deploy()
    await world.serve()

    def unready(item: Any) -> None:
        item["status"]["conditions"][0]["status"] = "Unknown"

    world.change(NODES, "studio-2", unready)
    world.later(3600)
    await world.round()
    assert world.md.status.groups[0].state == "Ready"
    state = {
        "uid": "uid-md",
        "index": 0,
        "epoch": 1,
        "phase": "Waiting",
        "ranks": [{"rank": 0, "node": "studio-1", "phase": "Joined"}, {"rank": 1, "node": "studio-2", "phase": "Absent"}],
    }
    world.heard_of(0, 1, GroupState.model_validate(state))
    await world.round()
    assert world.md.status.groups[0].state == "BackingOff"
    assert world.condition("Degraded")[1] == "NodeNotReady"


async def test_node_gone_places_elsewhere(world: World) -> None:
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.mac("big-2", "10.0.0.9", 64 * GIB)
    world.deploy()
    await world.serve()
    assert plan_of(world, 1).ranks[0].node == "big-1"
    world.remove(NODES, "big-1")
    await world.round()
    assert world.condition("Degraded")[1] == "NodeGone"
    world.later(10)
    await world.round()
    assert plan_of(world, 2).ranks[0].node == "big-2"


async def test_unschedulable_for_long_is_placed_again_but_not_beside_a_predecessor(world: World) -> None:
    world.deploy()
    await world.round()

    def blocked(item: Any) -> None:
        item["status"] = {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "Insufficient memory",
                    "lastTransitionTime": world.now.isoformat(),
                }
            ],
        }

    world.change(PODS, "ns/md-0-e1-0", blocked)
    again = await world.round()
    assert world.md.status.groups[0].state == "Starting" and again is not None and again <= 11
    assert "Insufficient memory" in world.md.status.groups[0].message
    world.later(11)
    await world.round()
    assert world.condition("Degraded")[1] == "Unschedulable"
    world.later(10)
    await world.round()
    assert world.md.status.groups[0].epoch == 2
    for pod in ("md-0-e2-0", "md-0-e2-1"):
        world.change(PODS, f"ns/{pod}", blocked)
    world.later(100)
    await world.round()
    assert world.md.status.groups[0].epoch == 2 and world.condition("Degraded")[0] == "False", "e1 still ends there"


async def test_with_all_names_taken_the_next_epoch_says_what_is_in_its_way(world: World) -> None:
    for number in range(1, EPOCHS_TRIED + 1):
        metadata = {"name": f"md-0-e{number}-0", "namespace": "ns", "uid": f"uid-{number}"}
        world.put(PODS, {"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}})
    world.deploy()
    await world.round()
    assert world.md.status.groups[0].epoch == 1
    assert "md-0-e1-0" in world.md.status.groups[0].message


async def test_a_refused_namespace_says_the_label_command(world: World) -> None:
    world.deploy()
    text = 'pods "md-0-e1-0" is forbidden: violates PodSecurity "baseline:latest": host namespaces'
    world.refuse = lambda verb, path: ApiError(403, "Forbidden", text) if "/pods/" in path else None
    again = await world.round()
    status, reason, message = world.condition("Placed")
    assert (status, reason) == ("False", "PodSecurityForbidden")
    assert "kubectl label namespace ns pod-security.kubernetes.io/enforce=privileged" in message
    assert again is not None
    world.refuse = lambda verb, path: None
    await world.round()
    assert world.condition("Placed")[0] == "True" and len(world.pods()) == 2
    assert world.md.status.groups[0].epoch == 1


async def test_service_only_where_addresses_are_real(world: World) -> None:
    world.deploy()
    await world.round()
    service = world.cache[SERVICES].items["ns/md"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"]["thunderfleet.io/rank"] == "0"
    world.remove(SERVICES, "ns/md")
    world.mac("mini", "127.3.0.3", GIB)
    await world.round()
    assert "ns/md" not in world.cache[SERVICES].items


async def test_deleted_deployments_are_left_to_the_garbage_collector(world: World) -> None:
    world.deploy()
    await world.serve()
    writes = len(world.writes)
    world.remove(DEPLOYMENTS, "ns/md")
    assert await world.round() is None
    assert world.listened == {} and len(world.writes) == writes


async def test_who_does_not_lead_writes_nothing(world: World) -> None:
    world.deploy()
    world.is_leading = False
    with pytest.raises(NotLeading):
        await world.round()
    assert world.writes == []


async def test_running_pods_and_a_silent_rank_0_are_distinguished(world: World) -> None:
    world.deploy()
    await world.round()
    assert "waiting for the scheduler to bind pod md-0-e1-0 to studio-1" in world.condition("Ready")[2]
    world.run_pods()
    await world.round()
    assert world.condition("Ready")[2] == "group 0: Starting: rank 0 on studio-1 does not answer yet"


async def test_a_failure_is_one_event_that_says_what_comes_next(world: World) -> None:
    world.deploy()
    await world.serve()
    world.events.clear()
    failure = {"fault": "Replan", "reason": "PortDown", "message": "rdma_en2 is Down", "node": "studio-2", "at": world.now}
    world.say("GaveUp", 1, failure=failure)
    await world.round()
    (event,) = world.events
    assert event["reason"] == "PortDown"
    assert "restart 1 of 10 at 00:00:10 UTC; last failure on studio-2: PortDown: rdma_en2 is Down" in event["message"]


async def test_events_tell_what_changed_once(world: World) -> None:
    world.deploy()
    await world.serve()
    await world.round()
    assert [event["reason"] for event in world.events] == ["Placed", "Ready"]


async def test_server_port_is_honoured_and_not_given_twice(world: World) -> None:
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.deploy(replicas=2, server={"port": 8080}, nodes={"max": 1})
    await world.round()
    assert plan_of(world, 1, 0).ranks[0].gateway_port == 8080
    assert world.md.status.groups[1].state == "Pending"
    assert "port 8080" in world.condition("Placed")[2]


async def test_api_key_secret_is_mounted_not_read(world: World) -> None:
    world.deploy(server={"apiKeySecret": "keys"})
    await world.round()
    spec = world.pods()["md-0-e1-0"]["spec"]
    assert {"name": "api-key", "secret": {"secretName": "keys", "defaultMode": 0o440}} in spec["volumes"]
    assert any(mount["mountPath"] == "/etc/thunderfleet/api-key" for mount in spec["containers"][0]["volumeMounts"])


async def test_links_are_summarised_and_cleared(world: World) -> None:
    name = "studio-1.tb1--studio-2.tb1"
    await world.links.round(name)
    status = world.cache[LINKS].items[name]["status"]
    assert (status["speed"], status["generation"]) == ("80G", "TB5")
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Connected": "True",
        "Symmetric": "True",
        "RDMAUsable": "False",
    }
    writes = len(world.writes)
    await world.links.round(name)
    assert len(world.writes) == writes
    world.remove(NODES, "studio-2")
    await world.links.round(name)
    assert world.writes[-1][0] == "patch"
    assert [end["node"] for end in world.cache[LINKS].items[name]["status"]["endpoints"]] == ["studio-1"]
    world.remove(NODES, "studio-1")
    await world.links.round(name)
    assert name not in world.cache[LINKS].items


async def test_what_a_renamed_mac_said_under_its_old_name_goes_from_the_link(world: World) -> None:
    """The old Node exists until it is deleted; the switch of its port now belongs to a Mac that is Ready."""
    name = "studio-1.tb1--studio-2.tb1"

    def port(node: str, switch: str) -> None:
        told = {"ports": [{"receptacle": 1, "switchUID": switch}]}
        world.change(NODEPROFILES, node, lambda item: item["status"].update({"thunderbolt": told}))

    def ends() -> list[str]:
        return [end["node"] for end in world.cache[LINKS].items[name]["status"]["endpoints"]]

    for node, switch in (("studio-1", "0x01"), ("studio-2", "0x02")):
        port(node, switch)
    world.mac("renamed", "10.0.0.9", 64 * GIB, ready=False)
    port("renamed", "0x02")

    def ready(node: str, status: str) -> None:
        world.change(NODES, node, lambda item: item["status"]["conditions"][0].update({"status": status}))

    for node, status in (("studio-2", "Unknown"), ("renamed", "False")):
        ready(node, status)
        await world.links.round(name)
        assert ends() == ["studio-1", "studio-2"], "a Mac that is off keeps its words"
    ready("renamed", "True")
    await world.links.round(name)
    assert ends() == ["studio-1"]


async def test_the_plan_is_what_the_runner_reads(world: World) -> None:
    world.deploy(parallelism="Tensor", bootstrap={"attempts": 3}, benchmark={"every": "1h30m"})
    await world.round()
    plan = plan_of(world, 1)
    assert (plan.backend, plan.split, plan.world_size) == ("ring", "Tensor", 2)
    assert [rank.ring_address for rank in plan.ranks] == ["169.254.1.1", "169.254.1.2"]
    assert len(plan.ranks[0].ring_ports) == 6 and plan.benchmark.every_seconds == 5400
    assert plan.uid == "uid-md" and plan.group == "ns/md-0"
    annotation = world.pods()["md-0-e1-0"]["metadata"]["annotations"]["thunderfleet.io/ports"]
    assert json.loads(annotation)["gateway"] == plan.ranks[0].gateway_port


async def test_ending_since_when_it_was_asked(world: World) -> None:
    world.deploy()
    await world.serve()
    end = {"deletionTimestamp": (world.now + timedelta(seconds=40)).isoformat(), "deletionGracePeriodSeconds": 40}
    world.change(PODS, "ns/md-0-e1-1", lambda item: item["metadata"].update(end))
    await world.round()
    group = world.md.status.groups[0]
    assert group.last_failure is not None
    assert (group.last_failure.reason, group.last_failure.time) == ("PodDeleted", world.now)


async def test_a_group_is_placed_better_after_the_procedure_that_status_names(world: World) -> None:
    world.deploy()
    await world.serve()
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    world.later(60)
    await world.round()
    message = world.condition("Placed")[2]
    assert "a better placement exists for group 0: on big-1; currently" in message
    assert "run `kubectl scale md/md -n ns --replicas=0`, wait until their pods are gone, and run" in message
    assert message.endswith("`kubectl scale md/md -n ns --replicas=1`")
    world.edit(replicas=0)
    for _ in range(3):
        await world.round()
        world.end_pods()
        world.later(30)
    assert not world.pods()
    world.edit(replicas=1)
    await world.round()
    assert [rank.node for rank in world.md.status.groups[0].ranks] == ["big-1"]


async def test_a_better_placement_is_reported_in_time_and_moves_nothing(world: World) -> None:
    world.deploy()
    await world.serve()
    nodes = [rank.node for rank in world.md.status.groups[0].ranks]
    assert len(nodes) == 2
    world.later(1)
    world.mac("big-1", "10.0.0.8", 64 * GIB)
    again = await world.round()
    assert again is not None and 10 < again <= 30, "asked moments ago: asked once more later"
    world.later(again)
    await world.round()
    assert "a better placement exists for group 0: on big-1; currently TCP ring" in world.condition("Placed")[2]
    group = world.md.status.groups[0]
    assert (group.epoch, [rank.node for rank in group.ranks]) == (1, nodes)
