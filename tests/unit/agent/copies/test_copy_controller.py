"""What starts, stops and reports the copies of models."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from thunderfleet_agent.copies.chunks import CHUNK_BYTES
from thunderfleet_agent.copies.controller import MAX_RUNNING, Limits, PeerCopies
from thunderfleet_agent.copies.ways.paths import Way
from thunderfleet_agent.measure.schedule.probes import CableEnd, Target
from thunderfleet_agent.measure.schedule.view import Cable, View
from thunderfleet_agent.peers.identity import Identity
from thunderfleet_agent.weights.wanted import MAX_SOURCES, Wanted, wanted_of
from thunderfleet_crds.kinds.modelcache import Assignment, ModelCache, ModelCacheSpec, ModelCacheStatus
from thunderfleet_crds.kinds.nodeprofile import Agent, GroupUse
from thunderfleet_crds.meta.apimodel import ObjectMeta
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_crds.weights.copies import MacCopy
from thunderfleet_lib.modelstore.manifest import Manifest

from tests.support.models.copies import COMMIT, REPOSITORY, Fleet, Mac, content, fill, make_identity, manifest
from tests.support.waiting import until_async

FILES = {"config.json": b"{}", "model.safetensors": content(21, 3 * CHUNK_BYTES + 5)}
WHOLE = manifest(FILES)
LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
"""The interface of all addresses here; macOS binds sockets to it."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("identity") / "made")


@pytest.fixture
async def fleet(tmp_path: Path, made: Identity) -> AsyncIterator[Fleet]:
    found = Fleet(tmp_path, made)
    yield found
    await found.close()


def agent(mac: Mac) -> Agent:
    return Agent(address=mac.addresses[0], port=mac.port, certificate_sha256=mac.identity.sha256)


@contextlib.asynccontextmanager
async def copying(
    mac: Mac, *others: Mac, cables: tuple[Mac, ...] = (), limits: Limits | None = None
) -> AsyncIterator[PeerCopies]:
    """The copies of ``mac``, which finds the agents of ``others`` at the API server and sees ``cables``."""
    agents = {other.node: agent(other) for other in others}

    async def agent_of(node: str) -> Agent | None:
        return agents.get(node)

    found = PeerCopies(mac.node, mac.shelf, mac.identity.client, agent_of, limits or Limits())
    ends = {
        f"cable-{one.node}": Cable(f"cable-{one.node}", one.node, LOOPBACK, CableEnd("", mac.addresses[0]), None)
        for one in cables
    }
    targets = tuple(Target(one.node, one.addresses[0], f"cable-{one.node}") for one in cables)
    found.set_view(View(mac.node, mac.addresses[0], targets, ends, {one.node: agent(one) for one in cables}, {}))
    found.set_groups(())
    running = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def model(*sources: Mac, whole: Manifest = WHOLE) -> Wanted:
    names = tuple(source.node for source in sources)
    return Wanted(whole.digest, whole.repository, whole.commit, whole.total_bytes, sources=names)


def arrived(mac: Mac, whole: Manifest = WHOLE) -> bool:
    return not mac.store.missing(whole)


async def test_a_wanted_model_arrives_from_a_mac_that_the_api_server_knows(fleet: Fleet) -> None:
    source, target = await fleet.mac(), await fleet.mac()
    fill(source.store, WHOLE, FILES)
    async with copying(target, source) as copies:
        copies.want([model(source)])
        assert copies.states()[WHOLE.digest].source is CopySource.PEER
        await until_async(lambda: arrived(target), describe=lambda: str(copies.states()))
    # The keeper of the store makes it appear, so that two parts never do.
    assert not target.store.layout.snapshot(REPOSITORY, COMMIT).exists()
    target.store.publish(WHOLE)
    assert target.has(WHOLE, FILES)


async def test_the_state_names_the_mac_and_the_cable(fleet: Fleet) -> None:
    files = {"model.safetensors": content(22, 8 * CHUNK_BYTES)}
    whole = manifest(files)
    source, target = await fleet.mac(), await fleet.mac()
    fill(source.store, whole, files)
    async with copying(target, cables=(source,), limits=Limits(used_cable=10e6)) as copies:
        copies.set_groups(None)
        copies.want([model(source, whole=whole)])
        await until_async(lambda: copies.states()[whole.digest].peer, describe=lambda: str(copies.states()))
        state = copies.states()[whole.digest]
        assert (state.peer, state.link, state.phase) == (source.node, f"cable-{source.node}", CopyPhase.COPYING)
        assert state.bytes_per_second and state.bytes == whole.total_bytes
        assert copies.running == 1
        # Its first chunk may still be on its way, and would not arrive any more.
        await until_async(lambda: target.store.arrived_bytes(whole) > 0)
        # No longer wanted: it ends, and what has arrived is there for the next time.
        copies.want([])
        assert not copies.states()
    assert target.store.arrived_bytes(whole) > 0
    assert not arrived(target, whole)


