"""A Hugging Face Hub: a real HTTP server with the endpoints that `huggingface_hub` uses to read models.

Repositories are folders of files in memory. Large files (safetensors) are in "large storage": a redirect leads to another host
name, with the SHA-256 as linked ETag, as on the hub. Tests can make all faults of the hub occur here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

PAGE = 1000
LARGE = ".safetensors"
CDN_HOST = "localhost"
"""A name other than the hub's, so that tests detect a client that sends its token there."""


@functools.lru_cache(64)
def sha256(data: bytes) -> str:
    """The hash of a large file."""
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(64)
def git_sha1(data: bytes) -> str:
    """The hash of a file in git. A hub computes it before the first request."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    """One repository: its commits by hash, and its branches."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    moved_to: str | None = None
    listed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By path, false values that the listing shows instead of the right ones."""

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Adds a commit and moves the branch to it."""
        text = json.dumps({path: sha256(data) for path, data in files.items()}, sort_keys=True)
        name = hashlib.sha1(f"{len(self.commits)}{text}".encode()).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name


@dataclass
class Fault:
    """A fault for the next ``times`` requests whose path matches ``path``."""

    path: str
    times: int = 1
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None
    """Bytes of the answer's body after which the connection is cut."""
    wrong: bytes | None = None
    """Replaces the first bytes of the answer's body."""
    method: str | None = None


@dataclass
class Request:
    """A received request."""

    method: str
    host: str
    path: str
    token: str | None
    range: str | None


FAULT: web.RequestKey[Fault | None] = web.RequestKey("fault")


