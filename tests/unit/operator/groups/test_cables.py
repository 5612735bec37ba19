"""Groups and the cables that they use: what ends a placement, where the group goes, and when it goes back."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_crds.exchange.mounts import PLAN_KEY
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import Backend, FaultClass
from thunderfleet_operator.decide.deployment import SETTLE_SECONDS
from thunderfleet_operator.decide.group.cables import BrokenCable, broken_cable, connections
from thunderfleet_operator.decide.group.lifecycle import CABLE_SECONDS
from thunderfleet_operator.observe.fleet.builder import FleetBuilder
from thunderfleet_operator.observe.fleet.steadiness import (
    STEADY_LIMIT_SECONDS,
    STEADY_SECONDS,
    UNRELIABLE,
    Key,
    Steadiness,
    needed_seconds,
)
from thunderfleet_operator.observe.fleet.usage import Taken
from thunderfleet_operator.placement import Cable, CableFault, End, Fleet
from thunderfleet_operator.placement.graph.hops import rdma_problem, ring_problem
from thunderfleet_operator.watch.cache import CONFIGMAPS, LINKS, NODEPROFILES, NODES, Collection

from tests.support.generated import examples
from tests.unit.operator.values import plan
from tests.unit.operator.world import GIB, World

CABLE = "studio-1.tb1--studio-2.tb1"
OUT = CableFault("PortDown", "nothing is plugged into port 1 of b")


def cable(**more: Any) -> Cable:
    ends = End("a", "169.254.0.1", "rdma_en2"), End("b", "169.254.0.2", "rdma_en3")
    return Cable(**{"name": "ab", "a": ends[0], "b": ends[1], "speed_mbps": 80_000, "rdma_problem": None, **more})


SINCE = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
RING = plan(links=("ab", "ab"))
JACCL = RING.model_copy(update={"backend": Backend.JACCL, "links": ("ab",)})


def fault(made: Plan, found: Cable) -> tuple[str, str] | None:
    broken = broken_cable(made, Fleet(cables=[found]))
    return (broken.fault.reason, broken.message) if broken is not None else None


# --- what is known to be wrong ---


def test_a_cable_that_is_out_ends_whatever_uses_it() -> None:
    text = "cable ab between a and b: nothing is plugged into port 1 of b"
    for made in (RING, JACCL):
        assert fault(made, cable()) is None
        assert fault(made, cable(fault=OUT)) == ("PortDown", text)


def test_a_fault_of_rdma_ends_no_ring() -> None:
    off = cable(rdma_fault=CableFault("RDMADisabled", "RDMA is disabled on b"), rdma_problem="RDMA is disabled on b")
    assert fault(RING, off) is None
    assert fault(JACCL, off) == ("RDMADisabled", "cable ab between a and b: RDMA is disabled on b")


def test_what_identifies_the_connections_changes_with_an_interruption_only() -> None:
    def said(made: Plan, *cables: Cable) -> str:
        return connections(made, Fleet(cables=cables))

    first = cable(connection="u 1")
    known = said(JACCL, first)
    assert known and said(JACCL, replace(first, ring_mbps=1, fault=OUT, in_use=True), cable(name="other")) == known
    assert said(JACCL, replace(first, connection="u 2")) != known, "unplugged and plugged in again"
    off = replace(first, rdma_fault=CableFault("RDMADisabled", "RDMA is disabled on b"))
    assert said(JACCL, off) != known and said(RING, off) == said(RING, first)
    assert said(JACCL) == "" and said(plan(links=("", "")), first) == ""


def test_a_ring_needs_the_addresses_that_it_was_planned_with() -> None:
    moved, bare = cable(b=End("b", "169.254.9.9")), cable(b=End("b"))
    assert fault(RING, moved) == (
        "AddressLost",
        "cable ab between a and b: the address of b at its end of the cable changed from 169.254.0.2 to 169.254.9.9",
    )
    found = fault(RING, bare)
    assert found is not None and found[0] == "NoIPv4Address"
    assert fault(JACCL, moved) is None


@pytest.mark.parametrize("broken", range(3))
def test_each_rank_of_a_ring_is_dialled_over_the_cable_from_the_rank_before(broken: int) -> None:
    """The cable of the last rank leads to rank 0. Where the rank before has another address on it does not matter."""
    names, made = "abc", plan(nodes=tuple("abc"), links=("ab", "bc", "ca"))
    cables = [
        cable(
            name=names[rank - 1] + names[rank],
            a=End(names[rank - 1], "169.254.9.9"),
            b=End(names[rank], "169.254.8.8" if rank == broken else f"169.254.0.{rank + 1}"),
        )
        for rank in range(3)
    ]
    found = broken_cable(made, Fleet(cables=cables))
    ends = (names[broken - 1], names[broken])
    text = f"the address of {ends[1]} at its end of the cable changed from 169.254.0.{broken + 1} to 169.254.8.8"
    assert found == BrokenCable("".join(ends), ends, CableFault(Reason.ADDRESS_LOST, text))


@pytest.mark.parametrize(
    "unknown",
    [
        cable(connected=False),
        cable(rdma_problem="it is not known yet whether RDMA can be used"),
        cable(b=End("b", reported=False)),
        cable(name="another"),
    ],
)
def test_what_is_not_known_is_no_fault(unknown: Cable) -> None:
    assert fault(RING, unknown) is None and fault(JACCL, unknown) is None


def test_plans_of_earlier_versions_name_no_cable() -> None:
    assert fault(plan(), cable(fault=OUT)) is None


def link(connected: str, rdma: str, rdma_status: str = "False") -> ThunderboltLink:
    status = "True" if connected in ("Connected", "Degraded") else "False"
    return ThunderboltLink.load(
        {
            "metadata": {"name": "a.tb1--b.tb1"},
            "spec": {"a": {"node": "a", "port": 1}, "b": {"node": "b", "port": 1}},
            "status": {
                "endpoints": [
                    {
                        "node": node,
                        "port": 1,
                        "address": address,
                        "rdmaDevice": "rdma_en2",
                        "seesPeer": connected != "Unplugged",
                    }
                    for node, address in (("a", "169.254.0.1"), ("b", "169.254.0.2"))
                ],
                "conditions": [
                    {"type": "Connected", "status": status, "reason": connected, "message": "connected says", **SINCE},
                    {"type": "RDMAUsable", "status": rdma_status, "reason": rdma, "message": "rdma says", **SINCE},
                ],
            },
        }
    )


@pytest.mark.parametrize(
    ("connected", "rdma", "whole", "only_rdma"),
    [
        ("Unplugged", "PortDown", "PortDown", "PortDown"),
        ("NothingPluggedIn", "PortDown", "PortDown", "PortDown"),
        ("NoCarrier", "PortDown", "PortDown", "PortDown"),
        ("Flapping", "PortDown", "Flapping", "Flapping"),
        ("Connected", "RDMADisabled", None, "RDMADisabled"),
        ("Connected", "PortDown", None, "PortDown"),
        ("Degraded", "NoIPv4Address", None, "NoIPv4Address"),
        ("Connected", "BelowThunderbolt5", None, "BelowThunderbolt5"),
        # The reports of an end whose Node is not Ready are out of date, and a command that failed tells nothing.
        ("NodeNotReady", "PortDown", None, None),
        ("NodesNotReady", "PortDown", None, None),
        ("Connected", "EndMissing", None, None),
        ("Connected", "SpeedUnknown", None, None),
        ("Connected", "CommandFailed", None, None),
        ("Connected", "NotObserved", None, None),
    ],
)
def test_which_conditions_of_a_cable_are_faults(connected: str, rdma: str, whole: str | None, only_rdma: str | None) -> None:
    """And what is a fault is never used for a new placement: there is one rule."""
    made = FleetBuilder().fleet({}, {}, {"a.tb1--b.tb1": link(connected, rdma)}, Taken()).cables["a.tb1--b.tb1"]
    assert (made.fault.reason if made.fault else None) == whole
    assert (made.rdma_fault.reason if made.rdma_fault else None) == only_rdma
    assert rdma_problem(made) is not None
    assert (ring_problem(Fleet(), made) is not None) == (whole is not None)


@pytest.mark.parametrize(("node", "reason"), [("b", None), ("c", "PortDown")])
def test_only_an_end_of_the_cable_can_say_that_it_is_plugged_in(node: str, reason: str | None) -> None:
    """Another entry, which somebody added, does not hide that the cable is out."""
    out = link("Unplugged", "PortDown").model_dump(mode="json", by_alias=True)
    out["status"]["endpoints"] = [{"node": node, "port": 1, "seesPeer": True}]
    made = FleetBuilder().fleet({}, {}, {"a.tb1--b.tb1": ThunderboltLink.load(out)}, Taken()).cables["a.tb1--b.tb1"]
    assert (made.fault.reason if made.fault else None) == reason


def test_the_ends_of_a_cable_as_their_agents_tell_of_them() -> None:
    """The agent of b reports its end. A display hides that of a, so the profile of a tells of it, with its first address."""
    cabled = ThunderboltLink.load(
        {
            "metadata": {"name": "a.tb1--b.tb1"},
            "spec": {"a": {"node": "a", "port": 1}, "b": {"node": "b", "port": 1}},
            "status": {"endpoints": [{"node": "b", "port": 1, "address": "10.0.0.2", "rdmaDevice": "rdma_en2"}]},
        }
    )
    addresses = [{"address": f"10.0.0.{n}", "prefixLength": 30, "class": "Private"} for n in (1, 9)]
    ports = {"ports": [{"receptacle": 1, "interface": "en2", "rdmaDevice": "rdma_en3"}]}
    network = {"interfaces": [{"name": "en2", "kind": "Thunderbolt", "addresses": addresses}]}

    def ends(**status: Any) -> tuple[End, End]:
        told = NodeProfile.load({"metadata": {"name": "a"}, "status": status})
        made = FleetBuilder().fleet({}, {"a": told}, {"a.tb1--b.tb1": cabled}, Taken()).cables["a.tb1--b.tb1"]
        return made.a, made.b

    b = End("b", "10.0.0.2", "rdma_en2")
    assert ends(thunderbolt=ports, network=network) == (End("a", "10.0.0.1", "rdma_en3"), b)
    # An agent that cannot read the interfaces does not say that the end has no address.
    assert ends(thunderbolt=ports) == (End("a", None, "rdma_en3", reported=False), b)
    assert ends(network=network) == (End("a", reported=False), b)


# --- how long it must have worked ---


def fleet_of(*broken: bool) -> Fleet:
    return Fleet(cables=[cable(name=f"c{i}", fault=OUT if out else None, connected=not out) for i, out in enumerate(broken)])


def unsteady(found: Steadiness) -> list[str]:
    return [name for name, one in found.marked.cables.items() if one.unsteady is not None]


def test_a_cable_counts_as_steady_after_twice_as_long_each_time() -> None:
    found, now = Steadiness().with_fleet(fleet_of(False), 0.0), 0.0
    for count in range(1, 9):
        found = found.with_fleet(fleet_of(True), now)
        assert unsteady(found) == [] and found.next_seconds is None, "it does not work at all"
        found = found.with_fleet(fleet_of(False), now := now + 5)
        needed = min(STEADY_SECONDS * 2 ** (count - 1), STEADY_LIMIT_SECONDS)
        assert unsteady(found.with_fleet(found.fleet, now + needed - 0.1)) == ["c0"]
        done = found.with_fleet(found.fleet, now + needed)
        assert unsteady(done) == [] and (done.marked is done.fleet or count >= UNRELIABLE)
        now += 6
    assert needed_seconds(99) == STEADY_LIMIT_SECONDS


def test_the_number_of_interruptions_is_told() -> None:
    found = Steadiness().with_fleet(fleet_of(False), 0.0)
    for count, times in enumerate(("once", "2 times"), 1):
        found = found.with_fleet(fleet_of(True), 10 * count).with_fleet(fleet_of(False), 10 * count + 1)
        mark = found.marked.cables["c0"].unsteady
        assert mark is not None and f"it was interrupted {times} and counts" in mark.problem


def test_a_cable_is_unreliable_whether_it_works_or_not_until_its_interruptions_are_forgotten() -> None:
    found = Steadiness().with_fleet(fleet_of(False), 0.0)
    for count in range(1, UNRELIABLE + 1):
        out = found.with_fleet(fleet_of(True), 0.0)
        found = out.with_fleet(fleet_of(False), 0.0)
        for one in (out, found):
            assert one.marked.cables["c0"].unreliable is (count >= UNRELIABLE), count
    later = found.with_fleet(found.fleet, STEADY_LIMIT_SECONDS)
    assert later.marked is later.fleet and not later.fleet.cables["c0"].unreliable


def test_interruptions_are_forgotten_after_the_limit_and_kept_until_then() -> None:
    past = Steadiness().with_fleet(fleet_of(False), 0).with_fleet(fleet_of(True), 1).with_fleet(fleet_of(False), 2)
    assert dict(past.with_fleet(past.fleet, 1801.9).known)[Key("c0", False)].count == 1
    assert past.with_fleet(past.fleet, 1802).known == ()


def test_a_cable_that_never_worked_was_not_interrupted() -> None:
    """At installation, agents report ports that come up one after the other."""
    found = Steadiness().with_fleet(fleet_of(True), 0).with_fleet(fleet_of(False), 1)
    assert unsteady(found) == []


def test_what_is_unknown_is_neither_an_interruption_nor_its_end() -> None:
    unknown = Fleet(cables=[cable(name="c0", connected=False)])
    assert Steadiness().with_fleet(fleet_of(False), 0).with_fleet(unknown, 1).known == ()
    out = Steadiness().with_fleet(fleet_of(False), 0).with_fleet(fleet_of(True), 1)
    assert dict(out.with_fleet(unknown, 2).known)[Key("c0", False)].since is None
    gone = out.with_fleet(Fleet(), 3).with_fleet(fleet_of(False), 4)
    assert unsteady(gone) == ["c0"], "its link was removed while it was out"


def test_as_a_last_resort_a_cable_is_used_one_step_earlier() -> None:
    found = Steadiness().with_fleet(fleet_of(False), 0)
    for count, needed in ((1, 0.0), (2, 30.0), (3, 60.0)):
        found = found.with_fleet(fleet_of(True), 0).with_fleet(fleet_of(False), 0)
        assert count == dict(found.known)[Key("c0", False)].count
        assert (found.next_seconds == needed) or needed == 0.0
        later = found.with_fleet(found.fleet, needed)
        assert [one.name for one in later.marked.last_resort] == ["c0"]
        assert ring_problem(later.marked, later.marked.cables["c0"]) is not None
        usable = later.marked.with_last_resort
        assert ring_problem(usable, usable.cables["c0"]) is None
        if needed:
            assert found.with_fleet(found.fleet, needed - 0.1).marked.last_resort == ()


def test_rdma_alone_may_be_unsteady() -> None:
    off = CableFault("RDMADisabled", "RDMA is disabled on b")
    found = Steadiness().with_fleet(Fleet(cables=[cable()]), 0)
    found = found.with_fleet(Fleet(cables=[cable(rdma_fault=off, rdma_problem=off.message)]), 1)
    found = found.with_fleet(Fleet(cables=[cable()]), 2)
    (one,) = found.marked.cables.values()
    assert one.unsteady is None and one.rdma_unsteady is not None
    assert rdma_problem(one) == one.rdma_unsteady.problem and ring_problem(Fleet(), one) is None


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), seconds=st.integers(60, int(STEADY_LIMIT_SECONDS)))
def test_a_group_follows_a_flapping_cable_a_logarithmic_number_of_times(seed: int, seconds: int) -> None:
    """A group that uses the cable whenever it may: it leaves it when it is out, and goes back when it is steady."""
    dice, found, on, moves, out = random.Random(seed), Steadiness().with_fleet(fleet_of(False), 0.0), True, 0, False
    now = 0.0
    while now < seconds:
        now += dice.choice((1, 5, 31, 61, 125, 241, 500))
        out = not out if dice.random() < 0.8 else out
        found = found.with_fleet(fleet_of(out), now)
        usable = not out and not unsteady(found)
        if usable != on and (usable or out):
            moves, on = moves + 1, usable
    steps = sum(1 for count in range(1, 9) if needed_seconds(count) < STEADY_LIMIT_SECONDS) + 2
    assert moves <= 2 * steps


@settings(max_examples=examples(60), deadline=None)
@given(
    faults=st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=6),
    jaccl=st.booleans(),
)
def test_a_cable_without_a_known_fault_is_never_the_cause(faults: list[tuple[bool, bool, bool]], jaccl: bool) -> None:
    made = [
        cable(
            name=f"c{i}",
            connected=connected and not out,
            fault=OUT if out else None,
            rdma_fault=OUT if off or out else None,
            rdma_problem="x" if off or out else None,
        )
        for i, (connected, out, off) in enumerate(faults)
    ]
    wanted = (JACCL if jaccl else RING).model_copy(update={"links": ("c0",) if jaccl else ("c0", "c0")})
    broken = broken_cable(wanted, Fleet(cables=made))
    _, out, off = faults[0]
    assert (broken is not None) == (out or (jaccl and off))


# --- whole rounds ---


async def served(world: World, epoch: int = 1, **more: Any) -> None:
    world.run_pods()
    world.say("Ready", epoch, **{"requests": 0, **more})
    await world.round()


async def linked(world: World) -> None:
    """The cable's conditions as the operator writes them, then a round for the group."""
    for item in list(world.cache[LINKS]):
        await world.links.round(item["metadata"]["name"])
    await world.round()


