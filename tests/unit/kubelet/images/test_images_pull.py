"""Pulls from real HTTP servers that speak the distribution API, and that lie, cut, refuse and redirect."""

import asyncio
import contextlib
import errno
import io
import json
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import aiohappyeyeballs
import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.images import pull
from thunderfleet_kubelet.images.collector import Collector
from thunderfleet_kubelet.images.errors import PullError
from thunderfleet_kubelet.images.pull import Pull, Pulled
from thunderfleet_kubelet.images.registry import clients, download, requests
from thunderfleet_kubelet.images.registry import repository as registries
from thunderfleet_kubelet.images.registry.manifest import Blob
from thunderfleet_kubelet.images.registry.reference import parse
from thunderfleet_kubelet.images.registry.secrets import Credential
from thunderfleet_kubelet.images.settings import PullSettings
from thunderfleet_kubelet.images.store import Store
from thunderfleet_kubelet.node.machine import here
from thunderfleet_kubelet.pressure import FileSystem
from thunderfleet_lib.backoff import Backoff

from tests.support.images.registry import Entry, Layer, Registry, basic, digest_of, script
from tests.support.waiting import ASYNC_WAIT_SECONDS, until_async

ALICE = Credential("alice", "wonder-land")
KIB = 1024


class Machine:
    """A store, and registries that it may ask."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self.store = Store(root)
        self.store.open()
        self.stack = stack
        self.settings = PullSettings(platforms=(here(),))
        self.asked_for_room: list[int] = []
        self.clients = clients.Clients(None, "test")

    async def registry(self, registry: Registry | None = None) -> Registry:
        started = await (registry or Registry()).start()
        self.stack.push_async_callback(started.stop)
        self.settings = replace(self.settings, plain_http=(*self.settings.plain_http, started.host))
        return started

    async def pull(self, name: str, *credentials: Credential) -> Pulled:
        reference = parse(name)
        assert reference is not None

        async def room(need: int) -> int:
            self.asked_for_room.append(need)
            return 0

        return await Pull(self.clients, self.store, self.settings, reference, room).run(credentials)


@pytest_asyncio.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    monkeypatch.setattr(download, "RETRY", Backoff(0.01, 0.01))
    async with AsyncExitStack() as stack:
        machine = Machine(tmp_path / "images", stack)
        stack.push_async_callback(machine.clients.close)
        yield machine


def random(name: str, size: int) -> Entry:
    return Entry(name, os.urandom(size))


def manifests(registry: Registry) -> list[str]:
    return [path.rpartition("/")[2] for path in registry.paths("manifests")]


async def test_an_image_by_tag_and_by_digest_is_fetched_once(machine: Machine) -> None:
    registry = await machine.registry()
    layers = [Layer.of(script("bin/x", "echo 1")), Layer.of(random("data", 300 * KIB), compression="zstd")]
    darwin = registry.image(Layer.of(Entry("other")), platform=("plan9", "mips"))
    mine = registry.image(*layers, config={"Entrypoint": ["x"]})
    index = registry.index(**{"plan9_mips": darwin, "_".join(here()): mine})
    registry.put("team/app", "1", index, mine, darwin)
    first = await machine.pull(f"{registry.host}/team/app:1")
    root = machine.store.rootfs(first.stored)
    assert (root / "bin/x").exists() and (root / "data").stat().st_size == 300 * KIB and not (root / "other").exists()
    assert first.fetched == registry.sent - len(registry.blobs[digest_of_config(registry, mine)])
    assert machine.store.config(first.stored) == {"Entrypoint": ["x"]}
    sent = registry.sent
    for name in ("team/app:1", f"team/app@{digest_of(index[1])}", f"team/app@{digest_of(mine[1])}"):
        again = await machine.pull(f"{registry.host}/{name}")
        assert (again.fetched, again.stored) == (0, first.stored)
    assert registry.sent == sent
    assert len(machine.store.images) == 1


def digest_of_config(registry: Registry, image: tuple[str, bytes]) -> str:

    return str(json.loads(image[1])["config"]["digest"])


async def test_a_tag_that_moves_and_layers_that_are_shared(machine: Machine) -> None:
    registry = await machine.registry()
    base = Layer.of(random("base", 200 * KIB))
    registry.put("app", "1", registry.image(base, Layer.of(Entry("v", b"one"))))
    old = await machine.pull(f"{registry.host}/app:1")
    registry.put("app", "1", registry.image(base, Layer.of(Entry("v", b"two"))))
    new = await machine.pull(f"{registry.host}/app:1")
    assert new.fetched < 10 * KIB
    assert (machine.store.rootfs(new.stored) / "v").read_text() == "two"
    reference = parse(f"{registry.host}/app:1")
    assert reference is not None and machine.store.find(reference) is new.stored
    assert old.stored.key in machine.store.images


async def test_a_store_is_read_again_and_what_was_half_done_is_deleted(machine: Machine, tmp_path: Path) -> None:
    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    pulled = await machine.pull(f"{registry.host}/app:1", ALICE)
    (tmp_path / "images/staging/half").mkdir()
    (tmp_path / "images/trees" / ("0" * 64)).mkdir()
    store = Store(tmp_path / "images")
    store.open()
    await store.drop_staging()
    found = store.images[pulled.stored.key]
    assert (found.names, found.size, found.access) == (pulled.stored.names, pulled.stored.size, pulled.stored.access)
    assert list((tmp_path / "images/staging").iterdir()) == []
    assert [one.name for one in (tmp_path / "images/trees").iterdir()] == [found.key]


class Sick:
    """Files that the system does not open, or does not read, as long as ``error`` is set."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self.late = False
        self._name, self._open = name, io.open
        monkeypatch.setattr(io, "open", self)

    def __call__(self, file: Any, *rest: Any, **more: Any) -> Any:
        if self.error is None or Path(str(file)).name != self._name:
            return self._open(file, *rest, **more)
        if not self.late:
            raise self._fault()
        stream = self._open(os.devnull, "rb")

        def read(*_: object) -> bytes:
            raise self._fault()

        return Mock(wraps=stream, __enter__=lambda _: Mock(read=read), __exit__=lambda *_: stream.close())

    def _fault(self) -> Exception:
        return MemoryError() if self.error == errno.ENOMEM and self.late else OSError(self.error, os.strerror(self.error or 0))


