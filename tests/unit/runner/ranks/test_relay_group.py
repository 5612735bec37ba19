"""Rings over a LAN: real supervisors relay the hops of real ranks, and strangers connect to the relay's ports."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import ssl
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from thunderfleet_crds.exchange.plan import GROUP_TLS_NAME, Plan, RelayPlan, loopback_of
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner import protocol
from thunderfleet_runner.host.rankprocess import rank_command
from thunderfleet_runner.net import control, relay, socket_owner

from tests.support.models.prompts import chat_prompt
from tests.support.network.ports import claim
from tests.support.processes import PROC
from tests.support.suite.tiers import quick

MakeGroup = Callable[..., Any]
SECONDS = 150.0
"""Time limit for imports of real ranks, which take a few seconds on an idle machine."""


def relayed(plan: Plan, hops: Iterable[int] | None = None, backwards: Iterable[int] = ()) -> Plan:
    """The plan with these hops relayed (by the rank they lead to; all, when not given), some opened by that rank."""
    size = plan.world_size
    ranks = []
    for entry in plan.ranks:
        back = entry.rank in backwards
        dialled = plan.ranks[(entry.rank - 1) % size] if back else entry
        told = RelayPlan(address=dialled.address, backwards=back) if entry.rank in (hops or range(size)) else None
        ranks.append(entry.model_copy(update={"relay": told}))
    return Plan.model_validate(plan.model_copy(update={"ranks": tuple(ranks)}).model_dump())


@pytest.fixture
def make_relayed(make_group: MakeGroup) -> MakeGroup:
    def make(size: int, hops: Iterable[int] | None = None, backwards: Iterable[int] = (), **options: Any) -> Any:
        group = make_group(size, **options)
        group.plan = relayed(group.plan, hops, backwards)
        return group

    return make


async def answer(supervisor: Any, name: str, tokens: int = 4) -> list[int]:
    request = protocol.Request(id=name, prompt=protocol.Prompt.of((1, 2, 3)), max_tokens=tokens)
    return [event.token async for event in supervisor.service.submit(request) if isinstance(event, protocol.Token)]


def carried() -> list[str]:
    return sorted(name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("relay-"))


def sockets() -> set[str]:
    """Established TCP connections of this process."""
    held = set()
    for link in (PROC / "self/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(link.readlink().name)
    rows = (line.split() for line in (PROC / "net/tcp").read_text().splitlines()[1:])
    return {row[9] for row in rows if row[3] == "01" and f"socket:[{row[9]}]" in held}


@pytest.mark.parametrize(
    ("size", "hops", "backwards"),
    quick(
        [(2, None, (0,)), (3, [2], (2,))],
        [(2, None, ()), (2, None, (0,)), (2, [1], ()), (3, None, ()), (3, None, (0, 1, 2)), (3, [2], (2,))],
    ),
)
async def test_a_ring_forms_through_relays_and_generates(
    make_relayed: MakeGroup, size: int, hops: list[int] | None, backwards: tuple[int, ...]
) -> None:
    group = make_relayed(size, hops, backwards)
    leader, *_ = [group.start(rank) for rank in range(size)]
    await group.until_ready()
    assert leader.state.attempt == 1
    total = size
    assert await answer(leader, "one") == [0, total, 2 * total, 3 * total]
    through = hops or list(range(size))
    # Both ends of each hop are in this process.
    assert len(carried()) == 2 * len(through)
    hosts = (group.folder / f"state-{size - 1}" / "hosts-1.json").read_text()
    dialled = f"127.0.0.1:{group.plan.ranks[0].ring_ports[0]}"
    assert (dialled in hosts) == (0 not in through), "a relayed hop begins at the own supervisor"
    await group.end()
    assert not carried()


# On macOS a rank that was killed twice within an hour is not started again.
@pytest.mark.linux
async def test_after_an_attempt_nothing_of_it_is_left(make_relayed: MakeGroup) -> None:
    group = make_relayed(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    before, tasks = len(sockets()), carried()
    for recovery in range(1, 4):
        os.kill(other.member.pid, signal.SIGKILL)
        await group.until(lambda: leader.state.phase is not GroupPhase.READY, "the death is noticed")
        await group.until_ready()
        assert leader.state.recoveries == recovery
        assert leader.state.failure.reason == "RankKilled" and leader.state.failure.rank == 1
        await group.until(
            lambda: (len(sockets()), carried()) == (before, tasks), "as many sockets and tasks as in the first attempt"
        )
    assert await answer(leader, "again") == [0, 2, 4, 6]
    await group.end()


async def test_a_rank_notices_the_end_of_its_peer(make_relayed: MakeGroup) -> None:
    group = make_relayed(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    stream = leader.service.submit(protocol.Request(id="long", prompt=protocol.Prompt.of((1,)), max_tokens=10_000_000))
    await anext(stream)
    # Rank 0's supervisor notices the end only through the relay.
    reported: list[Any] = []
    other.member._report = reported.append
    os.kill(other.member.pid, signal.SIGKILL)
    await group.until(lambda: leader.state.failure is not None, "rank 0 hears of it")
    assert leader.state.failure.rank == 0
    assert leader.state.failure.reason in ("PeerLost", "RelayLost", "RankExited", "RankKilled")
    await group.until(lambda: any(report.type == "ended" for report in reported), "rank 1 would have said it")
    # The leader waits for that until its time limit.
    other.member._report = other.role.report
    for report in reported:
        other.role.report(report)


async def test_a_leaders_clean_stop_passes_the_relay(make_relayed: MakeGroup) -> None:
    group = make_relayed(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    other.end()
    leader.end()
    await asyncio.gather(*(task for _, task in group.running.values()))
    assert leader.state.failure is None and not carried()


async def test_bytes_without_a_reader_are_not_kept(make_keys: Callable[[Path], Path], tmp_path: Path) -> None:
    """Both ends of one hop alone, without ranks: back-pressure, half-closed ends, and a loss."""
    async with Hop(make_keys(tmp_path)) as hop:
        near, far = await hop.join()
        chunk = bytes(1 << 20)
        sent = 0
        near[1].transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(2.0):
                while sent < 256:
                    near[1].write(chunk)
                    await near[1].drain()
                    sent += 1
        except TimeoutError:
            pass
        assert sent < 64, "what nobody takes piles up somewhere"
        near[1].write_eof()
        # The reverse direction works although this one is full and closed.
        far[1].write(b"still")
        assert await asyncio.wait_for(near[0].readexactly(5), 60) == b"still"
        taken = 0
        async with asyncio.timeout(60):
            while data := await far[0].read(1 << 20):
                taken += len(data)
        assert taken >= sent * len(chunk)
        far[1].write(b"last")
        far[1].write_eof()
        assert await asyncio.wait_for(near[0].read(), 60) == b"last"
        await asyncio.wait_for(hop.until_over(), 60)
        assert hop.said == []


async def test_both_ends_of_a_hop_notice_a_broken_connection_at_once(make_keys: Callable[[Path], Path], tmp_path: Path) -> None:
    async with Hop(make_keys(tmp_path)) as hop:
        near, far = await hop.join()
        hop.cut()
        async with asyncio.timeout(60):
            for reader, _ in (near, far):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read(1) == b""
        await asyncio.wait_for(hop.until_over(), 60)
        assert {fault.reason for fault in hop.said} == {"RelayLost"} and all(fault.echo for fault in hop.said)


async def closed(reader: asyncio.StreamReader) -> None:
    """Waits until a rank's connection has ended."""
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(1) == b""


