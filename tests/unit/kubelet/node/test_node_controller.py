"""The Node controller: registration, renewal, status writes, and a Node that was deleted."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from thunderfleet_kubelet.config import Config
from thunderfleet_kubelet.node.controller import LEASES, NODES, NodeController
from thunderfleet_kubelet.node.facts import GIB, Machine, Readings
from thunderfleet_kubelet.serving.metrics import Metrics
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.kube import ApiError, Kube, retries
from thunderfleet_lib.kube.client import Page

from tests.support.waiting import until_async

Json = dict[str, Any]
CONFIG = Config(node_name="studio-1", addresses=["127.0.0.1"], node_status_seconds=3600)
MAC = Machine("darwin", "arm64", 32, 384 * GIB, 1000 * GIB, "macOS 26.3", "25.3.0", "id", "boot", "Apple M3 Ultra")
PATH = f"{NODES}/studio-1"


class FakeKube:
    """Nodes and Leases in memory, and a record of all requests."""

    host = "https://192.0.2.1:6443"

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.asked: list[tuple[str, str, Json]] = []
        self.away = False
        self.version = 0
        self.events: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()

    def put(self, path: str, body: Json) -> Json:
        self.version += 1
        metadata = {"uid": f"uid-{self.version}", **body["metadata"], "resourceVersion": str(self.version)}
        known = path in self.objects
        self.objects[path] = {**body, "metadata": metadata}
        if path.startswith(NODES):
            self.events.put_nowait(("MODIFIED" if known else "ADDED", self.objects[path]))
        return self.objects[path]

    def vanish(self, path: str) -> None:
        self.version += 1
        gone = self.objects.pop(path)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self.events.put_nowait(("DELETED", gone))

    def _check(self) -> None:
        if self.away:
            raise ApiError(0, "Unreachable", "away")

    async def get_or_none(self, path: str) -> Json | None:
        self._check()
        return self.objects.get(path)

    async def pages(self, path: str, query: object) -> AsyncIterator[Page]:
        self._check()
        while not self.events.empty():
            self.events.get_nowait()
        yield Page([value for key, value in self.objects.items() if key.startswith(path)], str(self.version))

    async def watch(self, path: str, version: str, **query: object) -> AsyncIterator[tuple[str, Json]]:
        while True:
            yield await self.events.get()

    async def create(self, path: str, body: Json) -> Json:
        self._check()
        self.asked.append(("POST", path, body))
        return self.put(f"{path}/{body['metadata']['name']}", body)

    async def patch(self, path: str, body: Json, content: str = "", manager: str | None = None) -> Json:
        self._check()
        self.asked.append(("PATCH", path, body))
        target = path.removesuffix("/status")
        old = self.objects.get(target)
        if old is None:
            raise ApiError(404, "NotFound", f"{target} not found")
        version = body.get("metadata", {}).get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "changed meanwhile")
        merged = dict(old)
        for key in ("status", "spec"):
            if key in body:
                merged[key] = {**old.get(key, {}), **body[key]}
        labels = body.get("metadata", {}).get("labels") or {}
        merged["metadata"] = {**old["metadata"], "labels": {**old["metadata"].get("labels", {}), **labels}}
        return self.put(target, merged)

    async def request(self, method: str, path: str, *, body: Json, content: str, seconds: float) -> Json:
        assert method == "PATCH"
        assert seconds <= 10
        return await self.patch(path, body, content)

    def written(self, path: str) -> Sequence[Json]:
        return [body for _, asked, body in self.asked if asked == path]


class World:
    """A controller with an API server, a machine and a clock of the test's own."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.now = datetime(2026, 1, 31, tzinfo=UTC)
        self.seconds = 100.0
        self.readings = Readings(False, "enough", 100, 4000)
        self.looks = 0
        self.looked = asyncio.Event()
        self.ended = asyncio.Event()
        kube = cast(Kube, self.kube)
        self.node = NodeController(
            CONFIG,
            MAC,
            self.read,
            lambda: kube,
            self.vanished,
            lambda: self.now,
            now=lambda: self.seconds,
            addresses=CONFIG.addresses,
        )

    async def read(self) -> Readings:
        self.looks += 1
        self.looked.set()
        return self.readings

    async def vanished(self) -> None:
        assert PATH not in self.kube.objects, "pods end before the Node comes back"
        self.ended.set()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def running(world: World) -> AsyncIterator[World]:
    task = asyncio.ensure_future(world.node.run())
    # Registered, listed, and looked at once more.
    await until_async(lambda: world.looks >= 2 and f"{LEASES}/studio-1" in world.kube.objects)
    yield world
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_registers_and_leases(running: World) -> None:
    made = running.kube.objects[PATH]
    assert made["spec"]["taints"][0]["key"] == "thunderfleet.io/macos"
    assert made["status"]["addresses"] == [{"type": "InternalIP", "address": "127.0.0.1"}]
    assert running.node.registered.is_set()
    lease = running.kube.objects[f"{LEASES}/studio-1"]
    assert lease["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]


async def test_nothing_changed_writes_nothing(running: World) -> None:
    before = running.kube.written(f"{PATH}/status")
    looks = running.looks
    running.node.nudge()
    await until_async(lambda: running.looks > looks)
    await asyncio.sleep(0)
    assert running.kube.written(f"{PATH}/status") == before


async def test_a_change_is_written(running: World) -> None:
    running.readings = Readings(True, "short", 100, 4000)
    running.node.nudge()
    await until_async(lambda: running.kube.written(f"{PATH}/status"))
    (write,) = running.kube.written(f"{PATH}/status")
    assert {one["type"]: one["status"] for one in write["status"]["conditions"]}["MemoryPressure"] == "True"


async def test_after_a_day_a_heartbeat(running: World) -> None:
    running.now += timedelta(days=1)
    running.node.nudge()
    await until_async(lambda: running.kube.written(f"{PATH}/status"))


async def test_a_new_address_is_published(running: World) -> None:
    running.node.addresses = ("127.0.0.2",)
    running.node.nudge()
    await until_async(lambda: running.kube.written(f"{PATH}/status"))
    assert running.kube.objects[PATH]["status"]["addresses"] == [{"type": "InternalIP", "address": "127.0.0.2"}]


async def test_a_clock_that_was_set_back_does_not_end_heartbeats(running: World) -> None:
    """Neither those of the status, nor the time in the Lease, which the controller manager ignores when it goes back."""
    running.now -= timedelta(days=365)
    running.node.nudge()
    await until_async(lambda: running.kube.written(f"{PATH}/status"))
    renewed = []
    for _ in range(3):
        await running.node.renew()
        renewed.append(running.kube.objects[f"{LEASES}/studio-1"]["spec"]["renewTime"])
    assert renewed == sorted(set(renewed))
    assert renewed[0] > "2026-01-31"


async def test_the_lease_goes_on_from_where_an_earlier_kubelet_was(world: World) -> None:
    world.kube.put(
        f"{LEASES}/studio-1", {"metadata": {"name": "studio-1"}, "spec": {"renewTime": "2027-01-31T00:00:00.000000Z"}}
    )
    await world.node.renew()
    assert world.kube.objects[f"{LEASES}/studio-1"]["spec"]["renewTime"] == "2027-01-31T00:00:00.001000Z"
    world.now = datetime(2027, 2, 1, tzinfo=UTC)
    await world.node.renew()
    assert world.kube.objects[f"{LEASES}/studio-1"]["spec"]["renewTime"] == "2027-02-01T00:00:00.000000Z"


async def test_a_renewal_that_is_overdue_is_counted(world: World) -> None:
    metrics = Metrics("studio-1", "v0", lambda: (0, 0), late=lambda: world.node.late_seconds)

    def late() -> float | None:
        return metrics.registry.get_sample_value("thunderfleet_kubelet_lease_late_seconds", {"node": "studio-1"})

    assert late() is None
    await world.node.renew()
    world.seconds += CONFIG.lease_seconds / 4
    assert late() == 0
    world.kube.away = True
    world.seconds += 21
    with pytest.raises(ApiError):
        await world.node.renew()
    assert late() == 21
    world.kube.away = False
    await world.node.renew()
    assert late() == 0


async def test_a_vanished_node_ends_its_pods_and_comes_back(running: World) -> None:
    first = running.kube.objects[PATH]["metadata"]["uid"]
    running.kube.vanish(PATH)
    await until_async(lambda: PATH in running.kube.objects)
    assert running.ended.is_set()
    second = running.kube.objects[PATH]["metadata"]["uid"]
    assert second != first
    await until_async(lambda: running.node.registered.is_set() and running.node.uid == second)


async def test_it_takes_over_its_own_node(world: World) -> None:
    world.kube.put(PATH, {"metadata": {"name": "studio-1", "labels": {"mine": "yes"}}, "spec": {}, "status": {}})
    await world.node.register()
    stands = world.kube.objects[PATH]
    assert stands["metadata"]["labels"]["mine"] == "yes"
    assert stands["metadata"]["labels"]["kubernetes.io/os"] == "darwin"
    assert stands["status"]["nodeInfo"]["operatingSystem"] == "darwin"
    assert not [asked for asked in world.kube.asked if asked[0] == "POST"]


async def test_a_node_without_its_taint_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.kube.put(PATH, {"metadata": {"name": "studio-1"}, "spec": {}, "status": {}})
    await world.node.register()
    assert "node studio-1 has no taint thunderfleet.io/macos" in caplog.text
    assert "run `kubectl taint node studio-1 thunderfleet.io/macos:NoSchedule`" in caplog.text


async def test_an_api_server_that_is_away_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retries, "UNANSWERED", Backoff(0.0, 0.0))
    world.kube.away = True
    task = asyncio.ensure_future(world.node.run())
    try:
        await until_async(lambda: "cannot register node studio-1: away" in caplog.text)
        assert not world.node.registered.is_set()
        world.kube.away = False
        await until_async(world.node.registered.is_set)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