PASSING = ("EMFILE", "ENFILE", "EIO", "ENOMEM", "EBUSY", "EACCES", "ESTALE", "ETIMEDOUT")


@pytest.mark.parametrize("late", [False, True], ids=["opened", "read"])
@pytest.mark.parametrize("error", PASSING)
async def test_a_record_that_cannot_be_read_now_costs_no_image(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, late: bool
) -> None:
    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    pulled = await machine.pull(f"{registry.host}/app:1")
    name = parse(f"{registry.host}/app:1")
    assert name is not None
    sick = Sick("image.json", monkeypatch)
    sick.error, sick.late = getattr(errno, error), late
    machine.store = Store(tmp_path / "images")
    machine.store.open()
    await machine.store.drop_staging()
    assert machine.store.find(name) is None and machine.store.images == {}
    assert (machine.store.rootfs(pulled.stored) / "v").read_text() == "one"
    sick.error = None
    found = machine.store.find(name)
    assert found is not None and (found.key, found.tags) == (pulled.stored.key, pulled.stored.tags)
    sent = registry.sent
    assert (await machine.pull(f"{registry.host}/app:1")).fetched == 0 and registry.sent == sent


async def test_a_record_that_stays_unreadable_is_replaced_by_the_next_pull(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    pulled = await machine.pull(f"{registry.host}/app:1")
    running = os.open(machine.store.rootfs(pulled.stored) / "v", os.O_RDONLY)
    sick = Sick("image.json", monkeypatch)
    sick.error = errno.EIO
    machine.store = Store(tmp_path / "images")
    machine.store.open()
    again = await machine.pull(f"{registry.host}/app:1")
    sick.error = None
    assert list(machine.store.images) == [again.stored.key] == [pulled.stored.key]
    assert (machine.store.rootfs(again.stored) / "v").read_text() == "one"
    # A program that runs from the old files keeps those it has open.
    await machine.store.drop_staging()
    assert os.read(running, 10) == b"one" and list((tmp_path / "images/staging").iterdir()) == []
    os.close(running)


@pytest.mark.parametrize(
    "broken", ["", "{", "[]", '{"size": 1}', "\0" * 50, '{"size": 1e999, "used": 1}', "missing", "a folder"]
)
async def test_an_image_whose_record_is_broken_is_deleted(machine: Machine, tmp_path: Path, broken: str) -> None:
    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    pulled = await machine.pull(f"{registry.host}/app:1")
    record = machine.store.trees / pulled.stored.key / "image.json"
    record.unlink()
    if broken == "a folder":
        record.mkdir()
    elif broken != "missing":
        record.write_text(broken)
    machine.store = Store(tmp_path / "images")
    machine.store.open()
    await machine.store.drop_staging()
    assert machine.store.images == {} and list(machine.store.trees.iterdir()) == []
    assert list((tmp_path / "images/staging").iterdir()) == []
    assert (await machine.pull(f"{registry.host}/app:1")).stored.key == pulled.stored.key


async def test_a_connection_that_breaks_is_continued_where_it_broke(machine: Machine) -> None:
    registry = await machine.registry(Registry(cut=100 * KIB))
    registry.simple("app", "1", random("data", 900 * KIB))
    pulled = await machine.pull(f"{registry.host}/app:1")
    ranges = [headers["Range"] for path, headers in registry.asked if "Range" in headers]
    assert len(ranges) >= 8
    # Nothing was sent twice.
    assert registry.sent <= 1100 * KIB
    assert (machine.store.rootfs(pulled.stored) / "data").stat().st_size == 900 * KIB


async def test_a_later_pull_continues_what_an_earlier_one_left(machine: Machine) -> None:
    registry = await machine.registry(Registry(cut=400 * KIB))
    registry.simple("app", "1", random("data", 900 * KIB))
    answers = 0

    def failing(path: str) -> int:
        nonlocal answers
        answers += "/blobs/" in path
        # The configuration, and the first part of the layer.
        return 503 if answers > 2 else 0

    registry.failing = failing
    with pytest.raises(PullError, match=r"HTTP 503.*: out of order at once"):
        await machine.pull(f"{registry.host}/app:1")
    sent = registry.sent
    registry.failing, registry.cut = lambda path: 0, 0
    await machine.pull(f"{registry.host}/app:1")
    assert registry.sent - sent < 600 * KIB


async def leave_a_part(machine: Machine, registry: Registry) -> None:
    """Most of the only layer of ``app:1``, which has 900 KiB."""
    registry.simple("app", "1", random("data", 900 * KIB))
    registry.cut = 800 * KIB
    registry.failing = lambda path: 503 if registry.sent > 100 * KIB else 0
    with pytest.raises(PullError, match="HTTP 503"):
        await machine.pull(f"{registry.host}/app:1")
    registry.failing, registry.cut = lambda path: 0, 0


async def test_what_is_there_already_needs_no_room(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = await machine.registry()
    await leave_a_part(machine, registry)
    disk = FileSystem(download.SPARE_BYTES + 300 * KIB, 10**12)
    monkeypatch.setattr(pull, "file_system", lambda path: disk)
    await machine.pull(f"{registry.host}/app:1")
    assert machine.asked_for_room == []


@pytest.mark.parametrize("fault", ["refuses", "sends another range"])
async def test_a_registry_that_does_not_continue_a_layer_sends_it_again(machine: Machine, fault: str) -> None:
    registry = await machine.registry()
    await leave_a_part(machine, registry)
    if fault == "refuses":
        registry.failing = lambda path: 416 if "Range" in registry.asked[-1][1] else 0
    else:
        registry.shift = 1
    pulled = await machine.pull(f"{registry.host}/app:1")
    assert (machine.store.rootfs(pulled.stored) / "data").stat().st_size == 900 * KIB


async def test_a_layer_that_was_damaged_on_the_disk_is_fetched_again(machine: Machine) -> None:
    registry = await machine.registry()
    shared = Layer.of(random("data", 100 * KIB))
    registry.put("app", "1", registry.image(shared))
    registry.put("app", "2", registry.image(shared, Layer.of(Entry("more"))))
    await machine.pull(f"{registry.host}/app:1")
    file = machine.store.blobs / digest_of(shared.blob).removeprefix("sha256:")
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(PullError, match="damaged on the disk: 1 layers, which the next pull fetches again"):
        await machine.pull(f"{registry.host}/app:2")
    pulled = await machine.pull(f"{registry.host}/app:2")
    assert (machine.store.rootfs(pulled.stored) / "data").stat().st_size == 100 * KIB


async def test_half_an_image_is_deleted_beside_the_event_loop(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = await machine.registry()
    registry.simple("app", "1", Entry("../out", b"x"))
    deleted, delete = list[Path](), leftovers.delete

    async def noted(path: Path) -> None:
        deleted.append(path)
        await delete(path)

    monkeypatch.setattr(leftovers, "delete", noted)
    with pytest.raises(PullError, match="leads out of the image"):
        await machine.pull(f"{registry.host}/app:1")
    assert len(deleted) == 1
    assert list((machine.store.root / "staging").iterdir()) == []


async def test_what_a_killed_kubelet_left_is_deleted_and_what_is_being_unpacked_is_not(machine: Machine) -> None:
    (machine.store.root / "staging/half/rootfs").mkdir(parents=True)
    async with machine.store.staging() as folder:
        await Collector(machine.store, machine.settings, set).look()
        assert list((machine.store.root / "staging").iterdir()) == [folder]


async def test_a_registry_without_ranges_starts_again(machine: Machine) -> None:
    registry = await machine.registry(Registry(cut=700 * KIB, ranges=False))
    registry.simple("app", "1", random("data", 900 * KIB))
    with pytest.raises(PullError, match="broke off"):
        await machine.pull(f"{registry.host}/app:1")
    registry.cut = 0
    pulled = await machine.pull(f"{registry.host}/app:1")
    assert (machine.store.rootfs(pulled.stored) / "data").stat().st_size == 900 * KIB


async def test_other_content_than_the_digest_is_refused_and_forgotten(machine: Machine) -> None:
    registry = await machine.registry()
    layer = Layer.of(random("data", 100 * KIB))
    registry.put("app", "1", registry.image(layer))
    registry.lies[digest_of(layer.blob)] = os.urandom(len(layer.blob))
    with pytest.raises(PullError, match="sent content that does not have the digest"):
        await machine.pull(f"{registry.host}/app:1")
    assert list((machine.store.root / "partial").iterdir()) == list((machine.store.root / "blobs").iterdir()) == []
    registry.lies[digest_of(layer.blob)] = layer.blob + b"more"
    with pytest.raises(PullError, match="sends more than"):
        await machine.pull(f"{registry.host}/app:1")
    registry.lies.clear()
    await machine.pull(f"{registry.host}/app:1")


async def test_a_manifest_with_another_digest_is_refused(machine: Machine) -> None:
    registry = await machine.registry()
    wanted = registry.simple("app", "1", Entry("v", b"one"))
    other = registry.image(Layer.of(Entry("v", b"evil")))
    registry.manifests["app", wanted] = other
    with pytest.raises(PullError, match="sends a manifest with digest"):
        await machine.pull(f"{registry.host}/app@{wanted}")
    registry.claims["1"] = digest_of(other[1])
    with pytest.raises(PullError, match="sends a manifest with digest"):
        await machine.pull(f"{registry.host}/app:1")


@pytest.mark.parametrize("bearer", [False, True])
async def test_credentials_are_sent_to_the_registry_and_to_nobody_else(
    machine: Machine, bearer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = await machine.registry()
    registry = await machine.registry(Registry(users={"alice": "wonder-land"}, bearer=bearer))
    registry.simple("app", "1", random("data", 50 * KIB))
    store.blobs, registry.elsewhere = registry.blobs, f"http://{store.host}"
    with pytest.raises(PullError) as refused:
        await machine.pull(f"{registry.host}/app:1")
    assert "imagePullSecrets" in str(refused.value)
    with pytest.raises(PullError) as wrong:
        await machine.pull(f"{registry.host}/app:1", Credential("alice", "looking-glass"))
    pulled = await machine.pull(f"{registry.host}/app:1", Credential("bob", "builder"), ALICE)
    assert store.paths("blobs") and not any("Authorization" in headers for _, headers in store.asked)
    assert pulled.stored.access == {f"{registry.host}/app": [ALICE.mark]}
    said = caplog.text + str(refused.value) + str(wrong.value)
    for secret in ("wonder-land", "looking-glass", "builder", basic("alice", "wonder-land"), "token-of-alice", "signature"):
        assert secret not in said


BOB = Credential("bob", "builder")


@pytest.mark.parametrize(
    ("status", "others"),
    [(401, True), (403, True), (404, True), (400, False), (429, False), (500, False), (503, False)],
)
async def test_only_a_refusal_leads_to_the_next_credential(machine: Machine, status: int, others: bool) -> None:
    registry = await machine.registry(Registry(users={"alice": "wonder-land", "bob": "builder"}))
    registry.simple("app", "1", Entry("v", b"one"))

    def given() -> set[str]:
        return {headers["Authorization"] for _, headers in registry.asked if "Authorization" in headers}

    registry.failing = lambda path: status if registry.asked[-1][1].get("Authorization") == BOB.basic else 0
    if others:
        pulled = await machine.pull(f"{registry.host}/app:1", BOB, ALICE)
        assert pulled.stored.access == {f"{registry.host}/app": [ALICE.mark]}
    else:
        with pytest.raises(PullError, match=f"HTTP {status}"):
            await machine.pull(f"{registry.host}/app:1", BOB, ALICE)
    assert given() == ({BOB.basic, ALICE.basic} if others else {BOB.basic})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 503])
async def test_a_token_that_is_refused_leads_to_the_next_credential(machine: Machine, status: int) -> None:
    registry = await machine.registry(Registry(users={"alice": "wonder-land"}, bearer=True))
    registry.simple("app", "1", Entry("v", b"one"))
    registry.failing = lambda path: status if registry.asked[-1][1].get("Authorization") == BOB.basic else 0
    if status in (429, 503):
        with pytest.raises(PullError, match=rf"gives no token \(HTTP {status}\)"):
            await machine.pull(f"{registry.host}/app:1", BOB, ALICE)
        assert not any(ALICE.basic == headers.get("Authorization") for _, headers in registry.asked)
    else:
        pulled = await machine.pull(f"{registry.host}/app:1", BOB, ALICE)
        assert pulled.stored.access == {f"{registry.host}/app": [ALICE.mark]}


@pytest.mark.parametrize("fault", ["the layer lies", "the layer is too large", "the layer is not unpacked"])
async def test_what_every_credential_would_get_is_asked_for_once(machine: Machine, fault: str) -> None:
    registry = await machine.registry(Registry(users={"alice": "wonder-land", "bob": "builder"}))
    layer = Layer.of(Entry("../out" if fault == "the layer is not unpacked" else "v", b"one"))
    registry.put("app", "1", registry.image(layer))
    content = layer.blob
    if fault == "the layer lies":
        registry.lies[digest_of(content)] = content[:-1] + b"x"
    elif fault == "the layer is too large":
        registry.lies[digest_of(content)] = content + b"x"
    with pytest.raises(PullError):
        await machine.pull(f"{registry.host}/app:1", BOB, ALICE)
    # Without a password, and with one.
    assert len(registry.paths("manifests")) == 2
    assert not any(ALICE.basic == headers.get("Authorization") for _, headers in registry.asked)


async def test_a_registry_that_hangs_up_is_not_asked_for_each_credential(machine: Machine) -> None:
    calls = 0

    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        counts = []
        for given in ((), (BOB, ALICE)):
            calls = 0
            with pytest.raises(PullError, match="the connection broke off"):
                await machine.pull(f"127.0.0.1:{server.sockets[0].getsockname()[1]}/app:1", *given)
            counts.append(calls)
    assert counts[0] == counts[1] > 0


async def test_errors_do_not_show_signed_addresses(machine: Machine) -> None:
    store = await machine.registry()
    registry = await machine.registry()
    registry.simple("app", "1", random("data", 50 * KIB))
    registry.elsewhere = f"http://{store.host}"
    with pytest.raises(PullError) as caught:
        await machine.pull(f"{registry.host}/app:1")
    assert "signature" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("http://store.example", "not encrypted"),
        ("ftp://127.0.0.1", "not encrypted"),
        ("file:///etc", "invalid address|not encrypted"),
        ("https://user:password@store.example", "user name"),
        ("http://[", "invalid address"),
    ],
)
async def test_redirects_to_other_places_are_refused(machine: Machine, target: str, words: str) -> None:
    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    registry.elsewhere = target
    with pytest.raises(PullError, match=words):
        await machine.pull(f"{registry.host}/app:1")


