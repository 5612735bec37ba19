"""Answers requests of other agents for copies: one thread per connection, blocking TLS, every wait with a limit.

Threads, because encrypting, reading and sending release the interpreter lock: several cables are served at once, and the
agent's event loop is not delayed. The connection comes from the agent's own port (PREFACE distinguishes it from HTTP), and the
other Mac proves its identity with the certificate that its NodeProfile shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import ssl
import stat
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from thunderfleet_agent.copies import chunks, wire
from thunderfleet_agent.copies.chunks import CHUNK_BYTES
from thunderfleet_agent.copies.shelf import BLOCK_BYTES, Held, Shelf
from thunderfleet_agent.copies.wire import Answer, Op, Request, WireError

log = logging.getLogger(__name__)

# Connections at once, each with a thread and a block of memory.
MAX_CONNECTIONS = 24
MAX_STRANGERS = 8
MAX_PER_NODE = 6
HANDSHAKE_SECONDS = 5.0
# Time limit of one call that transfers a block.
STALL_SECONDS = 15.0
IDLE_SECONDS = 30.0
MAX_HELLO_BYTES = 1024
ACCEPT_SECONDS = 10.0

Accepts = Callable[[str, str], Awaitable[bool]]


class CopyServer:
    """``accepts`` returns whether the NodeProfile of a node shows a certificate with that SHA-256."""

    def __init__(
        self,
        node: str,
        shelf: Shelf,
        accepts: Accepts,
        context: ssl.SSLContext,
        sent: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._node = node
        self._shelf = shelf
        self._accepts = accepts
        self._context = context
        self._sent = sent
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._by_node: Counter[str] = Counter()
        self.closed = False

    async def take(self, sock: socket.socket, known: bool) -> None:
        """Handles a connection to its end. It began with the preface, which has not been read yet.

        ``known``: whether it comes from the address of another agent. Some connections are reserved for these addresses.
        """
        with self._lock:
            if self.closed or len(self._open) >= (MAX_CONNECTIONS if known else MAX_STRANGERS):
                return
            self._open.add(sock)
        done = asyncio.Event()
        loop = self._loop
        # The thread has a descriptor of its own: if this task is cancelled, the other one is closed, and its number reused.
        own = sock.dup()

        def work() -> None:
            try:
                with own:
                    self._serve(own)
            except (OSError, WireError, TimeoutError) as error:
                log.debug("a connection for copies ended: %s", error)
            except Exception:
                log.exception("a connection for copies failed")
            finally:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(done.set)

        try:
            threading.Thread(target=work, name="copy-serve", daemon=True).start()
            await done.wait()
        finally:
            with self._lock:
                self._open.discard(sock)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends all connections."""
        with self._lock:
            self.closed = True
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    # --- in the connection's thread ------------------------------------------------------------------------------------

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(HANDSHAKE_SECONDS)
        if _exactly(sock, len(wire.PREFACE), time.monotonic() + HANDSHAKE_SECONDS) != wire.PREFACE:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._context.wrap_socket(sock, server_side=True) as tls:
            node = self._greet(tls)
            if node is None:
                return
            with self._lock:
                full = self._by_node[node] >= MAX_PER_NODE
                self._by_node[node] += not full
            if full:
                _send(tls, Answer(error=f"{node} has {MAX_PER_NODE} connections already", later=True))
                return
            try:
                _send(tls, Answer(node=self._node))
                self._requests(tls)
            finally:
                with self._lock:
                    self._by_node[node] -= 1
                    self._by_node += Counter()

    def _greet(self, tls: ssl.SSLSocket) -> str | None:
        """The node at the other end, or None if it did not prove its identity."""
        hello = _receive(tls, HANDSHAKE_SECONDS, MAX_HELLO_BYTES)
        if hello.op is not Op.HELLO:
            _send(tls, Answer(error="the first request must be hello"))
            return None
        shown = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()
        asked = asyncio.run_coroutine_threadsafe(_call(self._accepts, hello.node, shown), self._loop)
        try:
            known = asked.result(ACCEPT_SECONDS)
        except TimeoutError:
            asked.cancel()
            known = False
        if not known:
            _send(tls, Answer(error=f"the NodeProfile of {hello.node!r} does not contain this certificate"))
            return None
        return hello.node

    def _requests(self, tls: ssl.SSLSocket) -> None:
        buffer = bytearray(BLOCK_BYTES)
        while not self.closed:
            request = _receive(tls, IDLE_SECONDS)
            tls.settimeout(STALL_SECONDS)
            self._answer(tls, request, buffer)

    def _answer(self, tls: ssl.SSLSocket, request: Request, buffer: bytearray) -> None:
        if request.op is Op.MANIFEST:
            self._bytes(tls, self._shelf.manifest(request.blobs[0]), Answer(error="no such manifest"))
        elif request.op is Op.HAVE:
            found = {blob: self._shelf.chunks(blob) for blob in request.blobs}
            _send(tls, Answer(held={blob: text for blob, text in found.items() if text is not None}))
        elif request.op is Op.LIST:
            known = self._shelf.chunk_list(request.blobs[0])
            answer = Answer(error="not known yet", later=True) if known is None else Answer(node=known[1])
            self._bytes(tls, None if known is None else known[0].digests, answer)
        elif request.op is Op.CHUNK:
            self._chunk(tls, request, buffer)
        elif request.op is Op.FILES:
            self._files(tls, request, buffer)
        else:
            raise WireError("hello is allowed once")

    def _bytes(self, tls: ssl.SSLSocket, body: bytes | None, answer: Answer) -> None:
        if body is None:
            _send(tls, answer)
            return
        _send(tls, Answer(size=len(body), node=answer.node))
        tls.sendall(body)

    def _chunk(self, tls: ssl.SSLSocket, request: Request, buffer: bytearray) -> None:
        found, index = self._shelf.held(request.blobs[0]), request.index
        if found is None or index >= chunks.count(found.size) or (found.have is not None and index not in found.have):
            _send(tls, Answer(error="no such chunk", later=True))
            return
        opened = _open(found)
        if opened is None:
            _send(tls, Answer(error="no such chunk", later=True))
            return
        try:
            count = chunks.length(index, found.size)
            _send(tls, Answer(size=count))
            self._send_file(tls, opened, index * CHUNK_BYTES, count, buffer)
        finally:
            os.close(opened)

    def _files(self, tls: ssl.SSLSocket, request: Request, buffer: bytearray) -> None:
        chosen: list[Held] = []
        sizes: list[int] = []
        total = 0
        for blob in request.blobs:
            found = self._shelf.held(blob)
            if found is None or found.have is not None or total + found.size > CHUNK_BYTES:
                sizes.append(-1)
                continue
            chosen.append(found)
            sizes.append(found.size)
            total += found.size
        _send(tls, Answer(size=total, sizes=tuple(sizes)))
        for found in chosen:
            opened = _open(found)
            if opened is None:
                raise WireError("a file was removed while it was sent")
            try:
                self._send_file(tls, opened, 0, found.size, buffer)
            finally:
                os.close(opened)

    def _send_file(self, tls: ssl.SSLSocket, descriptor: int, at: int, count: int, buffer: bytearray) -> None:
        view, end = memoryview(buffer), at + count
        while at < end:
            block = view[: min(len(buffer), end - at)]
            read = os.preadv(descriptor, [block], at)
            if read == 0:
                raise WireError("a file became shorter while it was sent")
            tls.sendall(block[:read])
            self._sent(read)
            at += read


async def _call(accepts: Accepts, node: str, sha256: str) -> bool:
    return await accepts(node, sha256)


def _receive(sock: ssl.SSLSocket, seconds: float, most: int = wire.MAX_FRAME_BYTES) -> Request:
    """The next request, which must be there within ``seconds``. Raises WireError, OSError."""
    until = time.monotonic() + seconds
    length = wire.frame_length(_exactly(sock, wire.LENGTH_BYTES, until))
    if length > most:
        raise WireError(f"a first request of {length} bytes; at most {most} are allowed")
    return wire.request(_exactly(sock, length, until))


def _send(sock: ssl.SSLSocket, answer: Answer) -> None:
    sock.sendall(wire.frame(answer))


def _exactly(sock: socket.socket, size: int, until: float) -> bytes:
    data = b""
    while len(data) < size:
        # One limit for the whole request: with a limit for each read, a client could take minutes by sending single bytes.
        sock.settimeout(max(0.001, until - time.monotonic()))
        more = sock.recv(size - len(data))
        if not more:
            raise WireError("the connection was closed")
        data += more
    return data


def _open(found: Held) -> int | None:
    path: Path = found.path
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or (found.have is None and about.st_size != found.size):
        os.close(descriptor)
        return None
    return descriptor
