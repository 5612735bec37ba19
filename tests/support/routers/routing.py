"""Gateways and ModelDeployments for tests and benchmarks of the router: small HTTP servers with real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.routing import AcceptedKey, GroupKey, KeyLimits, Routes
from thunderfleet_lib.httpapi import routed

from tests.support.network.ports import claim

ROUTING_KEY = b"r" * 32
KEYS = {routing.key_id(ROUTING_KEY): ROUTING_KEY}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Gateway:
    """A gateway with a script: ``behaves`` answers each request; without it, they are answered at once."""

    def __init__(self, name: str = "a") -> None:
        self.name = name
        self.requests: list[tuple[str, Mapping[str, str], bytes]] = []
        self.tokens = 3
        self.behaves: Any = None
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> "Gateway":
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port or claim(1)[0])
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.path, request.headers, body))
        if self.behaves is not None:
            answer: web.StreamResponse = await self.behaves(request, body)
            return answer
        return await self.answer(request, body)

    async def answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """An answer as of a group, whole or streamed."""
        if json.loads(body).get("stream"):
            response = await self.begin(request)
            for number in range(self.tokens):
                await response.write(self.token(number))
            await response.write(b"data: [DONE]\n\n")
            if routed.ROUTED in request.headers:
                await response.write(f": {routed.TOKENS}: 7,{self.tokens}\n\n".encode())
            await response.write_eof()
            return response
        text = " ".join(f"{self.name}{number}" for number in range(self.tokens))
        headers = {routed.TOKENS: f"7,{self.tokens}"} if routed.ROUTED in request.headers else {}
        return web.json_response({"choices": [{"message": {"content": text}}], "group": self.name}, headers=headers)

    async def begin(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return response

    def token(self, number: int) -> bytes:
        return b"data: " + json.dumps({"choices": [{"delta": {"content": f"{self.name}{number} "}}]}).encode() + b"\n\n"


@asynccontextmanager
async def gateways(*names: str) -> AsyncIterator[list[Gateway]]:
    """Running gateways."""
    started = [await Gateway(name).start() for name in names]
    try:
        yield started
    finally:
        await asyncio.gather(*(gateway.stop() for gateway in started))


@dataclass
class Model:
    """A ModelDeployment and its Routes document."""

    name: str = "tiny"
    namespace: str = "default"
    urls: Sequence[str] = ()
    repository: str = "org/tiny"
    keys: Mapping[str, str] | None = None
    """API keys by name; None if no key is required."""
    limits: Mapping[str, KeyLimits] = field(default_factory=dict)
    states: Sequence[str] = ()
    """Of the groups; Ready if not given."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    aliases: Sequence[str] = ()
    slots: int = 4
    epoch: int = 1
    published: bool = True

    @property
    def uid(self) -> str:
        return f"uid-{self.namespace}-{self.name}"

    def object(self) -> dict[str, Any]:
        """As the API server sends it."""
        groups = [
            {
                "index": index, "epoch": self.epoch, "endpoint": f"{url}/v1",
                "state": self.states[index] if index < len(self.states) else "Ready",
            }
            for index, url in enumerate(self.urls)
        ]  # fmt: skip
        server = {"apiKeySecret": "keys"} if self.keys is not None else {}
        return {
            "apiVersion": "thunderfleet.io/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {
                "name": self.name, "namespace": self.namespace, "uid": self.uid, "creationTimestamp": "2026-01-01T00:00:00Z",
                "resourceVersion": "1",
            },
            "spec": {
                "model": {"repository": self.repository},
                "server": {**server, "aliases": list(self.aliases)},
                "memory": {"concurrentRequests": self.slots, "contextTokens": 4096, "cachedTokens": 65536},
                **self.spec,
            },
            "status": {"groups": groups},
        }  # fmt: skip

    def document(self) -> str:
        """The Routes document."""
        keys = tuple(
            AcceptedKey(name=name, digest=routing.key_digest(ROUTING_KEY, key), limits=self.limits.get(name, KeyLimits()))
            for name, key in (self.keys or {}).items()
        )
        key_id = routing.key_id(ROUTING_KEY)
        groups = tuple(GroupKey(index=index, epoch=self.epoch, key_id=key_id) for index in range(len(self.urls)))
        routes = Routes(namespace=self.namespace, deployment=self.name, uid=self.uid, key_id=key_id, keys=keys, groups=groups)
        return routes.model_dump_json(by_alias=True)

    def credential(self, index: int = 0) -> str:
        """What a router sends to a group."""
        return routing.group_credential(ROUTING_KEY, self.namespace, self.name, self.uid, index, self.epoch)