def group(world: World) -> Any:
    return world.md.status.groups[0]


def set_port(world: World, node: str, *, connected: bool) -> None:
    def change(item: Any) -> None:
        item["status"]["thunderbolt"] = {"ports": [{"receptacle": 1, "connected": connected}], "links": 0}

    world.change(NODEPROFILES, node, change)


async def pulled(world: World) -> None:
    for node in ("studio-1", "studio-2"):
        set_port(world, node, connected=False)
    world.change(LINKS, CABLE, lambda item: item["status"].update(endpoints=[]))
    await linked(world)


async def plugged(world: World) -> None:
    for node in ("studio-1", "studio-2"):
        set_port(world, node, connected=True)
    ends = [
        {"node": node, "port": 1, "address": address, "speedMbps": 80000, "seesPeer": True}
        for node, address in (("studio-1", "169.254.1.1"), ("studio-2", "169.254.1.2"))
    ]
    world.change(LINKS, CABLE, lambda item: item["status"].update(endpoints=ends))
    await linked(world)


def add_reached(world: World, node: str, entry: dict[str, str]) -> None:
    def change(item: Any) -> None:
        item["status"]["reachability"] = [*item["status"].get("reachability", []), entry]

    world.change(NODEPROFILES, node, change)


def join_lan(world: World) -> None:
    """The agents have reached each other over Ethernet."""
    for node, peer, address in (("studio-1", "studio-2", "10.0.0.2"), ("studio-2", "studio-1", "10.0.0.1")):
        entry = {"node": peer, "address": address, "state": "Reachable", "since": "2026-01-01T00:00:00Z"}
        add_reached(world, node, entry)


