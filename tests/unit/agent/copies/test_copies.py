"""Macs that copy models from each other: real stores, servers, identities and connections, over loopback."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import socket
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from thunderfleet_agent.copies import shelf as shelf_module
from thunderfleet_agent.copies import wire
from thunderfleet_agent.copies.chunks import CHUNK_BYTES, ChunkList
from thunderfleet_agent.copies.server import MAX_PER_NODE
from thunderfleet_agent.copies.transfer import Transfer, TransferFailed
from thunderfleet_agent.copies.ways.connection import PeerFailed, connect
from thunderfleet_agent.copies.ways.pace import Pace
from thunderfleet_agent.copies.ways.paths import Path as PeerPath
from thunderfleet_agent.copies.ways.paths import Way
from thunderfleet_agent.copies.wire import Op, Request
from thunderfleet_agent.peers.identity import Identity
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.modelstore.store import Busy

from tests.support.models.copies import HOLD_SECONDS, REPOSITORY, Fleet, Mac, content, entry, fill, make_identity, manifest, run
from tests.support.waiting import until_async

SMALL = {"config.json": b'{"model_type": "qwen2"}', "empty.txt": b"", "sub/größe 🦊.txt": b"fox", "tokenizer.json": b"[]"}
LARGE = {**SMALL, "model.safetensors": content(1, 5 * CHUNK_BYTES + 12345)}


def twelve_chunks() -> dict[str, bytes]:
    """A model that takes long enough for something to happen meanwhile; the same in all tests, which make and hash it once."""
    return {"model.safetensors": content(2, 12 * CHUNK_BYTES)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("identity") / "made")


@pytest.fixture
async def fleet(tmp_path: Path, made: Identity) -> AsyncIterator[Fleet]:
    found = Fleet(tmp_path, made)
    yield found
    await found.close()


async def holder(fleet: Fleet, files: dict[str, bytes], *, cables: int = 1) -> Mac:
    mac = await fleet.mac(cables=cables)
    fill(mac.store, manifest(files), files)
    return mac


async def mounted(*command: str) -> bool:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    return await process.wait() == 0


async def test_a_model_arrives_whole_with_all_kinds_of_names(fleet: Fleet) -> None:
    source, target = await holder(fleet, LARGE), await fleet.mac()
    whole = manifest(LARGE)
    transfer = target.transfer(whole, target.way(source))
    assert await run(transfer)
    assert target.has(whole, LARGE)
    done = transfer.progress()
    assert done.done == whole.total_bytes and not done.waits_for
    assert not list(target.store.layout.blobs(REPOSITORY).glob("*.incomplete"))


async def test_the_manifest_is_given_by_its_digest(fleet: Fleet) -> None:
    source, target = await holder(fleet, SMALL), await fleet.mac()
    whole = manifest(SMALL)
    connection = await asyncio.to_thread(connect, target.way(source), target.node, target.identity.client)
    try:
        assert await asyncio.to_thread(connection.manifest, whole.digest) == whole.canonical
        assert await asyncio.to_thread(connection.manifest, "0" * 64) is None
    finally:
        connection.close()


async def test_several_cables_and_sources_are_used_at_once(fleet: Fleet) -> None:
    files = twelve_chunks()
    first, second = await holder(fleet, files, cables=2), await holder(fleet, files)
    target, whole = await fleet.mac(), manifest(files)
    ways = [target.way(first), target.way(first, number=1), target.way(second)]
    used, all_used = set[str](), threading.Event()

    def wait_for_all(way: PeerPath) -> None:
        """One of them alone must not take everything before the others are connected."""
        used.add(way.key)
        if len(used) == len(ways):
            all_used.set()
        all_used.wait(HOLD_SECONDS)

    target.holds = wait_for_all
    assert await run(target.transfer(whole, *ways))
    assert target.has(whole, files)
    assert set(target.received) == {way.key for way in ways}


async def test_a_cable_that_a_group_begins_to_use_is_left_for_the_network(fleet: Fleet) -> None:
    files = twelve_chunks()
    source, target, whole = await holder(fleet, files, cables=2), await fleet.mac(), manifest(files)
    cable, lan = target.way(source), target.way(source, Way.NETWORK, number=1)
    used = target.way(source, Way.USED_CABLE)
    ways = [cable, lan]
    network = target.network()
    at: dict[Way, int] = dict.fromkeys(Way, 0)

    def received(way: PeerPath, count: int) -> None:
        at[way.way] += count
        if at[Way.CABLE] > CHUNK_BYTES:
            ways[0] = used

    # Slow, so that the group comes while most is still to fetch.
    paces = {Way.CABLE: Pace(CHUNK_BYTES)}
    target.store.add_manifest(whole)
    target.shelf.refresh()
    transfer = Transfer(
        target.store, target.shelf, whole, replace(network, ways=lambda: tuple(ways), paces=paces, received=received)
    )
    assert await run(transfer)
    assert target.has(whole, files)
    assert at[Way.CABLE] < 6 * CHUNK_BYTES < at[Way.NETWORK] and not at[Way.USED_CABLE], at


async def test_a_chain_forwards_chunks_while_the_file_still_arrives(fleet: Fleet) -> None:
    files = twelve_chunks()
    whole = manifest(files)
    macs = [await holder(fleet, files), *[await fleet.mac() for _ in range(3)]]
    gate, seen = threading.Event(), list[int]()

    def received(way: object, count: int) -> None:
        seen.append(count)
        if sum(seen) > 2 * CHUNK_BYTES:
            gate.wait(30)

    transfers = [mac.transfer(whole, mac.way(before)) for before, mac in itertools.pairwise(macs)]
    object.__setattr__(transfers[0]._network, "received", received)
    running = [asyncio.create_task(run(transfer)) for transfer in transfers]
    # The last Mac has bytes although the second does not have all.
    await until_async(lambda: transfers[-1].progress().done > 0, describe=lambda: str(transfers[-1].progress()))
    assert transfers[0].progress().done < whole.total_bytes
    gate.set()
    assert await asyncio.gather(*running) == [True] * 3
    assert all(mac.has(whole, files) for mac in macs)


async def test_a_mac_that_is_lost_while_it_forwards_is_replaced_and_goes_on_later(fleet: Fleet) -> None:
    files = twelve_chunks()
    whole, (first, middle, last) = manifest(files), [await holder(fleet, files), await fleet.mac(), await fleet.mac()]
    gate, taken, ways = threading.Event(), list[int](), [last.way(middle)]
    between, end = middle.transfer(whole, middle.way(first)), last.transfer(whole)
    object.__setattr__(end._network, "ways", lambda: tuple(ways))

    def received(way: object, count: int) -> None:
        taken.append(count)
        if sum(taken) > 4 * CHUNK_BYTES:
            gate.wait(30)

    object.__setattr__(between._network, "received", received)
    running = [asyncio.create_task(run(transfer)) for transfer in (between, end)]
    over_cable = last.way(middle).key
    await until_async(lambda: last.received.get(over_cable, 0) > CHUNK_BYTES, describe=lambda: str(end.progress()))
    between.stop()
    await middle.stop()
    ways.append(last.way(first, Way.NETWORK))
    gate.set()
    assert await asyncio.gather(*running) == [False, True]
    assert last.has(whole, files) and last.wrong == []
    # What the lost Mac has given is not fetched again, apart from what was on its way.
    assert sum(last.received.values()) < whole.total_bytes + 3 * CHUNK_BYTES
    # It serves nothing, and continues with what is on its disk, from both Macs.
    assert not middle.store.layout.snapshot(whole.repository, whole.commit).exists()
    held = middle.store.arrived_bytes(whole)
    assert 0 < held < whole.total_bytes
    assert await run(middle.transfer(whole, middle.way(first), middle.way(last)))
    assert middle.has(whole, files)
    assert sum(middle.received.values()) <= whole.total_bytes - held + 2 * CHUNK_BYTES


async def test_two_macs_that_fetch_the_same_give_each_other_what_they_have(fleet: Fleet) -> None:
    files = twelve_chunks()
    source, whole = await holder(fleet, files), manifest(files)
    one, two = await fleet.mac(), await fleet.mac()
    transfers = [a.transfer(whole, a.way(source, Way.NETWORK), a.way(b)) for a, b in ((one, two), (two, one))]
    assert await asyncio.gather(*map(run, transfers)) == [True, True]
    over_network = sum(mac.received.get(mac.way(source).key, 0) for mac in (one, two))
    assert over_network < 2 * whole.total_bytes


async def test_a_peer_that_sends_wrong_bytes_is_dropped_and_named(fleet: Fleet) -> None:
    good, bad, target = await holder(fleet, LARGE), await holder(fleet, LARGE), await fleet.mac()
    whole = manifest(LARGE)
    bad.shelf.prepare(whole)
    weights = next(one for one in whole.files if one.path == "model.safetensors")
    await until_async(lambda: bad.shelf.chunk_list(weights.blob))
    path = bad.store.layout.blob(REPOSITORY, weights.blob)
    path.chmod(0o644)
    with path.open("r+b") as file:
        for index in range(6):
            file.seek(index * CHUNK_BYTES + 99)
            file.write(b"wrong")
    assert await run(target.transfer(whole, target.way(bad), target.way(good)))
    assert target.has(whole, LARGE)
    # It may have given nothing but small files before the good one gave the rest.
    assert set(target.wrong) <= {bad.node}
    alone = await fleet.mac()
    transfer = alone.transfer(whole, alone.way(bad))
    running = asyncio.create_task(run(transfer))
    await until_async(lambda: f"{bad.node} sent wrong bytes" in transfer.progress().waits_for)
    assert alone.wrong == [bad.node] and not alone.has(whole, LARGE)
    transfer.stop()
    assert await running is False


async def test_a_wrong_small_file_is_not_kept(fleet: Fleet) -> None:
    bad, target = await holder(fleet, SMALL), await fleet.mac()
    whole = manifest(SMALL)
    config = next(one for one in whole.files if one.path == "config.json")
    path = bad.store.layout.blob(REPOSITORY, config.blob)
    path.chmod(0o644)
    path.write_bytes(b"x" * config.size)
    transfer = target.transfer(whole, target.way(bad))
    running = asyncio.create_task(run(transfer))
    await until_async(lambda: target.wrong == [bad.node])
    assert not target.store.has(REPOSITORY, config)
    transfer.stop()
    assert await running is False


async def test_a_wrong_list_is_blamed_on_the_mac_that_gave_it(fleet: Fleet) -> None:
    """Its chunks are as it lists them, but they are not the file."""
    good, bad, target = await holder(fleet, LARGE), await holder(fleet, LARGE), await fleet.mac()
    whole = manifest(LARGE)
    weights = next(one for one in whole.files if one.path == "model.safetensors")
    other = bytearray(LARGE["model.safetensors"])
    other[CHUNK_BYTES * 2] ^= 1
    path = bad.store.layout.blob(REPOSITORY, weights.blob)
    path.chmod(0o644)
    path.write_bytes(other)
    parts = [other[at : at + CHUNK_BYTES] for at in range(0, len(other), CHUNK_BYTES)]
    bad.shelf.keep(REPOSITORY, weights, ChunkList(b"".join(hashlib.sha256(part).digest() for part in parts)))
    transfer = target.transfer(whole, target.way(bad))
    ways = [target.way(bad)]
    object.__setattr__(transfer._network, "ways", lambda: tuple(ways))
    running = asyncio.create_task(run(transfer))
    await until_async(lambda: target.wrong == [bad.node])
    assert not target.store.has(REPOSITORY, weights)
    ways.append(target.way(good))
    assert await running
    assert target.has(whole, LARGE)


async def test_a_damaged_file_is_not_given_and_loses_its_name(fleet: Fleet) -> None:
    source = await holder(fleet, LARGE)
    whole = manifest(LARGE)
    weights = next(one for one in whole.files if one.path == "model.safetensors")
    path = source.store.layout.blob(REPOSITORY, weights.blob)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"rot")
    source.shelf.prepare(whole)
    await until_async(lambda: not path.exists())
    assert source.shelf.chunks(weights.blob) is None and source.shelf.chunk_list(weights.blob) is None


async def test_a_stopped_transfer_continues_with_what_is_on_disk(fleet: Fleet) -> None:
    files = twelve_chunks()
    source, target, whole = await holder(fleet, files), await fleet.mac(), manifest(files)
    first, goes_on = target.transfer(whole, target.way(source)), target.hold_after(5 * CHUNK_BYTES)
    running = asyncio.create_task(run(first))
    await until_async(lambda: first.progress().done >= 4 * CHUNK_BYTES)
    first.stop()
    goes_on.set()
    assert await running is False
    assert not target.store.layout.snapshot(whole.repository, whole.commit).exists()
    before = sum(target.received.values())
    assert await run(target.transfer(whole, target.way(source)))
    assert target.has(whole, files)
    # What had arrived was not fetched again, apart from chunks that were on their way.
    assert sum(target.received.values()) - before <= whole.total_bytes - 4 * CHUNK_BYTES


async def test_damage_of_an_unfinished_file_costs_only_its_chunks(fleet: Fleet) -> None:
    files = twelve_chunks()
    source, target, whole = await holder(fleet, files), await fleet.mac(), manifest(files)
    target.store.prepare_repository(REPOSITORY)
    partial = target.store.layout.incomplete(REPOSITORY, whole.files[0].blob)
    data = bytearray(files["model.safetensors"])
    data[3 * CHUNK_BYTES + 7] ^= 1
    partial.write_bytes(data[: 9 * CHUNK_BYTES + 100])
    assert await run(target.transfer(whole, target.way(source)))
    assert target.has(whole, files)
    assert sum(target.received.values()) <= 4 * CHUNK_BYTES


async def test_a_file_that_is_too_long_is_cut(fleet: Fleet) -> None:
    files = {"model.safetensors": content(7, 2 * CHUNK_BYTES)}
    source, target, whole = await holder(fleet, files), await fleet.mac(), manifest(files)
    target.store.prepare_repository(REPOSITORY)
    target.store.layout.incomplete(REPOSITORY, whole.files[0].blob).write_bytes(files["model.safetensors"] + b"more")
    assert await run(target.transfer(whole, target.way(source)))
    assert target.has(whole, files)


async def test_a_source_that_disappears_is_replaced(fleet: Fleet) -> None:
    files = twelve_chunks()
    first, second = await holder(fleet, files), await holder(fleet, files)
    target, whole = await fleet.mac(), manifest(files)
    ways = [target.way(first)]
    transfer = target.transfer(whole, paces={Way.CABLE: Pace(100e6)})
    object.__setattr__(transfer._network, "ways", lambda: tuple(ways))
    running = asyncio.create_task(run(transfer))
    await until_async(lambda: transfer.progress().done > 0)
    await first.stop()
    ways.append(target.way(second))
    assert await running
    assert target.has(whole, files)
    assert target.wrong == []


async def test_a_file_that_changes_during_the_copy_is_fetched_from_another_mac(fleet: Fleet) -> None:
    files = twelve_chunks()
    changing, second = await holder(fleet, files), await holder(fleet, files)
    target, whole = await fleet.mac(), manifest(files)
    ways, goes_on = [target.way(changing)], target.hold_after(2 * CHUNK_BYTES)
    transfer = target.transfer(whole)
    object.__setattr__(transfer._network, "ways", lambda: tuple(ways))
    running = asyncio.create_task(run(transfer))
    await until_async(lambda: transfer.progress().done >= CHUNK_BYTES)
    path = changing.store.layout.blob(REPOSITORY, whole.files[0].blob)
    path.chmod(0o644)
    with path.open("r+b") as file:
        for index in range(12):
            file.seek(index * CHUNK_BYTES + 77)
            file.write(b"changed")
    goes_on.set()
    await until_async(lambda: target.wrong == [changing.node])
    ways.append(target.way(second))
    assert await running
    assert target.has(whole, files)


async def test_a_transfer_waits_and_says_what_for(fleet: Fleet) -> None:
    empty, target, whole = await fleet.mac(), await fleet.mac(), manifest(LARGE)
    transfer = target.transfer(whole, target.way(empty))
    running = asyncio.create_task(run(transfer))
    await until_async(lambda: empty.node in transfer.progress().waits_for)
    fill(empty.store, whole, LARGE)
    assert await running
    assert target.has(whole, LARGE)


async def test_nobody_to_ask_is_said(fleet: Fleet) -> None:
    target, whole = await fleet.mac(), manifest(LARGE)
    gone = await fleet.mac()
    way = target.way(gone)
    await gone.stop()
    transfer = target.transfer(whole, way)
    running = asyncio.create_task(run(transfer))
    await until_async(lambda: gone.node in transfer.progress().waits_for)
    assert "no Mac that has the model can be reached" in transfer.progress().waits_for
    transfer.stop()
    assert await running is False


async def test_two_repositories_share_what_is_on_disk(fleet: Fleet) -> None:
    target = await holder(fleet, LARGE)
    whole = manifest(LARGE, repository="other/copy")
    assert await run(target.transfer(whole))
    assert target.has(whole, LARGE)
    blob = next(one for one in whole.files if one.path == "model.safetensors").blob
    both = [target.store.layout.blob(name, blob).stat().st_ino for name in (REPOSITORY, "other/copy")]
    assert both[0] == both[1]


async def test_two_models_that_share_a_file_fetch_it_once(fleet: Fleet) -> None:
    """While one of them fetches it, the other waits; then it needs no copy."""
    source, target = await holder(fleet, LARGE), await fleet.mac()
    first, second = manifest(LARGE), manifest(LARGE, repository="other/copy")
    fill(source.store, second, LARGE)
    transfers = [target.transfer(whole, target.way(source)) for whole in (first, second)]
    ends = await asyncio.gather(*map(run, transfers), return_exceptions=True)
    assert True in ends and all(end is True or isinstance(end, TransferFailed | Busy) for end in ends)
    for whole in (first, second):
        assert await run(target.transfer(whole, target.way(source)))
        assert target.has(whole, LARGE)
    assert sum(target.received.values()) < 2 * first.total_bytes


async def test_a_first_request_has_a_limit(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = await holder(fleet, SMALL), await fleet.mac()
    monkeypatch.setattr(wire, "frame", lambda value: (60_000).to_bytes(4, "big") + bytes(60_000))
    with pytest.raises(PeerFailed):
        await asyncio.to_thread(connect, target.way(source), target.node, target.identity.client)


async def test_a_file_has_one_writer(fleet: Fleet) -> None:
    source, target, whole = await holder(fleet, LARGE), await fleet.mac(), manifest(LARGE)
    weights = next(one for one in whole.files if one.path == "model.safetensors")
    with target.store.writer(REPOSITORY, weights), pytest.raises((TransferFailed, Busy)):
        await run(target.transfer(whole, target.way(source)))
    assert await run(target.transfer(whole, target.way(source)))
    assert target.has(whole, LARGE)


async def test_a_model_that_is_removed_during_the_copy_does_not_come_back(fleet: Fleet) -> None:
    files = twelve_chunks()
    source, target, whole = await holder(fleet, files), await fleet.mac(), manifest(files)
    transfer, goes_on = target.transfer(whole, target.way(source)), target.hold_after(2 * CHUNK_BYTES)
    running = asyncio.create_task(run(transfer))
    await until_async(lambda: transfer.progress().done > 0)
    target.store.remove(whole.digest)
    transfer.stop()
    goes_on.set()
    assert await running is False
    assert not target.store.layout.repository(REPOSITORY).exists()


async def test_the_source_may_remove_the_model_during_the_copy(fleet: Fleet) -> None:
    files = twelve_chunks()
    first, second = await holder(fleet, files), await holder(fleet, files)
    target, whole = await fleet.mac(), manifest(files)
    transfer = target.transfer(whole, target.way(first), target.way(second), paces={Way.CABLE: Pace(200e6)})
    running = asyncio.create_task(run(transfer))
    await until_async(lambda: transfer.progress().done > 0)
    first.store.remove(whole.digest)
    assert await running
    assert target.has(whole, files)


async def test_strangers_and_wrong_names_get_nothing(fleet: Fleet, tmp_path: Path) -> None:
    source = await holder(fleet, SMALL)
    thief = Mac("mac-9", tmp_path / "thief", make_identity(tmp_path / "thief-identity"), ("127.9.9.9",))
    for node in ("mac-9", source.node):
        with pytest.raises(PeerFailed, match="does not contain this certificate"):
            await asyncio.to_thread(connect, thief.way(source), node, thief.identity.client)
    pinned = thief.way(source)
    object.__setattr__(pinned.to, "sha256", "0" * 64)
    with pytest.raises(PeerFailed, match="certificate is not the one"):
        await asyncio.to_thread(connect, pinned, "mac-9", thief.identity.client)


async def test_a_node_has_a_limited_number_of_connections(fleet: Fleet) -> None:
    source, target = await holder(fleet, SMALL), await fleet.mac()
    way = target.way(source)
    opened = [await asyncio.to_thread(connect, way, target.node, target.identity.client) for _ in range(MAX_PER_NODE)]
    with pytest.raises(PeerFailed, match="connections already"):
        await asyncio.to_thread(connect, way, target.node, target.identity.client)
    opened.pop().close()

    async def again() -> bool:
        try:
            opened.append(await asyncio.to_thread(connect, way, target.node, target.identity.client))
        except PeerFailed:
            return False
        return True

    await until_async(again)
    for connection in opened:
        connection.close()


@pytest.mark.parametrize("junk", [b"TFC1", b"TFC1" + os.urandom(200), b"TXXX" + bytes(5000), b"T"])
async def test_junk_ends_a_connection_and_nothing_else(fleet: Fleet, junk: bytes) -> None:
    source, target = await holder(fleet, SMALL), await fleet.mac()
    with socket.create_connection((source.addresses[0], source.port)) as sock:
        sock.sendall(junk)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(30)
        try:
            while await asyncio.to_thread(sock.recv, 4096):
                pass
        except ConnectionResetError:
            pass
    assert await run(target.transfer(manifest(SMALL), target.way(source)))


async def test_what_is_not_in_the_store_is_not_given(fleet: Fleet) -> None:
    source, target = await holder(fleet, SMALL), await fleet.mac()
    outside = b"secret"
    blobs = source.store.layout.blobs(REPOSITORY)
    # A file of the right name that no manifest lists, and a link out of the store.
    (blobs / hashlib.sha256(outside).hexdigest()).write_bytes(outside)
    secret = source.store.root.parent / "secret"
    secret.write_bytes(outside)
    config = next(one for one in manifest(SMALL).files if one.path == "config.json")
    source.store.layout.blob(REPOSITORY, config.blob).unlink()
    source.store.layout.blob(REPOSITORY, config.blob).symlink_to(secret)
    connection = await asyncio.to_thread(connect, target.way(source), target.node, target.identity.client)
    try:
        names = (hashlib.sha256(outside).hexdigest(), config.blob, "0" * 64)
        _, answer = await asyncio.to_thread(connection.fetch, Request(Op.FILES, names), CHUNK_BYTES)
        assert answer.sizes == (-1, -1, -1)
        _, answer = await asyncio.to_thread(connection.fetch, Request(Op.CHUNK, names[:1], 0), CHUNK_BYTES)
        assert answer.error
    finally:
        connection.close()


async def test_thousands_of_small_files_arrive(fleet: Fleet) -> None:
    files = {f"part-{number % 7}/{number}.json": f"{number}".encode() for number in range(1500)}
    source, target, whole = await holder(fleet, files), await fleet.mac(), manifest(files)
    assert await run(target.transfer(whole, target.way(source)))
    assert target.has(whole, files)


async def test_too_little_free_disk_is_said_before_anything_is_fetched(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target, whole = await holder(fleet, LARGE), await fleet.mac(), manifest(LARGE)
    monkeypatch.setattr(target.store, "free_bytes", lambda: 1000)
    with pytest.raises(TransferFailed, match="more are needed") as failure:
        await run(target.transfer(whole, target.way(source)))
    assert failure.value.reason is Reason.DISK_FULL
    assert not target.received


@pytest.mark.linux
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system, which needs root")
async def test_a_disk_that_fills_up_stops_the_copy_and_keeps_what_arrived(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if not await mounted("mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(small)):
        pytest.skip("mounts are not allowed here")
    try:
        source, target, whole = await holder(fleet, LARGE), await fleet.mac(), manifest(LARGE)
        target.store = type(target.store)(small / "store")
        target.store.prepare()
        target.shelf = shelf_module.Shelf(target.store, target.node)
        monkeypatch.setattr(type(target.store), "free_bytes", lambda store: 10**12)
        ballast = small / "ballast"
        ballast.write_bytes(bytes(15 * 2**20))
        with pytest.raises(TransferFailed, match="disk is full") as failure:
            await run(target.transfer(whole, target.way(source)))
        assert failure.value.reason is Reason.DISK_FULL
        assert not target.store.layout.snapshot(whole.repository, whole.commit).exists()
        ballast.unlink()
        assert await mounted("mount", "-o", "remount,size=200m", str(small))
        before = sum(target.received.values())
        assert await run(target.transfer(whole, target.way(source)))
        assert target.has(whole, LARGE)
        assert sum(target.received.values()) - before < whole.total_bytes
    finally:
        await mounted("umount", "-l", str(small))


KILLED = """
import sys
from pathlib import Path
from tests.support.models.copies import Mac, manifest, content
from thunderfleet_agent.copies.ways.pace import Pace
from thunderfleet_agent.copies.ways.paths import Path as Way_, Way
from thunderfleet_agent.copies.transfer import Transfer, Network
from thunderfleet_agent.peers import identity
from thunderfleet_agent.peers.dial_plan import PeerAddress
from tests.support.models.copies import CHUNKS_OF_KILL
folder, root, node, address, port, sha256 = sys.argv[1:]
made = identity.load(Path(folder))
files = {"model.safetensors": content(11, CHUNKS_OF_KILL)}
whole = manifest(files)
mac = Mac("mac-2", Path(root), made, ("127.9.2.1",))
way = Way_(PeerAddress(node, address, int(port), sha256), Way.CABLE, "127.9.2.1", "cable")
transfer = mac.transfer(whole, way, paces={Way.CABLE: Pace(150e6)})
print("started", flush=True)
transfer.run()
"""


@pytest.mark.parametrize("seed", range(4))
async def test_a_killed_agent_continues_and_nothing_incomplete_is_seen(
    fleet: Fleet, tmp_path: Path, seed: int, made: Identity, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.support.models.copies import CHUNKS_OF_KILL

    files = {"model.safetensors": content(11, CHUNKS_OF_KILL)}
    source, whole = await holder(fleet, files), manifest(files)
    target = await fleet.mac()
    folder = next(Path(path) for path in tmp_path_factory.getbasetemp().glob("identity*/made"))
    partial = target.store.layout.incomplete(REPOSITORY, whole.files[0].blob)
    at = random.Random(seed).randrange(1, CHUNKS_OF_KILL)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(folder), str(target.store.root), source.node, source.addresses[0], str(source.port),
        source.identity.sha256, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip

    def written() -> bool:
        return process.returncode is not None or (partial.exists() and partial.stat().st_blocks * 512 >= at)

    await until_async(written, pause=0.005)
    if process.returncode is None:
        process.kill()
    await process.wait()
    snapshot = target.store.layout.snapshot(whole.repository, whole.commit)
    assert not snapshot.exists() or target.has(whole, files)
    assert await run(target.transfer(whole, target.way(source)))
    assert target.has(whole, files)


async def test_a_clock_that_jumps_changes_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    source, target, whole = await holder(fleet, LARGE), await fleet.mac(), manifest(LARGE)
    jumps = iter(random.Random(1).choices([-1e9, 1e9, 0.0], k=100_000))
    monkeypatch.setattr(time, "time", lambda: 1e9 + next(jumps))
    assert await run(target.transfer(whole, target.way(source)))
    assert target.has(whole, LARGE)


def test_one_wrong_chunk_names_its_sender_and_two_senders_name_the_list() -> None:
    from thunderfleet_agent.copies.board import Ask, Board, Chunk, GetList

    data = content(12, 3 * CHUNK_BYTES)
    board = Board([entry("model.safetensors", data)], lambda n: 0, 0.0)
    blob = next(iter(board.large))
    for key in ("a", "b", "c"):
        board.join(key, f"mac-{key}", Way.CABLE, 0.0)
        assert board.take(key, 0.0) == Ask((blob,))
        board.answered(key, {blob: None})
    assert board.take("a", 1.0) == GetList(blob)
    assert board.listed("a", blob, ChunkList(bytes(96)), 1.0)
    board.found_on_disk(blob, ())
    first = board.take("b", 1.0)
    assert isinstance(first, Chunk) and first.index == 0
    assert board.wrong("b", first) == ("mac-b", False)
    board.leave("b")
    again = board.take("c", 1.0)
    assert again == first and isinstance(again, Chunk)
    assert board.wrong("c", again) == ("mac-a", True)
    assert board.large[blob].list is None and board.take("c", 1.1) is not None


def test_worse_ways_wait_while_a_better_one_makes_progress() -> None:
    from thunderfleet_agent.copies.board import GRACE_SECONDS, Ask, Board, Chunk

    data = content(13, 3 * CHUNK_BYTES)
    board = Board([entry("model.safetensors", data)], lambda n: 0, 0.0)
    blob = next(iter(board.large))
    board.join("lan", "mac-1", Way.NETWORK, 0.0)
    board.join("cable", "mac-2", Way.CABLE, 0.0)
    assert board.take("lan", 0.1) is None
    assert board.take("cable", 0.1) == Ask((blob,))
    board.answered("cable", {blob: frozenset({0})})
    # The cable's Mac waits for this one: neither has the rest, so the network is used after a while.
    board.take("cable", 0.2)
    board.listed("cable", blob, ChunkList(bytes(96)), 0.2)
    board.found_on_disk(blob, ())
    work = board.take("cable", 0.3)
    assert isinstance(work, Chunk)
    assert board.take("lan", 99.0) is None
    board.ended("cable")
    board.arrived("cable", work)
    assert board.take("lan", 0.4) is None
    assert board.take("lan", 0.4 + GRACE_SECONDS) is not None


def test_the_network_waits_at_the_start_for_a_cable_that_is_being_connected() -> None:
    from thunderfleet_agent.copies.board import GRACE_SECONDS, Ask, Board

    data = content(13, 3 * CHUNK_BYTES)
    board = Board([entry("model.safetensors", data)], lambda n: 0, 0.0)
    board.expect("cable", Way.CABLE)
    board.expect("lan", Way.NETWORK)
    board.join("lan", "mac-1", Way.NETWORK, 0.0)
    assert board.take("lan", 0.1) is None
    # It cannot be connected.
    board.leave("cable")
    assert isinstance(board.take("lan", 0.2), Ask)
    # When it is tried again, nothing waits for it.
    board.expect("cable", Way.CABLE)
    assert board.take("lan", GRACE_SECONDS + 0.1) is not None
    board.join("cable", "mac-1", Way.CABLE, GRACE_SECONDS + 0.2)
    assert board.take("lan", GRACE_SECONDS + 0.3) is None
