"""How long a gateway may be silent, without waiting for it."""

import asyncio
from collections.abc import Callable

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from thunderfleet_router.http.upstream import Patience


class Clock:
    """The time, and what is due when, of an event loop that the test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now + delay, callback, (), asyncio.get_running_loop())
        self.due.append(handle)
        return handle

    def pass_by(self, seconds: float) -> None:
        """So much time passes; what is due meanwhile is called at its time."""
        until = self.now + seconds
        while waiting := [handle for handle in self.due if not handle.cancelled() and handle.when() <= until]:
            first = min(waiting, key=asyncio.TimerHandle.when)
            self.due.remove(first)
            self.now = first.when()
            first._run()
        self.now = until


class Stream:
    """What a gateway sends, an attempt's patience with it, and the time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._ends = 0
        self.patience = Patience(60.0, self.clock)
        self.patience.start(self._end)
        loop = asyncio.get_running_loop()
        connection = BaseProtocol(loop)
        connection.transport = asyncio.Transport()
        self.content = StreamReader(connection, 65536, loop=loop)

    def _end(self) -> None:
        self._ends += 1

    def ended(self) -> int:
        """How often the attempt was ended."""
        return self._ends

    async def waited(self, *silences: float) -> bytes:
        """The router waits for a part, which comes after these silences; whether it is ended is looked at by the caller."""
        part = asyncio.ensure_future(self.patience.part(self.content))
        await asyncio.sleep(0)
        for seconds in silences:
            self.clock.pass_by(seconds)
        self.content.feed_data(b"x")
        return await part


@pytest.fixture
async def stream() -> Stream:
    return Stream()


async def test_a_gateway_that_never_answers_is_given_up_once(stream: Stream) -> None:
    stream.clock.pass_by(59.9)
    assert not stream.ended()
    stream.clock.pass_by(0.1)
    assert stream.ended() == 1 and stream.patience.spent == "its gateway sent nothing for 60 s"
    stream.clock.pass_by(1000.0)
    assert stream.ended() == 1


async def test_each_part_begins_the_time_again(stream: Stream) -> None:
    for _ in range(5):
        assert await stream.waited(59.0) == b"x"
    assert not stream.ended()
    await stream.waited(59.9)
    assert not stream.ended()
    await stream.waited(60.0)
    assert stream.ended() == 1


async def test_a_part_ends_the_wait_for_the_one_before_it_only(stream: Stream) -> None:
    await stream.waited(30.0)
    await stream.waited(59.0, 0.5)
    assert not stream.ended()
    await stream.waited(59.0, 1.0)
    assert stream.ended() == 1


async def test_the_time_that_a_client_takes_is_not_the_gateways(stream: Stream) -> None:
    await stream.waited(1.0)
    stream.clock.pass_by(1000.0)
    assert not stream.ended()
    await stream.waited(59.9)
    assert not stream.ended()
    stream.clock.pass_by(1000.0)
    await stream.waited(60.0)
    assert stream.ended() == 1


async def test_an_attempt_that_has_ended_leaves_no_timer(stream: Stream) -> None:
    await stream.waited(59.0)
    stream.clock.pass_by(30.0)
    stream.patience.end()
    stream.clock.pass_by(1000.0)
    assert not stream.ended() and all(handle.cancelled() for handle in stream.clock.due)
