"""A cable that corrupted data: the group is placed without it, until it is plugged in again or a day has passed."""

from datetime import timedelta
from typing import Any

import pytest
from thunderfleet_crds.exchange.mounts import PLAN_KEY
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import MAX_AVOIDED_LINKS, AvoidedLink, Failure
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import Backend, FaultClass, GroupPhase
from thunderfleet_operator.decide.group.avoided import FORGOTTEN_SECONDS, LAST_RESORT_SECONDS, avoided, without
from thunderfleet_operator.decide.group.cables import cable_between
from thunderfleet_operator.decide.group.trouble import trouble
from thunderfleet_operator.observe.fleet.steadiness import STEADY_SECONDS
from thunderfleet_operator.placement import Cable, Fleet, Unsteady
from thunderfleet_operator.placement.graph.hops import rdma_problem
from thunderfleet_operator.watch.cache import CONFIGMAPS, LINKS

from tests.unit.operator.groups.test_cables import CABLE, cable, group, join_lan, linked_links, plugged, pulled, served
from tests.unit.operator.values import NODES, NOW, plan, report, view
from tests.unit.operator.world import GIB, World

SAID = "data was corrupted on the way from rank 1 (b) to rank 0 (a): message of 4096 bytes, round 1: value 7 is 1 instead of 2"
DAY = timedelta(seconds=FORGOTTEN_SECONDS)


def told(**more: Any) -> dict[str, Any]:
    at = {"rank": 0, "peer": 1, "node": "a", "at": NOW}
    return {"fault": "Replan", "reason": "LinkCorrupts", "message": SAID, **at, **more}


def failure(link: str | None = "ab", reason: str = "LinkCorrupts") -> Failure:
    return Failure(class_=FaultClass.REPLAN, reason=reason, link=link, time=NOW)


def fleet(*cables: Cable) -> Fleet:
    return Fleet(cables=cables or [cable(connection="u 1")])


# --- which cable ---


def test_the_cable_between_two_ranks() -> None:
    ring = plan(nodes=("a", "b", "c"), links=("ab", "", "ca"))
    assert [cable_between(ring, *pair) for pair in ((0, 1), (1, 0), (1, 2), (0, 2))] == ["ab", "ab", None, "ca"]
    mesh = ring.model_copy(update={"backend": Backend.JACCL, "links": ("ab", "ac", "bc")})
    assert [cable_between(mesh, *pair) for pair in ((1, 0), (2, 0), (2, 1))] == ["ab", "ac", "bc"]
    assert cable_between(plan(), 0, 1) is None, "a plan that names no cables"


@pytest.mark.parametrize(
    ("more", "link"), [({}, "ab"), ({"peer": None}, None), ({"rank": None}, None), ({"reason": "Stalled"}, None)]
)
def test_what_rank_0_reports_names_the_cable_of_the_plan(more: dict[str, Any], link: str | None) -> None:
    found = trouble(view(made=plan(links=("ab", "ab"))), report(GroupPhase.GAVE_UP, failure=told(**more)), NODES, Fleet(), NOW)
    assert found.failure is not None and found.failure.link == link
    assert found.failure.message == (f"cable ab: {SAID}" if link is not None else SAID)


def test_a_hop_over_the_lan_has_no_cable() -> None:
    found = trouble(view(made=plan(links=("", ""))), report(GroupPhase.GAVE_UP, failure=told()), NODES, Fleet(), NOW)
    assert found.failure is not None and (found.failure.link, found.failure.message) == (None, SAID)


# --- for how long ---


def test_a_cable_is_avoided_until_it_is_plugged_in_again_or_a_day_has_passed() -> None:
    (one,) = known = avoided((), failure(), 3, fleet(), NOW)
    assert one == AvoidedLink(name="ab", epoch=3, connection="u 1", since=NOW)
    last = NOW + DAY - timedelta(seconds=1)
    assert avoided(known, None, 4, fleet(), last) == known
    assert avoided(known, None, 4, Fleet(), last) == known, "a link that is gone may come back as it was"
    assert avoided(known, None, 4, fleet(), NOW + DAY) == ()
    assert avoided(known, None, 4, fleet(), NOW - DAY) == (), "the clock was wrong"
    assert avoided(known, None, 4, fleet(cable(connection="u 2")), NOW) == ()