@pytest.fixture
async def lan(world: World) -> World:
    join_lan(world)
    await linked_links(world)
    world.deploy()
    await world.round()
    await served(world)
    assert world.condition("Ready")[0] == "True", (world.condition("Ready"), world.condition("Placed"))
    return world


async def linked_links(world: World) -> None:
    await world.links.round(CABLE)


async def test_a_pulled_cable_is_named_at_once_and_left_after_a_moment(lan: World) -> None:
    await pulled(lan)
    status, reason, message = lan.condition("Ready")
    assert (status, reason) == ("False", "PortDown"), "although rank 0 says that it serves"
    assert CABLE in message and "studio-1" in message and "studio-2" in message
    assert lan.condition("Degraded")[:2] == ("True", "PortDown")
    assert (group(lan).epoch, group(lan).restarts, group(lan).last_failure.link) == (1, 0, CABLE)
    assert group(lan).last_failure.class_ is FaultClass.REPLAN and group(lan).last_failure.node is None
    lan.later(CABLE_SECONDS - 0.1)
    await lan.round()
    assert group(lan).epoch == 1
    lan.later(0.1)
    await lan.round()
    assert (group(lan).epoch, group(lan).restarts) == (2, 0), "a cable costs no restart"
    _, reason, message = lan.condition("Ready")
    assert reason == "PortDown" and CABLE in message and "group 0: Starting" in message, "the next placement has begun"
    plan_ = Plan.model_validate_json(lan.cache[CONFIGMAPS].items["ns/md-0-e2"]["data"][PLAN_KEY])
    assert plan_.links == ("", "") and all(rank.relay for rank in plan_.ranks)
    old = [pod for name, pod in lan.pods().items() if name.startswith("md-0-e1-")]
    assert all(pod["metadata"].get("deletionTimestamp") for pod in old), "no attempt starts there again"
    lost = group(lan).lost_place
    assert (lost.nodes, lost.links, lost.transport) == (("studio-1", "studio-2"), (CABLE,), "Ring")


