"""Seats at the groups of one ModelDeployment."""

import pytest
from thunderfleet_crds.vocabulary import KeyPriority
from thunderfleet_router.decide.catalog import build
from thunderfleet_router.pool import LIGHT_PER_GROUP, Pool, Ticket

from tests.support.routers.routing import KEYS, Model


def _pool(*urls: str, slots: int) -> Pool:
    model = Model(urls=urls, slots=slots)
    return Pool(build([model.object()], [model.document()], KEYS).deployments["default/tiny"])


def _asked(pool: Pool, *, light: bool = False, avoid: set[str] | None = None) -> Ticket:
    ticket = Ticket(
        "counting" if light else "caller", KeyPriority.NORMAL, (), may_wake=False, light=light, avoid=avoid or set()
    )
    pool.ask(ticket)
    return ticket


async def test_light_requests_and_others_have_seats_of_their_own() -> None:
    pool = _pool("http://127.0.0.1:1", slots=4)
    heavy, light = [_asked(pool) for _ in range(5)], [_asked(pool, light=True) for _ in range(LIGHT_PER_GROUP)]
    assert all(ticket.seat.done() for ticket in (*heavy, *light))
    heavy_waits, light_waits = _asked(pool), _asked(pool, light=True)
    assert len(pool.waiting) == 2 and pool.in_flight == 5 + LIGHT_PER_GROUP
    light[0].seat.result().leave()
    assert light_waits.seat.done() and not heavy_waits.seat.done()
    heavy[0].seat.result().leave()
    assert heavy_waits.seat.done() and not pool.waiting
    for ticket in (*heavy, *light, heavy_waits, light_waits):
        # Those that have left do not count again.
        ticket.seat.result().leave()
    assert pool.idle
    assert all(_asked(pool).seat.done() for _ in range(5)) and not _asked(pool).seat.done()


async def test_a_request_that_avoids_the_only_free_group_does_not_hold_up_others() -> None:
    pool = _pool("http://127.0.0.1:1", "http://127.0.0.1:2", slots=1)
    first = [_asked(pool) for _ in range(4)]
    one, other = (ticket.seat.result().group.name for ticket in first[:2])
    assert one != other
    avoiding, free = _asked(pool, avoid={one}), Ticket("another", KeyPriority.NORMAL, (), may_wake=False)
    pool.ask(free)
    next(ticket for ticket in first if ticket.seat.result().group.name == one).seat.result().leave()
    assert free.seat.result().group.name == one and not avoiding.seat.done()
    next(ticket for ticket in first if ticket.seat.result().group.name == other).seat.result().leave()
    assert avoiding.seat.result().group.name == other


@pytest.mark.parametrize("light", [False, True])
async def test_a_seat_whose_client_does_not_read_takes_no_place(light: bool) -> None:
    pool = _pool("http://127.0.0.1:1", slots=1)
    places = LIGHT_PER_GROUP if light else 2
    seated = [_asked(pool, light=light) for _ in range(places)]
    waits, waits_too = _asked(pool, light=light), _asked(pool, light=light)
    first, second = (ticket.seat.result() for ticket in seated[:2])
    for _ in range(2):
        pool.stall(first, True)
    assert waits.seat.done() and not waits_too.seat.done() and (pool.stalled, pool.in_flight) == (1, places + 1)
    # It reads again, so one more leaves before the next request has a place.
    pool.stall(first, False)
    second.leave()
    assert not waits_too.seat.done() and not pool.stalled
    pool.stall(first, True)
    assert waits_too.seat.done()
    for ticket in (*seated, waits, waits_too):
        ticket.seat.result().leave()
    pool.stall(first, True)
    assert pool.idle and not pool.stalled
    assert all(_asked(pool, light=light).seat.done() for _ in range(places)) and not _asked(pool, light=light).seat.done()
