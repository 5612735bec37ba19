"""Placement inside the operator: from objects to the fleet, from the answer to plans, status and Events."""

import copy
from typing import Any

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.vocabulary import Backend
from thunderfleet_operator.decide.placing import port_aware_placement
from thunderfleet_operator.decide.placing.account import Account
from thunderfleet_operator.decide.placing.ports import PortRange, PortSettings
from thunderfleet_operator.observe.fleet.usage import Taken
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.pods import RankPorts
from thunderfleet_operator.placement import Fleet, Placement, Unplaceable
from thunderfleet_operator.placement.questions import where
from thunderfleet_operator.watch.cache import CONFIGMAPS, LINKS, NODEPROFILES, NODES, PODS

from tests.unit.operator.world import World

GIB = 2**30
WHEN = "2026-01-01T00:00:00Z"


def fleet_of(world: World) -> Fleet:
    return Index(world.cache, lambda: world.keys).fleet


def plan_of(world: World, epoch: int = 1) -> Plan:
    return Plan.model_validate_json(world.cache[CONFIGMAPS].items[f"ns/md-0-e{epoch}"]["data"]["plan.json"])


def rdma(world: World, *nodes: str, cable: str | None = None) -> None:
    """Their MLX supports JACCL, and the cable is usable for RDMA."""
    for node in nodes:
        world.change(NODEPROFILES, node, lambda item: item["status"]["runtime"].update(backends=["ring", "jaccl"]))
    if cable is not None:

        def usable(item: dict[str, Any]) -> None:
            for number, end in enumerate(item["status"]["endpoints"]):
                end["rdmaDevice"] = f"rdma_en{number + 2}"
            told = {"type": "RDMAUsable", "status": "True", "reason": "Usable", "lastTransitionTime": WHEN}
            item["status"]["conditions"] = [told]

        world.change(LINKS, cable, usable)


def measured(sender: str, receiver: str, transport: str, mbps: int) -> dict[str, Any]:
    return {"from": sender, "to": receiver, "transport": transport, "throughputMbps": mbps, "measuredAt": WHEN}


# --- from objects to the fleet ---


def test_a_cable_is_as_fast_as_it_was_measured_the_worse_way(world: World) -> None:
    name = "studio-1.tb1--studio-2.tb1"
    assert (fleet_of(world).cables[name].ring_mbps, fleet_of(world).cables[name].rdma_mbps) == (None, None)
    both = [measured("studio-1", "studio-2", "Socket", 30_000), measured("studio-2", "studio-1", "Socket", 9_000)]
    world.change(LINKS, name, lambda item: item["status"].update(measurements=both))
    assert (fleet_of(world).cables[name].ring_mbps, fleet_of(world).cables[name].rdma_mbps) == (9_000, None)
    more = [*both, measured("studio-1", "studio-2", "RDMA", 60_000), measured("studio-1", "studio-2", "Ring", 20_000)]
    world.change(LINKS, name, lambda item: item["status"].update(measurements=more))
    found = fleet_of(world).cables[name]
    assert (found.ring_mbps, found.rdma_mbps, found.speed_mbps) == (20_000, 60_000, 80_000), "a ring's own figure comes first"


def test_macs_have_the_measured_rates_of_memory_and_dials(world: World) -> None:
    def tell(item: dict[str, Any]) -> None:
        item["status"]["benchmarks"] = {"memory": {"megabytesPerSecond": 700_000, "measuredAt": WHEN}}
        reached = {"state": "Reachable", "since": WHEN}
        item["status"]["reachability"] = [
            {"node": "mini", "address": "10.0.0.3", **reached, "sentMbps": 940, "receivedMbps": 400},
            {"node": "studio-2", "address": "10.0.0.2", **reached},
            {"node": "studio-2", "address": "10.9.9.9", "state": "Suspect", "since": WHEN},
            {"node": "studio-2", "address": "10.9.9.8", "state": "Unreachable", "since": WHEN},
        ]

    world.change(NODEPROFILES, "studio-1", tell)
    mac = fleet_of(world).macs["studio-1"]
    assert mac.memory_bandwidth == 700_000 and fleet_of(world).macs["mini"].memory_bandwidth == 0
    assert mac.dials is not None
    assert list(mac.dials.rows) == [("mini", "10.0.0.3", 400), ("studio-2", "10.0.0.2", 0)]
    assert mac.dials.failed == {("studio-2", "10.9.9.8")}, "of a suspect address neither is known"


