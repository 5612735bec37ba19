"""Dials and their results: pure decisions, and agents that dial each other over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from thunderfleet_agent.metrics import Metrics
from thunderfleet_agent.peers import dial as dial_module
from thunderfleet_agent.peers import dial_plan, identity, reachability
from thunderfleet_agent.peers.dial import DialError, dial
from thunderfleet_agent.peers.dial_plan import PeerAddress
from thunderfleet_agent.peers.dial_rounds import DialRounds
from thunderfleet_agent.peers.identity import Identity
from thunderfleet_agent.peers.reachability import DialOutcome, ReachabilityTable
from thunderfleet_agent.publish import fleet_sample
from thunderfleet_agent.publish.publisher import PROFILES, Publisher
from thunderfleet_agent.server import Server
from thunderfleet_crds.kinds.nodeprofile import (
    MAX_REACHABILITY,
    Agent,
    GroupUse,
    Interface,
    InterfaceAddress,
    Network,
    NodeProfile,
    NodeProfileStatus,
    Thunderbolt,
    ThunderboltPort,
)
from thunderfleet_crds.kinds.thunderboltlink import LinkEnd, ordered
from thunderfleet_crds.meta.apimodel import ObjectMeta
from thunderfleet_crds.vocabulary import AddressClass, InterfaceKind
from thunderfleet_lib.host.hostcmd import Host

START = datetime(2026, 1, 1, tzinfo=UTC)
CABLE = ordered(LinkEnd(node="studio-1", port=1), LinkEnd(node="studio-2", port=3))


def interface(name: str, kind: InterfaceKind, *addresses: tuple[str, AddressClass]) -> Interface:
    found = tuple(InterfaceAddress(address=a, prefix_length=24, class_=c) for a, c in addresses)
    return Interface(name=name, kind=kind, up=True, addresses=found)


def profile(node: str, *interfaces: Interface, ports: dict[int, str] | None = None, agent: Agent | None = None) -> NodeProfile:
    known = tuple(ThunderboltPort(receptacle=number, interface=name, connected=True) for number, name in (ports or {}).items())
    status = NodeProfileStatus(agent=agent, network=Network(interfaces=interfaces), thunderbolt=Thunderbolt(ports=known))
    return NodeProfile(metadata=ObjectMeta(name=node, labels={fleet_sample.LABEL_BUCKET: "b00"}), status=status)


def agent(address: str, port: int = 9440, sha256: str = "0" * 64) -> Agent:
    return Agent(address=address, port=port, certificate_sha256=sha256)


LAN, TB, LOCAL = AddressClass.PRIVATE, InterfaceKind.THUNDERBOLT, AddressClass.LINK_LOCAL
OWN = profile("studio-1", interface("en0", InterfaceKind.ETHERNET, ("192.168.64.11", LAN)), ports={1: "en2", 2: "en3"}).status


def test_a_neighbors_addresses_are_dialled_where_they_lead_here() -> None:
    neighbor = profile(
        "studio-2",
        interface("en0", InterfaceKind.ETHERNET, ("192.168.64.12", LAN), ("fe80::1", LOCAL)),
        interface("en4", TB, ("10.0.1.2", LAN), ("169.254.7.7", LOCAL)),
        interface("en5", TB, ("10.0.9.2", LAN)),
        interface("utun1", InterfaceKind.VPN, ("100.64.0.9", AddressClass.SHARED)),
        interface("en8", InterfaceKind.ETHERNET, ("8.8.8.8", AddressClass.PUBLIC), ("169.254.1.1", LOCAL)),
        ports={3: "en4", 4: "en5"},
        agent=agent("192.168.64.12"),
    )
    dialled = dial_plan.targets("studio-1", OWN, [CABLE], {"studio-2": neighbor}, [])
    found = {target.address: target.interface for target in dialled}
    # en5 leads to another Mac, 8.8.8.8 is the world's, link-local addresses are known by their cable only.
    assert found == {"192.168.64.12": None, "10.0.1.2": "en2", "169.254.7.7": "en2", "100.64.0.9": None}


def test_a_thunderbolt_interface_of_no_known_port_is_not_dialled() -> None:
    """Its port is not in the profile, so it may belong to any Mac, even if this Mac's cable ends at port 1."""
    neighbor = profile("studio-2", interface("en9", TB, ("10.0.9.2", LAN)), agent=agent("192.168.64.12"))
    cable = ordered(LinkEnd(node="studio-1", port=1), LinkEnd(node="studio-2", port=1))
    dialled = dial_plan.targets("studio-1", OWN, [cable], {"studio-2": neighbor}, [])
    assert dialled == (PeerAddress("studio-2", "192.168.64.12", 9440, "0" * 64),)