PRIVATE = ("10.1.2.3", "192.168.0.1", "100.64.0.1", "[fd00::1]")
HERE = ("127.0.0.2", "169.254.1.1", "169.254.169.254", "0.0.0.0", "[::1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[fe80::1]")


@pytest.mark.parametrize("address", [*PRIVATE, *HERE])
@pytest.mark.parametrize("how", ["redirect", "realm"])
async def test_a_registry_cannot_lead_to_a_private_address(machine: Machine, address: str, how: str) -> None:
    async def leads(request: web.Request) -> web.Response:
        if how == "redirect":
            return web.Response(status=307, headers={"Location": f"https://{address}/x"})
        return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="https://{address}/token"'})

    host = await serve(machine, leads)
    where = "a private address" if address in PRIVATE else "an address of this Mac or of its links"
    with pytest.raises(PullError) as caught:
        await machine.pull(f"{host}/app:1", ALICE)
    assert f"the registry leads to {address.strip('[]')}, which has {where}" in str(caught.value)
    assert "imagePulls.registries" in str(caught.value)


@pytest.mark.parametrize(
    ("addresses", "refused"), [(["10.1.2.3"], True), (["198.41.0.4", "127.0.0.1"], True), (["198.41.0.4"], False)]
)
async def test_no_connection_goes_to_a_name_with_a_private_address(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, addresses: list[str], refused: bool
) -> None:
    resolved, dialled = list[str](), list[object]()

    async def resolve(self: object, host: str, port: int = 0, family: int = 0) -> list[dict[str, object]]:
        resolved.append(host)
        known = {"hostname": host, "port": port, "family": socket.AF_INET, "proto": 0, "flags": socket.AI_NUMERICHOST}
        return [{**known, "host": address} for address in addresses]

    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    registry.elsewhere = "https://CDN.example"
    reference = parse(f"{registry.host}/app:1")
    assert reference is not None
    document = json.loads(registry.manifests["app", "1"][1])
    asks = registries.Registry(requests.Requests(machine.clients, reference, machine.settings, None), reference)
    blob = Blob("", document["config"]["digest"], document["config"]["size"])
    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)
    real = aiohappyeyeballs.start_connection

    async def dial(addr_infos: Any, **more: Any) -> Any:
        if all(info[4] == ("127.0.0.1", registry.port) for info in addr_infos):
            return await real(addr_infos, **more)
        dialled.extend(info[4] for info in addr_infos)
        raise OSError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", dial)
    with pytest.raises(PullError, match="leads to cdn.example, which has" if refused else "cdn.example: cannot connect"):
        await asks.small(blob)
    assert resolved == ["cdn.example"]
    assert dialled == ([] if refused else [("198.41.0.4", 443)])