def test_an_end_that_says_nothing_is_taken_from_its_profile(world: World) -> None:
    name = "studio-1.tb1--studio-2.tb1"
    world.change(LINKS, name, lambda item: item["status"]["endpoints"].pop())
    assert fleet_of(world).cables[name].b.address is None

    def port(item: dict[str, Any]) -> None:
        item["status"]["thunderbolt"] = {
            "ports": [{"receptacle": 1, "interface": "en2", "rdmaDevice": "rdma_en2", "speedMbps": 40_000}]
        }
        item["status"]["rdma"] = {"devices": [{"name": "rdma_en2", "state": "Active"}]}
        address = {"address": "169.254.7.7", "prefixLength": 16, "class": "LinkLocal"}
        item["status"]["network"] = {"interfaces": [{"name": "en2", "kind": "Thunderbolt", "addresses": [address]}]}

    index = Index(world.cache, lambda: world.keys)
    before = index.fleet
    world.change(NODEPROFILES, "studio-2", port)
    after = index.fleet
    assert before.cables[name].b.address is None
    cable = after.cables[name]
    assert (cable.b.address, cable.b.device, cable.speed_mbps, cable.connected) == ("169.254.7.7", "rdma_en2", 40_000, True)


def test_the_step_of_a_long_context_is_part_of_the_facts(world: World, make_model: Any) -> None:
    model = {**make_model(), "prefillWorkspaceBytes": 7, "prefillWorkspaceBytesPerToken": 3}
    world.mac("big", "10.0.0.9", 64 * GIB, model=model)
    facts = fleet_of(world).macs["big"].models[0]
    assert (facts.prefill_bytes, facts.prefill_bytes_per_token) == (7, 3)


def test_the_fleet_is_the_same_value_until_something_changes(world: World) -> None:
    index = Index(world.cache, lambda: world.keys)

    def now() -> Fleet:
        return index.fleet

    first = now()
    assert now() is first and index.taken is index.taken
    # A heartbeat changes the object, but nothing that placements use.
    world.change(NODES, "mini", lambda item: item["status"].update(heartbeat="now"))
    assert now() is first
    world.change(NODES, "mini", lambda item: item["spec"].update(unschedulable=True))
    second = now()
    assert second is not first and not second.macs["mini"].schedulable and second.macs["studio-1"] is first.macs["studio-1"]
    world.remove(LINKS, "studio-1.tb1--studio-2.tb1")
    assert not now().cables and now().parts(lan=False) != second.parts(lan=False)
    world.remove(NODES, "mini")
    assert "mini" not in now().macs


async def test_what_a_group_uses_is_kept_account_of(world: World) -> None:
    index = Index(world.cache, lambda: world.keys)
    before = index.fleet
    world.deploy()
    await world.round()
    after = index.fleet
    need = plan_of(world).ranks[0].memory_bytes
    assert before.macs["studio-1"].free_bytes - after.macs["studio-1"].free_bytes == need
    assert after.macs["studio-1"].in_use and after.cables["studio-1.tb1--studio-2.tb1"].in_use
    own, _ = Account(after, index.usage, index.taken).without(("uid-md", 0))
    assert own.macs == before.macs and own.cables == before.cables
    for pod in list(world.pods()):
        world.remove(PODS, f"ns/{pod}")
    assert index.fleet.macs == after.macs, "its plan holds the room"


# --- from the answer to objects ---


async def test_a_jaccl_plan_names_devices_addresses_and_shares(world: World) -> None:
    rdma(world, "studio-1", "studio-2", cable="studio-1.tb1--studio-2.tb1")
    world.deploy()
    await world.round()
    plan = plan_of(world)
    assert (plan.backend, plan.jaccl_ring, plan.split.value) == (Backend.JACCL, False, "Tensor")
    assert [rank.devices for rank in plan.ranks] == [(None, "rdma_en2"), ("rdma_en3", None)]
    assert [rank.coordinator for rank in plan.ranks] == [None, "10.0.0.1"]
    assert all(rank.ring_address is None and rank.layers is None for rank in plan.ranks)
    group = world.md.status.groups[0]
    assert (group.transport, group.parallelism, [rank.shard for rank in group.ranks]) == ("JACCL", "Tensor", ["1/2", "2/2"])
    assert "slowest hop 52 Gb/s (expected; hops not measured: 1)" in group.reason
    assert world.condition("Placed")[1] == "Placed" and "not measured" in world.condition("Placed")[2]
    used = Index(world.cache, lambda: world.keys).taken
    assert used.queue_pairs == {("studio-1", "rdma_en2"): 1, ("studio-2", "rdma_en3"): 1}


async def test_status_says_that_a_better_place_exists_and_the_group_stays(world: World) -> None:
    world.deploy()
    await world.serve()
    assert "a better placement exists" not in world.condition("Placed")[2]
    rdma(world, "studio-1", "studio-2", cable="studio-1.tb1--studio-2.tb1")
    world.later(60)
    await world.round()
    message = world.condition("Placed")[2]
    assert "a better placement exists for group 0: on studio-1, studio-2; currently" in message
    assert "currently TCP ring instead of JACCL mesh" in message
    assert world.md.status.groups[0].epoch == 1
    assert "run `kubectl scale md/md -n ns --replicas=0`, wait until their pods are gone" in message
    world.change(LINKS, "studio-1.tb1--studio-2.tb1", lambda item: item["status"].update(conditions=[]))
    world.later(60)
    await world.round()
    assert "a better placement exists" not in world.condition("Placed")[2]