def test_others_are_dialled_at_one_address_and_not_too_many() -> None:
    crowd = [profile(f"mac-{n:03}", agent=agent(f"10.1.0.{n}")) for n in range(1, 200)]
    found = dial_plan.targets("studio-1", OWN, [], {}, [*crowd, profile("studio-1", agent=agent("10.1.1.1")), profile("mute")])
    assert len(found) == fleet_sample.SAMPLE_SIZE
    assert all(target.interface is None and target.node.startswith("mac-") for target in found)


def test_group_members_are_dialled_at_all_addresses_except_those_of_other_cables() -> None:
    groups = [
        GroupUse(name="default/a-0", epoch=1, nodes=("studio-3", "studio-1", "gone")),
        GroupUse(name="default/b-0", epoch=4, nodes=("studio-1", "studio-2", *(f"mac-{n:03}" for n in range(60)))),
    ]
    names = dial_plan.members("studio-1", groups)
    assert (
        len(names) == dial_plan.MAX_MEMBERS and "studio-1" not in names and names == dial_plan.members("studio-1", groups[::-1])
    )
    far = profile(
        "studio-3",
        interface("en0", InterfaceKind.ETHERNET, ("192.168.64.13", LAN), ("169.254.1.1", LOCAL)),
        interface("en4", TB, ("10.0.7.2", LAN)),
        interface("utun1", InterfaceKind.VPN, ("100.64.0.13", AddressClass.SHARED)),
        ports={3: "en4"},
        agent=agent("192.168.64.13"),
    )
    near = profile("studio-2", interface("en4", TB, ("10.0.1.2", LAN)), ports={3: "en4"}, agent=agent("192.168.64.12"))
    found = dial_plan.targets("studio-1", OWN, [CABLE], {"studio-2": near}, [far, near], {"studio-3": far, "studio-2": near})
    assert {(target.node, target.address): target.interface for target in found} == {
        ("studio-2", "192.168.64.12"): None,
        ("studio-2", "10.0.1.2"): "en2",
        ("studio-3", "192.168.64.13"): None,
        ("studio-3", "100.64.0.13"): None,
    }
    assert len(dial_plan.targets("studio-1", OWN, [], {}, [], {f"m{n}": far for n in range(100)})) <= MAX_REACHABILITY


@given(st.integers(1, 5000), st.text("abcdefgh-0123456789", min_size=1, max_size=20))
def test_the_window_of_a_fleet_holds_about_as_many_as_are_dialled(profiles: int, node: str) -> None:
    window = fleet_sample.window(node, profiles)
    assert len(set(window)) == len(window) <= fleet_sample.BUCKETS
    assert window[0] == fleet_sample.bucket_label(fleet_sample.bucket(node))
    if profiles <= fleet_sample.SAMPLE_SIZE:
        assert len(window) == fleet_sample.BUCKETS
    else:
        assert len(window) * profiles / fleet_sample.BUCKETS <= 2 * fleet_sample.SAMPLE_SIZE


def outcome(rtt: int | None, by: str = "en2") -> DialOutcome:
    target = PeerAddress("studio-2", "10.0.1.2", 9440, "0" * 64, "en2")
    return DialOutcome(target, rtt, by) if rtt else DialOutcome(target, problem="silence")


