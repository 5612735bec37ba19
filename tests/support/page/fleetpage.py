"""The live page without a cluster: an API server of lists and watches, fleets to put into it, and the page's server."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from thunderfleet_lib.kube import Kube
from thunderfleet_view.live.feed import Feed
from thunderfleet_view.live.fleet import Kind
from thunderfleet_view.live.watch import RESOURCES, Watch
from thunderfleet_view.web import guard
from thunderfleet_view.web.chat import Chat
from thunderfleet_view.web.server import Server
from thunderfleet_view.web.sessions import Sessions

from tests.support.network.ports import claim

Json = dict[str, Any]
GIB: Final = 1 << 30
READY: Final = ("True", "Ready", "")
CHIPS: Final = (("Apple M3 Ultra", 512), ("Apple M4 Max", 128), ("Apple M3 Ultra", 96), ("Apple M4 Pro", 64))
MODELS: Final = ("Qwen3-235B-A22B-4bit", "DeepSeek-V3.1-4bit", "gpt-oss-120b-MXFP4", "GLM-4.5-Air-4bit", "Llama-3.3-70B-4bit")


class FleetApi:
    """Lists and watches of the kinds that the page shows."""

    def __init__(self) -> None:
        self.objects: dict[Kind, dict[str, Json]] = {kind: {} for kind in Kind}
        self.refused: dict[Kind, int] = {}
        """Kinds whose requests are refused, with the status."""
        self.url = ""
        self.agents: dict[str, str] = {}
        """Of each Mac, what its agent answers with its metrics."""
        self.asked: list[str] = []
        """The Macs whose agents were asked."""
        self.agents_status = 200
        self.pages: Counter[Kind] = Counter()
        """How many pages of lists were read."""
        self.livez = (200, "ok")
        """Status and text of the answer to who asks how it is; a status of 0: none."""
        self.leases: dict[str, Json] = {}
        """By namespace and name."""
        self._version = 1
        self._watchers: dict[Kind, set[asyncio.Queue[str]]] = {kind: set() for kind in Kind}
        self._runner: web.AppRunner | None = None

    def put(self, kind: Kind, item: Json) -> None:
        """Creates or replaces an object."""
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        key = _key(item)
        event = "MODIFIED" if key in self.objects[kind] else "ADDED"
        self.objects[kind][key] = item
        self._send(kind, event, item)

    def drop(self, kind: Kind, key: str) -> None:
        """Deletes an object."""
        self._version += 1
        item = self.objects[kind].pop(key)
        item["metadata"]["resourceVersion"] = str(self._version)
        self._send(kind, "DELETED", item)

    def fill(self, objects: Mapping[Kind, list[Json]]) -> None:
        """Creates many objects."""
        for kind, items in objects.items():
            for item in items:
                self.put(kind, item)

    def _send(self, kind: Kind, event: str, item: Json) -> None:
        line = json.dumps({"type": event, "object": item}) + "\n"
        for queue in self._watchers[kind]:
            queue.put_nowait(line)

    async def start(self, port: int = 0) -> None:
        """Listens on a port of loopback."""
        app = web.Application()
        for kind, (path, _) in RESOURCES.items():
            app.router.add_get(path, self._handler(kind))
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/api/v1/pods", self._pods)
        app.router.add_get("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}", self._lease)
        app.router.add_get("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", self._list_leases)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/proxy/metrics", self._metrics)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._no_pods)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port or claim(1)[0], reuse_address=True)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Ends all connections and listens no more."""
        for queues in self._watchers.values():
            for queue in queues:
                queue.put_nowait("")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _livez(self, request: web.Request) -> web.Response:
        status, text = self.livez
        if not status:
            await asyncio.Event().wait()
        return web.Response(status=status, text=text)

    async def _no_pods(self, request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def _pods(self, request: web.Request) -> web.Response:
        if "component=operator" in request.query.get("labelSelector", ""):
            operator = {
                "metadata": {"name": "operator", "namespace": "system"},
                "status": {"conditions": conditions(Ready=READY)},
            }
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [operator]})
        ports = [{"name": "metrics", "containerPort": 9441}]
        pods = [
            {
                "metadata": {"name": f"agent-{mac}", "namespace": "system"},
                "spec": {"nodeName": mac, "containers": [{"ports": ports}]},
            }
            for mac in self.agents
            if "component=agent" in request.query.get("labelSelector", "")
        ]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": pods})

    async def _lease(self, request: web.Request) -> web.Response:
        found = self.leases.get("{namespace}/{name}".format(**request.match_info))
        if found is None:
            return web.json_response({"reason": "NotFound", "message": "no", "code": 404}, status=404)
        return web.json_response(found)

    async def _list_leases(self, request: web.Request) -> web.Response:
        inside = f"{request.match_info['namespace']}/"
        items = [
            {**lease, "metadata": {"name": at.removeprefix(inside)}}
            for at, lease in self.leases.items()
            if at.startswith(inside)
        ]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.agents_status != 200:
            return web.json_response({"reason": "Forbidden", "message": "no"}, status=self.agents_status)
        mac = request.match_info["pod"].removeprefix("agent-").removesuffix(":9441")
        self.asked.append(mac)
        return web.Response(text=self.agents[mac])

    def _handler(self, kind: Kind) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            if kind in self.refused:
                status = {"reason": "Forbidden", "message": "no", "code": self.refused[kind]}
                return web.json_response(status, status=self.refused[kind])
            if request.query.get("watch") != "true":
                return self._page(kind, request)
            return await self._watch(request, kind)

        return handle

    def _page(self, kind: Kind, request: web.Request) -> web.Response:
        self.pages[kind] += 1
        items = list(self.objects[kind].values())
        begin = int(request.query.get("continue", "0"))
        end = begin + int(request.query.get("limit", str(len(items))))
        following = {"continue": str(end)} if end < len(items) else {}
        return web.json_response({"metadata": {"resourceVersion": str(self._version), **following}, "items": items[begin:end]})

    async def _watch(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        response = web.StreamResponse()
        queue: asyncio.Queue[str] = asyncio.Queue()
        since = int(request.query["resourceVersion"])
        for item in self.objects[kind].values():
            if int(item["metadata"]["resourceVersion"]) > since:
                queue.put_nowait(json.dumps({"type": "MODIFIED", "object": item}) + "\n")
        self._watchers[kind].add(queue)
        try:
            await response.prepare(request)
            while line := await queue.get():
                await response.write(line.encode())
            return response
        finally:
            self._watchers[kind].discard(queue)


def _key(item: Json) -> str:
    metadata = item["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else str(metadata["name"])


@dataclass
class Page:
    """A page that is served. ``address``: with the token that opens it."""

    server: Server
    watch: Watch
    feed: Feed
    sessions: Sessions
    port: int

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    def address(self) -> str:
        """A new address, which works once."""
        return f"{self.origin}/#{self.sessions.new_token()}"


@asynccontextmanager
async def served(api: FleetApi, proxy: str | None = None) -> AsyncIterator[Page]:
    """The page of the fleet of ``api``, which has started."""
    configuration = Configuration()
    configuration.host = api.url
    sessions, feed = Sessions(time.monotonic), Feed()
    async with Kube(configuration) as kube:
        watch = Watch(kube, feed, leased=True)
        server = Server(watch, feed, sessions, Chat(proxy))
        runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        watching = asyncio.create_task(watch.run())
        try:
            port = await server.listener.listen(runner, "127.0.0.1", 0)
            server.hosts = guard.loopback_hosts(port)
            yield Page(server, watch, feed, sessions, port)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await runner.cleanup()


# --- fleets ---


def conditions(**found: tuple[str, str, str]) -> list[Json]:
    """Conditions by type: status, reason, message."""
    return [
        {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-03-01T12:00:00Z"}
        for kind, (status, reason, message) in found.items()
    ]


def node(name: str, ready: str = "True", message: str = "kubelet is posting ready status") -> Json:
    """A Node that is a Mac."""
    found = conditions(Ready=(ready, "KubeletReady" if ready == "True" else "NodeStatusUnknown", message))
    return {"metadata": {"name": name, "labels": {"kubernetes.io/os": "darwin"}}, "status": {"conditions": found}}


def profile(name: str, chip: str, memory: int, uses: Mapping[str, list[str]] | None = None) -> Json:
    """What the agent of a Mac reports. ``memory``: GiB. ``uses``: cables by the group that uses them."""
    hardware = {"chip": chip, "memoryBytes": memory * GIB, "gpuMemoryLimitBytes": memory * GIB * 9 // 10}
    groups = [{"name": group, "epoch": 1, "links": links} for group, links in (uses or {}).items()]
    found = conditions(InventoryComplete=("True", "Complete", ""), BridgeFree=("True", "Free", ""))
    return {"metadata": {"name": name}, "status": {"hardware": hardware, "groups": groups, "conditions": found}}


def cable_name(a: str, a_port: int, b: str, b_port: int) -> str:
    """As ThunderboltLinks are named. ``a`` sorts before ``b``."""
    return f"{a}.tb{a_port}--{b}.tb{b_port}"


def cable(a: str, a_port: int, b: str, b_port: int, connected: str = "True", *, rdma: bool = True, message: str = "") -> Json:
    """A ThunderboltLink."""
    reason = "Connected" if connected == "True" else "PortDown"
    used = ("True", "Usable", "") if rdma else ("False", "NoDevices", "the Macs have no RDMA devices")
    found = conditions(Connected=(connected, reason, message), Symmetric=("True", "Symmetric", ""), RDMAUsable=used)
    spec = {"a": {"node": a, "port": a_port}, "b": {"node": b, "port": b_port}}
    status = {"conditions": found, "speed": "80G", "gbps": "38.4/37.9" if rdma else "31.2/30.8", "rtt": "14us"}
    return {"metadata": {"name": cable_name(a, a_port, b, b_port)}, "spec": spec, "status": status}


def model(name: str, macs: list[str], repository: str, state: str = "Ready", message: str = "", **status: Any) -> Json:
    """A ModelDeployment with one group on these Macs."""
    ready = "True" if state == "Ready" else "False"
    rank_state = "Serving" if state == "Ready" else state
    ranks = [
        {
            "rank": rank,
            "node": mac,
            "state": rank_state,
            "memoryBytes": 70 * GIB,
            "loadedBytes": 26 * GIB,
            "totalBytes": 64 * GIB,
        }
        for rank, mac in enumerate(macs)
    ]
    groups = [{"index": 0, "state": state, "message": message, "ranks": ranks}] if macs else []
    placed = "True" if macs else "False"
    found = conditions(
        ModelResolved=("True", "Resolved", ""),
        Placed=(placed, "Placed" if macs else "NoRoom", "" if macs else message),
        Bootstrapped=(ready, "Formed" if ready == "True" else "NotFormed", message),
        Ready=(ready, state if macs else "NoRoom", message),
    )
    endpoint = {"endpoint": "http://192.0.2.1:8000/v1"} if ready == "True" else {}
    return {
        "metadata": {"name": name, "namespace": "default", "generation": 1},
        "spec": {"model": {"repository": repository}},
        "status": {
            "observedGeneration": 1, "groups": groups, "conditions": found, "transport": "JACCL" if len(macs) > 1 else "",
            "tokensPerSecond": "37.4" if ready == "True" else None, **endpoint, **status,
        },
    }  # fmt: skip


def fleet(count: int, size: int = 4, idle: float = 0.15) -> dict[Kind, list[Json]]:
    """``count`` Macs in parts of ``size`` that cables connect pairwise, most of them with a model."""
    names = [f"studio-{number:0{len(str(count))}d}" for number in range(1, count + 1)]
    found: dict[Kind, list[Json]] = {kind: [] for kind in Kind}
    for number, start in enumerate(range(0, count, size)):
        part = names[start : start + size]
        cables = [cable(*ends) for ends in _mesh(part)]
        found[Kind.LINKS] += cables
        busy = (number * 7) % 20 >= idle * 20
        group, links = f"default/model-{number}-0", [str(one["metadata"]["name"]) for one in cables]
        for name in part:
            chip, memory = CHIPS[number % len(CHIPS)]
            mine = [link for link in links if f"{name}." in link]
            found[Kind.NODES].append(node(name))
            found[Kind.PROFILES].append(profile(name, chip, memory, {group: mine} if busy else None))
        if busy:
            found[Kind.DEPLOYMENTS].append(model(f"model-{number}", part, f"mlx-community/{MODELS[number % len(MODELS)]}"))
    return found


def _mesh(names: list[str]) -> Iterator[tuple[str, int, str, int]]:
    ports = dict.fromkeys(names, 0)
    for at, a in enumerate(names):
        for b in names[at + 1 :]:
            ports[a] += 1
            ports[b] += 1
            yield a, ports[a], b, ports[b]