async def test_hosts_in_the_configuration_may_have_private_addresses(machine: Machine) -> None:
    store = await machine.registry()
    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    store.blobs.update(registry.blobs)
    registry.elsewhere = f"http://localhost:{store.port}"
    with pytest.raises(PullError, match="leads to localhost, which has an address of this Mac"):
        await machine.pull(f"{registry.host}/app:1")
    for other in ("localhost", "localhost:1", "*.localhost"):
        machine.settings = replace(machine.settings, registries=("*", other))
        with pytest.raises(PullError, match="leads to localhost"):
            await machine.pull(f"{registry.host}/app:1")
    assert store.asked == []
    machine.settings = replace(machine.settings, registries=("*", f"localhost:{store.port}/team"))
    pulled = await machine.pull(f"{registry.host}/app:1")
    assert (machine.store.rootfs(pulled.stored) / "v").read_text() == "one" and store.asked


async def test_a_connection_to_a_trusted_host_is_not_used_for_the_redirect_of_another_registry(machine: Machine) -> None:
    """The first registry is allowed to have a private address, and keeps its connection for its next request."""
    inside = await machine.registry()
    inside.simple("inside", "1", Entry("v", b"secret"))
    assert (await machine.pull(f"localhost:{inside.port}/inside:1")).fetched
    asked = len(inside.asked)
    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    registry.elsewhere = f"http://localhost:{inside.port}"
    with pytest.raises(PullError, match="leads to localhost"):
        await machine.pull(f"{registry.host}/app:1")
    assert len(inside.asked) == asked


