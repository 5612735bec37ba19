"""Certificates are looked up in NodeProfiles, at a bounded rate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from thunderfleet_agent.peers import known_peers
from thunderfleet_agent.peers.known_peers import (
    KNOWN_BURST,
    LOOKUP_SECONDS,
    MAX_STRANGER_LOOKUPS,
    PIN_SECONDS,
    STRANGER_BURST,
    STRANGER_RATE,
    KnownPeers,
)
from thunderfleet_agent.peers.token_bucket import TokenBucket
from thunderfleet_crds.kinds.nodeprofile import Agent, NodeProfile, NodeProfileStatus
from thunderfleet_crds.meta.apimodel import ObjectMeta
from thunderfleet_lib.kube import ApiError

Until = Callable[[Callable[[], object]], Awaitable[None]]

OLD, NEW, OTHER = "a" * 64, "b" * 64, "c" * 64


def agent(sha256: str) -> Agent:
    return Agent(address="127.0.0.1", port=9440, certificate_sha256=sha256)


class Fleet:
    """Profiles at the API server, profiles that the agent has read, and a clock."""

    def __init__(self) -> None:
        self.shown: dict[str, str] = {}
        self.read: dict[str, str] = {}
        self.lookups: list[str] = []
        self.now = 1000.0
        self.fails = False
        self.gate: asyncio.Event | None = None
        self.peers = KnownPeers(self._agent_of, self._profile_of, lambda: self.now)

    def _agent_of(self, node: str) -> Agent | None:
        return agent(self.read[node]) if node in self.read else None

    async def _profile_of(self, node: str) -> NodeProfile | None:
        self.lookups.append(node)
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            raise ApiError(0, "Unreachable", "no answer")
        if node not in self.shown:
            return None
        return NodeProfile(metadata=ObjectMeta(name=node), status=NodeProfileStatus(agent=agent(self.shown[node])))


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


async def test_a_profile_that_was_read_needs_no_lookup(fleet: Fleet) -> None:
    fleet.read["studio-2"] = OLD
    assert await fleet.peers.accepts("studio-2", OLD)
    assert fleet.lookups == []


async def test_one_name_is_looked_up_once_within_the_limit(fleet: Fleet) -> None:
    fleet.shown["studio-2"] = OLD
    assert await fleet.peers.accepts("studio-2", OLD)
    assert not await fleet.peers.accepts("studio-2", NEW)
    assert not await fleet.peers.accepts("../nodes/x", NEW)
    assert await fleet.peers.accepts("studio-2", OLD)
    assert fleet.lookups == ["studio-2"]


async def test_a_contradiction_is_looked_up_again_soon_an_agreement_late(fleet: Fleet) -> None:
    fleet.shown["studio-2"] = OLD
    assert await fleet.peers.accepts("studio-2", OLD)
    fleet.shown["studio-2"] = NEW
    fleet.now += LOOKUP_SECONDS - 0.1
    assert not await fleet.peers.accepts("studio-2", NEW) and len(fleet.lookups) == 1
    fleet.now += 0.2
    assert await fleet.peers.accepts("studio-2", NEW) and len(fleet.lookups) == 2
    fleet.now += PIN_SECONDS - 0.1
    assert await fleet.peers.accepts("studio-2", NEW) and len(fleet.lookups) == 2
    fleet.now += 0.2
    assert await fleet.peers.accepts("studio-2", NEW) and len(fleet.lookups) == 3


async def test_a_node_without_a_profile_or_agent_is_refused(fleet: Fleet) -> None:
    assert not await fleet.peers.accepts("studio-9", OLD)
    assert fleet.lookups == ["studio-9"]


async def test_a_flood_of_names_costs_a_bounded_rate_of_lookups(fleet: Fleet) -> None:
    for number in range(500):
        assert not await fleet.peers.accepts(f"stranger-{number}", OTHER)
    assert len(fleet.lookups) == STRANGER_BURST
    for number in range(500, 820):
        fleet.now += 1 / 64
        assert not await fleet.peers.accepts(f"stranger-{number}", OTHER)
    # Five seconds later.
    assert len(fleet.lookups) == STRANGER_BURST + round(5 * STRANGER_RATE)


async def test_the_flood_stays_bounded_while_the_api_server_is_away(fleet: Fleet) -> None:
    fleet.fails = True
    for _ in range(500):
        assert not await fleet.peers.accepts("stranger", OTHER)
    assert len(fleet.lookups) == STRANGER_BURST


async def test_known_peers_are_looked_up_during_a_flood(fleet: Fleet) -> None:
    """A neighbor and a peer that was accepted before have renewed their certificates."""
    fleet.read["neighbor"], fleet.shown["accepted"] = OLD, OLD
    assert await fleet.peers.accepts("accepted", OLD)
    for number in range(500):
        await fleet.peers.accepts(f"stranger-{number}", OTHER)
    fleet.now += LOOKUP_SECONDS
    for number in range(500, 1000):
        await fleet.peers.accepts(f"stranger-{number}", OTHER)
    fleet.shown |= {"neighbor": NEW, "accepted": NEW, "new": NEW}
    assert await fleet.peers.accepts("neighbor", NEW)
    assert await fleet.peers.accepts("accepted", NEW)
    assert not await fleet.peers.accepts("new", NEW)
    # A second later there is a token for it.
    fleet.now += 1.0
    assert await fleet.peers.accepts("new", NEW)


async def test_lookups_of_known_names_are_limited_too(fleet: Fleet) -> None:
    """Anybody can claim a known name."""
    fleet.read |= {f"studio-{number}": OLD for number in range(KNOWN_BURST + 20)}
    fleet.shown |= fleet.read
    for name in fleet.read:
        assert not await fleet.peers.accepts(name, OTHER)
    assert len(fleet.lookups) == KNOWN_BURST


async def test_slow_lookups_of_strangers_leave_room_for_known_peers(fleet: Fleet, until: Until) -> None:
    fleet.gate = asyncio.Event()
    strangers = [asyncio.create_task(fleet.peers.accepts(f"stranger-{number}", OTHER)) for number in range(10)]
    done, waiting = await asyncio.wait(strangers, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert len(waiting) == MAX_STRANGER_LOOKUPS == len(fleet.lookups) and not any(task.result() for task in done)
    fleet.read["neighbor"], fleet.shown["neighbor"] = OLD, NEW
    known = asyncio.create_task(fleet.peers.accepts("neighbor", NEW))
    await until(lambda: "neighbor" in fleet.lookups or known.done())
    fleet.gate.set()
    assert await known
    assert not any(await asyncio.gather(*strangers))
    # The places are free again.
    assert not await fleet.peers.accepts("stranger-99", OTHER)
    assert fleet.lookups[-1] == "stranger-99"


async def test_a_failed_lookup_trusts_the_last_pin(fleet: Fleet) -> None:
    fleet.shown["studio-2"] = OLD
    assert await fleet.peers.accepts("studio-2", OLD)
    fleet.now, fleet.fails = fleet.now + PIN_SECONDS, True
    assert await fleet.peers.accepts("studio-2", OLD)
    assert not await fleet.peers.accepts("studio-2", NEW)


async def test_strangers_do_not_evict_accepted_peers(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_peers, "MAX_PINS", 5)
    fleet.shown["studio-2"] = OLD
    assert await fleet.peers.accepts("studio-2", OLD)
    for number in range(10):
        await fleet.peers.accepts(f"stranger-{number}", OTHER)
    assert await fleet.peers.accepts("studio-2", OLD) and fleet.lookups.count("studio-2") == 1
    assert len(fleet.peers._pins) <= 5


def test_a_token_bucket_refills_at_its_rate_up_to_its_burst() -> None:
    bucket = TokenBucket(2.0, 3)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(0.4) and bucket.take(0.5) and not bucket.take(0.9) and bucket.take(1.0)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
