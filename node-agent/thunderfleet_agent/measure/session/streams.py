"""The plain sockets of a throughput test, at both ends: bounded in bytes and seconds, timed where the bytes arrive.

They are plain because TLS would be the bottleneck. A token, given over the pinned connection and valid for one test, binds them
to the two agents: a connection that does not start with it is closed at once. Threads move the bytes, in calls that release the
interpreter lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from thunderfleet_agent.measure.session.rates import Arrivals, Trips, rate_mbps, trips

Answer = TypeVar("Answer")

TOKEN_BYTES = 32
ECHO, UP, DOWN = b"e", b"u", b"d"
"""The purpose of a stream, one byte after the token: echoes, from the dialling to the listening side, and back."""
CHUNK = 1 << 20
# The send buffer of a stream: more than a fast cable carries in a round trip, and small enough for a processor's cache. Where
# both ends are one machine, the kernel's default halves the rate.
UNDER_WAY_BYTES = 512 * 1024
# A call that moves nothing checks the clock after this time.
STALL_SECONDS = 0.1
ECHO_BYTES = 64
ECHOES = 100
WARM_ECHOES = 10
# macOS (netinet/in.h, netinet6/in6.h): binds a socket to an interface, whatever the routes are. Each family has its own.
_BOUND_IF = {socket.AF_INET: (socket.IPPROTO_IP, 25), socket.AF_INET6: (socket.IPPROTO_IPV6, 125)}


async def in_thread(call: Callable[[], Answer]) -> Answer:
    """Runs ``call`` in a new thread: the threads of a pool could all wait for each other."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Answer] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        # If the caller was cancelled, its loop may be closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if done.done() else act())

    def work() -> None:
        try:
            answer = call()
        except BaseException as error:
            problem = error
            settle(lambda: done.set_exception(problem))
        else:
            settle(lambda: done.set_result(answer))

    threading.Thread(target=work, daemon=True).start()
    return await done