def test_the_same_failure_is_counted_once_and_a_new_one_again() -> None:
    later = NOW + timedelta(seconds=60)
    known = avoided((), failure(), 3, fleet(), NOW)
    assert avoided(known, failure(), 3, fleet(), later) == known, "the same placement, seen again"
    assert [link.since for link in avoided(known, failure(), 4, fleet(), later)] == [later]
    assert avoided((), failure(reason="PortDown"), 3, fleet(), NOW) == avoided((), failure(None), 3, fleet(), NOW) == ()


def test_the_latest_cables_are_kept() -> None:
    known: tuple[AvoidedLink, ...] = ()
    for number in range(MAX_AVOIDED_LINKS + 3):
        known = avoided(known, failure(f"c{number:02}"), number + 1, Fleet(), NOW + timedelta(seconds=number))
    assert [link.name for link in known] == [f"c{number:02}" for number in range(3, MAX_AVOIDED_LINKS + 3)]


def test_nothing_is_placed_on_it_and_after_a_while_only_where_nothing_else_will_do() -> None:
    known = avoided((), failure(), 3, fleet(), NOW)

    def marked(seconds: float, one: Cable) -> Fleet:
        return without(fleet(one), known, NOW + timedelta(seconds=seconds))

    plain = cable(connection="u 1")
    early, late = marked(LAST_RESORT_SECONDS - 1, plain), marked(LAST_RESORT_SECONDS, plain)
    for found in (early, late):
        problem = rdma_problem(found.cables["ab"])
        assert problem is not None
        assert problem.startswith("cable ab corrupted data at 2026-01-01 00:00 UTC: replace it, or unplug it")
    assert early.last_resort == () and [one.name for one in late.last_resort] == ["ab"]
    flapping = cable(connection="u 1", unsteady=Unsteady("it was interrupted", last_resort=False))
    assert marked(LAST_RESORT_SECONDS, flapping).last_resort == ()
    assert without(Fleet(), known, NOW).cables == {}
    other = fleet(cable(connection="u 2"))
    assert without(other, known, NOW) is other is without(other, (), NOW)


# --- whole rounds ---


async def corrupts(world: World, epoch: int) -> None:
    """Rank 0 reports that its group's check has failed."""
    world.run_pods()
    first = group(world).ranks[0].node
    world.say("GaveUp", epoch, failure=told(node=first, at=world.now), verified=None)
    await world.round()


async def test_the_cable_is_named_as_soon_as_the_failure_is_known(placed: World) -> None:
    placed.run_pods()
    placed.say("Preparing", 1, failure=told(node=group(placed).ranks[0].node))
    await placed.round()
    assert (group(placed).epoch, group(placed).last_failure.link) == (1, CABLE)


def links_of(world: World, epoch: int, index: int = 0) -> tuple[str, ...]:
    return Plan.model_validate_json(world.cache[CONFIGMAPS].items[f"ns/md-{index}-e{epoch}"]["data"][PLAN_KEY]).links


@pytest.fixture
async def placed(world: World) -> World:
    await linked_links(world)
    world.deploy()
    await world.round()
    assert links_of(world, 1) == (CABLE, CABLE)
    return world


