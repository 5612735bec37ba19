"""Whether the clock of this machine is wrong, from the dates of responses."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import formatdate
from itertools import pairwise

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client.configuration import Configuration
from thunderfleet_lib.clock import Moment
from thunderfleet_lib.kube import Kube, ServerClock
from thunderfleet_lib.kube.server_clock import RIGHT_SECONDS, SETTLE_SECONDS, WRONG_SECONDS, ahead

NOW = 1_900_000_000.25


class World:
    """A server whose clock is right, and a machine whose clock is ahead of it."""

    def __init__(self) -> None:
        self.clock = ServerClock()
        self.true = NOW

    def answers(self, ahead: float, after: float = 1.0, took: float = 0.01, dated: float = 0.5) -> int | None:
        """``dated``: the part of the time after which the server writes the date."""
        self.true += after
        sent = Moment(self.true, self.true + ahead)
        date = formatdate(int(self.true + took * dated), usegmt=True)
        self.true += took
        self.clock.note(date, sent, Moment(self.true, self.true + ahead))
        return self.clock.wrong


@given(st.floats(-1e6, 1e6), st.floats(0, 60), st.floats(0, 1))
def test_the_bounds_hold_for_slow_responses_too(off: float, took: float, dated: float) -> None:
    sent, received = Moment(NOW, NOW + off), Moment(NOW + took, NOW + took + off)
    found = ahead(formatdate(int(NOW + took * dated), usegmt=True), sent, received)
    assert found is not None and found.low - 1e-3 <= off <= found.high + 1e-3
    assert found.high - found.low < took + 1.001


@pytest.mark.parametrize("off", [3600.0, -3600.0, 7.0, -7.0])
def test_a_wrong_clock_is_noticed_with_the_second_response_and_right_again_after_a_while(off: float) -> None:
    world = World()
    assert world.answers(off) is None
    assert abs((world.answers(off) or 0) - off) <= 1.5
    assert world.answers(0) is not None
    assert world.answers(0, SETTLE_SECONDS - 2) is not None
    assert world.answers(0, 5) is None


def test_a_right_clock_is_not_wrong_because_the_server_is_slow() -> None:
    world = World()
    assert [world.answers(0, took=took, dated=dated) for took in (1, 10, 60) for dated in (0, 1)] == [None] * 6
    assert world.clock.known


def test_a_single_odd_response_says_nothing() -> None:
    world = World()
    assert [world.answers(off) for off in (0, 3600, 0, 3600, 0, -3600, 0)] == [None] * 7


def test_a_clock_that_is_set_during_a_response_says_nothing() -> None:
    clock = ServerClock()
    for _ in range(3):
        clock.note(formatdate(NOW, usegmt=True), Moment(1, NOW), Moment(2, NOW + 3601))
    assert not clock.known


@pytest.mark.parametrize(
    "date", [None, "", "yesterday", "Tue, 99 Foo 2026 11:00:00 GMT", "\ud800", "Fri, 31 Dec 9999999 0:0:0 GMT"]
)
def test_what_is_no_date_says_nothing(date: str | None) -> None:
    clock = ServerClock()
    for _ in range(3):
        clock.note(date, Moment(1, NOW), Moment(2, NOW + 1))
    assert not clock.known and clock.wrong is None


@given(
    st.sampled_from([WRONG_SECONDS, RIGHT_SECONDS, -WRONG_SECONDS, -RIGHT_SECONDS]),
    st.lists(st.tuples(st.floats(-0.45, 0.45), st.floats(0.1, 90), st.floats(0, 0.1)), max_size=60),
)
def test_near_a_limit_it_does_not_change_back_and_forth(limit: float, steps: list[tuple[float, float, float]]) -> None:
    """Whatever it was before: at most one change."""
    for before in (0.0, 8 * limit):
        world = World()
        found = [world.answers(before) for _ in range(3)]
        found += [world.answers(limit + off, after, took) for off, after, took in steps]
        states = [wrong is not None for wrong in found[2:]]
        assert sum(one is not other for one, other in pairwise(states)) <= 1


@given(st.floats(6, 1e6), st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=40))
def test_what_it_says_stays_the_same_while_the_difference_does(off: float, steps: list[float]) -> None:
    """Or each response would be a write to the API server."""
    world = World()
    found = [world.answers(off + more) for more in steps]
    assert len({one for one in found[1:] if one is not None}) <= 1


def test_one_of_several_servers_with_another_clock_does_not_make_it_change() -> None:
    world = World()
    found = [world.answers(off) for off in (9, 9, 0, 9, 0, 9, 9, 0) * 20]
    assert None not in found[1:]


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, dict[str, float]]]:
    """A server with a clock of its own: ``behind`` seconds behind this machine's."""
    state = {"behind": 0.0}

    async def answer(request: web.Request) -> web.Response:
        date = formatdate(Moment.now().wall - state["behind"], usegmt=True)
        return web.json_response({"kind": "Status", "message": "no"}, status=404, headers={"Date": date})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", state
    await runner.cleanup()


@pytest.mark.parametrize("behind", [7200.0, -7200.0])
async def test_a_client_compares_with_each_response(server: tuple[str, dict[str, float]], behind: float) -> None:
    """A refusal counts too."""
    configuration = Configuration()
    configuration.host, state = server
    async with Kube(configuration) as kube:
        for _ in range(2):
            assert await kube.get_or_none("/version") is None
        assert kube.clock.known and kube.clock.wrong is None
        state["behind"] = behind
        for _ in range(2):
            await kube.get_or_none("/version")
        # A busy machine answers late, which changes the estimate by half of that.
        assert kube.clock.wrong is not None and abs(kube.clock.wrong - behind) < 600


def test_the_time_of_the_api_server_is_that_of_its_last_response() -> None:
    clock = ServerClock()
    assert clock.now is None and clock.responses == 0
    moment = Moment.now()
    for date in ("Sun, 01 Mar 2026 12:00:00 GMT", None, "soon"):
        clock.note(date, moment, moment)
    assert clock.now == datetime(2026, 3, 1, 12, tzinfo=UTC) and clock.responses == 3