def test_one_failure_marks_suspect_three_unreachable_and_time_is_of_the_change() -> None:
    table = ReachabilityTable()
    table.record(outcome(None), START)
    assert not table.facts
    table.record(outcome(400), START)
    states: list[list[tuple[str, int]]] = []
    for second in (1, 2, 3):
        table.record(outcome(None), START + timedelta(seconds=second))
        states.append([(fact.state.value, (fact.since - START).seconds) for fact in table.facts])
    assert states == [[("Suspect", 1)], [("Suspect", 1)], [("Unreachable", 3)]]
    table.record(outcome(400), START + timedelta(seconds=4))
    table.record(outcome(None), START + timedelta(seconds=5))
    table.record(outcome(400), START + timedelta(seconds=6))
    table.record(outcome(None), START + timedelta(seconds=7))
    table.record(outcome(None), START + timedelta(seconds=8))
    assert [fact.state.value for fact in table.facts] == ["Suspect"], "strikes are those in a row"


def test_a_round_trip_time_is_written_again_after_a_lasting_change_by_half() -> None:
    table = ReachabilityTable()
    table.record(outcome(400), START)
    later = START + timedelta(seconds=reachability.RTT_SECONDS)
    for trip in (400, 500, 5000, 450, 580):
        table.record(outcome(trip), later)
    assert table.facts[0].rtt_microseconds == 400
    for _ in range(reachability.ROUNDS):
        table.record(outcome(700), later)
    assert table.facts[0].rtt_microseconds == 700 and table.facts[0].since == START
    for _ in range(reachability.ROUNDS):
        table.record(outcome(100), later)
    assert table.facts[0].rtt_microseconds == 700, "not twice within the time"


@given(st.lists(st.one_of(st.none(), st.integers(1, 100)), max_size=40))
def test_facts_follow_the_last_answers(rounds: list[int | None]) -> None:
    table = ReachabilityTable()
    for number, trip in enumerate(rounds):
        table.record(outcome(trip), START + timedelta(seconds=number))
    silent = next((i for i, trip in enumerate(reversed(rounds)) if trip), len(rounds))
    state = "Reachable" if not silent else "Suspect" if silent < reachability.STRIKES else "Unreachable"
    never = silent == len(rounds)
    expected = [] if never and silent < reachability.STRIKES else [state]
    assert [fact.state.value for fact in table.facts] == expected
    assert all(fact.rtt_microseconds is None for fact in table.facts if fact.state.value == "Unreachable")


def test_what_was_tried_in_vain_is_published_after_what_was_reached() -> None:
    table = ReachabilityTable()
    targets = [PeerAddress(f"mac-{i:03}", "10.0.0.1", 9440, "0" * 64) for i in range(MAX_REACHABILITY + 10)]
    for target in targets:
        for _ in range(reachability.STRIKES):
            table.record(DialOutcome(target, problem="silence"), START)
    assert {fact.state.value for fact in table.facts} == {"Unreachable"} and len(table.facts) == MAX_REACHABILITY
    table.record(DialOutcome(targets[-1], 400), START)
    reached = [fact.node for fact in table.facts if fact.state.value == "Reachable"]
    assert reached == [targets[-1].node] and len(table.facts) == MAX_REACHABILITY
    table.keep(targets[:1])
    assert [fact.node for fact in table.facts] == ["mac-000"]


def test_what_is_no_longer_dialled_is_forgotten() -> None:
    table = ReachabilityTable()
    table.record(outcome(400), START)
    table.keep([outcome(1).target])
    assert table.facts
    table.keep([])
    assert not table.facts


# Agents over loopback


@pytest.fixture
async def make_identity(tmp_path: Path) -> Callable[[str], Any]:
    async def make(name: str) -> Identity:
        return await identity.make(Host(), tmp_path / name)

    return make


async def test_the_certificate_survives_a_restart(make_identity: Any, tmp_path: Path) -> None:
    one, again, other = await make_identity("a"), await make_identity("a"), await make_identity("b")
    assert one.sha256 == again.sha256 != other.sha256
    assert (tmp_path / "a" / "tls.key").stat().st_mode & 0o077 == 0
    (tmp_path / "a" / "tls.key").write_text("damaged")
    assert (await make_identity("a")).sha256 != one.sha256


Listening = tuple[PeerAddress, Identity, dict[str, str]]


