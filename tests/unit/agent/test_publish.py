"""What the agent writes, in which order, and what it does not write."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from thunderfleet_agent.derive.links import LinkReport, PeerPort, link_reports
from thunderfleet_agent.derive.profile import Profile, profile
from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.parsers import thunderbolt
from thunderfleet_agent.publish.publisher import LINKS, MESSAGE_SECONDS, PROFILES, Publisher, covers, field_manager
from thunderfleet_crds.kinds.thunderboltlink import Endpoint
from thunderfleet_lib.kube import ApiError
from thunderfleet_lib.macnet import parse as network

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROFILE = f"{PROFILES}/studio-1"
LINK = f"{LINKS}/studio-1.tb1--studio-2.tb3"


def made(shapes: Any, **changes: Any) -> Profile:
    facts = Facts(
        thunderbolt=thunderbolt.parse(shapes.tree),
        hardware_ports=network.parse_hardware_ports(shapes.ports),
        interfaces=network.parse_ifconfig(shapes.ifconfig),
        **changes,
    )
    return profile(facts, NOW)


def ends(found: Profile, shapes: Any) -> tuple[LinkReport, ...]:
    return link_reports("studio-1", found.status, {shapes.theirs.lower(): PeerPort("studio-2", 3)})


@pytest.fixture
def publisher(kube: Any) -> Publisher:
    return Publisher(kube, "studio-1")


def test_the_field_manager_fits_whatever_the_node_is_called() -> None:
    assert field_manager("studio-1") != field_manager("studio-2")
    assert len(field_manager("n" * 253).encode()) == len("thunderfleet-agent-") + 10


async def test_main_resource_then_status_and_then_nothing(kube: Any, publisher: Publisher, shapes: Any) -> None:
    await publisher.look()
    assert await publisher.apply_profile(made(shapes)) and await publisher.apply_links(ends(made(shapes), shapes)) == 1
    assert kube.sent == [("PATCH", path) for path in (PROFILE, f"{PROFILE}/status", LINK, f"{LINK}/status")]
    written = kube.objects[PROFILE]
    assert [owner["uid"] for owner in written["metadata"]["ownerReferences"]] == ["n1"]
    assert f"domain.thunderfleet.io/{shapes.mine.lower()}" in written["metadata"]["labels"]
    assert kube.objects[LINK]["spec"] == {"a": {"node": "studio-1", "port": 1}, "b": {"node": "studio-2", "port": 3}}
    kube.sent.clear()
    await publisher.look()
    assert not await publisher.apply_profile(made(shapes)) and await publisher.apply_links(ends(made(shapes), shapes)) == 0
    assert kube.sent == []


async def test_only_the_part_that_changed_is_written(kube: Any, publisher: Publisher, shapes: Any) -> None:
    await publisher.look()
    await publisher.apply_profile(made(shapes))
    kube.sent.clear()
    await publisher.apply_profile(made(shapes, rdma_switch=False))
    assert kube.sent == [("PATCH", f"{PROFILE}/status")]


async def test_a_restarted_agent_changes_no_resource_version(kube: Any, publisher: Publisher, shapes: Any) -> None:
    await publisher.look()
    await publisher.apply_profile(made(shapes))
    await publisher.apply_links(ends(made(shapes), shapes))
    versions = [kube.objects[path]["metadata"]["resourceVersion"] for path in (PROFILE, LINK)]
    restarted = Publisher(kube, "studio-1")
    await restarted.look()
    assert restarted.conditions == publisher.conditions
    await restarted.apply_profile(made(shapes))
    await restarted.apply_links(ends(made(shapes), shapes))
    assert [kube.objects[path]["metadata"]["resourceVersion"] for path in (PROFILE, LINK)] == versions


async def test_deleted_in_between_starts_again(kube: Any, publisher: Publisher, shapes: Any) -> None:
    await publisher.look()
    await publisher.apply_profile(made(shapes))
    kube.delete_behind_the_back(PROFILE)
    await publisher.apply_profile(made(shapes, rdma_switch=False))
    assert kube.objects[PROFILE]["status"]["rdma"]["enabled"] is False


@pytest.mark.parametrize("path", [PROFILE, LINK])
async def test_what_was_deleted_comes_back_at_the_next_look(path: str, kube: Any, publisher: Publisher, shapes: Any) -> None:
    await publisher.look()
    await publisher.apply_profile(made(shapes))
    await publisher.apply_links(ends(made(shapes), shapes))
    kube.delete_behind_the_back(path)
    await publisher.look()
    await publisher.apply_profile(made(shapes))
    await publisher.apply_links(ends(made(shapes), shapes))
    assert kube.objects[path]["status"]


async def test_a_node_that_registered_again_owns_the_profile(kube: Any, publisher: Publisher, shapes: Any) -> None:
    await publisher.look()
    await publisher.apply_profile(made(shapes))
    kube.objects["/api/v1/nodes/studio-1"]["metadata"]["uid"] = "n2"
    await publisher.look()
    await publisher.apply_profile(made(shapes))
    assert [owner["uid"] for owner in kube.objects[PROFILE]["metadata"]["ownerReferences"]] == ["n2"]


async def test_a_cable_that_is_gone_loses_this_end_and_no_other(kube: Any, publisher: Publisher, shapes: Any) -> None:
    other = Publisher(kube, "studio-2")
    (report,) = ends(made(shapes), shapes)
    kube.objects["/api/v1/nodes/studio-2"] = {"metadata": {"name": "studio-2", "uid": "n2"}}
    await publisher.look()
    await publisher.apply_links([report])
    await other.look()
    await other.apply_links([LinkReport(report.spec, Endpoint(node="studio-2", port=3, sees_peer=True))])
    assert [e["node"] for e in kube.objects[LINK]["status"]["endpoints"]] == ["studio-1", "studio-2"]
    assert await publisher.apply_links([]) == 1 and await publisher.apply_links([]) == 0
    assert [e["node"] for e in kube.objects[LINK]["status"]["endpoints"]] == ["studio-2"]
    # An agent that restarts while its cable is pulled finds its old entry and removes it.
    restarted = Publisher(kube, "studio-2")
    await restarted.look()
    assert await restarted.apply_links([]) == 1
    assert "endpoints" not in kube.objects[LINK]["status"]


async def test_a_cable_that_is_plugged_in_again_is_one_write(kube: Any, publisher: Publisher, shapes: Any) -> None:
    await publisher.look()
    reports = ends(made(shapes), shapes)
    await publisher.apply_links(reports)
    await publisher.apply_links([])
    await publisher.look()
    assert await publisher.apply_links([]) == 0
    kube.sent.clear()
    assert await publisher.apply_links(reports) == 1
    assert kube.sent == [("PATCH", f"{LINK}/status")]
    assert [end["node"] for end in kube.objects[LINK]["status"]["endpoints"]] == ["studio-1"]
    # The operator deletes it while it is unplugged.
    await publisher.apply_links([])
    kube.delete_behind_the_back(LINK)
    assert await publisher.apply_links(reports) == 1 and kube.objects[LINK]["spec"]
    await publisher.apply_links([])
    kube.delete_behind_the_back(LINK)
    await publisher.look()
    kube.sent.clear()
    assert await publisher.apply_links([]) == 0 and kube.sent == []
    assert await publisher.apply_links(reports) == 1 and kube.objects[LINK]["spec"]


async def test_a_message_alone_is_written_seldom_and_with_other_changes(
    kube: Any, publisher: Publisher, shapes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saying(message: str, **changes: Any) -> Profile:
        found = made(shapes, **changes)
        first, *others = found.status.conditions
        conditions = (first.model_copy(update={"message": message}), *others)
        return replace(found, status=found.status.model_copy(update={"conditions": conditions}))

    def said() -> str:
        return str(kube.objects[PROFILE]["status"]["conditions"][0]["message"])

    await publisher.look()
    assert await publisher.apply_profile(saying("one")) and publisher.message_at == math.inf
    assert not await publisher.apply_profile(saying("two"))
    assert said() == "one" and time.monotonic() < publisher.message_at < time.monotonic() + MESSAGE_SECONDS
    assert not await publisher.apply_profile(saying("one")) and publisher.message_at == math.inf, "nothing is left to write"
    assert await publisher.apply_profile(saying("three", rdma_switch=False)) and said() == "three"
    assert not await publisher.apply_profile(saying("four", rdma_switch=False))
    monkeypatch.setattr(publisher, "_profile_at", publisher._profile_at - MESSAGE_SECONDS)
    assert await publisher.apply_profile(saying("four", rdma_switch=False)) and said() == "four"


async def test_refusals_are_counted_and_raised(kube: Any, shapes: Any) -> None:
    counted: list[tuple[str, str]] = []
    publisher = Publisher(kube, "studio-1", lambda kind, result: counted.append((kind, result)))
    await publisher.look()
    kube.away = True
    with pytest.raises(ApiError):
        await publisher.apply_profile(made(shapes))
    assert counted == [("NodeProfile", "Unreachable")]


def test_covers_does_not_mind_what_others_have_added() -> None:
    assert covers({"a": [{"k": 1, "x": 2}, {"k": 2}], "b": 1}, {"a": [{"k": 1}]})
    assert not covers({"a": [{"k": 2}]}, {"a": [{"k": 1}]})
    assert not covers({}, {"a": {}})
