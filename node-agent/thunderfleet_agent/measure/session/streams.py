"""The plain sockets that a throughput test runs over, at both ends: bounded in bytes and seconds, timed where the bytes arrive.

Plain because TLS would be what is measured. What binds them to the two agents is a token that one gives the other over their
pinned connection, good for one test: a connection whose first bytes are not the token is closed at once, and one that has it
can do no more than be counted. Bytes are moved by threads, in calls that leave the interpreter free.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import os
import secrets
import select
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

Answer = TypeVar("Answer")

TOKEN_BYTES = 32
ECHO, UP, DOWN = b"e", b"u", b"d"
"""What a stream is for, said after the token: echoes; from who dials to who listens; back."""
HELLO_SECONDS = 2.0
MAX_STRANGERS = 16
CHUNK = 1 << 20
# What a stream may have under way. More than all streams of a fast cable have in a round trip, and little enough to stay in a
# processor's cache: where both ends are one machine, as much as the kernel would take halves the rate.
UNDER_WAY_BYTES = 512 * 1024
# A call that moves nothing for so long looks at the clock.
STALL_SECONDS = 0.1
# Start-up and the burst that a shaper lets through are not what a stream does: this part of the time does not count.
WARM = 0.3
# So much faster than the whole may the part be that counts.
AT_ONCE = 1.5
# What arrives in less is buffers being emptied, and would have any rate.
SHORTEST_SECONDS = 0.001
ECHO_BYTES = 64
ECHOES = 100
WARM_ECHOES = 10
# macOS: by which interface a socket's packets leave, whatever the routes say (netinet/in.h).
_IP_BOUND_IF = 25

Arrivals = list[tuple[float, int]]
"""(monotonic seconds, bytes) of every read of one stream."""


def rate_mbps(streams: Sequence[Arrivals], asked: float | None = None) -> int | None:
    """Mbit/s of what arrived, from when the warm-up is over to when the first stream ended. 0 when nothing came; None when
    what came did so all at once, and so has no rate. Pure.

    ``asked`` is when the sender was told to begin. A receiver that came late finds its buffers full and empties them faster
    than any wire: so not much more is claimed than came since then on the whole.
    """
    used = [arrivals for arrivals in streams if arrivals]
    if not used:
        return 0
    begun = min(arrivals[0][0] for arrivals in used)
    ended = min(arrivals[-1][0] for arrivals in used)
    times = [(at, count) for arrivals in used for at, count in arrivals if at <= ended]
    since = begun + WARM * (ended - begun)
    # What arrives at the very first moment was under way before it.
    since = next((at for at, count in sorted(times) if count and at >= since), since)
    counted = sum(count for at, count in times if at > since)
    if ended - since < SHORTEST_SECONDS:
        return None if any(count for _, count in times) else 0
    if not counted:
        return 0
    rate = counted / (ended - since)
    if asked is not None and ended > asked:
        rate = min(rate, AT_ONCE * sum(count for _, count in times) / (ended - asked))
    # A rate that is not none is not shown as none.
    return max(1, round(rate * 8 / 1e6))


@dataclass(frozen=True)
class Trips:
    """Microseconds: the median round trip, and the mean absolute difference of neighbouring ones."""

    rtt: int
    jitter: int


def trips(seconds: Sequence[float]) -> Trips:
    """Of at least two echoes. Raises ValueError. Pure."""
    if len(seconds) < 2:
        raise ValueError(f"{len(seconds)} echoes came back, two are needed")
    steps = [abs(one - other) for one, other in itertools.pairwise(seconds)]
    return Trips(max(1, round(statistics.median(seconds) * 1e6)), round(statistics.fmean(steps) * 1e6))


async def in_thread(call: Callable[[], Answer]) -> Answer:
    """Runs ``call`` in a thread of its own: a pool could be full of calls that wait for each other."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Answer] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        # A cancelled caller has gone, and so may its loop.
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
    """Lets a socket leave by this address and, on macOS, by this interface. Raises OSError."""
    if interface is not None and sys.platform == "darwin":
        sock.setsockopt(socket.IPPROTO_IP, _IP_BOUND_IF, socket.if_nametoindex(interface))
    if source is not None:
        sock.bind((source, 0))


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _wait_in_the_kernel(sock: socket.socket) -> None:
    """Blocking, with limits that the kernel keeps: Python's own cost a second system call a read."""
    sock.setblocking(True)
    whole, part = divmod(STALL_SECONDS, 1)
    limit = struct.pack("@ll", int(whole), int(part * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, limit)


class Streams:
    """The open streams of one test, by what they are for. Closing them ends whatever moves bytes."""

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
        """All, or those of one purpose, with what is still under way."""
        self.closed = self.closed or purpose is None
        for key, socks in self._open.items():
            if purpose is None or key == purpose:
                for sock in socks:
                    with contextlib.suppress(OSError):
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    with contextlib.suppress(OSError):
                        # Wakes the thread that sits in a call; close alone would not.
                        sock.shutdown(socket.SHUT_RDWR)
                    with contextlib.suppress(OSError):
                        sock.close()
                socks.clear()

    # --- the three phases, each bounded by itself ---

    async def echo(self, seconds: float) -> Trips:
        """Sends small messages and waits for each. Raises ValueError when too few came back."""
        (sock,) = self._open[ECHO]
        return trips((await in_thread(lambda: _echo(sock, seconds)))[WARM_ECHOES:])

    async def answer_echoes(self, seconds: float) -> None:
        """The other side of it."""
        (sock,) = self._open[ECHO]
        await in_thread(lambda: _answer(sock, seconds))

    async def send(self, purpose: bytes, most: int, seconds: float) -> int:
        """Sends until so many bytes are gone or so much time is over; how many they were."""
        socks = self._open[purpose]
        until, share = time.monotonic() + seconds, most // len(socks)
        return sum(await asyncio.gather(*(in_thread(partial(_send, some, share, until)) for some in _shared_out(socks))))

    async def receive(self, purpose: bytes, most: int, seconds: float) -> tuple[int | None, int]:
        """Takes in until every stream has ended, but no more than so many bytes and so much time; Mbit/s and bytes. What comes
        after that is refused by closing. Mbit/s are None when all those bytes came at once, 0 when nothing or too little did.
        """
        socks = self._open[purpose]
        asked = time.monotonic()
        until, share = asked + seconds, most // len(socks)
        taken = await asyncio.gather(*(in_thread(partial(_receive, some, share, until)) for some in _shared_out(socks)))
        self.close(purpose)
        streams = list(itertools.chain.from_iterable(taken))
        arrived, rate = sum(count for arrivals in streams for _, count in arrivals), rate_mbps(streams, asked)
        # All that may come came at once: that is no fault. Less is, since the streams ended early.
        return (0 if rate is None and arrived < share * len(streams) else rate), arrived


def _echo(sock: socket.socket, seconds: float) -> list[float]:
    until, found, message = time.monotonic() + seconds, list[float](), secrets.token_bytes(ECHO_BYTES)
    while len(found) < ECHOES + WARM_ECHOES and time.monotonic() < until:
        begun = time.perf_counter()
        sock.sendall(message)
        if _exactly(sock, len(message), until) != message:
            break
        found.append(time.perf_counter() - begun)
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
    """Which streams each thread moves: on half of the processors, since the kernel needs some for the same bytes, and threads
    that wait for a processor are slower than one that has two streams.
    """
    threads = min(len(socks), max(1, (os.cpu_count() or 1) // 2))
    return [socks[number::threads] for number in range(threads)]


class _Ready:
    """Those of some streams that can be sent to or read from, as long as they are open."""

    def __init__(self, socks: Sequence[socket.socket], event: int) -> None:
        self._poll = select.poll()
        self.open: dict[int, socket.socket] = {}
        for sock in socks:
            if (number := sock.fileno()) >= 0:
                self._poll.register(number, event)
                self.open[number] = sock

    def __iter__(self) -> Iterator[tuple[int, socket.socket]]:
        """Once; after STALL_SECONDS nobody."""
        ready = self._poll.poll(STALL_SECONDS * 1000)
        if not ready:
            # Closed meanwhile, and its number perhaps somebody else's.
            for number, sock in list(self.open.items()):
                if sock.fileno() < 0:
                    self.drop(number)
        for number, _ in ready:
            yield number, self.open[number]

    def drop(self, number: int) -> None:
        self._poll.unregister(number)
        del self.open[number]


def _send(socks: Sequence[socket.socket], most: int, until: float) -> int:
    """Sends until ``most`` bytes are gone on each or the time is over; how many went."""
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
                _say_the_end(sock)
    for sock in ready.open.values():
        _say_the_end(sock)
    return sum(most - each for each in left.values())


def _say_the_end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def _receive(socks: Sequence[socket.socket], most: int, until: float) -> list[Arrivals]:
    """What comes by each until it ends, ``most`` bytes are there or the time is over."""
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
            # They were open until now, though nothing may have come for a while.
            for sock in ready.open.values():
                arrivals[sock].append((now, 0))
            break
    return list(arrivals.values())


class Gate:
    """Listens on one address for the streams of one test that bring its token."""

    def __init__(self, address: str, peer: str) -> None:
        """``peer``: the address that may connect. Raises OSError when ``address`` cannot be had."""
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.strangers = 0
        self._peer = peer
        self._streams = Streams()
        self._arrived = asyncio.Event()
        self._strange: set[socket.socket] = set()
        self._meeting: set[asyncio.Task[None]] = set()
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
        """The streams, once the echo's and that many each way are there. Raises TimeoutError."""
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
            for task in self._meeting:
                task.cancel()
            self.close()
            if not whole:
                self._streams.close()
        return self._streams

    def close(self) -> None:
        """Listens no longer, and closes whoever has not shown the token."""
        self._listener.close()
        while self._strange:
            self._strange.pop().close()

    def _accept(self, wanted: dict[bytes, int]) -> None:
        # Not loop.sock_accept: cancelled at the wrong moment it loses the connection that it has just accepted.
        with contextlib.suppress(OSError):
            sock, where = self._listener.accept()
            sock.setblocking(False)
            if where[0] != self._peer or len(self._strange) >= MAX_STRANGERS + sum(wanted.values()):
                self.strangers += 1
                sock.close()
                return
            self._strange.add(sock)
            task = asyncio.get_running_loop().create_task(self._meet(sock, wanted))
            self._meeting.add(task)
            task.add_done_callback(self._meeting.discard)

    async def _meet(self, sock: socket.socket, wanted: dict[bytes, int]) -> None:
        """Takes a connection in, or closes it."""
        loop, said = asyncio.get_running_loop(), b""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                while len(said) <= TOKEN_BYTES:
                    more = await loop.sock_recv(sock, TOKEN_BYTES + 1 - len(said))
                    if not more:
                        break
                    said += more
            purpose = said[TOKEN_BYTES:]
            known = hmac.compare_digest(said[:TOKEN_BYTES], self.token) and purpose in wanted
            if known and self._streams.count(purpose) < wanted[purpose]:
                self._strange.discard(sock)
                self._streams.add(purpose, sock)
                self._arrived.set()
        except (TimeoutError, OSError):
            pass
        if sock in self._strange:
            self.strangers += 1
            self._strange.discard(sock)
            sock.close()


async def dial(address: str, port: int, token: bytes, streams: int, source: str | None, interface: str | None) -> Streams:
    """The streams to a gate, from this address. Raises OSError."""
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
