"""A registry that speaks the distribution API over real HTTP, with the faults of real ones; and images to put into it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from thunderfleet_kubelet.node.machine import here

Json = dict[str, Any]

LAYER, CONFIG = "application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.config.v1+json"
MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class Entry:
    """One entry of a layer. ``kind``: of tarfile."""

    name: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    mode: int = 0o644
    target: str = ""
    pax: dict[str, str] = field(default_factory=dict)


def folder(name: str) -> Entry:
    return Entry(name, kind=tarfile.DIRTYPE, mode=0o755)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    return Entry(name, kind=kind, target=target)


def script(name: str, text: str) -> Entry:
    return Entry(name, f"#!/bin/sh\n{text}\n".encode(), mode=0o755)


def tar(entries: Sequence[Entry]) -> bytes:
    """An archive of the entries."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.mode, info.linkname, info.mtime = entry.kind, entry.mode, entry.target, 1_700_000_000
            info.size, info.pax_headers = len(entry.content), dict(entry.pax)
            archive.addfile(info, io.BytesIO(entry.content))
    return output.getvalue()


@dataclass(frozen=True)
class Layer:
    """A layer as it is sent, and its content."""

    blob: bytes
    content: bytes
    media: str

    @classmethod
    def of(cls, *entries: Entry, compression: str = "gzip") -> Layer:
        content = tar(entries)
        return cls.packed(content, compression)

    @classmethod
    def packed(cls, content: bytes, compression: str = "gzip") -> Layer:
        if compression == "zstd":
            from backports import zstd

            return cls(zstd.compress(content), content, f"{LAYER}+zstd")
        if compression == "gzip":
            return cls(gzip.compress(content, 1, mtime=0), content, f"{LAYER}+gzip")
        return cls(content, content, LAYER)