async def test_a_cable_that_is_back_within_the_moment_changes_nothing(lan: World) -> None:
    await pulled(lan)
    lan.later(CABLE_SECONDS - 1)
    await plugged(lan)
    assert lan.condition("Ready")[:2] == ("True", "Ready")
    lan.later(60)
    await lan.round()
    assert (group(lan).epoch, group(lan).lost_place) == (1, None)


async def test_a_cable_that_is_out_for_a_moment_again_and_again_is_left(lan: World) -> None:
    """At the pace of the damping, a group would otherwise never serve for long, and never leave."""
    for _ in range(UNRELIABLE - 1):
        await pulled(lan)
        lan.later(CABLE_SECONDS - 1)
        await lan.round()
        await plugged(lan)
        lan.later(CABLE_SECONDS)
        await lan.round()
        assert (group(lan).epoch, lan.condition("Ready")[0]) == (1, "True")
    await pulled(lan)
    assert (group(lan).epoch, group(lan).restarts, group(lan).last_failure.link) == (2, 0, CABLE), "at once"
    plan_ = Plan.model_validate_json(lan.cache[CONFIGMAPS].items["ns/md-0-e2"]["data"][PLAN_KEY])
    assert plan_.links == ("", "")


def edit_status(world: World, collection: Collection, name: str, status: dict[str, Any]) -> None:
    world.change(collection, name, lambda item: item["status"].update(status))