async def test_endless_redirects_end(machine: Machine) -> None:
    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    registry.elsewhere = f"http://{registry.host}"
    with pytest.raises(PullError, match="redirects more than 5 times"):
        await machine.pull(f"{registry.host}/app:1")


async def serve(machine: Machine, handler: object) -> str:
    application = web.Application()
    application.router.add_get("/{path:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(application)
    await runner.setup()
    machine.stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host = f"127.0.0.1:{runner.addresses[0][1]}"
    machine.settings = replace(machine.settings, plain_http=(*machine.settings.plain_http, host))
    return host


async def test_a_password_does_not_leave_by_a_redirected_token_or_an_open_realm(machine: Machine) -> None:
    got: list[str] = []

    async def thief(request: web.Request) -> web.Response:
        got.append(request.headers.get("Authorization", ""))
        return web.json_response({"token": "x"})

    thief_host = await serve(machine, thief)
    realm = ""

    async def liar(request: web.Request) -> web.Response:
        if request.path == "/token":
            return web.Response(status=307, headers={"Location": f"http://{thief_host}/token"})
        return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}"'})

    host = await serve(machine, liar)
    realm = f"http://{host}/token"
    with pytest.raises(PullError, match="gives no token"):
        await machine.pull(f"{host}/app:1", ALICE)
    realm = "http://thief.example/token"
    with pytest.raises(PullError, match="not encrypted"):
        await machine.pull(f"{host}/app:1", ALICE)
    assert got == []


