"""What clients send before a request is known: counted for each connection, each address and all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_lib.net.unclaimed import FREE_BYTES, HEAD_BYTES, Arrivals, Unclaimed

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
EARLY = 1000


class Body:
    """Of a request, ``size`` bytes of which ``total_bytes`` have come."""

    def __init__(self, size: int, arrived: int = 0) -> None:
        self._size = size
        self.total_bytes = arrived

    def is_eof(self) -> bool:
        return self.total_bytes == self._size


def test_headers_count_until_they_are_complete() -> None:
    arrivals = Arrivals(EARLY)
    for number in range(len(HEAD) - 1):
        arrivals.received(HEAD[number : number + 1])
        assert arrivals.unclaimed == number + 1
    arrivals.received(HEAD[-1:])
    arrivals.request_started(len(HEAD), Body(0))
    assert arrivals.unclaimed == 0 and not arrivals.too_many


@pytest.mark.parametrize("before", [b"", b"\r\n\r\n", b"\r\n\r\n\r\n"])
def test_headers_without_an_end_are_too_many(before: bytes) -> None:
    arrivals = Arrivals(None)
    for part in (before[:1], before[1:], HEAD[:-2]):
        arrivals.received(part)
    for _ in range(HEAD_BYTES // 1000):
        arrivals.received(b"X: " + b"a" * 995 + b"\r\n")
        if arrivals.too_many:
            return
    arrivals.received(b"a" * 1000)
    assert arrivals.too_many


def test_requests_in_the_same_packet_as_the_first_one_count() -> None:
    arrivals = Arrivals(EARLY)
    arrivals.received(HEAD + b"body" + b"a" * EARLY)
    arrivals.request_started(len(HEAD), Body(4, 4))
    assert (arrivals.unclaimed, arrivals.too_many) == (EARLY, False)
    arrivals.received(b"a")
    assert arrivals.too_many


def test_requests_in_the_same_packet_as_the_end_of_a_body_count() -> None:
    arrivals, body = Arrivals(EARLY), Body(100, 60)
    arrivals.received(HEAD + b"a" * 60)
    arrivals.request_started(len(HEAD), body)
    assert arrivals.unfinished_body is body
    body.total_bytes = 90
    arrivals.of_body(30, 30)
    body.total_bytes = 100
    arrivals.of_body(10 + EARLY + 1, 10)
    assert arrivals.too_many


@pytest.mark.parametrize("early", [None, EARLY])
def test_trailers_without_an_end_are_too_many_and_framing_is_not(early: int | None) -> None:
    arrivals, body = Arrivals(early), Body(10 * HEAD_BYTES)
    arrivals.received(HEAD)
    arrivals.request_started(len(HEAD), body)
    # In chunks of one byte, there is more framing than body.
    for _ in range(HEAD_BYTES):
        arrivals.of_body(3, 0)
        body.total_bytes += 1
        arrivals.of_body(3, 1)
    assert not arrivals.too_many
    arrivals.of_body(HEAD_BYTES, 0)
    assert not arrivals.too_many
    arrivals.of_body(1, 0)
    assert arrivals.too_many


def test_a_body_of_any_size_does_not_count() -> None:
    arrivals, body = Arrivals(EARLY), Body(10 * HEAD_BYTES, 2 * HEAD_BYTES)
    arrivals.received(HEAD + b"a" * HEAD_BYTES)
    arrivals.received(b"a" * HEAD_BYTES)
    assert not arrivals.too_many
    arrivals.request_started(len(HEAD), body)
    assert arrivals.unclaimed == 0
    # It was refused before it came as a whole.
    arrivals.request_ended()
    assert arrivals.unfinished_body is body


def test_many_requests_in_advance_are_claimed_one_after_another() -> None:
    arrivals = Arrivals(100 * len(HEAD) + FREE_BYTES)
    arrivals.received(HEAD * 101 + b"a" * FREE_BYTES)
    arrivals.request_started(len(HEAD), Body(0))
    for left in range(100, 0, -1):
        assert arrivals.unclaimed == left * len(HEAD) + FREE_BYTES
        arrivals.request_ended()
        arrivals.request_started(len(HEAD), Body(0))
    # More of them come while one is being handled: what came before still counts.
    arrivals.received(b"a" * 100 * len(HEAD))
    assert not arrivals.too_many
    arrivals.received(b"a")
    assert arrivals.too_many


def test_small_differences_of_many_requests_do_not_add_up() -> None:
    arrivals = Arrivals(EARLY)
    for _ in range(HEAD_BYTES):
        # An empty line behind the body, as of old clients.
        arrivals.received(HEAD + b"body\r\n")
        arrivals.request_started(len(HEAD), Body(4, 4))
        arrivals.request_ended()
    assert not arrivals.too_many


def test_connections_that_are_upgraded_are_not_counted() -> None:
    arrivals = Arrivals(None)
    arrivals.received(HEAD)
    arrivals.request_started(len(HEAD), Body(0))
    arrivals.received(b"a" * 100 * HEAD_BYTES)
    assert not arrivals.too_many and arrivals.unclaimed == 0


# --- all connections ---


def test_an_address_that_holds_too_much_loses_its_oldest_connection() -> None:
    unclaimed: Unclaimed[str] = Unclaimed(each=1000, total=5000)
    unclaimed.put("a1", "a", FREE_BYTES + 600)
    unclaimed.put("b1", "b", FREE_BYTES + 900)
    unclaimed.put("a2", "a", FREE_BYTES + 300)
    assert unclaimed.excess("a") is None
    unclaimed.put("a2", "a", FREE_BYTES + 401)
    assert unclaimed.excess("b") is None
    assert unclaimed.excess("a") == "a1"
    unclaimed.put("a1", "a", 0)
    assert unclaimed.excess("a") is None


def test_if_all_hold_too_much_the_address_with_most_loses_one() -> None:
    unclaimed: Unclaimed[str] = Unclaimed(lambda address: address == "known", each=1000, total=2000)
    for holder, address, size in [("k", "known", 1000), ("a", "a", 300), ("b1", "b", 400), ("b2", "b", 300)]:
        unclaimed.put(holder, address, FREE_BYTES + size)
    assert unclaimed.excess("a") is None
    unclaimed.put("a", "a", FREE_BYTES + 301)
    assert unclaimed.excess("a") == "b1"


def test_clients_that_send_their_headers_at_once_hold_nothing() -> None:
    unclaimed: Unclaimed[int] = Unclaimed(each=1, total=1)
    for number in range(100):
        unclaimed.put(number, "a", FREE_BYTES)
    assert unclaimed.held == 0 and unclaimed.excess("a") is None


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3 * FREE_BYTES)), max_size=40))
def test_what_is_held_is_the_sum(changes: list[tuple[int, int]]) -> None:
    unclaimed: Unclaimed[int] = Unclaimed(each=2 * FREE_BYTES, total=5 * FREE_BYTES)
    sizes: dict[int, int] = {}
    for holder, size in changes:
        address = "ab"[holder % 2]
        unclaimed.put(holder, address, size)
        sizes[holder] = max(size - FREE_BYTES, 0)
        while (chosen := unclaimed.excess(address)) is not None:
            assert sizes[chosen]
            unclaimed.put(chosen, "ab"[chosen % 2], 0)
            sizes[chosen] = 0
        assert unclaimed.held == sum(sizes.values()) <= 5 * FREE_BYTES
        assert sum(size for one, size in sizes.items() if "ab"[one % 2] == address) <= 2 * FREE_BYTES
