"""Groups form whenever possible: with late ranks, strangers, wrong claims, taken ports, and simultaneous failures."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase
from thunderfleet_lib.backoff import Backoff
from thunderfleet_runner import protocol, supervisor
from thunderfleet_runner.net import connection, control, join, peers
from thunderfleet_runner.net.ports import PortBlock

from tests.support.network.ports import claim

MakeGroup = Callable[..., Any]


async def answer(leader: Any, name: str) -> list[int]:
    request = protocol.Request(id=name, prompt=protocol.Prompt.of((1, 2, 3)), max_tokens=3)
    return [event.token async for event in leader.service.submit(request) if isinstance(event, protocol.Token)]


class Clock:
    """The event loop's clock, which can be set forward; every timer that is then due runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.ahead, real = 0.0, loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self.ahead)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
async def test_a_rank_that_is_ten_minutes_late_costs_no_attempt(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    clock = Clock(monkeypatch)
    group = make_group(3)
    *early, late = order
    for rank in early:
        group.start(rank)
    if late != 0:
        leader = group.running[0][0]
        await group.until(lambda: len(leader.role.machine.present) == 2, "two are there")
    for _ in range(10):
        clock.ahead += 60.0
        # Each minute's timers run, and what they write is taken.
        for _ in range(100):
            await asyncio.sleep(0)
    if late != 0:
        assert leader.state.phase is GroupPhase.WAITING and f"rank {late} (studio-{late})" in leader.state.message
        assert (leader.role.machine.attempt, leader.role.machine.spent) == (0, 0)
    group.start(late)
    await group.until_ready()
    leader = group.running[0][0]
    assert (leader.state.attempt, leader.state.failure) == (1, None)


async def test_connections_of_strangers_do_not_keep_a_group_from_forming(make_group: MakeGroup) -> None:
    group = make_group(2)
    held = []
    leader = group.start(0)
    await group.until(lambda: leader.role.machine.present, "the leader is up")
    entry = group.plan.ranks[0]
    for number in range(100):
        _, writer = await asyncio.open_connection(entry.address, entry.control_port)
        if number % 2:
            writer.write(os.urandom(64))
        held.append(writer)
    group.start(1)
    await group.until_ready()
    assert leader.state.attempt == 1
    for writer in held:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_a_strangers_connection_to_the_rings_port_costs_one_attempt_at_most(make_group: MakeGroup) -> None:
    group = make_group(2)
    quick = type(group.settings(0).limits)(4, 12.0, backoff=Backoff(0.05, 30.0))
    entry = group.plan.ranks[0]
    address = (entry.ring_address, entry.ring_ports[0])

    async def steal() -> socket.socket:
        """Takes the one connection that rank 0 accepts in the first attempt."""
        while True:
            thief = socket.socket()
            if not thief.connect_ex(address):
                return thief
            thief.close()
            await asyncio.sleep(0.001)

    stealing = asyncio.create_task(steal())
    leader = group.start(0, limits=quick)
    group.start(1)
    await group.until_ready()
    assert leader.state.attempt <= 3
    assert await answer(leader, "one") == [0, 2, 4]
    stealing.cancel()
    for thief in await asyncio.gather(stealing, return_exceptions=True):
        if isinstance(thief, socket.socket):
            thief.close()


async def test_orphans_on_all_ports_but_the_last_are_passed_over(make_group: MakeGroup) -> None:
    group = make_group(2)
    entry = group.plan.ranks[1]
    with contextlib.ExitStack() as stack:
        for port in entry.ring_ports[:-1]:
            orphan = stack.enter_context(socket.socket())
            # As MLX binds its own.
            orphan.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            orphan.bind((entry.ring_address, port))
            orphan.listen()
        leader = group.start(0)
        group.start(1)
        await group.until_ready()
    assert leader.state.attempt == 1
    assert f"{entry.ring_address}:{entry.ring_ports[-1]}" in (group.folder / "state-0" / "hosts-1.json").read_text()


async def test_missing_ring_ports_are_reported_and_the_group_recovers(make_group: MakeGroup) -> None:
    group = make_group(2, attempts_budget=8)
    entry = group.plan.ranks[1]
    leader = group.start(0, limits=type(group.settings(0).limits)(50, 20.0, backoff=Backoff(0.3, 0.3)))
    with contextlib.ExitStack() as stack:
        for port in entry.ring_ports:
            stack.enter_context(socket.create_server((entry.ring_address, port)))
        group.start(1)
        await group.until(lambda: leader.state.failure is not None, "the leader is told")
        failure = leader.state.failure
        assert (failure.rank, failure.fault, failure.reason) == (1, FaultClass.RETRY, "PortTaken")
        assert f"{entry.ring_ports[0]}-{entry.ring_ports[-1]}" in failure.message
    await group.until_ready()


@pytest.mark.parametrize(("rank", "what"), [(0, "gateway"), (1, "gateway"), (1, "control")])
async def test_a_lasting_port_that_stays_taken_asks_for_another_placement(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch, rank: int, what: str
) -> None:
    monkeypatch.setattr(supervisor, "PORT_SECONDS", 0.5)
    group = make_group(2)
    entry = group.plan.ranks[rank]
    port = entry.gateway_port if what == "gateway" else entry.control_port
    with socket.create_server((entry.address, port)):
        leader = group.start(0, gateway=True)
        group.start(1, gateway=True)
        await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader gives up")
    failure = leader.state.failure
    assert (failure.rank, failure.fault, failure.reason) == (rank, FaultClass.REPLAN, "PortTaken")
    assert f"the {what} port {port} on {entry.address} is in use by another program on node {entry.node}" in failure.message


async def test_rank_0s_control_port_that_stays_taken_ends_the_supervisor(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PORT_SECONDS", 0.5)
    group = make_group(2)
    entry = group.plan.ranks[0]
    with socket.create_server((entry.address, entry.control_port)):
        task = asyncio.create_task(supervisor.Supervisor(group.settings(0)).run())
        with pytest.raises(supervisor.Blocked, match=str(entry.control_port)) as caught:
            await asyncio.wait_for(task, 30)
    assert (caught.value.fault.fault, caught.value.fault.reason) == (FaultClass.REPLAN, "PortTaken")


async def test_a_newer_epochs_supervisor_is_not_let_into_an_older_group(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader = group.start(0)
    other = group.start(1, plan=group.plan.model_copy(update={"epoch": 4}))
    await group.until(lambda: "epoch 4 is newer" in other.state.message, "rank 1 knows why")
    await group.crash(1)
    group.start(1)
    await group.until_ready()
    assert leader.state.attempt == 1


@pytest.mark.parametrize("first", [0, 1, 2])
async def test_of_three_ranks_that_fail_at_once_the_first_is_named(make_group: MakeGroup, first: int) -> None:
    group = make_group(3)
    supervisors = [group.start(rank) for rank in range(3)]
    leader = supervisors[0]
    await group.until_ready()
    # The ring ends all other ranks within a second: each reports it, in any order.
    os.kill(supervisors[first].member.pid, signal.SIGKILL)
    await group.until(lambda: leader.state.failure is not None and leader.state.phase is not GroupPhase.READY, "a failure")
    await group.until_ready()
    failure = leader.state.failure
    assert (failure.rank, failure.node, failure.reason) == (first, f"studio-{first}", "RankKilled")
    assert "SIGKILL" in failure.message


async def test_echoes_of_peers_are_listed_with_the_first_cause_even_if_they_arrive_earlier(make_group: MakeGroup) -> None:
    group = make_group(3)
    leader, *_ = [group.start(rank) for rank in range(3)]
    await group.until_ready()
    attempt = leader.role.machine.attempt
    lost = "[ring] connection to a peer was lost"

    def says(rank: int, message: str, *, echo: bool) -> None:
        report = peers.RankFailed(
            attempt=attempt, stage="serve", fault=FaultClass.RETRY, reason="PeerLost" if echo else "GpuFailed", message=message,
            echo=echo,
        )  # fmt: skip
        leader.role.receive(rank, report)

    says(0, lost, echo=True)
    says(2, lost, echo=True)
    says(1, "[METAL] Command buffer execution failed: GPU Timeout", echo=False)
    failure = leader.state.failure
    assert (failure.rank, failure.reason) == (1, "GpuFailed")
    assert failure.echoes == (f"rank 2: {lost}", f"rank 0: {lost}")
    await group.until_ready()


async def test_a_claim_says_the_address_that_worked(make_group: MakeGroup) -> None:
    """The peer cannot reach rank 0's own address, but another one."""
    group = make_group(2)
    one = group.plan.ranks[1].model_copy(update={"coordinator": "127.0.0.8"})
    group.plan = group.plan.model_copy(update={"ranks": (group.plan.ranks[0], one)})
    unheard = group.plan.ranks[0].model_copy(update={"address": "127.0.0.98"})
    leader = group.start(0)
    other = group.start(1, plan=group.plan.model_copy(update={"ranks": (unheard, one)}))
    await group.until(lambda: 1 in leader.role.machine.present, "rank 1 has joined")
    assert other.state.phase is not None and "127.0.0.8" in group.plan.control_addresses(0)

    async def serve(_: connection.Connection) -> str:
        raise AssertionError("nobody is there")

    nobody = unheard.model_copy(update={"control_port": 1})
    gone = group.plan.model_copy(update={"ranks": (nobody, one)})
    with pytest.raises(
        ConnectionError, match=r"cannot join rank 0 at 127\.0\.0\.98:1: .*; cannot join rank 0 at 127\.0\.0\.8:1"
    ):
        await join.join_group(gone, control.client_tls(group.keys), other._hello(), serve)


def test_a_block_goes_round_and_meets_no_port_twice_in_a_row() -> None:
    ports = claim(4)
    block = PortBlock(ports)
    taken = [block.take("127.0.0.1") for _ in range(8)]
    assert taken == ports * 2
