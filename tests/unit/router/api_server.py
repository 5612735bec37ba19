"""A small API server: lists, watches, and three collections that a router reads."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from thunderfleet_crds.exchange import routing
from thunderfleet_lib.kube import Kube

from tests.support.network.ports import claim
from tests.support.routers.routing import ROUTING_KEY, Model

NAMESPACE = "thunderfleet-system"
DEPLOYMENTS = "/apis/thunderfleet.io/v1alpha1/modeldeployments"
CONFIGMAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


class ApiServer:
    """Its objects, and who watches them."""

    def __init__(self) -> None:
        self.version = 1
        self.objects: dict[str, dict[str, Any]] = {DEPLOYMENTS: {}, CONFIGMAPS: {}, SECRETS: {}}
        self.queries: list[tuple[str, str]] = []
        self.methods: set[str] = set()
        self._watches: dict[str, set[asyncio.Queue[bytes]]] = {path: set() for path in self.objects}
        self._events: list[tuple[int, str, bytes]] = []
        """What happened: resource version, path and line. A watch begins with what its list did not have, deletions too."""
        self._runner: web.AppRunner | None = None
        (self.port,) = claim(1)

    async def start(self) -> None:
        """Opens its port, the same one again after ``stop``, which nobody else is given meanwhile."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def kube(self) -> Kube:
        from kubernetes.aio.client.configuration import Configuration

        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{self.port}"
        return Kube(configuration)

    def secret(self, certificate: str, key: str, **more: str) -> None:
        """The Secret of the routers."""
        fields = {routing.TLS_CERTIFICATE: certificate.encode(), routing.TLS_KEY: key.encode()}
        fields[routing.KEY_FIELD_PREFIX + routing.key_id(ROUTING_KEY)] = ROUTING_KEY
        data = {name: base64.b64encode(value).decode() for name, value in fields.items()}
        self.put(SECRETS, {"metadata": {"name": routing.ROUTING_SECRET, "namespace": NAMESPACE}, "data": data})

    def model(self, model: Model) -> None:
        """A ModelDeployment and its document."""
        name = routing.routes_name(model.namespace, model.name)
        labels = {routing.LABEL_ROUTES: ""}
        data = {routing.ROUTES_FIELD: model.document()}
        self.put(CONFIGMAPS, {"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}, "data": data})
        self.put(DEPLOYMENTS, model.object())

    def put(self, path: str, item: dict[str, Any]) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        name = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        kind = "MODIFIED" if name in self.objects[path] else "ADDED"
        self.objects[path][name] = item
        self._send(path, kind, item)

    def remove(self, path: str, name: str) -> None:
        self.version += 1
        item = self.objects[path].pop(name)
        item["metadata"]["resourceVersion"] = str(self.version)
        self._send(path, "DELETED", item)

    def _send(self, path: str, kind: str, item: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
        self._events.append((self.version, path, line))
        for queue in self._watches[path]:
            queue.put_nowait(line)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.methods.add(request.method)
        self.queries.append((request.path, request.query_string))
        if request.path not in self.objects:
            return web.json_response({"reason": "NotFound", "message": request.path}, status=404)
        if request.query.get("watch") != "true":
            items = list(self.objects[request.path].values())
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        for version, path, line in self._events:
            if path == request.path and version > int(request.query["resourceVersion"]):
                queue.put_nowait(line)
        self._watches[request.path].add(queue)
        try:
            while True:
                await response.write(await queue.get())
        finally:
            self._watches[request.path].discard(queue)


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    """A running API server."""
    server = ApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