@pytest.fixture
async def listening(make_identity: Any) -> AsyncIterator[Listening]:
    """studio-2 listens on 127.0.0.1 and 127.0.0.2 and knows whom the dict names."""
    made, known = await make_identity("studio-2"), dict[str, str]()

    async def knows(node: str, sha256: str) -> bool:
        return known.get(node) == sha256

    server = Server("127.0.0.1", "studio-2", Metrics(), lambda: None, knows)
    port, _ = await server.start(0, 0, made.server)
    await server.listen_on({"127.0.0.1", "127.0.0.2", "203.0.113.1"})
    yield PeerAddress("studio-2", "127.0.0.2", port, made.sha256), made, known
    await server.close()


async def test_agents_that_know_each_other_get_an_answer(listening: Listening, make_identity: Any) -> None:
    target, _, known = listening
    mine = await make_identity("studio-1")
    known["studio-1"] = mine.sha256
    answer = await dial(target, "studio-1", mine.client, "127.0.0.3")
    assert answer.rtt_microseconds > 0 and answer.local == "127.0.0.3"


async def test_a_server_moves_to_a_new_address_with_its_metrics(make_identity: Any) -> None:
    made = await make_identity("studio-2")

    async def knows(node: str, sha256: str) -> bool:
        return True

    server = Server("127.0.0.1", "studio-2", Metrics(), lambda: None, knows)
    port, metrics_port = await server.start(0, 0, made.server)
    await server.listen_on({"127.0.0.1", "127.0.0.3"})
    await server.move("127.0.0.2")
    # What it still has besides is what was published; the next round says what it has now.
    await server.listen_on({"127.0.0.2", "127.0.0.3"})
    try:
        for address in ("127.0.0.2", "127.0.0.3"):
            target = PeerAddress("studio-2", address, port, made.sha256)
            assert (await dial(target, "studio-1", made.client, "127.0.0.4")).local == "127.0.0.4"
        with pytest.raises(DialError):
            await dial(PeerAddress("studio-2", "127.0.0.1", port, made.sha256), "studio-1", made.client)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.2:{metrics_port}/healthz") as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(f"http://127.0.0.1:{metrics_port}/healthz")
    finally:
        await server.close()


async def test_strangers_and_wrong_names_are_refused(listening: Listening, make_identity: Any) -> None:
    target, _, known = listening
    mine, thief = await make_identity("studio-1"), await make_identity("thief")
    known["studio-1"] = mine.sha256
    for node, context in (("studio-9", mine.client), ("studio-1", thief.client)):
        with pytest.raises(DialError, match="does not contain this certificate"):
            await dial(target, node, context)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(DialError):
        await dial(target, "studio-1", bare)


async def test_another_machine_on_the_address_is_not_reachable(listening: Listening, make_identity: Any) -> None:
    target, _, known = listening
    mine = await make_identity("studio-1")
    known["studio-1"] = mine.sha256
    with pytest.raises(DialError, match="the certificate is not the one in the NodeProfile"):
        await dial(PeerAddress("studio-3", target.address, target.port, "f" * 64), "studio-1", mine.client)


async def test_silence_and_garbage_have_an_end(make_identity: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_module, "SECONDS", 0.2)
    mine = await make_identity("studio-1")

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n" * 1000)
        writer.close()

    for what, says in ((silence, "did not answer within"), (garbage, "studio-2 at 127.0.0.1")):
        server = await asyncio.start_server(what, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(DialError, match=says):
            await dial(PeerAddress("studio-2", "127.0.0.1", port, "0" * 64), "studio-1", mine.client)
        server.close()


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers(), st.lists).map(lambda value: json.dumps(value).encode()))
@example(b"[" * 4096)
@example(b"[]")
@example(b'{"node": ' + b"[" * 4000)
def test_any_answer_is_that_of_a_node_or_an_error(body: bytes) -> None:
    """A Mac whose agent answers anything else than it should takes no dial from the others."""
    with contextlib.suppress(ValueError):
        assert isinstance(dial_module._node_in(body), str | int | float | None)


