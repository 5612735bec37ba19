"""Requests to a folder on a server, which has a model's files and the list with their hashes.

The spec names the hash of the list, and the list has the hash of every file. So the server need not be trusted: a file that
does not have its hash is rejected.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.uris import MANIFEST_FILE, check_sha256, check_uri, host_of, kept_name
from thunderfleet_lib.modelstore import selection, sums
from thunderfleet_lib.modelstore.manifest import FileEntry, InvalidManifest, Manifest
from thunderfleet_lib.modelstore.sums import InvalidSums

from thunderfleet_runner.hub.errors import HubFault, retry_seconds
from thunderfleet_runner.hub.network import Network, Reply

SMALL_SECONDS = 60.0
"""Time limit for the list, and for the header of a weight file."""


@dataclass(frozen=True)
class Folder:
    """A folder at ``uri``, whose list has the hash ``sha256``. Raises ValueError for other URIs and hashes."""

    uri: str
    sha256: str
    network: Network = field(default_factory=Network.from_environment)

    def __post_init__(self) -> None:
        check_uri(self.uri)
        check_sha256(self.sha256)

    @property
    def repository(self) -> str:
        """The name under which Macs keep the files."""
        return kept_name(self.uri)

    @property
    def revision(self) -> str:
        """The hash of the list."""
        return self.sha256

    @property
    def token(self) -> None:
        """No token: the server gives these files to every Mac, or to none."""
        return None

    @property
    def endpoint(self) -> str:
        """The server."""
        return f"https://{host_of(self.uri)}"

    def commit(self) -> str:
        """The hash of the list, once the server has shown that it has it. Raises HubFault."""
        return hashlib.sha256(self._list).hexdigest()

    def manifest(self, commit: str) -> Manifest:
        """The files of the model; their sizes are the server's. Raises HubFault."""
        if commit != self.sha256:
            raise HubFault(Reason.MANIFEST_MISMATCH, f"{self.uri} is used with the hash {self.sha256}, not {commit[:80]}")
        try:
            listed = {name: digest for name, digest in sums.parse(self._list).items() if selection.belongs(name)}
            why = selection.problem(listed)
            if why is not None:
                raise InvalidManifest(f"it is not a model for mlx-lm: {why}")
            files = tuple(FileEntry(name, self._size(name), sha256=digest) for name, digest in sorted(listed.items()))
            return Manifest(self.repository, commit, files, sums=self._list.decode())
        except (InvalidSums, InvalidManifest) as error:
            raise HubFault(Reason.FILES_REFUSED, f"{self.uri}: {error}") from error

    def fetch(self, commit: str, entry: FileEntry, file: BinaryIO, path: Path) -> None:
        """Appends what is missing of a file, which ``file`` has open. Raises HubFault, OSError of this Mac's disk."""
        del commit, path
        start = file.seek(0, 2)
        if start >= entry.size:
            return
        with self.network.open(self._url(entry.path), first=start) as reply:
            if start and not reply.starts_at(start):
                self._check(reply, entry.path, (200,))
                # A server without ranges sends the whole file.
                file.seek(0)
                file.truncate(0)
                start = 0
            else:
                self._check(reply, entry.path, (206,) if start else (200, 206))
            if reply.size is not None and start + reply.size != entry.size:
                raise HubFault(
                    Reason.WRONG_BYTES,
                    f"{self.endpoint} has {start + reply.size} bytes of {entry.path}; it had {entry.size} when the model "
                    "was resolved",
                )
            for block in reply.blocks(entry.size - start + 1):
                start += len(block)
                if start > entry.size:
                    raise HubFault(Reason.WRONG_BYTES, f"{self.endpoint} has more than {entry.size} bytes of {entry.path}")
                file.write(block)
        if start < entry.size:
            file.flush()
            raise HubFault(Reason.HUB_UNREACHABLE, f"{self.endpoint} sent {start} of {entry.size} bytes of {entry.path}")

    def first_bytes(self, commit: str, path: str, start: int, count: int) -> bytes:
        """A range of a file. Raises HubFault."""
        del commit
        with self.network.open(self._url(path), first=start, last=start + count - 1) as reply:
            self._check(reply, path, (200, 206))
            if reply.status == 206 and not reply.starts_at(start):
                raise HubFault(Reason.HUB_FAILED, f"{self.endpoint} sends another range of {path} than was requested")
            # A server without ranges sends the whole file.
            skip = start if reply.status == 200 else 0
            found = b"".join(reply.blocks(skip + count, SMALL_SECONDS))
        return found[skip : skip + count]

    @cached_property
    def _list(self) -> bytes:
        with self.network.open(self._url(MANIFEST_FILE)) as reply:
            if reply.status in (401, 403, 404, 410):
                raise HubFault(
                    Reason.MANIFEST_NOT_FOUND,
                    f"{self.uri}{MANIFEST_FILE}: the server answers with status {reply.status}; check the URI, and write the "
                    f"file with `sha256sum * > {MANIFEST_FILE}` in the folder",
                )
            self._check(reply, MANIFEST_FILE, (200,))
            found = b"".join(reply.blocks(sums.MAX_BYTES + 1, SMALL_SECONDS))
        if len(found) > sums.MAX_BYTES:
            raise HubFault(Reason.FILES_REFUSED, f"{self.uri}{MANIFEST_FILE} has more than {sums.MAX_BYTES} bytes")
        digest = hashlib.sha256(found).hexdigest()
        if digest != self.sha256:
            raise HubFault(
                Reason.MANIFEST_MISMATCH,
                f"{self.uri}{MANIFEST_FILE} has the hash {digest}, not {self.sha256}; if the change is intended, set sha256 to "
                "its hash, otherwise restore the file",
            )
        return found

    def _size(self, name: str) -> int:
        with self.network.open(self._url(name), "HEAD") as reply:
            self._check(reply, name, (200,))
            if reply.size is None:
                raise HubFault(Reason.HUB_FAILED, f"{self.endpoint} does not send the size of {name} (Content-Length)")
            return reply.size

    def _url(self, name: str) -> str:
        return self.uri + quote(name)

    def _check(self, reply: Reply, name: str, wanted: tuple[int, ...]) -> None:
        if reply.status in wanted:
            return
        wait = retry_seconds(reply.response.headers.get("Retry-After"))
        if reply.status == 429:
            when = f"in {wait} s" if wait is not None else "later"
            raise HubFault(
                Reason.RATE_LIMITED, f"{self.endpoint} answers 429, too many requests; the next attempt is {when}", wait
            )
        raise HubFault(Reason.HUB_FAILED, f"{self.endpoint} answers with status {reply.status} for {name}", wait)