async def test_a_link_that_somebody_edits_moves_no_group_however_often(lan: World) -> None:
    """Until its agents report their ends again, and although the conditions say what they do not see."""
    domains = {"studio-1": f"{'a' * 8}-0000-4000-8000-000000000000", "studio-2": f"{'b' * 8}-0000-4000-8000-000000000000"}
    for node, other in (("studio-1", "studio-2"), ("studio-2", "studio-1")):
        port = {"receptacle": 1, "connected": True, "domainUUID": domains[node], "peers": [{"domainUUID": domains[other]}]}
        edit_status(lan, NODEPROFILES, node, {"thunderbolt": {"ports": [port], "links": 1}})
    await linked(lan)
    before = lan.cache[LINKS].items[CABLE]["status"]
    unplugged = [
        one | ({"status": "False", "reason": "Unplugged"} if one["type"] == "Connected" else {}) for one in before["conditions"]
    ]
    for _ in range(UNRELIABLE + 1):
        edits: tuple[dict[str, Any], ...] = ({"conditions": unplugged}, {"conditions": []}, {"endpoints": []})
        for edit in edits:
            edit_status(lan, LINKS, CABLE, edit)
            # A round for the group may come before the one for its cable.
            await lan.round()
            await linked(lan)
            lan.later(CABLE_SECONDS)
            await lan.round()
            assert (group(lan).epoch, lan.condition("Ready")[:2]) == (1, ("True", "Ready")), edit
        edit_status(lan, LINKS, CABLE, {"endpoints": before["endpoints"]})
        await linked(lan)
    assert lan.condition("Ready")[:2] == ("True", "Ready") and group(lan).last_failure is None
    await pulled(lan)
    assert group(lan).epoch == 1, "none of that was an interruption"
    lan.later(CABLE_SECONDS)
    await lan.round()
    assert group(lan).epoch == 2