async def test_a_cable_of_a_group_is_free_until_this_mac_has_the_groups_model(fleet: Fleet) -> None:
    """The group waits for this copy, so it sends nothing over its cable."""
    source, target = await fleet.mac(), await fleet.mac()
    fill(source.store, WHOLE, FILES)
    folder = target.store.layout.snapshot(REPOSITORY, COMMIT)
    group = GroupUse(name="ns/md-0", epoch=1, model_path=str(folder), links=(f"cable-{source.node}",))
    other = group.model_copy(update={"name": "ns/other-0", "model_path": "/models/other"})
    async with copying(target, cables=(source,)) as copies:
        copies.want([model(source)])
        ways = []
        for groups in ((group,), (group, other), None):
            copies.set_groups(groups)
            ways.append([path.way for path in copies._ways(WHOLE.digest)])
        assert ways == [[Way.CABLE], [Way.USED_CABLE], [Way.USED_CABLE]]
        copies.set_groups((group,))
        await until_async(lambda: arrived(target), describe=lambda: str(copies.states()))
        # The copy has ended; its state still says where it came from.
        await until_async(lambda: not copies.running)
        state = copies.states()[WHOLE.digest]
        assert (state.peer, state.link) == (source.node, f"cable-{source.node}")
        # From here on the group may start.
        target.store.publish(WHOLE)
        assert [path.way for path in copies._ways(WHOLE.digest)] == [Way.USED_CABLE]


async def test_a_cable_of_a_group_is_free_until_this_mac_has_the_groups_part(fleet: Fleet) -> None:
    source, target = await fleet.mac(), await fleet.mac()
    fill(source.store, WHOLE, FILES)
    part = target.store.layout.part(WHOLE.digest)
    group = GroupUse(name="ns/md-0", epoch=1, model_path=str(part), links=(f"cable-{source.node}",))
    async with copying(target, cables=(source,)) as copies:
        copies.want([replace(model(source), files=frozenset({0}), layers=frozenset({0}))])
        copies.set_groups((group,))
        assert [path.way for path in copies._ways(WHOLE.digest)] == [Way.CABLE]
        await until_async(lambda: arrived(target, WHOLE.narrowed({0})) and not copies.running)
        assert [path.way for path in copies._ways(WHOLE.digest)] == [Way.CABLE]
        # The keeper makes it appear.
        part.mkdir(parents=True)
        assert [path.way for path in copies._ways(WHOLE.digest)] == [Way.USED_CABLE]


async def test_a_model_that_nobody_has_waits_and_arrives_later(fleet: Fleet) -> None:
    source, target = await fleet.mac(), await fleet.mac()
    async with copying(target, cables=(source,)) as copies:
        copies.want([model(source)])
        await until_async(lambda: copies.states()[WHOLE.digest].reason == Reason.NO_SOURCE)
        state = copies.states()[WHOLE.digest]
        assert state.phase is CopyPhase.WAITING and f"{source.node} does not have it" in state.message
        fill(source.store, WHOLE, FILES)
        await until_async(lambda: arrived(target), describe=lambda: str(copies.states()))


async def test_a_source_that_is_lost_during_the_copy_is_missed_until_another_one_comes(fleet: Fleet) -> None:
    """The operator counts for how long a Mac reports that, and then has it download the model."""
    files = {"model.safetensors": content(23, 8 * CHUNK_BYTES)}
    whole = manifest(files)
    first, second, target = await fleet.mac(), await fleet.mac(), await fleet.mac()
    fill(first.store, whole, files)
    async with copying(target, second, cables=(first,), limits=Limits(used_cable=5e6)) as copies:
        # Slow, so that the Mac is lost while most is still to fetch.
        copies.set_groups(None)
        copies.want([model(first, whole=whole)])
        await until_async(lambda: copies.states()[whole.digest].bytes_done, describe=lambda: str(copies.states()))
        await first.stop()
        await until_async(
            lambda: copies.states()[whole.digest].reason == Reason.NO_SOURCE, describe=lambda: str(copies.states())
        )
        state = copies.states()[whole.digest]
        assert state.phase is CopyPhase.WAITING and state.bytes_done and not arrived(target, whole)
        assert "no Mac that has the model can be reached" in state.message and first.node in state.message
        fill(second.store, whole, files)
        copies.want([model(first, second, whole=whole)])
        await copies._look_up()
        await until_async(lambda: arrived(target, whole), describe=lambda: str(copies.states()))
    target.store.publish(whole)
    assert target.has(whole, files)


async def test_no_reachable_source_is_said(fleet: Fleet) -> None:
    target = await fleet.mac()
    async with copying(target) as copies:
        copies.want([Wanted(WHOLE.digest, REPOSITORY, COMMIT, 1, sources=("gone",))])
        await until_async(lambda: copies.states()[WHOLE.digest].reason == Reason.NO_SOURCE)
        assert "no other Mac of the ModelCache" in copies.states()[WHOLE.digest].message