async def test_a_move_is_reported_with_its_reason(world: World) -> None:
    world.mac("studio-3", "10.0.0.4", 6 * GIB)
    world.cable("studio-2", "studio-3", "169.254.2.1", "169.254.2.2")
    world.deploy()
    await world.serve()
    world.change(NODES, "studio-1", lambda item: item["spec"].update(unschedulable=True))
    world.remove(PODS, "ns/md-0-e1-0")
    await world.round()
    world.later(11)
    await world.round()
    assert sorted(rank.node for rank in world.md.status.groups[0].ranks) == ["studio-2", "studio-3"]
    moved = next(event for event in world.events if event["reason"] == "Moved")
    assert "from studio-1, studio-2 to studio-2, studio-3" in moved["message"]
    assert "PodGone" in moved["message"] and "TCP ring" in moved["message"]
    assert [event["reason"] for event in world.events].count("Placed") == 1


async def test_status_lists_what_is_missing_on_every_mac(world: World, make_model: Any) -> None:
    other = {**make_model(path="/models/org/other"), "repository": "org/other"}
    for number in range(9):
        world.mac(f"small-{number}", f"10.0.1.{number}", GIB, model=other)
    world.change(NODES, "mini", lambda item: item["spec"].update(unschedulable=True))
    world.remove(LINKS, "studio-1.tb1--studio-2.tb1")
    world.deploy(nodes={"min": 2})
    await world.round()
    entries = world.md.status.unplaceable
    lacks = {node: entry.message for entry in entries if entry.transport is None for node in entry.nodes}
    assert set(lacks) == set(fleet_of(world).macs)
    assert "is cordoned" in lacks["mini"] and "copy it to org/tiny below a folder" in lacks["small-3"]
    assert any(entry.transport is not None for entry in entries), "and the near misses"
    assert len([entry for entry in entries if entry.transport is None]) < len(lacks), "what several lack stands there once"


# --- ports ---


def taken_ports(world: World, **ports: range) -> Taken:
    used = Index(world.cache, lambda: world.keys).taken
    for node, numbers in ports.items():
        used = used.with_ports(node.replace("_", "-"), frozenset(numbers))
    return used


def choose(
    fleet: Fleet, deployment: ModelDeployment, taken: Taken, settings: PortSettings, **more: Any
) -> tuple[Placement, tuple[RankPorts, ...]] | Unplaceable:
    """What the planner answers for a group, with its ports."""
    found = where(port_aware_placement.question(fleet, deployment, taken, settings, **more))
    if isinstance(found, Unplaceable):
        return found
    return found, port_aware_placement.ports(found, deployment, taken, settings)


async def test_a_mac_without_ring_ports_still_takes_ranks_that_need_none(world: World) -> None:
    world.deploy()
    settings = PortSettings(PortRange(20000, 20003), PortRange(21000, 21015))
    used = taken_ports(world, studio_1=range(21000, 21001))
    found = choose(fleet_of(world), world.md, used, settings)
    assert isinstance(found, Unplaceable) and "has no block of 16 free ports in 21000-21015" in found.message
    world.mac("studio-3", "10.0.0.4", 6 * GIB)
    world.cable("studio-2", "studio-3", "169.254.2.1", "169.254.2.2")
    found = choose(fleet_of(world), world.md, used, settings)
    assert not isinstance(found, Unplaceable) and found[0].nodes == ("studio-2", "studio-3") and found[0].proven
    rdma(world, "studio-1", "studio-2", cable="studio-1.tb1--studio-2.tb1")
    found = choose(fleet_of(world), world.md, used, settings)
    assert not isinstance(found, Unplaceable) and isinstance(found[0], Placement)
    assert found[0].nodes == ("studio-2", "studio-1"), "over JACCL rank 0 alone needs them"
    assert found[0].transport.value == "JACCL"
    full = taken_ports(world, studio_1=range(20000, 20003))
    found = choose(fleet_of(world), world.md, full, settings)
    assert not isinstance(found, Unplaceable) and found[0].nodes == ("studio-2", "studio-3")
    avoided = choose(fleet_of(world), world.md, full, settings, avoid={"studio-3": "has failed"})
    assert not isinstance(avoided, Unplaceable) and avoided[0].nodes == ("studio-2", "studio-3"), "when no others will do"


def test_plans_are_equal_whatever_was_asked_before(world: World) -> None:
    world.deploy()
    used = Index(world.cache, lambda: world.keys).taken
    fleet = fleet_of(world)
    first = choose(fleet, world.md, used, PortSettings())
    assert first == choose(copy.copy(fleet), world.md, used, PortSettings())
