"""What agents read from each other when they copy models, whatever it is."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_agent.copies import chunks, wire
from thunderfleet_agent.copies.chunks import CHUNK_BYTES, ChunkList
from thunderfleet_agent.copies.rates import WINDOW_SECONDS, From, Rates, seconds_left
from thunderfleet_agent.copies.ways.pace import BURST_SECONDS, Pace
from thunderfleet_agent.copies.ways.paths import MAX_NETWORK_PATHS, MAX_PATHS, Way, paths
from thunderfleet_agent.copies.wire import Answer, Op, Request, WireError
from thunderfleet_agent.measure.schedule.probes import CableEnd, Target
from thunderfleet_agent.measure.schedule.view import Cable, View
from thunderfleet_crds.kinds.nodeprofile import Agent, GroupUse

BLOBS = st.one_of(st.text("0123456789abcdef", min_size=64, max_size=64), st.text("0123456789abcdef", min_size=40, max_size=40))
NODES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
REQUESTS = st.one_of(
    st.builds(Request, st.just(Op.HELLO), node=NODES),
    st.builds(Request, st.just(Op.CHUNK), st.tuples(BLOBS), st.integers(0, 2**32)),
    st.builds(Request, st.just(Op.HAVE), st.lists(BLOBS, min_size=1, max_size=wire.MAX_HAVE).map(tuple)),
    st.builds(Request, st.just(Op.FILES), st.lists(BLOBS, min_size=1, max_size=wire.MAX_FILES).map(tuple)),
    st.builds(Request, st.just(Op.LIST), st.tuples(BLOBS)),
)
ANSWERS = st.builds(
    Answer,
    size=st.integers(0, 2**42),
    error=st.text(st.characters(codec="utf-8"), max_size=wire.MAX_ERROR),
    later=st.booleans(),
    held=st.dictionaries(BLOBS, st.just(wire.COMPLETE), max_size=wire.MAX_HAVE),
    sizes=st.lists(st.integers(-1, 2**42), max_size=wire.MAX_FILES).map(tuple),
    node=NODES,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=80)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=9), inner, max_size=5)),
    max_leaves=20,
)


def body(value: Request | Answer) -> bytes:
    framed = wire.frame(value)
    assert wire.frame_length(framed[: wire.LENGTH_BYTES]) == len(framed) - wire.LENGTH_BYTES
    return framed[wire.LENGTH_BYTES :]


@given(REQUESTS)
def test_requests_arrive_as_they_were_sent(request: Request) -> None:
    assert wire.request(body(request)) == request


@given(ANSWERS)
def test_answers_arrive_as_they_were_sent(answer: Answer) -> None:
    assert wire.answer(body(answer)) == answer


@given(st.one_of(st.binary(max_size=300), JSON.map(lambda value: json.dumps(value).encode())))
def test_anything_else_is_refused(text: bytes) -> None:
    for parse in (wire.request, wire.answer):
        try:
            parse(text)
        except WireError:
            continue
        assert isinstance(json.loads(text), dict)


@given(st.sampled_from(list(Op)), st.dictionaries(st.sampled_from(["blobs", "index", "node", "size", "held"]), JSON))
def test_a_request_that_is_taken_names_files_by_hash_only(op: Op, fields: dict[str, object]) -> None:
    try:
        found = wire.request(json.dumps({"op": op.value, "version": 1, **fields}).encode())
    except WireError:
        return
    assert all(len(blob) in (40, 64) and set(blob) <= set("0123456789abcdef") for blob in found.blobs)
    assert len(found.blobs) <= wire.MAX_FILES


@pytest.mark.parametrize("blob", ["../../etc/passwd", "A" * 64, "0" * 63, "", "0" * 63 + "/", "０" * 64])
def test_what_is_no_hash_is_refused(blob: str) -> None:
    with pytest.raises(WireError):
        wire.request(json.dumps({"op": "chunk", "blobs": [blob]}).encode())


@given(st.binary(max_size=8))
def test_lengths_of_frames_are_bounded(head: bytes) -> None:
    with contextlib.suppress(WireError):
        assert wire.frame_length(head) <= wire.MAX_FRAME_BYTES


@given(st.integers(0, 40), st.data())
def test_chunks_that_a_mac_has_are_packed_and_unpacked(count: int, data: st.DataObject) -> None:
    size = max(0, count * CHUNK_BYTES - 1)
    held = data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=count)) if count else set()
    assert chunks.unpack(chunks.pack(held, size), size) == held


@given(st.text(max_size=40), st.integers(0, 2**36))
def test_an_invalid_list_of_chunks_is_refused(text: str, size: int) -> None:
    with contextlib.suppress(ValueError):
        assert all(0 <= index < chunks.count(size) for index in chunks.unpack(text, size))


def test_sizes_of_chunks_add_up() -> None:
    for size in (0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES - 1):
        assert sum(chunks.length(index, size) for index in range(chunks.count(size))) == size
    assert ChunkList(bytes(64)).fits(2 * CHUNK_BYTES) and not ChunkList(bytes(64)).fits(2 * CHUNK_BYTES + 1)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 0.5)), max_size=50))
def test_a_limited_way_is_not_faster_than_its_limit(reads: list[tuple[int, float]]) -> None:
    pace, now, total = Pace(1e6), 0.0, 0
    for count, pause in reads:
        now += pause
        total += count
        now += pace.delay(count, now)
        assert total <= 1e6 * (now + BURST_SECONDS) + 1


def test_a_way_without_a_limit_does_not_wait() -> None:
    assert Pace(None).delay(10**9, 0.0) == 0.0


def test_rates_name_the_main_source_and_forget() -> None:
    rates, cable, lan = Rates(0.0), From("mac-1", "cable"), From("mac-2", "")
    for second in range(10):
        rates.add(cable, 2000, float(second))
        rates.add(lan, 1000, float(second))
    assert rates.bytes_per_second(10.0) == 3000 and rates.main(10.0) == cable
    assert rates.bytes_per_second(10.0 + WINDOW_SECONDS) == 0 and rates.main(30.0) is None
    assert seconds_left(1001, 1000) == 2 and seconds_left(1, 0) is None


AGENTS = {name: Agent(address=f"10.0.0.{n}", port=9440, certificate_sha256="0" * 64) for n, name in enumerate("abc", 1)}


def seen() -> View:
    """Two cables to a, one to b; everybody is reachable over the network."""
    ends = {"t1": ("a", "en2", "10.1.1.1"), "t2": ("a", "en3", "10.1.2.1"), "t3": ("b", "en4", "10.1.3.1")}
    cables = {name: Cable(name, peer, interface, CableEnd("", mine), None) for name, (peer, interface, mine) in ends.items()}
    targets = [Target("a", "10.1.1.2", "t1"), Target("a", "10.1.2.2", "t2"), Target("b", "10.1.3.2", "t3")]
    plain = [Target("a", "10.0.0.1"), Target("a", "100.64.0.1"), Target("b", "10.0.0.2"), Target("c", "10.0.0.3")]
    return View("me", "10.0.0.9", (*targets, *plain), cables, AGENTS, {})


def test_free_cables_come_first_then_the_network_then_cables_that_a_group_uses() -> None:
    found = paths(["a", "b"], seen(), [GroupUse(name="g", epoch=1, links=("t2",))], {})
    assert [(path.to.node, path.link, path.way) for path in found] == [
        ("a", "t1", Way.CABLE),
        ("b", "t3", Way.CABLE),
        ("a", "", Way.NETWORK),
        ("b", "", Way.NETWORK),
        ("a", "t2", Way.USED_CABLE),
    ]
    # Each cable has a socket of its own: bound to this end's address and interface.
    assert [(path.source, path.to.interface) for path in found[:2]] == [("10.1.1.1", "en2"), ("10.1.3.1", "en4")]
    assert found[2].to.address == "10.0.0.1"


def test_every_cable_counts_as_used_until_the_groups_are_known() -> None:
    assert {path.way for path in paths(["a"], seen(), None, {})} == {Way.NETWORK, Way.USED_CABLE}


def test_a_mac_that_is_not_seen_is_reached_at_the_address_of_its_agent() -> None:
    other = Agent(address="10.0.7.7", port=9440, certificate_sha256="1" * 64)
    (only,) = paths(["far"], seen(), [], {"far": other})
    assert (only.to.address, only.to.sha256, only.way) == ("10.0.7.7", "1" * 64, Way.NETWORK)
    assert paths(["gone"], seen(), [], {}) == ()


def test_the_number_of_ways_is_bounded() -> None:
    many = {f"m{n}": Agent(address=f"10.2.0.{n}", port=9440, certificate_sha256="0" * 64) for n in range(50)}
    found = paths([*many, "a", "b"], seen(), [], many)
    assert len(found) <= MAX_PATHS and sum(path.way is Way.NETWORK for path in found) == MAX_NETWORK_PATHS
    assert {path.link for path in found} >= {"t1", "t2", "t3"}
