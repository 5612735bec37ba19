"""One node for tests of pods: real shims and real processes, and an API server in memory."""

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.containers.inputs import user
from thunderfleet_kubelet.containers.streams.logs import LogOptions
from thunderfleet_kubelet.disk import DiskWatch
from thunderfleet_kubelet.images.puller import Images
from thunderfleet_kubelet.pods.manager import PodManager
from thunderfleet_kubelet.pods.settings import PodSettings
from thunderfleet_kubelet.shim.processes import MARKER_VARIABLE
from thunderfleet_lib.kube import ApiError

from tests.support.processes import with_variable
from tests.support.waiting import ASYNC_WAIT_SECONDS, until_async

Json = dict[str, Any]
IMAGE = "test/image:1"
KUBELET = user.KubeletUser.here()
# Other runs of these tests on this machine must not have the same users: a pod's end kills all processes of its user.
IDS = range(first := 1_200_000_000 + os.getpid() % 100_000 * 1000, first + 40)
USERS = IDS if KUBELET.may_switch(IDS) else None


class Api:
    """An API server in memory, with what pods need."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.events: list[Json] = []
        self.tokens = 0
        self.token_seconds = 3600.0
        self.status_writes = 0
        self.away = False
        self.lose_answers = 0
        """How many of the next Events are created without an answer."""
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
            status = {"token": f"token-{self.tokens}", "expirationTimestamp": end}
            return {"spec": {**body["spec"], "expirationSeconds": self.token_seconds}, "status": status}
        assert path.endswith("/events")
        if body["metadata"]["name"] in {event["metadata"]["name"] for event in self.events}:
            raise ApiError(409, "AlreadyExists", path)
        self.events.append(body)
        if self.lose_answers:
            self.lose_answers -= 1
            raise ApiError(0, "Unreachable", f"{path}: connection reset")
        return body

    async def patch(self, path: str, body: Json, content: str = "", manager: str | None = None) -> Json:
        self._check(path)
        if "/events/" in path:
            name = path.rpartition("/")[2]
            for event in self.events:
                if event["metadata"]["name"] == name:
                    event.update(body)
                    return event
            raise ApiError(404, "NotFound", path)
        pod = self.objects.get(path.removesuffix("/status"))
        if pod is None:
            raise ApiError(404, "NotFound", path)
        if body["metadata"]["uid"] != pod["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "uid")
        self.status_writes += 1
        if "conditions" in body["status"]:
            # Strategic merge: by type, null removes.
            merged = {item["type"]: item for item in pod.get("status", {}).get("conditions", [])}
            for item in body["status"]["conditions"]:
                both = {**merged.get(item["type"], {}), **item}
                merged[item["type"]] = {key: value for key, value in both.items() if value is not None}
            body = {**body, "status": {**body["status"], "conditions": list(merged.values())}}
        for key in ("hostIPs", "podIPs"):
            if key in body["status"]:
                assert body["status"][key][-1] == {"$patch": "replace"}
                body["status"][key] = body["status"][key][:-1]
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
    """One node: its API server, its folder and its current manager."""

    def __init__(self, root: Path, image: Path) -> None:
        self.root, self.api = root, Api()
        self.settings = PodSettings(images={IMAGE: image}, allocatable={"cpu": "4", "memory": "8Gi", "pods": "20"})
        self.managers: list[PodManager] = []
        self.disk: DiskWatch | None = None
        self.node_events: list[tuple[str, str]] = []
        self.node: Json | None = {"metadata": {"name": "node-1"}}
        """The Node as watched; ``api`` may have a newer one."""
        self.make_images: Callable[[], Images | None] = lambda: None
        """Makes the images of the next manager."""

    async def boot(self, *, listed: bool = True) -> PodManager:
        """Starts the next manager. Not ``listed``: the API server has not listed the pods yet."""
        manager = PodManager(
            root=self.root,
            node_name="node-1",
            kube=lambda: self.api,  # type: ignore[arg-type,return-value]
            settings=self.settings,
            users=USERS,
            disk=self.disk,
            node_event=lambda reason, message: self.node_events.append((reason, message)),
            node=lambda: self.node,
            images=self.make_images(),
        )
        await manager.start()
        self.managers.append(manager)
        if listed:
            self.api.on_change = lambda: manager.sync(self.api.pods())
            manager.sync(self.api.pods())
        return manager

    async def until(self, what: Callable[[], object], seconds: float = ASYNC_WAIT_SECONDS) -> None:
        def state() -> str:
            workers = self.managers[-1]._workers.values()
            found = [(worker.key, worker.attempts, worker._publisher.pending, worker._starter.problems) for worker in workers]
            return f"{self.api.pods()}\n{found}\n{self.api.reasons()}"

        await until_async(what, seconds=seconds, describe=state, retry_on=(KeyError, IndexError))

    async def phase(self, name: str, phase: str) -> Json:
        await self.until(lambda: self.api.pod(name)["status"]["phase"] == phase)
        return dict(self.api.pod(name)["status"])

    async def log(self, name: str, container: str | None = None, *, previous: bool = False, **options: Any) -> str:
        queries = self.managers[-1].queries
        chunks = queries.open_log("default", name, container, LogOptions(**options), previous=previous)
        parts = [part async for part in chunks]
        return b"".join(parts).decode()

    def folder(self, name: str) -> PodFolder:
        """The files of a pod."""
        return PodFolder(self.root / "pods" / self.api.pod(name)["metadata"]["uid"])

    def user(self, name: str) -> int:
        """The user of a pod's containers that name none."""
        found = self.folder(name).user()
        return KUBELET.uid if found is None else found

    def processes(self) -> list[int]:
        """The live processes of all containers."""
        folders = (self.root / "pods").glob("*/containers/*/sandbox/*")
        return [pid for folder in folders for pid in with_variable(f"{MARKER_VARIABLE}={folder}")]


def sh(script: str, **more: Any) -> Json:
    return {"name": "main", "image": IMAGE, "command": ["sh", "-c", script], **more}


def state(status: Json, kind: str = "containerStatuses") -> Json:
    return dict(status[kind][0]["state"])
