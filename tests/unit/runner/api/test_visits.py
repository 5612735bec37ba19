"""How many requests a gateway has, and for how long it has had none."""

from thunderfleet_runner.api.visits import Visits


def test_it_is_idle_since_its_last_request_ended_or_it_began_to_serve() -> None:
    now = 0.0
    visits = Visits(lambda: now)
    now = 5.0
    assert visits.idle_seconds == 5.0
    visits.opened()
    assert visits.idle_seconds == 0.0
    now = 7.0
    visits.enter()
    visits.enter()
    now = 20.0
    assert (visits.inside, visits.idle_seconds) == (2, 0.0)
    visits.leave()
    assert (visits.inside, visits.idle_seconds) == (1, 0.0)
    visits.leave()
    now = 23.0
    assert (visits.inside, visits.idle_seconds) == (0, 3.0)