async def test_small_answers_are_bounded_and_limited(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def huge(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(KIB * KIB))
        except ConnectionError:
            return response

    with pytest.raises(PullError, match="sends more than 4194304 bytes"):
        await machine.pull(f"{await serve(machine, huge)}/app:1")
    never = asyncio.Event()

    async def silent(request: web.Request) -> web.Response:
        await never.wait()
        return web.Response()

    monkeypatch.setattr(registries, "SMALL_SECONDS", 0.2)
    host = await serve(machine, silent)
    try:
        with pytest.raises(PullError, match=r"no manifest within 0\.2 s"):
            await machine.pull(f"{host}/app:1")
    finally:
        never.set()


@pytest.mark.parametrize("how", ["head", "interim", "error"])
async def test_a_blob_whose_answer_drips_is_given_up(machine: Machine, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The registry is never silent: it sends a little every few milliseconds, and never the blob."""
    # The limit that ends it, and no other: on a busy machine an answer that comes at once may take as long.
    limit = (registries, "ERROR_SECONDS") if how == "error" else (requests, "ANSWER_SECONDS")
    monkeypatch.setattr(*limit, 0.3)
    monkeypatch.setattr(download, "FRUITLESS", 1)
    registry = await machine.registry()
    registry.simple("app", "1", random("data", 10 * KIB))
    first, piece = {
        "head": (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        "interim": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        "error": (b"HTTP/1.1 500 No\r\nContent-Length: 60000\r\n\r\n", b"x"),
    }[how]

    dripping: set[asyncio.Task[None]] = set()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dripping.add(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(first)
                while True:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)

    async def stop() -> None:
        server.close()
        for task in dripping:
            task.cancel()
        await asyncio.gather(*dripping, return_exceptions=True)
        # The aborted transports close in the next turn.
        await asyncio.sleep(0)

    machine.stack.push_async_callback(stop)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    registry.elsewhere = f"http://{host}"
    machine.settings = replace(machine.settings, plain_http=(*machine.settings.plain_http, host))
    words = "no answer in time" if how != "error" else "HTTP 500"
    with pytest.raises(PullError, match=words):
        await asyncio.wait_for(machine.pull(f"{registry.host}/app:1"), 60)


async def test_a_registry_that_slows_down_is_given_up(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is measured by a clock of the test: each look at it is a minute later."""
    registry = await machine.registry()
    registry.simple("app", "1", random("data", 900 * KIB))
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 60.0
        return now

    machine.store.downloads._clock = clock
    monkeypatch.setattr(download, "LEAST_RATE", 10**9)
    monkeypatch.setattr(download, "FRUITLESS", 1)
    monkeypatch.setattr(download, "MAX_TRIES", 2)
    with pytest.raises(PullError, match="less than 1000000000 bytes a second"):
        await machine.pull(f"{registry.host}/app:1")


@pytest.mark.parametrize(("allowed", "works"), [(("*",), True), ((), False), (("ghcr.io",), False)])
async def test_only_allowed_registries_are_asked(machine: Machine, allowed: Sequence[str], works: bool) -> None:
    registry = await machine.registry()
    registry.simple("app", "1", Entry("v", b"one"))
    machine.settings = replace(machine.settings, registries=tuple(allowed))
    if works:
        await machine.pull(f"{registry.host}/app:1")
        return
    with pytest.raises(PullError, match=r"is not allowed: imagePulls\.registries"):
        await machine.pull(f"{registry.host}/app:1")
    assert registry.asked == []


async def test_no_room_is_an_error_after_room_was_asked_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = await machine.registry()
    registry.simple("app", "1", random("data", 50 * KIB))
    monkeypatch.setattr(pull, "SPARE_BYTES", 2**60)
    with pytest.raises(PullError, match=r"needs \d+ MiB more, and 0 MiB are free"):
        await machine.pull(f"{registry.host}/app:1")
    assert len(machine.asked_for_room) == 1
    assert registry.paths("blobs") and len(registry.paths("blobs")) == 1


async def test_pulls_that_fill_the_disk_together_end_before_it_is_full(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them finds room for itself when it begins."""
    registry = await machine.registry()
    room, spare, step = 24 * 1024 * KIB, 8 * 1024 * KIB, 256 * KIB
    names = ["app1", "app2", "app3"]
    for name in names:
        registry.simple(name, "1", random("data", 12 * 1024 * KIB), compression="")

    def disk(path: Path) -> FileSystem:
        taken = sum(file.stat().st_size for folder in ("partial", "blobs") for file in (machine.store.root / folder).iterdir())
        return FileSystem(room - taken, 10**12)

    for module in (pull, download):
        monkeypatch.setattr(module, "file_system", disk)
        monkeypatch.setattr(module, "SPARE_BYTES", spare)
    monkeypatch.setattr(download, "ROOM_STEP", step)
    monkeypatch.setattr(download, "READ", step // 4)
    done = await asyncio.gather(*(machine.pull(f"{registry.host}/{name}:1") for name in names), return_exceptions=True)
    assert machine.asked_for_room == []
    errors = [one for one in done if isinstance(one, BaseException)]
    assert errors and all("would stay free on the disk" in str(one) for one in errors), errors
    assert disk(machine.store.root).available > 0


async def test_a_registry_does_not_delay_what_another_one_sends(machine: Machine) -> None:
    """Everyone can name a layer of another image, by its digest, in an image of their own."""
    layer = Layer.of(script("x", "echo x"))
    slow, quick = await machine.registry(), await machine.registry()
    for registry, config in ((slow, {"Cmd": ["/slow"]}), (quick, {"Cmd": ["/quick"]})):
        registry.put("app", "1", registry.image(layer, config=config))
    held = asyncio.Event()

    def hold_the_layer(path: str) -> int:
        slow.hold = held if path.endswith(digest_of(layer.blob)) else None
        return 0

    slow.failing = hold_the_layer
    waiting = asyncio.create_task(machine.pull(f"{slow.host}/app:1"))
    await until_async(lambda: any(path.endswith(digest_of(layer.blob)) for path in slow.paths("blobs")))
    async with asyncio.timeout(ASYNC_WAIT_SECONDS):
        assert (await machine.pull(f"{quick.host}/app:1")).fetched == len(layer.blob)
    assert not waiting.done()
    held.set()
    await waiting


async def test_other_bytes_of_one_registry_do_not_damage_what_another_one_sends(machine: Machine) -> None:
    layer = Layer.of(random("data", 300 * KIB), compression="")
    evil, good = await machine.registry(), await machine.registry()
    for registry in (evil, good):
        registry.put("app", "1", registry.image(layer))
    evil.lies[digest_of(layer.blob)], evil.cut = bytes(len(layer.blob)), 100 * KIB

    def once(path: str) -> int:
        return 503 if len([one for one in evil.paths("blobs") if one.endswith(digest_of(layer.blob))]) > 1 else 0

    evil.failing = once
    with pytest.raises(PullError):
        await machine.pull(f"{evil.host}/app:1")
    assert list(machine.store.partial.iterdir()), "what came in is kept"
    assert (await machine.pull(f"{good.host}/app:1")).fetched == len(layer.blob)


async def test_room_is_made_of_parts_that_nobody_continues(machine: Machine) -> None:
    """A registry that cuts layers off, and has others each time, leaves a part of each."""
    registry = await machine.registry()
    await leave_a_part(machine, registry)
    (part,) = machine.store.partial.iterdir()
    size = part.stat().st_size
    with machine.store.reserving([download.digest_of(part)]):
        assert await Collector(machine.store, machine.settings, set).free(2**40) == 0 and part.exists()
    assert await Collector(machine.store, machine.settings, set).free(2**40) == size and not part.exists()


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("r.example/app:1", "https"),
        ("r.example:5000/app:1", "https"),
        ("open.example:5000/app:1", "http"),
        ("localhost:5000/app:1", "http"),
        ("127.9.8.7/app:1", "http"),
        ("[::1]:5000/app:1", "http"),
        ("127.0.0.1.evil.example/app:1", "https"),
        ("docker.io/app:1", "https"),
    ],
)
async def test_registries_are_asked_with_tls_unless_configured_or_on_this_machine(
    machine: Machine, name: str, scheme: str
) -> None:
    reference = parse(name)
    assert reference is not None
    asks = requests.Requests(machine.clients, reference, PullSettings(plain_http=("open.example:5000",)), None)
    assert asks.origin.scheme == scheme


async def test_two_images_with_the_same_layer_at_once_fetch_it_once(machine: Machine) -> None:
    registry = await machine.registry(Registry(hold=asyncio.Event()))
    base = Layer.of(random("base", 300 * KIB))
    for tag in ("1", "2"):
        registry.put("app", tag, registry.image(base, Layer.of(Entry("v", tag.encode()))))
    both = asyncio.gather(*(machine.pull(f"{registry.host}/app:{tag}") for tag in ("1", "2")))
    assert registry.hold is not None
    registry.hold.set()
    await both
    assert [path for path in registry.paths("blobs") if digest_of(base.blob) in path] == [
        f"/v2/app/blobs/{digest_of(base.blob)}"
    ]


async def test_room_is_made_without_the_layers_of_a_pull_that_is_under_way(machine: Machine) -> None:
    registry = await machine.registry()
    base, own = Layer.of(random("base", 200 * KIB)), Layer.of(Entry("v", b"two"))
    registry.put("app", "1", registry.image(base))
    registry.put("app", "2", registry.image(base, own))
    registry.simple("other", "1", Entry("v", b"other"))
    for name in ("app:1", "other:1"):
        await machine.pull(f"{registry.host}/{name}")
    held, reached = asyncio.Event(), asyncio.Event()

    def hold(path: str) -> int:
        if path.endswith(digest_of(own.blob)):
            registry.hold = held
            reached.set()
        return 0

    registry.failing = hold
    pulling = asyncio.create_task(machine.pull(f"{registry.host}/app:2"))
    await asyncio.wait_for(reached.wait(), ASYNC_WAIT_SECONDS)
    assert await Collector(machine.store, replace(machine.settings, minimum_age=0), set).free(2**40) > 0
    assert machine.store.images == {}
    assert [file.name for file in machine.store.blobs.iterdir()] == [digest_of(base.blob).removeprefix("sha256:")]
    held.set()
    pulled = await pulling
    assert pulled.fetched == len(own.blob)
    assert (machine.store.rootfs(pulled.stored) / "base").stat().st_size == 200 * KIB


def test_a_file_of_authorities_that_is_none_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(ssl.SSLError):
        asyncio.run(_clients(file))


async def _clients(file: Path) -> None:
    await clients.Clients(file, "test").close()