async def test_with_nowhere_to_go_the_placement_ends_and_the_message_says_what_helps(world: World) -> None:
    world.deploy()
    await linked_links(world)
    await world.round()
    await served(world)
    await pulled(world)
    world.later(CABLE_SECONDS)
    await world.round()
    assert (group(world).epoch, group(world).state) == (1, "BackingOff")
    assert all(pod["metadata"].get("deletionTimestamp") for pod in world.pods().values())
    assert world.condition("Ready")[1] == "PortDown"
    status, _, message = world.condition("Placed")
    assert status == "False" and "studio-1 ↔ studio-2: the cable is unplugged" in message
    world.end_pods()
    for _ in range(3):
        world.later(600)
        await world.round()
    assert (group(world).epoch, group(world).restarts, world.pods()) == (1, 0, {})
    await plugged(world)
    assert (group(world).epoch, group(world).restarts) == (2, 0), "after its first interruption at once"
    assert group(world).lost_place is None, "it is where it was"


async def test_a_link_that_is_removed_meanwhile_stays_the_cause(world: World) -> None:
    world.deploy()
    await linked_links(world)
    await world.round()
    await served(world)
    await pulled(world)
    world.later(CABLE_SECONDS)
    await world.round()
    world.end_pods()
    world.remove(LINKS, CABLE)
    for _ in range(3):
        world.later(60)
        await world.round()
    failure = group(world).last_failure
    assert (failure.reason, failure.link, group(world).restarts) == ("PortDown", CABLE, 0)


async def test_an_agent_that_is_silent_ends_nothing(lan: World) -> None:
    for name in ("studio-1", "studio-2"):
        lan.change(NODES, name, lambda item: item["status"]["conditions"][0].update(status="False"))
    await linked(lan)
    found = find_condition(ThunderboltLink.load(lan.cache[LINKS].items[CABLE]).status.conditions, "Connected")
    assert found is not None and found.reason == "NodesNotReady"
    lan.later(60)
    await lan.round()
    assert (group(lan).epoch, group(lan).state) == (1, "Ready")


async def test_it_goes_back_when_idle_and_the_cable_is_steady(lan: World) -> None:
    await pulled(lan)
    lan.later(CABLE_SECONDS)
    await lan.round()
    lan.end_pods()
    await served(lan, 2)
    status, reason, message = lan.condition("Placed")
    assert (status, reason) == ("True", "FailbackPending")
    assert f"goes back to a better placement when cable {CABLE} can be used" in message
    await plugged(lan)
    lan.later(STEADY_SECONDS - 1)
    await served(lan, 2)
    assert "when it has worked for 30 s" in lan.condition("Placed")[2] and group(lan).epoch == 2
    lan.later(3)
    await served(lan, 2, requests=1)
    assert "when no request is running" in lan.condition("Placed")[2] and lan.drained == []
    lan.later(3)
    await served(lan, 2)
    assert lan.drained == [(0, 2)] and group(lan).state == "Draining" and group(lan).lost_place.returning
    assert "goes back to a better placement" in group(lan).message
    # The operator may restart meanwhile.
    lan.restarted()
    lan.say("Draining", 2)
    lan.later(1)
    await lan.round()
    assert (group(lan).epoch, group(lan).restarts, group(lan).lost_place) == (3, 0, None)
    plan_ = Plan.model_validate_json(lan.cache[CONFIGMAPS].items["ns/md-0-e3"]["data"][PLAN_KEY])
    assert plan_.links == (CABLE, CABLE)


async def test_a_runner_that_does_not_tell_of_its_requests_is_not_interrupted(lan: World) -> None:
    await pulled(lan)
    lan.later(CABLE_SECONDS)
    await lan.round()
    lan.end_pods()
    await plugged(lan)
    for _ in range(3):
        lan.later(100)
        await served(lan, 2, requests=None)
    assert lan.drained == [] and "when no request is running" in lan.condition("Placed")[2]


