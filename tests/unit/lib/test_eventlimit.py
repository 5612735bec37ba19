"""The bound on Events about one object."""

from thunderfleet_lib.eventlimit import BURST, MAX_OBJECTS, REFILL_SECONDS, EventLimit


def test_a_storm_about_one_object_is_bounded_and_others_are_not_affected() -> None:
    limit = EventLimit()
    assert sum(limit.take("a", 0.1 * number) for number in range(1000)) == BURST + int(100 / REFILL_SECONDS)
    assert limit.take("b", 100.0)


def test_one_is_written_again_after_a_while_and_never_more_than_the_burst() -> None:
    limit = EventLimit()
    assert all(limit.take("a", 0.0) for _ in range(BURST))
    assert not limit.take("a", REFILL_SECONDS - 1)
    assert limit.take("a", REFILL_SECONDS + 1)
    assert sum(limit.take("a", 1e9) for _ in range(2 * BURST)) == BURST


def test_the_number_of_objects_is_bounded_and_a_clock_that_goes_back_gives_nothing() -> None:
    limit = EventLimit()
    assert all(limit.take("a", 1000.0) for _ in range(BURST))
    assert not limit.take("a", 0.0)
    assert all(limit.take(str(number), 0.0) for number in range(MAX_OBJECTS))
    assert limit.take("a", 0.0), "the object that was longest without an Event is forgotten"
