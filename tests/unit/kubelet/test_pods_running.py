"""Real pods: real shims, real processes, and an API server of a few lines at the edge."""

import asyncio
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from thunderfleet_crds.kube import ApiError
from thunderfleet_kubelet import podworker, shim
from thunderfleet_kubelet.podmanager import ContainerNotRunning, NoSuchContainer, NoSuchPod, PodManager, RuntimeSettings

Json = dict[str, Any]
IMAGE = "test/image:1"


class Api:
    """What the pods' part of the kubelet needs of an API server, in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.events: list[Json] = []
        self.tokens = 0
        self.token_seconds = 3600.0
        self.status_writes = 0
        self.away = False
        self.version = 100
        self.on_change: Callable[[], None] = lambda: None

    def _check(self, path: str) -> None:
        if self.away:
            raise ApiError(0, "Unreachable", f"{path}: away")

    def put(self, path: str, item: Json) -> Json:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = item
        self.on_change()
        return item

    async def get_or_none(self, path: str) -> Json | None:
        self._check(path)
        return self.objects.get(path)

    async def create(self, path: str, body: Json) -> Json:
        self._check(path)
        if path.endswith("/token"):
            self.tokens += 1
            end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.token_seconds))
            return {"status": {"token": f"token-{self.tokens}", "expirationTimestamp": end}}
        assert path.endswith("/events")
        self.events.append(body)
        return body

    async def patch(self, path: str, body: Json, content: str = "", manager: str | None = None) -> Json:
        self._check(path)
        if "/events/" in path:
            return {}
        pod = self.objects.get(path.removesuffix("/status"))
        if pod is None:
            raise ApiError(404, "NotFound", path)
        if body["metadata"]["uid"] != pod["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "uid")
        self.status_writes += 1
        fresh = {**pod, "metadata": dict(pod["metadata"]), "status": {**pod.get("status", {}), **body["status"]}}
        return self.put(path.removesuffix("/status"), fresh)

    async def delete(self, path: str, *, grace_seconds: int | None = None, uid: str | None = None, **_: object) -> None:
        self._check(path)
        pod = self.objects.get(path)
        if pod is not None and pod["metadata"]["uid"] == uid:
            del self.objects[path]
            self.on_change()

    def pods(self) -> dict[str, Json]:
        return {
            f"{item['metadata']['namespace']}/{item['metadata']['name']}": item
            for path, item in self.objects.items()
            if "/pods/" in path
        }

    def add_pod(self, name: str, spec: Json, uid: str | None = None) -> Json:
        pod = {
            "metadata": {"name": name, "namespace": "default", "uid": uid or str(uuid.uuid4()), "generation": 1},
            "spec": {"hostNetwork": True, "restartPolicy": "Never", "terminationGracePeriodSeconds": 5, **spec},
            "status": {"phase": "Pending"},
        }
        return self.put(f"/api/v1/namespaces/default/pods/{name}", pod)

    def pod(self, name: str) -> Json:
        return self.objects[f"/api/v1/namespaces/default/pods/{name}"]

    def delete_pod(self, name: str, grace: float = 5) -> None:
        pod = self.pod(name)
        metadata = {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}
        self.put(f"/api/v1/namespaces/default/pods/{name}", {**pod, "metadata": metadata})

    def add(self, plural: str, name: str, data: dict[str, str]) -> None:
        item: Json = {"metadata": {"name": name, "namespace": "default"}, "data": data}
        self.put(f"/api/v1/namespaces/default/{plural}/{name}", item)

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.events]


class World:
    """One node: its API server, folder and the manager that is there now."""

    def __init__(self, root: Path, image: Path) -> None:
        self.root, self.api = root, Api()
        own = (os.geteuid(), os.getegid()) if os.geteuid() else (65534, 65534)
        self.runtime = RuntimeSettings(
            images={IMAGE: image}, default_user=own, allocatable={"cpu": "4", "memory": "8Gi", "pods": "20"}, labels={"a": "b"}
        )
        self.managers: list[PodManager] = []

    async def boot(self) -> PodManager:
        manager = PodManager(root=self.root, node_name="node-1", kube=lambda: self.api, runtime=self.runtime)  # type: ignore[arg-type,return-value]
        await manager.start()
        self.managers.append(manager)
        self.api.on_change = lambda: manager.sync(self.api.pods())
        manager.sync(self.api.pods())
        return manager

    async def until(self, what: Callable[[], object], seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    if what():
                        return
                except (KeyError, IndexError):
                    pass
                await asyncio.sleep(0.02)

    async def phase(self, name: str, phase: str) -> Json:
        await self.until(lambda: self.api.pod(name)["status"]["phase"] == phase)
        return self.api.pod(name)["status"]

    async def log(self, name: str, container: str | None = None, **options: Any) -> str:
        parts = [part async for part in self.managers[-1].open_log("default", name, container, **options)]
        return b"".join(parts).decode()

    def processes(self) -> list[int]:
        return [pid for folder in (self.root / "pods").glob("*/containers/*/sandbox") for pid in shim.marked(str(folder))]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    path = tmp_path
    while path != path.parent and path.stat().st_uid == os.geteuid() and path != Path("/tmp"):
        # The containers' user comes through here.
        path.chmod(path.stat().st_mode | 0o011)
        path = path.parent
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)
    world = World(tmp_path / "node", image)
    world.root.mkdir()
    yield world
    manager = world.managers[-1] if world.managers else await world.boot()
    await manager.stop(end_pods=True)
    assert world.processes() == []


def sh(script: str, **more: Any) -> Json:
    return {"name": "main", "image": IMAGE, "command": ["sh", "-c", script], **more}


def state(status: Json, kind: str = "containerStatuses") -> Json:
    return status[kind][0]["state"]


async def test_pod_runs_to_its_end(world: World) -> None:
    await world.boot()
    world.api.add_pod("one", {"containers": [sh("echo hello; echo oops >&2; exit 3")]})
    status = await world.phase("one", "Failed")
    ended = state(status)["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert status["podIP"] == "127.0.0.1"
    assert {c["type"]: c["status"] for c in status["conditions"]}["PodScheduled"] == "True"
    assert sorted((await world.log("one")).splitlines()) == ["hello", "oops"]
    assert {"Pulled", "Created", "Started"} <= set(world.api.reasons())


async def test_pod_ends_politely_when_deleted(world: World) -> None:
    await world.boot()
    world.api.add_pod("two", {"containers": [sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")]})
    status = await world.phase("two", "Running")
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    await world.until(lambda: next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    log = asyncio.create_task(world.log("two", follow=True))
    await asyncio.sleep(0)
    world.api.delete_pod("two")
    await world.until(lambda: "default/two" not in world.api.pods())
    assert "bye" in await log
    await world.until(lambda: not list(world.root.glob("pods/*")))


async def test_new_kubelet_adopts_what_runs(world: World) -> None:
    first = await world.boot()
    world.api.add_pod("three", {"containers": [sh("i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done")]})
    before = await world.phase("three", "Running")
    writes = world.api.status_writes
    await first.stop(end_pods=False)
    assert world.processes()
    await world.boot()
    size = len(await world.log("three"))
    await world.until(lambda: next(world.root.glob("pods/*/logs/main/0.log")).stat().st_size > size + 200)
    assert world.api.pod("three")["status"] == before
    assert world.api.status_writes == writes
    # It is really its own now: it learns of the end.
    pids = world.processes()
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
    status = await world.phase("three", "Failed")
    assert state(status)["terminated"]["exitCode"] == 137
    assert status["containerStatuses"][0]["restartCount"] == 0