async def test_never_goes_back(lan: World) -> None:
    lan.edit(recovery={"failback": "Never"})
    await pulled(lan)
    lan.later(CABLE_SECONDS)
    await lan.round()
    lan.end_pods()
    await plugged(lan)
    for _ in range(3):
        lan.later(100)
        await served(lan, 2)
    status, reason, message = lan.condition("Placed")
    assert (group(lan).epoch, lan.drained, status, reason) == (2, [], "True", "Placed")
    assert "stays, because spec.recovery.failback is Never" in message


async def test_a_step_of_the_clock_makes_no_cable_steady_and_no_wait_long(lan: World) -> None:
    await pulled(lan)
    # Status was written by a clock that was an hour ahead.
    lan.later(-3600)
    await lan.round()
    until = group(lan).next_restart_time
    assert until is not None and (until - lan.now).total_seconds() <= CABLE_SECONDS


async def test_a_mac_that_does_not_answer_either_is_avoided(lan: World) -> None:
    lan.mac("studio-3", "10.0.0.4", 6 * GIB)
    for node, peer, address in (
        ("studio-1", "studio-3", "10.0.0.4"),
        ("studio-3", "studio-1", "10.0.0.1"),
        ("studio-2", "studio-3", "10.0.0.4"),
    ):
        entry = {"node": peer, "address": address, "state": "Reachable", "since": "2026-01-01T00:00:00Z"}
        add_reached(lan, node, entry)
    lost = group(lan).ranks[1].node
    ranks = [
        {"rank": rank.rank, "node": rank.node, "phase": "Absent" if rank.node == lost else "Joined"}
        for rank in group(lan).ranks
    ]
    lan.say("Waiting", 1, ranks=ranks)
    await pulled(lan)
    lan.later(CABLE_SECONDS)
    await lan.round()
    assert group(lan).epoch == 2 and lost not in {rank.node for rank in group(lan).ranks}


def test_marks_do_not_hide_faults() -> None:
    one = replace(cable(), fault=OUT)
    assert ring_problem(Fleet(), one) == OUT.message


# --- what is not known yet ---


def report_rdma(world: World, rdma: str, status: str) -> None:
    conditions = [
        {"type": "Connected", "status": "True", "reason": "Connected", "message": "", **SINCE},
        {"type": "RDMAUsable", "status": status, "reason": rdma, "message": f"{rdma}.", **SINCE},
    ]

    def change(item: Any) -> None:
        for end, device in zip(item["status"]["endpoints"], ("rdma_en2", "rdma_en2"), strict=True):
            end["rdmaDevice"] = device
        item["status"]["conditions"] = conditions

    world.change(LINKS, CABLE, change)


@pytest.fixture
def able(world: World) -> World:
    for name in ("studio-1", "studio-2"):
        world.change(NODEPROFILES, name, lambda item: item["status"]["runtime"].update(backends=["ring", "jaccl"]))
    join_lan(world)
    return world


async def test_a_first_placement_waits_a_moment_for_what_the_agents_are_about_to_report(able: World) -> None:
    able.deploy()
    await able.round()
    able.later(1.1)
    recheck = await able.round()
    assert group(able).state == "Pending" and able.pods() == {}
    assert group(able).message == f"it is not known yet whether cable {CABLE} carries RDMA"
    assert recheck is not None and recheck <= SETTLE_SECONDS
    report_rdma(able, "Usable", "True")
    await able.round()
    assert (group(able).epoch, group(able).transport) == (1, "JACCL")


@pytest.mark.parametrize(("reason", "waits"), [("EndMissing", True), ("RDMADisabled", False)])
async def test_it_waits_for_what_is_unknown_and_not_for_ever(able: World, reason: str, waits: bool) -> None:
    report_rdma(able, reason, "False")
    able.deploy()
    await able.round()
    able.later(1.1)
    await able.round()
    assert (group(able).state == "Pending") == waits
    able.later(SETTLE_SECONDS)
    await able.round()
    assert (group(able).epoch, group(able).transport) == (1, "Ring")


@pytest.mark.parametrize("spec", [{"transport": "Ring"}, {"nodes": {"min": 1, "max": 1}}])
async def test_a_placement_that_could_not_be_better_does_not_wait(able: World, spec: dict[str, Any]) -> None:
    if "nodes" in spec:
        able.mac("studio-1", "10.0.0.1", 60 * GIB)
    able.deploy(**spec)
    await able.round()
    assert group(able).epoch == 1


async def test_a_group_that_leaves_a_cable_does_not_wait(able: World) -> None:
    report_rdma(able, "Usable", "True")
    able.deploy()
    await able.round()
    await served(able)
    report_rdma(able, "RDMADisabled", "False")
    await able.round()
    assert able.condition("Ready")[:2] == ("False", "RDMADisabled")
    able.later(CABLE_SECONDS)
    report_rdma(able, "EndMissing", "False")
    await able.round()
    able.later(CABLE_SECONDS)
    report_rdma(able, "RDMADisabled", "False")
    await able.round()
    able.later(CABLE_SECONDS)
    await able.round()
    assert (group(able).epoch, group(able).transport) == (2, "Ring")