class Hub:
    """The server. Its state may be changed from any thread between requests."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.folders: dict[str, dict[str, bytes]] = {}
        """Files at URIs, by folder. Each is at /folders/FOLDER/NAME, for everybody."""
        self.tokens: dict[str, set[str]] = {}
        """By token, the gated and private repositories that its account may read."""
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.ranges = True
        self.log = False
        """Whether to print each request."""
        self.port = 0
        self.cdn_port = 0
        """Port for large files, if not ``port``: clients expect another host or port there."""
        self.address = "127.0.0.1"

    @property
    def url(self) -> str:
        """The value of HF_ENDPOINT."""
        return f"http://{self.address}:{self.port}"

    def add(self, name: str, files: dict[str, bytes], **about: Any) -> str:
        """Adds a repository with one commit, or a commit to one. Returns the commit's hash."""
        found = self.repositories.setdefault(name, Repository(**about))
        return found.commit(files)

    def add_folder(self, name: str, folder: Path) -> str:
        """Adds a repository with the files of a folder."""
        return self.add(name, {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()})

    def application(self) -> web.Application:
        """The server's routes."""
        app = web.Application(middlewares=[self._observed])
        app.router.add_get("/api/models/{repo:[^/]+/[^/]+}", self._info)
        app.router.add_get("/api/models/{repo:[^/]+/[^/]+}/revision/{revision}", self._info)
        app.router.add_get("/api/models/{repo:[^/]+/[^/]+}/tree/{revision}", self._tree)
        app.router.add_get("/{repo:[^/]+/[^/]+}/resolve/{revision}/{path:.+}", self._resolve)
        app.router.add_get("/cdn/{hash}", self._large)
        app.router.add_get("/folders/{folder}/{name}", self._file)
        return app

    # --- faults ------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _observed(self, request: web.Request, handler: Any) -> web.StreamResponse:
        authorization = request.headers.get("Authorization")
        token = authorization.removeprefix("Bearer ") if authorization else None
        self.requests.append(Request(request.method, request.host, request.path, token, request.headers.get("Range")))
        if self.log:
            print(request.method, request.path, flush=True)
        fault = self._fault(request)
        if fault is not None and fault.status is not None:
            return web.Response(status=fault.status, headers=fault.headers, body=fault.body)
        request[FAULT] = fault
        found: web.StreamResponse = await handler(request)
        return found

    def _fault(self, request: web.Request) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.path, request.path) and fault.method in (None, request.method):
                fault.times -= 1
                return fault
        return None

    # --- the hub's API -----------------------------------------------------------------------------------------------

    def _repository(self, request: web.Request) -> Repository | web.Response:
        name = request.match_info["repo"]
        found = self.repositories.get(name)
        if found is not None and found.moved_to is not None:
            return web.Response(status=307, headers={"Location": request.path_qs.replace(name, found.moved_to)})
        authorization = request.headers.get("Authorization")
        token = authorization.removeprefix("Bearer ") if authorization else None
        if token is not None and token not in self.tokens:
            return _refused(401, None, "Invalid credentials in Authorization header")
        allowed = token is not None and name in self.tokens[token]
        if found is None or (found.private and not allowed):
            return _refused(404 if token else 401, "RepoNotFound", "Repository not found")
        if found.gated and not allowed and "/resolve/" in request.path:
            return _refused(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted")
        return found

    def _files(self, request: web.Request, found: Repository) -> tuple[str, dict[str, bytes]] | web.Response:
        revision = request.match_info.get("revision", "main")
        commit = found.branches.get(revision, revision)
        if commit not in found.commits:
            return _refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, found.commits[commit]

    async def _info(self, request: web.Request) -> web.Response:
        found = self._repository(request)
        if isinstance(found, web.Response):
            return found
        files = self._files(request, found)
        if isinstance(files, web.Response):
            return files
        return web.json_response({"id": request.match_info["repo"], "_id": "0" * 24, "sha": files[0]})

    async def _tree(self, request: web.Request) -> web.Response:
        found = self._repository(request)
        if isinstance(found, web.Response):
            return found
        files = self._files(request, found)
        if isinstance(files, web.Response):
            return files
        first = int(request.query.get("cursor", 0))
        names = sorted(files[1])
        entries = [self._entry(name, files[1][name], found) for name in names[first : first + PAGE]]
        headers = {}
        if first + PAGE < len(names):
            following = request.url.update_query(cursor=str(first + PAGE))
            headers["Link"] = f'<{following}>; rel="next"'
        return web.json_response(entries, headers=headers)

    def _entry(self, name: str, data: bytes, found: Repository) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
        if name.endswith(LARGE):
            entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
        return {**entry, **found.listed.get(name, {})}

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        found = self._repository(request)
        if isinstance(found, web.Response):
            return found
        files = self._files(request, found)
        if isinstance(files, web.Response):
            return files
        commit, path = files[0], request.match_info["path"]
        data = files[1].get(path)
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if data is None:
            return _refused(404, "EntryNotFound", "Entry not found")
        if path.endswith(LARGE):
            location = f"http://{CDN_HOST}:{self.cdn_port or self.port}/cdn/{sha256(data)}"
            headers |= {"X-Linked-ETag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data)), "Location": location}
            return web.Response(status=302, headers=headers)
        return await self._send(request, data, {**headers, "ETag": f'"{git_sha1(data)}"'})

    async def _large(self, request: web.Request) -> web.StreamResponse:
        wanted = request.match_info["hash"]
        for found in self.repositories.values():
            for files in found.commits.values():
                for data in files.values():
                    if sha256(data) == wanted:
                        return await self._send(request, data, {"ETag": f'"{wanted}"', "Accept-Ranges": "bytes"})
        return web.Response(status=404)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        data = self.folders.get(request.match_info["folder"], {}).get(request.match_info["name"])
        return web.Response(status=404) if data is None else await self._send(request, data, {})

    async def _send(self, request: web.Request, data: bytes, headers: dict[str, str]) -> web.StreamResponse:
        fault = request[FAULT]
        if fault is not None and fault.wrong is not None:
            data = fault.wrong + data[len(fault.wrong) :]
        status, total, wanted = 200, len(data), re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if wanted and self.ranges:
            first, last = int(wanted[1]), min(int(wanted[2] or total), total - 1)
            if first >= total:
                return web.Response(status=416, headers={"Content-Range": f"bytes */{total}"})
            status, data = 206, data[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{last}/{total}"
        if request.method == "HEAD":
            return web.Response(status=status, headers={**headers, "Content-Length": str(len(data))})
        answer = web.StreamResponse(status=status, headers={**headers, "Content-Length": str(len(data))})
        await answer.prepare(request)
        if fault is not None and fault.cut_after is not None:
            await answer.write(data[: fault.cut_after])
            if request.transport is not None:
                # Lets the sent bytes arrive before the end of the connection.
                request.transport.close()
            return answer
        for start in range(0, len(data), 1024 * 1024):
            await answer.write(data[start : start + 1024 * 1024])
        await answer.write_eof()
        return answer


def _refused(status: int, code: str | None, message: str) -> web.Response:
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return web.json_response({"error": message}, status=status, headers=headers)


@contextlib.contextmanager
def running(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[Hub]:
    """A hub in a thread of this process. ``tls``: of its HTTPS; None for HTTP."""
    hub, started = Hub(), threading.Event()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        runner = web.AppRunner(hub.application(), access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, 0, ssl_context=tls)
            await site.start()
            server: Any = site._server
            hub.port = server.sockets[0].getsockname()[1]
            started.set()
            await ended.wait()
        finally:
            await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="hub", daemon=True)
    thread.start()
    if not started.wait(10):
        raise RuntimeError("the hub has not started")
    try:
        yield hub
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()


async def serve(hub: Hub, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Serves at two ports, until it is cancelled."""
    runner = web.AppRunner(hub.application(), access_log=None)
    await runner.setup()
    hub.address, hub.port = host, port
    await web.TCPSite(runner, host, port, ssl_context=tls).start()
    hub.cdn_port = port + 1
    await web.TCPSite(runner, host, port + 1, ssl_context=tls).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


def main(host: str, port: str, *models: str) -> None:
    """Serves folders, each given as REPOSITORY=FOLDER, until it is killed: for Macs that have a network of their own.

    A gated one is given as REPOSITORY=FOLDER=TOKEN; holders of the token may read it.
    """
    global CDN_HOST
    CDN_HOST = host
    hub = Hub()
    hub.log = True
    for model in models:
        name, folder, *token = model.split("=")
        hub.add_folder(name, Path(folder))
        for one in token:
            hub.repositories[name].gated = True
            hub.tokens.setdefault(one, set()).add(name)
    asyncio.run(serve(hub, host, int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