async def test_a_full_disk_is_a_failure_that_is_tried_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = await fleet.mac(), await fleet.mac()
    fill(source.store, WHOLE, FILES)
    room = [1000]
    monkeypatch.setattr(target.store, "free_bytes", lambda: room[0])
    async with copying(target, source) as copies:
        copies.want([model(source)])
        await until_async(lambda: copies.states()[WHOLE.digest].reason == Reason.DISK_FULL)
        assert copies.states()[WHOLE.digest].phase is CopyPhase.FAILED
        room[0] = 10**12
        await until_async(lambda: arrived(target), describe=lambda: str(copies.states()))


async def test_a_manifest_of_another_repository_is_refused(fleet: Fleet) -> None:
    source, target = await fleet.mac(), await fleet.mac()
    fill(source.store, WHOLE, FILES)
    async with copying(target, source) as copies:
        copies.want([Wanted(WHOLE.digest, "other/model", COMMIT, 1, sources=(source.node,))])
        await until_async(lambda: "is that of owner/model" in copies.states()[WHOLE.digest].message)
    assert target.store.manifest(WHOLE.digest) is None


async def test_a_limited_number_of_models_is_copied_at_once(fleet: Fleet) -> None:
    source, target = await fleet.mac(), await fleet.mac()
    models = [manifest({"model.safetensors": content(30 + n, 2 * CHUNK_BYTES)}, commit=f"{n}" * 40) for n in range(4)]
    for n, whole in enumerate(models):
        fill(source.store, whole, {"model.safetensors": content(30 + n, 2 * CHUNK_BYTES)})
    most = 0
    async with copying(target, source, limits=Limits(network=40e6)) as copies:
        copies.want([model(source, whole=whole) for whole in models])

        def all_there() -> bool:
            nonlocal most
            most = max(most, copies.running)
            return all(arrived(target, whole) for whole in models)

        await until_async(all_there, describe=lambda: str(copies.states()))
    assert 1 <= most <= MAX_RUNNING


def cache(name: str, *macs: MacCopy, assigned: tuple[str, ...]) -> ModelCache:
    status = ModelCacheStatus(
        manifest=WHOLE.digest,
        commit=COMMIT,
        assignments=tuple(Assignment(node=node, source=CopySource.PEER) for node in assigned),
        macs=macs,
    )
    return ModelCache(metadata=ObjectMeta(name=name, uid=name), spec=ModelCacheSpec(repository=REPOSITORY), status=status)


def test_sources_are_the_other_macs_those_with_most_of_the_model_first() -> None:
    macs = (
        MacCopy(node="mac-2", phase=CopyPhase.COPYING, bytes_done=10),
        MacCopy(node="mac-3", phase=CopyPhase.COMPLETE, bytes_done=20),
        MacCopy(node="mac-9", phase=CopyPhase.COMPLETE, bytes_done=20),
    )
    one = cache("a", *macs, assigned=("mac-1", "mac-2", "mac-3", "mac-4"))
    found = wanted_of([one, cache("b", assigned=("mac-1", "mac-5"))], "mac-1")[WHOLE.digest]
    assert found.sources == ("mac-3", "mac-9", "mac-2", "mac-4", "mac-5")
    many = cache("c", assigned=("mac-1", *(f"other-{n:03}" for n in range(200))))
    assert len(wanted_of([many], "mac-1")[WHOLE.digest].sources) == MAX_SOURCES


def test_sources_of_a_part_have_together_its_layers_however_many_macs_have_others() -> None:
    first = [MacCopy(node=f"a-{n:02}", phase=CopyPhase.PART, bytes_done=30, layers="0-13") for n in range(20)]
    both = [
        MacCopy(node="b-0", phase=CopyPhase.PART, bytes_done=10, layers="14-20"),
        MacCopy(node="b-1", phase=CopyPhase.PART, bytes_done=10, layers="21-27"),
    ]
    one = cache("a", *first, *both, MacCopy(node="c", bytes_done=40, layers="9-1"), assigned=())
    mine = Assignment(node="mac-1", source=CopySource.PEER, layers="14-27", files="0-3")
    loads = Assignment(node="z", source=CopySource.HUB, layers="14-27", files="0-3")
    parts = one.model_copy(update={"status": one.status.model_copy(update={"assignments": (mine, loads)})})
    found = wanted_of([parts], "mac-1")[WHOLE.digest].sources
    assert set(found[:3]) == {"b-0", "b-1", "z"} and len(found) == MAX_SOURCES
    whole = parts.model_copy(
        update={"status": parts.status.model_copy(update={"assignments": (mine.model_copy(update={"files": None}),)})}
    )
    assert {"b-0", "b-1"} < set(wanted_of([whole], "mac-1")[WHOLE.digest].sources[:3])