# --- a place over RDMA that is lost, and regained ---


def say(world: World, connected: str, rdma: str) -> None:
    """The reasons of the cable's conditions."""
    item = link(connected, rdma, "True" if rdma == "Usable" else "False").model_dump(mode="json", by_alias=True)

    def change(known: Any) -> None:
        known["status"]["conditions"] = item["status"]["conditions"]
        for end in known["status"]["endpoints"]:
            end["seesPeer"] = connected != "Unplugged"

    world.change(LINKS, CABLE, change)


@pytest.fixture
async def over_rdma(able: World) -> World:
    """A group that has lost its cable with RDMA and serves over the LAN."""
    report_rdma(able, "Usable", "True")
    able.deploy()
    await able.round()
    await served(able)
    assert group(able).transport == "JACCL"
    say(able, "Unplugged", "PortDown")
    await able.round()
    able.later(CABLE_SECONDS)
    await able.round()
    assert links_of(able) == ("", "") and group(able).lost_place.transport == "JACCL"
    able.end_pods()
    await served(able, 2)
    return able


def links_of(world: World) -> tuple[str, ...]:
    name = f"ns/md-0-e{group(world).epoch}"
    return Plan.model_validate_json(world.cache[CONFIGMAPS].items[name]["data"][PLAN_KEY]).links


async def served_for(world: World, seconds: float) -> None:
    """Rounds while the newest placement serves, which ends as soon as it is asked to drain."""
    for _ in range(int(seconds)):
        world.later(1)
        epoch = group(world).epoch
        if (0, epoch) in world.drained:
            world.say("Draining", epoch)
            await world.round()
            world.end_pods()
        else:
            await served(world, epoch)


async def test_it_waits_for_rdma_that_is_steady_a_moment_after_tcp(over_rdma: World) -> None:
    say(over_rdma, "Connected", "EndMissing")
    await served_for(over_rdma, 10)
    say(over_rdma, "Connected", "Usable")
    await served_for(over_rdma, STEADY_SECONDS - 1)
    assert group(over_rdma).epoch == 2, "TCP over the cable is steady and better, but RDMA will be soon"
    assert "when it has worked for 30 s" in over_rdma.condition("Placed")[2]
    await served_for(over_rdma, 6)
    assert (group(over_rdma).epoch, group(over_rdma).transport, group(over_rdma).lost_place) == (3, "JACCL", None)


@pytest.mark.parametrize("reason", ["EndMissing", "RDMADisabled"])
async def test_a_place_over_tcp_does_not_replace_one_over_rdma(over_rdma: World, reason: str) -> None:
    """RDMA may stay away for long. The group uses the cable as it is, and RDMA when that is back."""
    say(over_rdma, "Connected", reason)
    await served_for(over_rdma, STEADY_SECONDS + 8)
    assert (group(over_rdma).epoch, group(over_rdma).transport, links_of(over_rdma)) == (3, "Ring", (CABLE, CABLE))
    assert group(over_rdma).lost_place is not None and not group(over_rdma).lost_place.returning
    assert over_rdma.condition("Placed")[1] == "FailbackPending"
    await served_for(over_rdma, 60)
    assert group(over_rdma).epoch == 3, "nothing is better yet"
    say(over_rdma, "Connected", "Usable")
    await served_for(over_rdma, STEADY_SECONDS + 8)
    assert (group(over_rdma).epoch, group(over_rdma).transport, group(over_rdma).lost_place) == (4, "JACCL", None)
    assert group(over_rdma).restarts == 0


@pytest.mark.parametrize("moved", ["address", "name"])
async def test_a_mac_with_a_new_address_or_name_is_gone_back_to(able: World, moved: str) -> None:
    """While little is known of it, the group is placed as well as can be."""
    report_rdma(able, "Usable", "True")
    able.deploy(recovery={"backoffSeconds": 1})
    await able.round()
    await served(able)
    if moved == "address":
        able.change(NODES, "studio-2", lambda item: item["status"]["addresses"][0].update(address="10.0.0.9"))
    else:
        able.remove(NODES, "studio-2")
        able.mac("studio-9", "10.0.0.9", 6 * GIB)
        for node, peer, address in (("studio-1", "studio-9", "10.0.0.9"), ("studio-9", "studio-1", "10.0.0.1")):
            entry = {"node": peer, "address": address, "state": "Reachable", "since": "2026-01-01T00:00:00Z"}
            add_reached(able, node, entry)
    report_rdma(able, "EndMissing", "False")
    for _ in range(3):
        able.later(2)
        await able.round()
    assert (group(able).epoch, group(able).transport, group(able).lost_place.transport) == (2, "Ring", "JACCL")
