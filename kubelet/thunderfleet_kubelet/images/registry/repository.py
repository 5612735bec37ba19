"""Manifests and blobs of one repository, by the distribution API. What was requested by digest is verified."""

import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from thunderfleet_kubelet.images.errors import NotContinued, PullError, Refused, Transient
from thunderfleet_kubelet.images.registry.manifest import ACCEPT, Blob
from thunderfleet_kubelet.images.registry.reference import Reference
from thunderfleet_kubelet.images.registry.requests import MAX_SMALL, SMALL_SECONDS, Requests, read, within

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
MAX_ERROR = 64 * 1024
ERROR_SECONDS = 10.0
"""How long the text of an error may take; the error counts without it too."""
MAX_WORDS = 200


def digest_of(content: bytes) -> str:
    """The digest of some content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class Part:
    """The content of a blob from byte ``offset`` on, as it comes in."""

    response: aiohttp.ClientResponse
    offset: int


class Registry:
    """The repository of ``reference``."""

    def __init__(self, requests: Requests, reference: Reference) -> None:
        self._requests = requests
        self._reference = reference

    @property
    def origin(self) -> str:
        """Scheme and host of the registry."""
        return str(self._requests.origin)

    async def manifest(self, target: str) -> tuple[bytes, str, str]:
        """The manifest or index of a tag or digest: content, media type and digest. Raises PullError."""
        path = f"/v2/{self._reference.repository}/manifests/{target}"
        async with (
            within(SMALL_SECONDS, f"{self._requests.origin.host}: no manifest"),
            self._requests.get(path, {"Accept": ACCEPT}) as response,
        ):
            await self._check(response, f"manifest {target}")
            content, media = await read(response, MAX_SMALL), response.headers.get("Content-Type", "")
            claimed = response.headers.get("Docker-Content-Digest", "")
        found = digest_of(content)
        wanted = target if target.startswith("sha256:") else claimed
        # Other algorithms than ours cannot be compared.
        if wanted.startswith("sha256:") and wanted != found:
            raise PullError(f"{self._requests.origin.host} sends a manifest with digest {found} instead of {wanted}")
        return content, media, found

    async def small(self, blob: Blob) -> bytes:
        """The content of a small blob, verified. Raises PullError."""
        async with within(SMALL_SECONDS, f"{self._requests.origin.host}: no configuration"), self.part(blob, 0) as part:
            content = await read(part.response, min(MAX_SMALL, blob.size))
        if len(content) < blob.size:
            raise Transient(f"{self._requests.origin.host} sends only {len(content)} of {blob.size} bytes")
        if digest_of(content) != blob.digest:
            raise PullError(f"{self._requests.origin.host} sends content that does not have the digest {blob.digest}")
        return content

    @contextlib.asynccontextmanager
    async def part(self, blob: Blob, offset: int) -> AsyncIterator[Part]:
        """The blob from ``offset`` on, or from another offset if the registry does not do that. Raises PullError."""
        path = f"/v2/{self._reference.repository}/blobs/{blob.digest}"
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        async with self._requests.get(path, headers) as response:
            if response.status == 416 and offset:
                raise NotContinued(f"{self._requests.origin.host} does not continue {blob.digest} at byte {offset}")
            if response.status == 206 and offset:
                yield Part(response, self._start(response, blob, offset))
                return
            await self._check(response, f"blob {blob.digest}")
            yield Part(response, 0)

    def _start(self, response: aiohttp.ClientResponse, blob: Blob, offset: int) -> int:
        match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        if match is None or int(match[1]) != offset or match[3] not in ("*", str(blob.size)):
            raise NotContinued(f"{self._requests.origin.host} sends another range of {blob.digest} than requested")
        return offset

    async def _check(self, response: aiohttp.ClientResponse, what: str) -> None:
        """Raises PullError unless the status is 200."""
        status, host = response.status, self._requests.origin.host
        if status == 200:
            return
        words = await _error_of(response)
        if status in (401, 403):
            raise Refused(f"{host} refuses access to {self._reference.name} (HTTP {status}{words}); check imagePullSecrets")
        if status == 404:
            # Many registries answer so if the user may not read the image.
            raise Refused(f"{host} has no {what} of {self._reference.name} (HTTP 404{words})")
        kind = Transient if status >= 500 or status in (408, 429) else PullError
        raise kind(f"{host} answers HTTP {status} for {what}{words}")


async def _error_of(response: aiohttp.ClientResponse) -> str:
    """The registry's description of an error, in one short line; empty if it has none, or none that can be parsed."""
    try:
        async with within(ERROR_SECONDS, "no text of the error"):
            answer: Any = json.loads(await read(response, MAX_ERROR))
        words = str(answer["errors"][0].get("message") or answer["errors"][0].get("code") or "")
    except (PullError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return ""
    clean = "".join(one if one.isprintable() else " " for one in words)[:MAX_WORDS].strip()
    return f": {clean}" if clean else ""