def bind_to(sock: socket.socket, source: str | None, interface: str | None) -> None:
    """Binds a socket to a source address and, on macOS, to an interface. Raises OSError."""
    if interface is not None and sys.platform == "darwin":
        level, option = _BOUND_IF[sock.family]
        sock.setsockopt(level, option, socket.if_nametoindex(interface))
    if source is not None:
        sock.bind((source, 0))


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _wait_in_the_kernel(sock: socket.socket) -> None:
    """Makes the socket blocking with time-outs in the kernel: those of Python cost a second system call per read."""
    sock.setblocking(True)
    whole, part = divmod(STALL_SECONDS, 1)
    limit = struct.pack("@ll", int(whole), int(part * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, limit)


class Streams:
    """The open streams of one test by purpose. Closing them ends the threads that move bytes."""

    def __init__(self) -> None:
        self._open: dict[bytes, list[socket.socket]] = {ECHO: [], UP: [], DOWN: []}
        self.closed = False

    def add(self, purpose: bytes, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if purpose == ECHO:
            _wait_in_the_kernel(sock)
        else:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNDER_WAY_BYTES)
        self._open[purpose].append(sock)

    def count(self, purpose: bytes) -> int:
        return len(self._open[purpose])

    def close(self, purpose: bytes | None = None) -> None:
        """Closes all streams, or those of one purpose, and discards what is in flight."""
        self.closed = self.closed or purpose is None
        for key, socks in self._open.items():
            if purpose is None or key == purpose:
                for sock in socks:
                    with contextlib.suppress(OSError):
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    with contextlib.suppress(OSError):
                        # Wakes a thread that blocks in a call; close alone does not.
                        sock.shutdown(socket.SHUT_RDWR)
                    with contextlib.suppress(OSError):
                        sock.close()
                socks.clear()

    async def echo(self, seconds: float) -> Trips:
        """Sends small messages and waits for each. Raises ValueError if too few came back."""
        (sock,) = self._open[ECHO]
        return trips((await in_thread(lambda: _echo(sock, seconds)))[WARM_ECHOES:])

    async def answer_echoes(self, seconds: float) -> None:
        """Returns the messages of ``echo`` at the other end."""
        (sock,) = self._open[ECHO]
        await in_thread(lambda: _answer(sock, seconds))

    async def send(self, purpose: bytes, most: int, seconds: float) -> int:
        """Sends at most ``most`` bytes for at most ``seconds``. Returns how many were sent."""
        socks = self._open[purpose]
        until, share = time.monotonic() + seconds, most // len(socks)
        return sum(await asyncio.gather(*(in_thread(partial(_send, some, share, until)) for some in _shared_out(socks))))

    async def receive(self, purpose: bytes, most: int, seconds: float) -> tuple[int | None, int]:
        """Reads at most ``most`` bytes for at most ``seconds``, then closes the streams. Returns Mb/s and bytes.

        Mb/s are None if all bytes arrived at once, and 0 if too few arrived.
        """
        socks = self._open[purpose]
        asked = time.monotonic()
        until, share = asked + seconds, most // len(socks)
        taken = await asyncio.gather(*(in_thread(partial(_receive, some, share, until)) for some in _shared_out(socks)))
        self.close(purpose)
        streams = list(itertools.chain.from_iterable(taken))
        arrived, rate = sum(count for arrivals in streams for _, count in arrivals), rate_mbps(streams, asked)
        # If all bytes arrived at once, that is not a failure. If fewer arrived, it is, because the streams ended early.
        return (0 if rate is None and arrived < share * len(streams) else rate), arrived


def _echo(sock: socket.socket, seconds: float) -> list[float]:
    until, found, message = time.monotonic() + seconds, list[float](), secrets.token_bytes(ECHO_BYTES)
    while len(found) < ECHOES + WARM_ECHOES and time.monotonic() < until:
        started = time.perf_counter()
        sock.sendall(message)
        if _exactly(sock, len(message), until) != message:
            break
        found.append(time.perf_counter() - started)
    return found


def _answer(sock: socket.socket, seconds: float) -> None:
    until = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        for _ in range(ECHOES + WARM_ECHOES):
            message = _exactly(sock, ECHO_BYTES, until)
            if len(message) < ECHO_BYTES:
                return
            sock.sendall(message)


def _exactly(sock: socket.socket, size: int, until: float) -> bytes:
    data = b""
    while len(data) < size and time.monotonic() < until:
        try:
            more = sock.recv(size - len(data))
        except BlockingIOError:
            continue
        if not more:
            break
        data += more
    return data


def _shared_out(socks: Sequence[socket.socket]) -> list[Sequence[socket.socket]]:
    """The streams of each thread, one thread per two processors.

    The kernel needs processors for the same bytes, and threads that wait for one are slower than a thread with two streams.
    """
    threads = min(len(socks), max(1, (os.cpu_count() or 1) // 2))
    return [socks[number::threads] for number in range(threads)]


class _Ready:
    """The streams that are ready for sending or reading, as long as they are open."""

    def __init__(self, socks: Sequence[socket.socket], event: int) -> None:
        self._poll = select.poll()
        self.open: dict[int, socket.socket] = {}
        for sock in socks:
            if (number := sock.fileno()) >= 0:
                self._poll.register(number, event)
                self.open[number] = sock

    def __iter__(self) -> Iterator[tuple[int, socket.socket]]:
        """Polls once; yields nothing after STALL_SECONDS."""
        ready = self._poll.poll(STALL_SECONDS * 1000)
        if not ready:
            # The stream has been closed; its descriptor may already belong to another file.
            for number, sock in list(self.open.items()):
                if sock.fileno() < 0:
                    self.drop(number)
        for number, _ in ready:
            yield number, self.open[number]

    def drop(self, number: int) -> None:
        self._poll.unregister(number)
        del self.open[number]


def _send(socks: Sequence[socket.socket], most: int, until: float) -> int:
    """Sends at most ``most`` bytes on each until ``until``. Returns how many were sent."""
    data, left = memoryview(bytes(CHUNK)), dict.fromkeys(socks, most)
    ready = _Ready(socks, select.POLLOUT)
    while ready.open and time.monotonic() < until:
        for number, sock in ready:
            try:
                left[sock] -= sock.send(data[: min(left[sock], CHUNK)])
            except BlockingIOError:
                continue
            except OSError:
                ready.drop(number)
                continue
            if left[sock] <= 0:
                ready.drop(number)
                _end_of_stream(sock)
    for sock in ready.open.values():
        _end_of_stream(sock)
    return sum(most - each for each in left.values())


def _end_of_stream(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def _receive(socks: Sequence[socket.socket], most: int, until: float) -> list[Arrivals]:
    """Reads each until it ends, ``most`` bytes have arrived, or ``until``."""
    arrivals: dict[socket.socket, Arrivals] = {sock: [] for sock in socks}
    buffer, left = bytearray(CHUNK), dict.fromkeys(socks, most)
    ready = _Ready(socks, select.POLLIN)
    while ready.open:
        for number, sock in ready:
            try:
                count = sock.recv_into(buffer, min(CHUNK, left[sock]))
            except BlockingIOError:
                continue
            except OSError:
                count = 0
            if count:
                arrivals[sock].append((time.monotonic(), count))
                left[sock] -= count
            if not count or left[sock] <= 0:
                ready.drop(number)
        if (now := time.monotonic()) > until:
            # They were open until now, even if nothing arrived for a while.
            for sock in ready.open.values():
                arrivals[sock].append((now, 0))
            break
    return list(arrivals.values())


async def dial(address: str, port: int, token: bytes, streams: int, source: str | None, interface: str | None) -> Streams:
    """Opens the streams to a listener, from this address. Raises OSError."""
    loop, opened = asyncio.get_running_loop(), Streams()
    try:
        for purpose in (ECHO, *[UP] * streams, *[DOWN] * streams):
            sock = socket.socket(family(address), socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                bind_to(sock, source, interface)
                await loop.sock_connect(sock, (address, port))
                await loop.sock_sendall(sock, token + purpose)
            except BaseException:
                sock.close()
                raise
            opened.add(purpose, sock)
    except BaseException:
        opened.close()
        raise
    return opened
