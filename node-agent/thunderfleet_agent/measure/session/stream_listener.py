"""Accepts the streams of one throughput test that show its token."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket

from thunderfleet_agent.measure.session.streams import DOWN, ECHO, TOKEN_BYTES, UP, Streams, family

HELLO_SECONDS = 2.0
MAX_STRANGERS = 16


class StreamListener:
    """Listens on one address for the streams of one test."""

    def __init__(self, address: str, peer: str) -> None:
        """``peer``: the address that may connect. Raises OSError if it cannot listen on ``address``."""
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.strangers = 0
        self._peer = peer
        self._streams = Streams()
        self._arrived = asyncio.Event()
        self._unverified: set[socket.socket] = set()
        self._checks: set[asyncio.Task[None]] = set()
        self._listener = socket.socket(family(address), socket.SOCK_STREAM)
        try:
            self._listener.bind((address, 0))
            self._listener.listen(MAX_STRANGERS)
            self._listener.setblocking(False)
        except OSError:
            self._listener.close()
            raise
        self.port: int = self._listener.getsockname()[1]

    async def admit(self, streams: int, seconds: float) -> Streams:
        """Waits for the echo stream and ``streams`` each way. Raises TimeoutError."""
        wanted = {ECHO: 1, UP: streams, DOWN: streams}
        loop, whole = asyncio.get_running_loop(), False
        loop.add_reader(self._listener, self._accept, wanted)
        try:
            async with asyncio.timeout(seconds):
                while any(self._streams.count(purpose) < count for purpose, count in wanted.items()):
                    self._arrived.clear()
                    await self._arrived.wait()
            whole = True
        finally:
            loop.remove_reader(self._listener)
            for task in self._checks:
                task.cancel()
            self.close()
            if not whole:
                self._streams.close()
        return self._streams

    def close(self) -> None:
        """Stops listening, and closes the connections that have not shown the token."""
        self._listener.close()
        while self._unverified:
            self._unverified.pop().close()

    def _accept(self, wanted: dict[bytes, int]) -> None:
        # Not loop.sock_accept, which loses an accepted connection if it is cancelled at the wrong moment.
        with contextlib.suppress(OSError):
            sock, where = self._listener.accept()
            sock.setblocking(False)
            if where[0] != self._peer or len(self._unverified) >= MAX_STRANGERS + sum(wanted.values()):
                self.strangers += 1
                sock.close()
                return
            self._unverified.add(sock)
            task = asyncio.get_running_loop().create_task(self._check(sock, wanted))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    async def _check(self, sock: socket.socket, wanted: dict[bytes, int]) -> None:
        """Admits a connection that shows the token, or closes it."""
        loop, shown = asyncio.get_running_loop(), b""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                while len(shown) <= TOKEN_BYTES:
                    more = await loop.sock_recv(sock, TOKEN_BYTES + 1 - len(shown))
                    if not more:
                        break
                    shown += more
            purpose = shown[TOKEN_BYTES:]
            known = hmac.compare_digest(shown[:TOKEN_BYTES], self.token) and purpose in wanted
            if known and self._streams.count(purpose) < wanted[purpose]:
                self._unverified.discard(sock)
                self._streams.add(purpose, sock)
                self._arrived.set()
        except (TimeoutError, OSError):
            pass
        if sock in self._unverified:
            self.strangers += 1
            self._unverified.discard(sock)
            sock.close()