async def test_a_group_goes_over_the_lan_and_back_when_the_cable_was_plugged_in_again(placed: World) -> None:
    join_lan(placed)
    await corrupts(placed, 1)
    assert (group(placed).epoch, group(placed).restarts, links_of(placed, 2)) == (2, 0, ("", "")), "at once, and no restart"
    assert [(link.name, link.epoch) for link in group(placed).avoided_links] == [(CABLE, 1)]
    status, reason, message = placed.condition("Ready")
    assert (status, reason) == ("False", "LinkCorrupts") and f"cable {CABLE}: {SAID}" in message
    placed.end_pods()
    await served(placed, 2)
    status, reason, message = placed.condition("Placed")
    assert (status, reason) == ("True", "FailbackPending")
    assert f"goes back to a better placement when cable {CABLE} can be used: cable {CABLE} corrupted data at " in message
    placed.restarted()
    for _ in range(3):
        placed.later(LAST_RESORT_SECONDS)
        await served(placed, 2)
    assert (group(placed).epoch, placed.drained) == (2, []), "it has a place, so it does not try the cable"
    await pulled(placed)
    assert group(placed).avoided_links == ()
    await plugged(placed)
    for _ in range(3):
        placed.later(STEADY_SECONDS)
        await served(placed, 2)
    assert set(placed.drained) == {(0, 2)}


async def test_after_a_day_the_cable_is_used_again_although_nothing_else_has_changed(placed: World) -> None:
    join_lan(placed)
    await corrupts(placed, 1)
    placed.end_pods()
    await served(placed, 2)
    placed.later(FORGOTTEN_SECONDS / 2)
    await served(placed, 2)
    left = await placed.round()
    assert left is not None and left == pytest.approx(FORGOTTEN_SECONDS / 2, abs=1), "nothing else wakes it"
    placed.later(left)
    await served(placed, 2)
    await placed.round()
    assert group(placed).avoided_links == () and set(placed.drained) == {(0, 2)}


async def test_with_no_other_place_it_says_what_helps_and_tries_again_after_a_while(placed: World) -> None:
    await corrupts(placed, 1)
    assert (group(placed).epoch, group(placed).state) == (1, "BackingOff")
    assert all(pod["metadata"].get("deletionTimestamp") for pod in placed.pods().values())
    status, _, message = placed.condition("Placed")
    assert status == "False" and f"studio-1 ↔ studio-2: cable {CABLE} corrupted data at " in message
    assert "replace it, or unplug it, wait ten seconds and plug it in again" in message
    assert placed.condition("Ready")[1] == placed.condition("Degraded")[1] == "LinkCorrupts"
    placed.end_pods()
    placed.restarted()
    placed.later(LAST_RESORT_SECONDS - 1)
    await placed.round()
    assert group(placed).epoch == 1
    placed.later(1)
    await placed.round()
    assert (group(placed).epoch, group(placed).restarts, links_of(placed, 2)) == (2, 0, (CABLE, CABLE))
    since = group(placed).avoided_links[0].since
    await corrupts(placed, 2)
    (again,) = group(placed).avoided_links
    assert (group(placed).epoch, again.epoch) == (2, 2) and again.since > since, "another five minutes"


async def test_a_cable_that_was_plugged_in_again_is_used_at_once(placed: World) -> None:
    await corrupts(placed, 1)
    placed.end_pods()

    def reseated(item: Any) -> None:
        connected = next(c for c in item["status"]["conditions"] if c["type"] == "Connected")
        connected["lastTransitionTime"] = placed.now.isoformat()

    placed.later(20)
    placed.change(LINKS, CABLE, reseated)
    await placed.round()
    assert (group(placed).epoch, links_of(placed, 2)) == (2, (CABLE, CABLE))
    await served(placed, 2)
    assert group(placed).avoided_links == () and placed.condition("Ready")[0] == "True"


async def test_another_group_of_the_deployment_avoids_it_too(world: World) -> None:
    for node, address in (("studio-1", "10.0.0.1"), ("studio-2", "10.0.0.2")):
        world.mac(node, address, 12 * GIB)
    join_lan(world)
    await linked_links(world)
    world.deploy(nodes={"min": 2})
    await world.round()
    await corrupts(world, 1)
    world.end_pods()
    await served(world, 2)
    world.edit(replicas=2)
    await world.round()
    other = world.md.status.groups[1]
    assert len(other.ranks) == 2 and other.avoided_links == (), world.condition("Placed")
    assert links_of(world, other.epoch, 1) == ("", "")


def test_the_reason_is_one_of_ready_and_verified() -> None:
    assert {"Ready", "Verified", "lastFailure"} <= set(Reason.LINK_CORRUPTS.where)