async def test_rounds_publish_what_they_find_and_the_one_way_that_is_cut(
    listening: Listening, make_identity: Any, kube: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """studio-1 reaches studio-2 over LAN and cable; the cable's dial that leaves by another interface does not count."""
    target, _, known = listening
    mine = await make_identity("studio-1")
    known["studio-1"] = mine.sha256
    theirs = profile(
        "studio-2",
        interface("en4", TB, ("127.0.0.2", LAN)),
        ports={3: "en4"},
        agent=agent("127.0.0.1", target.port, target.sha256),
    )
    kube.objects[f"{PROFILES}/studio-2"] = theirs.dump()
    own = profile(
        "studio-1",
        interface("en0", InterfaceKind.ETHERNET, ("127.0.0.4", LAN)),
        interface("en2", TB, ("127.0.0.5", LAN)),
        ports={1: "en2"},
    ).status
    rounds = DialRounds(Publisher(kube, "studio-1"), "127.0.0.4", mine.client)
    assert not await rounds.round(own, [CABLE]), "not before it is known what was published"
    rounds.begin(())
    assert await rounds.round(own, [CABLE])
    facts = {(fact.node, fact.address): fact.interface for fact in rounds.facts}
    assert facts == {("studio-2", "127.0.0.1"): "en0", ("studio-2", "127.0.0.2"): "en2"}
    assert not await rounds.round(own, [CABLE]), "nothing changed"
    # The cable's interface has lost its address: connections would leave by another one.
    lost = profile("studio-1", interface("en0", InterfaceKind.ETHERNET, ("127.0.0.4", LAN)), ports={1: "en2"}).status
    assert await rounds.round(lost, [CABLE])
    assert {fact.address: fact.state.value for fact in rounds.facts} == {"127.0.0.1": "Reachable", "127.0.0.2": "Suspect"}
    assert "instead of en2: run `sudo route add -host 127.0.0.2 -interface en2`" in caplog.text
    # studio-2 no longer knows us: every reachable address becomes Suspect, and Unreachable after three rounds.
    known.clear()
    for _ in range(3):
        await rounds.round(lost, [CABLE])
    assert {fact.address: fact.state.value for fact in rounds.facts} == dict.fromkeys(("127.0.0.1", "127.0.0.2"), "Unreachable")


async def test_a_peer_with_another_address_is_dialled_there_in_the_same_round(
    listening: Listening, make_identity: Any, kube: Any
) -> None:
    target, _, known = listening
    mine = await make_identity("studio-1")
    known["studio-1"] = mine.sha256

    def theirs(address: str) -> NodeProfile:
        lan = interface("en0", InterfaceKind.ETHERNET, (address, LAN))
        return profile("studio-2", lan, ports={3: "en4"}, agent=agent(address, target.port, target.sha256))

    own = profile(
        "studio-1", interface("en0", InterfaceKind.ETHERNET, ("127.0.0.4", LAN)), interface("en2", TB), ports={1: "en2"}
    ).status
    # Nobody listens there.
    kube.objects[f"{PROFILES}/studio-2"] = theirs("127.0.0.9").dump()
    rounds = DialRounds(Publisher(kube, "studio-1"), "127.0.0.4", mine.client)
    rounds.begin(())
    await rounds.round(own, [CABLE])
    assert list(rounds.facts) == []
    kube.objects[f"{PROFILES}/studio-2"] = theirs("127.0.0.1").dump()
    assert await rounds.round(own, [CABLE])
    assert [(fact.address, fact.state.value) for fact in rounds.facts] == [("127.0.0.1", "Reachable")]


async def test_a_mac_that_dials_from_an_unknown_address_is_read_again(
    listening: Listening, make_identity: Any, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so often, and only if it is known: others cost no request."""
    target, made, known = listening
    woken, read = list[str](), list[str]()
    theirs = profile(
        "studio-2",
        interface("en0", InterfaceKind.ETHERNET, ("127.0.0.1", LAN)),
        ports={3: "en4"},
        agent=agent("127.0.0.1", target.port, target.sha256),
    )
    own = profile("studio-1", interface("en0", InterfaceKind.ETHERNET, ("127.0.0.4", LAN)), ports={1: "en2"}).status
    kube.objects[f"{PROFILES}/studio-2"] = theirs.dump()
    mine = await make_identity("studio-1")
    known["studio-1"] = mine.sha256
    publisher = Publisher(kube, "studio-1")
    profile_of = publisher.profile_of

    async def counted(node: str) -> NodeProfile | None:
        read.append(node)
        return await profile_of(node)

    monkeypatch.setattr(publisher, "profile_of", counted)
    rounds = DialRounds(publisher, "127.0.0.4", mine.client)
    rounds.wake = lambda: woken.append("now")
    rounds.begin(())

    async def accepts(node: str, sha256: str) -> bool:
        return sha256 == made.sha256

    server = Server("127.0.0.4", "studio-1", Metrics(), lambda: None, accepts, greeted=rounds.greeted)
    port, _ = await server.start(0, 0, mine.server)
    here = PeerAddress("studio-1", "127.0.0.4", port, mine.sha256)
    try:
        await dial(here, "studio-2", made.client, "127.0.0.9")
        assert woken == [], "it is not known yet"
        await rounds.round(own, [CABLE])
        read.clear()
        await dial(here, "studio-2", made.client, "127.0.0.1")
        assert woken == []
        await dial(here, "studio-2", made.client, "127.0.0.9")
        await dial(here, "studio-2", made.client, "127.0.0.8")
        assert woken == ["now"]
        stranger = await make_identity("studio-3")
        with pytest.raises(DialError):
            await dial(here, "studio-2", stranger.client, "127.0.0.9")
        await rounds.round(own, [CABLE])
        assert read == ["studio-2"]
        await rounds.round(own, [CABLE])
        assert read == ["studio-2"], "once"
    finally:
        await server.close()


async def test_the_macs_of_a_group_are_read_by_name_and_dialled(listening: Listening, make_identity: Any, kube: Any) -> None:
    target, _, known = listening
    mine = await make_identity("studio-1")
    known["studio-1"] = mine.sha256
    theirs = profile(
        "studio-2",
        interface("en0", InterfaceKind.ETHERNET, ("127.0.0.1", LAN), ("127.0.0.2", LAN)),
        agent=agent("127.0.0.1", target.port, target.sha256),
    )
    kube.objects[f"{PROFILES}/studio-2"] = theirs.dump()
    mine_now = profile("studio-1", interface("en0", InterfaceKind.ETHERNET, ("127.0.0.4", LAN)))
    groups = (GroupUse(name="default/a-0", epoch=1, nodes=("studio-1", "studio-2")),)
    whole = mine_now.model_copy(update={"status": mine_now.status.model_copy(update={"groups": groups})})
    kube.objects[f"{PROFILES}/studio-1"] = whole.dump()
    publisher = Publisher(kube, "studio-1")
    await publisher.look()
    rounds = DialRounds(publisher, "127.0.0.4", mine.client)
    rounds.begin(())
    assert await rounds.round(mine_now.status, [])
    assert {fact.address for fact in rounds.facts} == {"127.0.0.1", "127.0.0.2"}
    # Out of the group, it is one of the others: one address.
    kube.objects[f"{PROFILES}/studio-1"] = mine_now.dump()
    await publisher.look()
    assert await rounds.round(mine_now.status, [])
    assert {fact.address for fact in rounds.facts} == {"127.0.0.1"}


async def test_a_large_fleet_costs_two_lists_and_few_dials(make_identity: Any, kube: Any) -> None:
    for number in range(400):
        name = f"mac-{number:03}"
        found = profile(name, agent=agent("192.0.2.1"))
        whole = found.dump()
        whole["metadata"]["labels"][fleet_sample.LABEL_BUCKET] = fleet_sample.bucket_label(fleet_sample.bucket(name))
        kube.objects[f"{PROFILES}/{name}"] = whole
    some = await Publisher(kube, "mac-007").some_profiles()
    assert 10 <= len(some) <= 2 * fleet_sample.SAMPLE_SIZE
    assert {one.metadata.labels[fleet_sample.LABEL_BUCKET] for one in some} <= set(fleet_sample.window("mac-007", 400))
