"""Macs that copy models from each other: real stores, servers, identities and connections, on loopback addresses."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from thunderfleet_agent.copies.chunks import CHUNK_BYTES
from thunderfleet_agent.copies.server import CopyServer
from thunderfleet_agent.copies.shelf import Shelf
from thunderfleet_agent.copies.transfer import Network, Transfer
from thunderfleet_agent.copies.ways import paths
from thunderfleet_agent.copies.ways.pace import Pace
from thunderfleet_agent.copies.ways.paths import Path, Way
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.peers import identity
from thunderfleet_agent.peers.dial_plan import PeerAddress
from thunderfleet_agent.peers.identity import Identity
from thunderfleet_agent.server import Server
from thunderfleet_lib.modelstore.manifest import FileEntry, Manifest
from thunderfleet_lib.modelstore.store import Store

COMMIT = "c" * 40
REPOSITORY = "owner/model"
RUN_SECONDS = 60
"""Limit of a transfer."""
HOLD_SECONDS = 2 * RUN_SECONDS
CHUNKS_OF_KILL = 10 * CHUNK_BYTES
"""Size of the model of the test that kills an agent."""


def entry(path: str, content: bytes, *, git: bool = False) -> FileEntry:
    """The entry of a file with this content."""
    if git:
        return FileEntry(path, len(content), git_sha1=hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())
    found = _large_sha256(content) if len(content) >= CHUNK_BYTES else hashlib.sha256(content).hexdigest()
    return FileEntry(path, len(content), sha256=found)


@functools.lru_cache(maxsize=2)
def _large_sha256(content: bytes) -> str:
    """A test asks for it several times, for each manifest."""
    return hashlib.sha256(content).hexdigest()


@functools.lru_cache(maxsize=2)
def content(seed: int, size: int) -> bytes:
    """Bytes that depend on the seed only: the stream of a cipher, because ``random`` takes a hundred times as long."""
    return Cipher(algorithms.AES(seed.to_bytes(16, "big")), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def manifest(files: Mapping[str, bytes], *, repository: str = REPOSITORY, commit: str = COMMIT) -> Manifest:
    """The manifest of these files; names that end with .json have the id of git, as on the hub."""
    return Manifest(repository, commit, tuple(entry(path, data, git=path.endswith(".json")) for path, data in files.items()))


def fill(store: Store, whole: Manifest, files: Mapping[str, bytes]) -> None:
    """Puts all files of a model into a store."""
    store.add_manifest(whole)
    store.prepare_repository(whole.repository)
    for one in whole.files:
        if not store.has(whole.repository, one):
            with store.writer(whole.repository, one) as writer:
                with writer.open() as file:
                    file.write(files[one.path])
                writer.finish()
    store.publish(whole)


class Mac:
    """A Mac with a model store and an agent's server. ``addresses``: one for the network, the others for cables."""

    def __init__(self, node: str, root: FilePath, made: Identity, addresses: tuple[str, ...]) -> None:
        self.node = node
        self.identity = made
        self.addresses = addresses
        self.store = Store(root)
        self.store.prepare()
        self.shelf = Shelf(self.store, node)
        self.port = 0
        self.wrong: list[str] = []
        self.received: dict[str, int] = {}
        self.holds: Callable[[Path], None] = lambda way: None
        """Called by the thread of a connection when some bytes of files have arrived over it: it may wait."""
        self.server: Server | None = None
        self.copies: CopyServer | None = None

    async def start(self, known: Mapping[str, str]) -> None:
        async def accepts(node: str, sha256: str) -> bool:
            return known.get(node) == sha256

        self.server = Server(self.addresses[0], self.node, Metrics(), lambda: None, accepts, lambda address: True)
        self.server.copies = self.copies = CopyServer(self.node, self.shelf, accepts, self.identity.server)
        self.port, _ = await self.server.start(self.port, 0, self.identity.server)
        await self.server.listen_on(self.addresses)

    async def stop(self) -> None:
        self.shelf.close()
        if self.server is not None:
            await self.server.close()
            self.server = None

    def way(self, to: Mac, way: Way = Way.CABLE, number: int = 0) -> Path:
        """The way to one of the addresses of another Mac."""
        link = f"cable-{to.node}-{number}" if way is not Way.NETWORK else ""
        address = PeerAddress(to.node, to.addresses[number], to.port, to.identity.sha256)
        return Path(address, way, self.addresses[0], link)

    def network(self, *ways: Path, paces: Mapping[Way, Pace] | None = None) -> Network:
        def received(way: Path, count: int) -> None:
            self.received[way.key] = self.received.get(way.key, 0) + count
            self.holds(way)

        return Network(self.node, self.identity.client, lambda: ways, paces or {}, received, self.wrong.append)

    def hold_after(self, count: int) -> threading.Event:
        """What is received stops at about ``count`` bytes, however fast it is, until the event is set."""
        goes_on = threading.Event()

        def hold(way: Path) -> None:
            if sum(self.received.values()) >= count:
                goes_on.wait(HOLD_SECONDS)

        self.holds = hold
        return goes_on

    def transfer(self, whole: Manifest, *ways: Path, paces: Mapping[Way, Pace] | None = None) -> Transfer:
        self.store.add_manifest(whole)
        self.shelf.refresh()
        return Transfer(self.store, self.shelf, whole, self.network(*ways, paces=paces))

    def has(self, whole: Manifest, files: Mapping[str, bytes]) -> bool:
        """Whether the model's folder is there with exactly these contents."""
        folder = self.store.layout.snapshot(whole.repository, whole.commit)
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return found == dict(files)


class Fleet:
    """Macs that have each other's certificates."""

    def __init__(self, folder: FilePath, made: Identity) -> None:
        self._folder = folder
        self._identity = made
        self.known: dict[str, str] = {}
        self.macs: list[Mac] = []
        self._numbers = itertools.count(1)

    async def mac(self, *, cables: int = 1, made: Identity | None = None) -> Mac:
        number = next(self._numbers)
        own = made or self._identity
        addresses = tuple(f"127.9.{number}.{at + 1}" for at in range(cables))
        mac = Mac(f"mac-{number}", self._folder / f"mac-{number}", own, addresses)
        self.known[mac.node] = own.sha256
        await mac.start(self.known)
        self.macs.append(mac)
        return mac

    async def close(self) -> None:
        for mac in self.macs:
            await mac.stop()


def make_identity(folder: FilePath) -> Identity:
    """A certificate as agents have it."""
    folder.mkdir(parents=True)
    identity.write(folder)
    return identity.load(folder)


async def run(transfer: Transfer) -> bool:
    """Runs a transfer in a thread, and stops it if the test ends before."""
    with _stopping(transfer):
        return await asyncio.wait_for(asyncio.to_thread(transfer.run), RUN_SECONDS)


@contextlib.contextmanager
def _stopping(transfer: Transfer) -> Iterator[None]:
    try:
        yield
    finally:
        transfer.stop()


__all__ = ["Fleet", "Mac", "content", "entry", "fill", "make_identity", "manifest", "paths", "run"]