@dataclass
class Registry:
    """What the registry has, its faults, and the requests that it got.

    ``users``: names and passwords; empty: everyone may read. ``bearer``: asks for tokens. ``cut``: each answer with a blob
    breaks off after so many bytes. ``shift``: how much later than it was asked for a rest begins. ``hold``: blobs of
    repositories whose names begin with ``held`` wait until it is set. ``elsewhere``: where blobs are redirected to.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    bearer: bool = False
    cut: int = 0
    ranges: bool = True
    shift: int = 0
    hold: asyncio.Event | None = None
    held: str = ""
    elsewhere: str = ""
    claims: dict[str, str] = field(default_factory=dict)
    lies: dict[str, bytes] = field(default_factory=dict)
    failing: Callable[[str], int] = lambda path: 0
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0
    """Bytes of blobs."""
    port: int = 0
    address: str = "127.0.0.1"
    _runner: web.AppRunner | None = None

    @property
    def host(self) -> str:
        return f"{self.address}:{self.port}"

    # What it has

    def blob(self, content: bytes) -> Json:
        self.blobs[digest_of(content)] = content
        return {"digest": digest_of(content), "size": len(content)}

    def image(
        self,
        *layers: Layer,
        platform: tuple[str, str] | None = None,
        config: Json | None = None,
        digests: list[str] | None = None,
    ) -> tuple[str, bytes]:
        """Puts an image; returns media type and manifest."""
        system, architecture = platform or here()
        document = {
            "os": system,
            "architecture": architecture,
            "config": config or {},
            "rootfs": {"type": "layers", "diff_ids": digests or [digest_of(layer.content) for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, **self.blob(json.dumps(document).encode())},
            "layers": [{"mediaType": layer.media, **self.blob(layer.blob)} for layer in layers],
        }
        return MANIFEST, json.dumps(manifest).encode()

    def index(self, **images: tuple[str, bytes]) -> tuple[str, bytes]:
        """An index of images by ``system_architecture``."""
        listed = []
        for name, (media, content) in images.items():
            system, _, architecture = name.partition("_")
            platform = {"os": system, "architecture": architecture}
            listed.append({"mediaType": media, "digest": digest_of(content), "size": len(content), "platform": platform})
        return INDEX, json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}).encode()

    def put(self, repository: str, tag: str, *images: tuple[str, bytes]) -> str:
        """Names the first of ``images`` by tag, and all by digest. Returns the digest of the first."""
        for media, content in images:
            self.manifests[repository, digest_of(content)] = media, content
        self.manifests[repository, tag] = images[0]
        return digest_of(images[0][1])

    def simple(self, repository: str, tag: str, *entries: Entry, config: Json | None = None, compression: str = "gzip") -> str:
        """An image with one layer; returns the digest of its manifest."""
        return self.put(repository, tag, self.image(Layer.of(*entries, compression=compression), config=config))

    def paths(self, kind: str) -> list[str]:
        """The requests with ``/kind/`` in their path."""
        return [path for path, _ in self.asked if f"/{kind}/" in path]

    # How it answers

    async def start(self) -> Registry:
        application = web.Application(client_max_size=64 << 20)
        application.router.add_get("/{path:.*}", self._answer)
        application.router.add_post("/{path:.*}", self._take)
        application.router.add_put("/{path:.*}", self._take)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.address, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append((request.path_qs, dict(request.headers)))
        status = self.failing(path)
        if status:
            words = {"errors": [{"code": "X", "message": "out of order\nat once"}]}
            return web.json_response(words, status=status)
        if path == "/token":
            return self._token(request)
        refused = self._refused(request)
        if refused is not None:
            return refused
        parts = path.removeprefix("/v2/").split("/")
        repository, kind, target = "/".join(parts[:-2]), parts[-2], parts[-1]
        if kind == "manifests":
            found = self.manifests.get((repository, target))
            if found is None:
                return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}, status=404)
            claim = self.claims.get(target, digest_of(found[1]))
            return web.Response(body=found[1], headers={"Content-Type": found[0], "Docker-Content-Digest": claim})
        return await self._blob(request, target)

    async def _take(self, request: web.Request) -> web.Response:
        """What clients push: each blob in one piece, and then the manifest that names them."""
        self.asked.append((request.path_qs, dict(request.headers)))
        refused = self._refused(request)
        if refused is not None:
            return refused
        if request.method == "POST":
            return web.Response(status=202, headers={"Location": f"{request.path}upload"})
        content, digest = await request.read(), request.query.get("digest")
        if digest is not None:
            if digest != digest_of(content):
                return web.json_response({"errors": [{"code": "DIGEST_INVALID"}]}, status=400)
            self.blob(content)
            return web.Response(status=201, headers={"Location": request.path, "Docker-Content-Digest": digest})
        repository, _, target = request.path.removeprefix("/v2/").rpartition("/manifests/")
        named = json.loads(content)
        if any(one["digest"] not in self.blobs for one in (named["config"], *named["layers"])):
            return web.json_response({"errors": [{"code": "MANIFEST_BLOB_UNKNOWN"}]}, status=400)
        digest = self.put(repository, target, (request.headers["Content-Type"], content))
        return web.Response(status=201, headers={"Location": request.path, "Docker-Content-Digest": digest})

    async def _blob(self, request: web.Request, digest: str) -> web.StreamResponse:
        if self.elsewhere:
            return web.Response(status=307, headers={"Location": f"{self.elsewhere}{request.path}?signature=secret-signature"})
        content = self.lies.get(digest, self.blobs.get(digest))
        if content is None:
            return web.json_response({"errors": [{"code": "BLOB_UNKNOWN"}]}, status=404)
        if request.method == "HEAD":
            return web.Response(headers={"Content-Length": str(len(content)), "Docker-Content-Digest": digest})
        offset, headers, status = 0, {}, 200
        if self.ranges and "Range" in request.headers:
            offset, status = int(request.headers["Range"].removeprefix("bytes=").rstrip("-")) + self.shift, 206
            headers["Content-Range"] = f"bytes {offset}-{len(content) - 1}/{len(content)}"
        if self.hold is not None and request.path.startswith(f"/v2/{self.held}"):
            await self.hold.wait()
        response = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(content) - offset)})
        await response.prepare(request)
        part = content[offset : offset + self.cut] if self.cut else content[offset:]
        for start in range(0, len(part), 1 << 18):
            await response.write(part[start : start + (1 << 18)])
            self.sent += len(part[start : start + (1 << 18)])
        if len(part) < len(content) - offset and request.transport is not None:
            request.transport.close()
        return response

    def _refused(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if not self.users:
            return None
        if self.bearer:
            if given in {f"Bearer token-of-{user}" for user in self.users}:
                return None
            scope = f"repository:{request.path}:pull"
            words = f'Bearer realm="http://{self.host}/token",service="test",scope="{scope}"'
            return web.Response(status=401, headers={"WWW-Authenticate": words})
        if given in {basic(user, password) for user, password in self.users.items()}:
            return None
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="test"'})

    def _token(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        for user, password in self.users.items():
            if given == basic(user, password):
                return web.json_response({"token": f"token-of-{user}"})
        return web.json_response({"token": "token-of-nobody"})


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def pull_secret(host: str, user: str, password: str) -> dict[str, str]:
    """The data of a Secret for a registry."""
    auths = {"auths": {host: {"username": user, "password": password}}}
    return {".dockerconfigjson": base64.b64encode(json.dumps(auths).encode()).decode()}


def save(registry: Registry, folder: Path) -> None:
    """Writes what the registry has, for a process that serves it; that process notices changes."""
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    for digest, content in registry.blobs.items():
        (folder / "blobs" / digest).write_bytes(content)
    listed = [[*key, media, content.decode()] for key, (media, content) in registry.manifests.items()]
    (folder / "manifests.new").write_text(json.dumps({"manifests": listed, "users": registry.users}))
    (folder / "manifests.new").rename(folder / "manifests.json")


def load(registry: Registry, folder: Path) -> None:
    """Reads what ``save`` has written."""
    found = json.loads((folder / "manifests.json").read_text())
    registry.manifests = {(name, tag): (media, content.encode()) for name, tag, media, content in found["manifests"]}
    registry.users = found["users"]
    for file in (folder / "blobs").iterdir():
        if file.name not in registry.blobs:
            registry.blobs[file.name] = file.read_bytes()


async def serve(folder: Path, port: int, address: str = "127.0.0.1") -> None:
    """Serves what is in ``folder`` until the process is ended, and writes each request to ``log``."""
    registry = Registry(port=port, address=address)

    def answer(path: str) -> int:
        load(registry, folder)
        with (folder / "log").open("a") as log:
            log.write(f"GET {path}\n")
        return 0

    registry.failing = answer
    await registry.start()
    (folder / "ready").touch()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
