"""One connection to the agent of another Mac, over one way. Blocking: one thread uses it; any thread may ``interrupt`` it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
from collections.abc import Callable

from thunderfleet_lib.modelstore.manifest import MAX_MANIFEST_BYTES

from thunderfleet_agent.copies import wire
from thunderfleet_agent.copies.ways.paths import Path as Way
from thunderfleet_agent.copies.ways.tls import Tls
from thunderfleet_agent.copies.wire import Answer, Op, Request, WireError
from thunderfleet_agent.measure.session.streams import bind_to, family

CONNECT_SECONDS = 5.0
# If a call transfers nothing for this time, the connection ends.
STALL_SECONDS = 12.0
BLOCK_BYTES = 2**20

Arrived = Callable[[int], None]
"""Receives how many bytes were read; it may wait, to limit the rate."""


class PeerFailed(Exception):
    """The other Mac cannot be used now; the text names it and the reason."""


class Connection:
    """An open connection. Every method raises PeerFailed, and the connection is unusable then."""

    def __init__(self, way: Way, tls: Tls, raw: socket.socket) -> None:
        self.way = way
        self._tls = tls
        self._raw = raw

    def interrupt(self) -> None:
        """Ends the connection from any thread; a call in its own thread soon fails. Descriptors stay open: none is reused."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection. Only for its own thread."""
        self.interrupt()
        with contextlib.suppress(OSError):
            self._raw.close()
        with contextlib.suppress(OSError):
            self._tls.close()

    def ask(self, request: Request) -> Answer:
        """Sends a request whose answer has no body."""
        self.send(request)
        answer = self.receive()
        if answer.size:
            raise self._failed("sent bytes that were not requested")
        return answer

    def fetch(self, request: Request, most: int) -> tuple[bytes, Answer]:
        """Sends a request and reads the body of its answer into memory."""
        self.send(request)
        answer = self.receive()
        if answer.size > most:
            raise self._failed(f"announced {answer.size} bytes; at most {most} are allowed")
        body = bytearray(answer.size)
        self.read_into(memoryview(body))
        return bytes(body), answer

    def manifest(self, digest: str) -> bytes | None:
        """A manifest, unchecked; None if the other Mac does not have it."""
        body, answer = self.fetch(Request(Op.MANIFEST, (digest,)), MAX_MANIFEST_BYTES)
        return None if answer.error else body

    def send(self, request: Request) -> None:
        try:
            self._tls.sendall(wire.frame(request))
        except OSError as error:
            raise self._failed(error) from None

    def receive(self) -> Answer:
        """The next answer; its body has not been read."""
        head, text = bytearray(wire.LENGTH_BYTES), bytearray()
        self.read_into(memoryview(head))
        try:
            text = bytearray(wire.frame_length(bytes(head)))
            self.read_into(memoryview(text))
            return wire.answer(bytes(text))
        except WireError as error:
            raise self._failed(error) from None

    def read_into(self, view: memoryview, arrived: Arrived = lambda count: None) -> None:
        """Fills the buffer ``view``."""
        at = 0
        try:
            while at < len(view):
                count = self._tls.recv_into(view[at:])
                if count == 0:
                    raise self._failed("closed the connection")
                at += count
                arrived(count)
        except OSError as error:
            raise self._failed(error) from None

    def chunk_into(
        self, descriptor: int, at: int, count: int, block: memoryview, arrived: Arrived, *, keep: bool = True
    ) -> bytes:
        """Writes the body of a chunk's answer to a file. Returns its SHA-256. Raises OSError if the file cannot be written."""
        found, left = hashlib.sha256(), count
        while left:
            part = block[: min(len(block), left)]
            self.read_into(part, arrived)
            left -= len(part)
            if not keep:
                continue
            found.update(part)
            written = 0
            while written < len(part):
                written += os.pwrite(descriptor, part[written:], at + written)
            at += len(part)
        return found.digest()

    def _failed(self, why: object) -> PeerFailed:
        if isinstance(why, TimeoutError):
            why = f"sent nothing for {STALL_SECONDS:g} s"
        elif isinstance(why, OSError) and why.strerror:
            why = why.strerror
        return PeerFailed(f"{self.way}: {str(why)[:300]}")


def connect(way: Way, node: str, context: ssl.SSLContext) -> Connection:
    """Connects as ``node`` with the certificate of ``context``. Raises PeerFailed."""
    raw = socket.socket(family(way.to.address), socket.SOCK_STREAM)
    own: socket.socket | None = None
    try:
        raw.settimeout(CONNECT_SECONDS)
        bind_to(raw, way.source, way.to.interface)
        raw.connect((way.to.address, way.to.port))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.sendall(wire.PREFACE)
        # The other descriptor is for `interrupt`, which may be called from any thread.
        own = raw.dup()
        own.settimeout(CONNECT_SECONDS)
        tls = Tls(own, context, CONNECT_SECONDS)
        shown = hashlib.sha256(tls.certificate()).hexdigest()
        if shown != way.to.sha256:
            raise PeerFailed(f"{way}: the certificate is not the one in the NodeProfile (another machine may use this address)")
        own.settimeout(STALL_SECONDS)
        found = Connection(way, tls, raw)
        answer = found.ask(Request(Op.HELLO, node=node))
        if answer.error or answer.node != way.to.node:
            raise PeerFailed(f"{way}: {answer.error or f'{answer.node!r} answered'}")
        return found
    except (OSError, ValueError, PeerFailed) as error:
        raw.close()
        if own is not None:
            own.close()
        if isinstance(error, PeerFailed):
            raise
        why = f"no answer within {CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else getattr(error, "strerror", None)
        raise PeerFailed(f"{way}: {why or error}") from None