@pytest.mark.parametrize("turns", range(5))
async def test_a_rank_that_is_accepted_as_its_hop_breaks_notices_it(
    make_keys: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The hop breaks this many turns of the loop before its rank is accepted."""
    looks, broken, accepted = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def at_the_signal(*_: object) -> bool:
        looks.set()
        await accepted.wait()
        return True

    async def breaks(*_: object) -> None:
        await broken.wait()
        raise relay.RelayLost("cut")

    monkeypatch.setattr(asyncio, "to_thread", at_the_signal)
    monkeypatch.setattr(relay, "_inward", breaks)
    async with Hop(make_keys(tmp_path)) as hop:
        near, _ = await hop.join()
        await asyncio.wait_for(looks.wait(), 60)
        broken.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        accepted.set()
        await closed(near[0])
        await asyncio.wait_for(hop.until_over(), 60)


async def test_a_connection_whose_owner_cannot_be_looked_up_is_closed(
    make_keys: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> bool:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", fails)
    async with Hop(make_keys(tmp_path)) as hop:
        near = await hop.dial()
        await closed(near[0])
    assert "can't start new thread" in caplog.text


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_breaks_as_it_is_opened_ends_its_rank(
    make_keys: Callable[[Path], Path], tmp_path: Path, turns: int
) -> None:
    """The peer has accepted the hop this many turns of the loop ago; the response may not have been read yet."""
    async with Hop(make_keys(tmp_path)) as hop:
        near = await hop.dial()
        async with asyncio.timeout(60):
            while not hop.ends[1]._taken:  # noqa: ASYNC110 - turns of the loop count
                await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        hop.cut()
        await closed(near[0])
        await asyncio.wait_for(hop.until_over(), 60)
        assert {fault.reason for fault in hop.said} <= {"RelayLost"}


@pytest.mark.parametrize("error", [aiohttp.ServerDisconnectedError(), AssertionError()])
async def test_a_response_that_does_not_arrive_is_a_lost_relay(
    make_keys: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    connect = aiohttp.ClientSession.ws_connect
    failed: list[Exception] = []

    async def once(session: aiohttp.ClientSession, *place: Any, **options: Any) -> aiohttp.ClientWebSocketResponse:
        channel: aiohttp.ClientWebSocketResponse = await connect(session, *place, **options)
        if failed:
            return channel
        # The peer's rank is connected by then.
        await hop.join()
        failed.append(error)
        await channel.close()
        raise error

    monkeypatch.setattr(aiohttp.ClientSession, "ws_connect", once)
    hop = Hop(make_keys(tmp_path))
    async with hop:
        await asyncio.wait_for(hop.until_over(), 60)
        near, far = hop.ranks
        await closed(near)
        await closed(far)
        assert [fault.reason for fault in hop.said if "while it was opened" in fault.message] == ["RelayLost"]
        assert {fault.reason for fault in hop.said} == {"RelayLost"}


class Hop:
    """The hop from rank 0 to rank 1 between two supervisors' relays, with this test as both ranks."""

    def __init__(self, keys: Path) -> None:
        self.keys = keys
        self.said: list[Any] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Hop":
        ports = iter(claim(6, "127.0.0.1", "127.0.0.2"))
        ranks = [
            {
                "rank": rank, "node": f"studio-{rank}", "pod": f"tiny-0-{rank}", "address": f"127.0.0.{rank + 1}",
                "controlPort": next(ports), "gatewayPort": next(ports), "memoryBytes": 1, "ringAddress": f"127.0.0.{rank + 1}",
                "ringPorts": [next(ports)],
            }
            for rank in range(2)
        ]  # fmt: skip
        ranks[1]["relay"] = {"address": "127.0.0.2"}
        self.plan = Plan.model_validate(
            {
                "namespace": "n", "deployment": "d", "uid": "u", "index": 0, "epoch": 1, "model": "m", "modelPath": "/m",
                "backend": "ring", "split": "Tensor", "ranks": ranks,
                "memory": {"contextTokens": 1, "concurrentRequests": 1, "cachedTokens": 0},
            }
        )  # fmt: skip
        tls = control.client_tls(self.keys)
        self.ends = [relay.Relays(self.plan, rank, 1, tls, self.said.append) for rank in range(2)]
        server = control.ControlServer(
            self.plan, 1, state=none, join=none, drain=none, changes=control.Changes(), relay=self.ends[1].answer,
            connections=none,
        )  # fmt: skip
        self.server = await server.listen(control.server_tls(self.keys))
        self.taken: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        listens = self.plan.ranks[1].ring_ports[0]
        self.rank = await asyncio.start_server(lambda *pair: self.taken.put_nowait(pair), "127.0.0.2", listens)
        await self.ends[1].start(lambda _: 0, listens, os.getpid)
        target = await self.ends[0].start(lambda _: self.plan.ranks[0].ring_ports[0], 0, os.getpid)
        assert target is not None
        self.target = target
        return self

    async def join(self) -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], ...]:
        """Both ranks' ends."""
        near = await self.dial()
        far = await asyncio.wait_for(self.taken.get(), 60)
        self.writers.append(far[1])
        self.ranks = near[0], far[0]
        return near, far

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The end of the rank that dials."""
        host, _, port = self.target.rpartition(":")
        near = await asyncio.open_connection(host, int(port))
        self.writers.append(near[1])
        return near

    def cut(self) -> None:
        """Cuts the connection between the supervisors without closing it."""
        assert self.server.server is not None
        for connection in self.server.server.connections:
            assert connection.transport is not None
            connection.transport.abort()

    async def until_over(self) -> None:
        relays = [task for task in asyncio.all_tasks() if task.get_name() in carried()]
        await asyncio.wait(relays) if relays else None

    async def __aexit__(self, *_: object) -> None:
        for end in self.ends:
            await end.close()
        await relay._stop(self.rank)
        while not self.taken.empty():
            self.writers.append(self.taken.get_nowait()[1])
        for writer in self.writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await self.server.cleanup()
        assert not carried()


def none(*_: object) -> Any:
    raise AssertionError("not asked for here")


async def test_strays_at_the_relays_ports_are_harmless(make_relayed: MakeGroup) -> None:
    group = make_relayed(2)
    stop = asyncio.Event()
    strays = 0

    async def knock(address: str, port: int) -> None:
        """Connects repeatedly while something listens; sends garbage or nothing, and keeps the connection."""
        nonlocal strays
        held: list[asyncio.StreamWriter] = []
        while not stop.is_set():
            try:
                _, writer = await asyncio.open_connection(address, port)
            except OSError:
                await asyncio.sleep(0.005)
                continue
            strays += 1
            if strays % 2:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
            held.append(writer)
            await asyncio.sleep(0.01 if len(held) < 50 else 0.5)
        for writer in held:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    # The first port of a block is the rank's own, the second the relay's: see the hostfile.
    knocking = [
        asyncio.create_task(knock(entry.address, port))
        for entry in group.plan.ranks
        for port in (entry.ring_ports[1], entry.control_port)
    ]
    leader = group.start(0)
    group.start(1)
    await group.until_ready()
    assert leader.state.attempt == 1
    assert await answer(leader, "one") == [0, 2, 4, 6]
    stop.set()
    await asyncio.gather(*knocking)
    assert strays > 2


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_connection_that_is_accepted_while_relays_close_is_closed(
    make_relayed: MakeGroup, make_keys: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    accept: list[Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]] = []
    listen = asyncio.start_server

    async def heard(callback: Any, *place: Any, **options: Any) -> asyncio.Server:
        accept.append(callback)
        return await listen(callback, *place, **options)

    monkeypatch.setattr(asyncio, "start_server", heard)
    relays = relay.Relays(make_relayed(2).plan, 0, 1, control.client_tls(make_keys(tmp_path)), none)
    await relays.start(lambda _: 0, 0, os.getpid)
    near, far = socket.socketpair()
    pair = await asyncio.open_connection(sock=near)
    if when == "after":
        await relays.close()
    accept[0](*pair)
    await relays.close()
    await asyncio.sleep(0)
    assert pair[1].is_closing()
    far.close()


@pytest.mark.parametrize("turns", range(4))
async def test_a_stray_that_connects_as_the_relay_stops_listening_is_closed(
    make_relayed: MakeGroup, make_keys: Callable[[Path], Path], tmp_path: Path, turns: int
) -> None:
    relays = relay.Relays(make_relayed(2).plan, 0, 1, control.client_tls(make_keys(tmp_path)), none)
    target = await relays.start(lambda _: 0, 0, os.getpid)
    assert target is not None and relays._server is not None
    with socket.create_connection(relays._server.sockets[0].getsockname()) as stray:
        # The loop has accepted the connection after one of these numbers of turns, and not handed it over yet.
        for _ in range(turns):
            await asyncio.sleep(0)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            await relays.close()
            for _ in range(3):
                await asyncio.sleep(0)
            gc.collect()
        assert not [str(one.message) for one in found]
        stray.settimeout(10)
        with contextlib.suppress(ConnectionError):
            assert stray.recv(1) == b""


async def _ask(group: Any, rank: int, keys: Path, **changes: object) -> int:
    plan = group.plan
    entry = plan.ranks[rank]
    query = {"uid": plan.uid, "index": plan.index, "epoch": plan.epoch, "attempt": 1, "hop": rank, **changes}
    url = f"https://{entry.address}:{entry.control_port}{relay.RELAY_PATH}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=control.client_tls(keys))) as session:
        try:
            async with session.ws_connect(
                url, params={key: str(value) for key, value in query.items()}, server_hostname=GROUP_TLS_NAME
            ):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status


async def test_a_stranger_is_refused_before_during_and_after(
    make_relayed: MakeGroup, make_keys: Callable[[Path], Path]
) -> None:
    group = make_relayed(2)
    leader = group.start(0)
    await group.until(lambda: leader.role.machine.present, "the leader is up")
    strange = make_keys(group.folder / "strange")
    with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
        await _ask(group, 0, strange)
    assert await _ask(group, 0, group.keys) == relay.NOT_YET
    group.start(1)
    await group.until_ready()
    with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
        await _ask(group, 0, strange)
    refused = {
        "carried already": await _ask(group, 1, group.keys),
        "another group": await _ask(group, 1, group.keys, uid="other"),
        "a stale epoch": await _ask(group, 1, group.keys, epoch=2),
        "another attempt": await _ask(group, 1, group.keys, attempt=2),
        "not its hop": await _ask(group, 1, group.keys, hop=0),
        "no hop": await _ask(group, 1, group.keys, hop="x"),
    }
    assert refused == {
        "carried already": 409, "another group": 403, "a stale epoch": 403, "another attempt": relay.NOT_YET,
        "not its hop": 403, "no hop": 403,
    }  # fmt: skip
    assert await answer(leader, "one") == [0, 2, 4, 6]


async def test_supervisors_that_do_not_reach_each_other_say_who_and_where(
    make_relayed: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "OPEN_SECONDS", 1.0)
    # One relay only: on a busy machine those that find their peer may take longer than the limit.
    group = make_relayed(3, [2], attempts_budget=1)
    ranks = list(group.plan.ranks)
    # The plan gives rank 1 an address of rank 2 at which no control port listens.
    ranks[2] = ranks[2].model_copy(update={"relay": RelayPlan(address="127.0.0.77")})
    wrong = group.plan.model_copy(update={"ranks": tuple(ranks)})
    leader = group.start(0)
    group.start(1, plan=wrong)
    group.start(2)
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader gives up")
    failure = leader.state.failure
    assert (failure.rank, failure.fault, failure.reason) == (1, FaultClass.RETRY, "RelayRefused")
    assert "rank 2 (studio-2) at 127.0.0.77:" in failure.message


async def test_a_relay_that_is_refused_says_why(make_relayed: MakeGroup) -> None:
    group = make_relayed(3, attempts_budget=1)
    ranks = list(group.plan.ranks)
    # In the plan of rank 1, rank 2 has the control port of rank 0.
    changes = {"relay": RelayPlan(address=ranks[0].address), "control_port": ranks[0].control_port}
    ranks[2] = ranks[2].model_copy(update=changes)
    wrong = group.plan.model_copy(update={"ranks": tuple(ranks)})
    leader = group.start(0)
    group.start(1, plan=wrong)
    group.start(2)
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader gives up")
    failure = leader.state.failure
    assert (failure.rank, failure.reason) == (1, "RelayRefused")
    assert "refused the relay: it answered 403 (rank 0 is not an end of that hop)" in failure.message


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("size", quick([3], [2, 3]))
async def test_real_ranks_say_through_relays_what_one_process_says(
    make_group: MakeGroup, deep: Path, deep_yardstick: list[int], size: int
) -> None:
    group = make_group(size)
    plan = group.plan.model_dump(mode="json", by_alias=True)
    # The model has two KV heads: three ranks are a pipeline.
    plan |= {"modelPath": str(deep), "split": "Tensor" if size == 2 else "Pipeline"}
    plan["memory"] = {"contextTokens": 512, "concurrentRequests": 4, "cachedTokens": 2048}
    for entry in plan["ranks"]:
        entry["memoryBytes"] = 64 << 20
        if size == 3:
            entry["layers"] = [(2, 4), (1, 2), (0, 1)][entry["rank"]]
    group.plan = relayed(Plan.model_validate(plan))
    leader, *_ = [group.start(rank, command=rank_command) for rank in range(size)]
    await group.until(lambda: leader.state.phase is GroupPhase.READY, "the group is Ready", SECONDS)
    request = protocol.Request(id="chat", prompt=chat_prompt(deep), max_tokens=tinymodel.TOKENS)
    async with asyncio.timeout(SECONDS):
        said = [event.token async for event in leader.service.submit(request) if isinstance(event, protocol.Token)]
    assert len(carried()) == 2 * size
    assert said == deep_yardstick


def test_the_plan_names_the_dialling_end_of_each_hop(make_group: MakeGroup) -> None:
    plan = relayed(make_group(3).plan, backwards=(1,))
    assert [plan.relay_ends(rank) for rank in range(3)] == [(2, 0), (1, 0), (1, 2)]
    assert plan.control_addresses(0) == ("127.0.0.1",)
    assert plan.relay_addresses(1) == ()
    other = plan.ranks[2].model_copy(update={"relay": RelayPlan(address="10.0.0.3"), "coordinator": "10.0.0.1"})
    plan = plan.model_copy(update={"ranks": (*plan.ranks[:2], other)})
    assert plan.control_addresses(2) == ("127.0.0.3", "10.0.0.3")
    assert plan.control_addresses(0) == ("127.0.0.1", "10.0.0.1")


def test_loopback_is_where_a_mac_meets_itself() -> None:
    assert loopback_of("10.0.0.7") == loopback_of("fd00::1") == "127.0.0.1"
    assert loopback_of("127.3.0.1") == "127.3.0.1"


def test_whose_socket_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as end:
        ends = end.getsockname(), server.getsockname()
        assert socket_owner.owns(os.getpid(), *ends) is True
        assert socket_owner.owns(os.getppid(), *ends) in (False, None)
        assert socket_owner.owns(1 << 22, *ends) in (False, None)


def test_whose_socket_it_is_when_its_port_was_anothers_a_moment_ago() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        with socket.socket() as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            end.connect(first.getsockname())
            accepted, (address, port) = first.accept()
        with accepted:
            assert not accepted.recv(1)
        with socket.socket() as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            end.bind((address, port))
            end.connect(second.getsockname())
            assert socket_owner.owns(os.getpid(), end.getsockname(), second.getsockname()) is True
            assert socket_owner.owns(os.getpid(), end.getsockname(), first.getsockname()) is False
