"""Real supervisors on loopback, with real ring processes: groups with parts that are late, lost or wrong."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.vocabulary import FaultClass, GroupPhase, RankPhase
from thunderfleet_lib.backoff import Backoff
from thunderfleet_runner import protocol
from thunderfleet_runner.api import service
from thunderfleet_runner.api.service import Unavailable
from thunderfleet_runner.group import heartbeats
from thunderfleet_runner.group.decide import events, stall
from thunderfleet_runner.group.decide.attempts import Phase
from thunderfleet_runner.group.leader import Leader
from thunderfleet_runner.host import priority
from thunderfleet_runner.net import connection, control, join, peers
from thunderfleet_runner.supervisor import Supervisor

from tests.support.processes import exists
from tests.support.waiting import until_async

MakeGroup = Callable[..., Any]


async def _answer(supervisor: Any, name: str, tokens: int = 4) -> list[int]:
    request = protocol.Request(id=name, prompt=protocol.Prompt.of((1, 2, 3)), max_tokens=tokens)
    return [event.token async for event in supervisor.service.submit(request) if isinstance(event, protocol.Token)]


async def test_two_supervisors_form_a_ring_and_generate(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    assert leader.state.attempt == 1
    assert [report.phase for report in leader.state.ranks] == [RankPhase.SERVING, RankPhase.SERVING]
    await group.until(lambda: other.service.ready, "rank 1 knows that the group is Ready")
    assert leader.service.vocabulary.size == 64
    for number in range(3):
        assert await _answer(leader, f"r{number}") == [0, 2, 4, 6]


async def test_requests_at_once_are_all_answered(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader = group.start(0)
    group.start(1)
    await group.until_ready()
    answers = await asyncio.gather(*(_answer(leader, f"r{number}", 3) for number in range(5)))
    assert answers == [[0, 2, 4]] * 5


async def test_three_ranks_form_however_late_one_is(make_group: MakeGroup) -> None:
    group = make_group(3)
    leader = group.start(0)
    group.start(1)
    await group.until(lambda: len(leader.role.machine.present) == 2, "two are there")
    assert leader.state.phase is GroupPhase.WAITING
    assert "rank 2 (studio-2)" in leader.state.message
    assert leader.state.attempt == 0
    group.start(2)
    await group.until_ready()
    assert leader.state.attempt == 1


async def test_one_mac_alone_forms_without_a_ring(make_group: MakeGroup) -> None:
    group = make_group(1)
    leader = group.start(0)
    await group.until_ready()
    assert await _answer(leader, "alone") == [0, 1, 2, 3]


async def test_a_killed_rank_ends_all_and_the_group_comes_back(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    old = [leader.member.pid, other.member.pid]
    os.kill(other.member.pid, signal.SIGKILL)
    await group.until(lambda: leader.state.phase is not GroupPhase.READY, "the failure is noticed")
    assert not leader.service.ready
    await group.until_ready()
    assert not any(map(exists, old))
    state = leader.state
    assert (state.attempt, state.recoveries) == (2, 1)
    assert state.failure is not None
    assert (state.failure.rank, state.failure.node, state.failure.reason) == (1, "studio-1", "RankKilled")
    assert state.failure.fault is FaultClass.RETRY
    assert await _answer(leader, "again") == [0, 2, 4, 6]


async def test_a_request_that_runs_when_a_rank_dies_ends_as_unavailable(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    request = protocol.Request(id="long", prompt=protocol.Prompt.of((1,)), max_tokens=10_000_000)
    stream = leader.service.submit(request)
    await anext(stream)
    os.kill(other.member.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="rank 1"):
        async for _ in stream:
            pass
    await group.until_ready()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_killed_rank_is_the_cause_though_its_peer_fails_and_all_ranks_are_ended_before_it_is_noticed(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(service, "FIRST_CAUSE_SECONDS", 0.01)
    group = make_group(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    answer = asyncio.create_task(_answer(leader, "long", 10_000_000))
    await group.until(lambda: leader.service.running, "it runs")
    waits: list[bool] = []
    is_late = leader.service._cause_is_late

    def late_cause(awaited: Callable[[], bool]) -> None:
        waits.append(awaited())
        is_late(awaited)

    monkeypatch.setattr(leader.service, "_cause_is_late", late_cause)
    exits = other.member.slot.process._exit
    noticed, late = exits.process_exited, asyncio.Event()
    monkeypatch.setattr(exits, "process_exited", late.set)
    os.kill(other.member.pid, number)
    await asyncio.wait_for(late.wait(), 60)
    await group.until(lambda: leader.state.failure is not None and other.member._ending, "rank 0's failure ends both")
    assert leader.state.failure.rank == 0 and leader.role.machine.cause.fault.echo
    await group.until(lambda: len(waits) > 3 or answer.done(), "the request waits")
    assert all(waits) and not answer.done(), "rank 1's supervisor has yet to report"
    noticed()
    with pytest.raises(Unavailable, match=rf"rank 1: the rank was killed by {number.name}"):
        await answer
    await group.until_ready()
    assert (leader.state.failure.rank, leader.state.failure.reason) == (1, "RankKilled")
    assert len(leader.state.failure.echoes) == 1


@pytest.mark.parametrize("fault", ["mute-1", "never-beats-1"])
async def test_a_rank_whose_heartbeat_stops_is_frozen_though_it_runs(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Also one that serves before its first heartbeat is due: a small model is loaded within a second."""
    monkeypatch.setattr(heartbeats, "SILENT_TICKS", 3)
    group = make_group(2)
    (group.faults / fault).touch()
    leader = group.start(0)
    group.start(1)
    await group.until(lambda: leader.state.failure is not None, "the silence is noticed")
    assert leader.state.failure.reason == "RankFrozen"
    (group.faults / fault).unlink()
    await group.until_ready()


async def test_a_group_that_does_not_move_is_stalled(make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    group = make_group(2)
    (group.faults / "stuck-1").touch()
    leader = group.start(0)
    group.start(1)
    await group.until_ready()
    # Only until it is noticed: afterwards a busy machine may take as long for a step.
    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="no rank has completed a step"):
        patch.setattr(stall, "STALL_SECONDS", 1.0)
        # The stand-in reports no step times.
        patch.setattr(stall, "STALL_UNKNOWN_SECONDS", 1.0)
        await _answer(leader, "stuck")
    assert leader.state.failure.reason == "Stalled"
    (group.faults / "stuck-1").unlink()
    await group.until_ready()
    assert await _answer(leader, "moves") == [0, 2, 4, 6]


async def test_the_first_failure_in_init_ends_all_and_fresh_ports_are_taken(make_group: MakeGroup) -> None:
    group = make_group(2)
    (group.faults / "die-once-1").touch()
    leader = group.start(0)
    group.start(1)
    await group.until_ready()
    assert leader.state.attempt == 2
    assert leader.state.failure is not None
    assert leader.state.failure.rank == 1
    assert "exited with code 3 while the ranks connected to each other" in leader.state.failure.message
    hosts = (group.folder / "state-0" / "hosts-2.json").read_text()
    assert f"127.0.0.2:{group.plan.ranks[1].ring_ports[1]}" in hosts


async def test_the_budget_is_spent_and_the_supervisor_stays_to_say_so(make_group: MakeGroup) -> None:
    group = make_group(2, attempts_budget=2)
    (group.faults / "init-hang-1").touch()
    limits = group.settings(0).limits
    quick = type(limits)(2, 1.0, backoff=Backoff(0.05, 30.0))
    leader = group.start(0, limits=quick)
    other = group.start(1)
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader gives up")
    assert leader.state.attempt == 2
    assert leader.state.failure.reason == "InitDeadline"
    assert "within 1 s" in leader.state.failure.message
    assert leader.member.pid is None and other.member.pid is None
    state = await _get_state(group, group.keys)
    assert state.phase is GroupPhase.GAVE_UP
    await group.until(lambda: other.state.phase is GroupPhase.GAVE_UP, "rank 1 knows")


async def test_a_load_error_that_repeats_is_for_a_person(make_group: MakeGroup) -> None:
    group = make_group(2)
    (group.faults / "load-error-1").write_text("ValueError: something odd in this model")
    leader = group.start(0)
    group.start(1)
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader asks for a person")
    assert leader.state.attempt == 2
    assert leader.state.failure.fault is FaultClass.CONFIGURE
    assert "something odd in this model" in leader.state.failure.message


async def test_ranks_that_compute_differently_never_serve(make_group: MakeGroup) -> None:
    group = make_group(2, attempts_budget=2)
    (group.faults / "odd-token-1").touch()
    leader = group.start(0)
    group.start(1)
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader gives up")
    assert leader.state.failure.reason == "TokensDiffer"
    assert leader.state.recoveries == 0


async def test_a_taken_ring_port_is_passed_over(make_group: MakeGroup) -> None:
    group = make_group(2)
    entry = group.plan.ranks[1]
    with socket.socket() as orphan:
        orphan.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        orphan.bind((entry.ring_address, entry.ring_ports[0]))
        orphan.listen()
        group.start(0)
        group.start(1)
        await group.until_ready()
    hosts = (group.folder / "state-0" / "hosts-1.json").read_text()
    assert f"127.0.0.2:{entry.ring_ports[1]}" in hosts


async def test_a_member_that_crashes_and_returns_joins_its_epoch(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader = group.start(0)
    other = group.start(1)
    await group.until_ready()
    pid = other.member.pid
    await group.crash(1)
    await group.until(lambda: leader.state.phase is GroupPhase.WAITING, "the leader waits for rank 1")
    assert not exists(pid) and leader.member.pid is None
    assert leader.state.failure.reason == "SupervisorLost"
    group.start(1)
    await group.until_ready()
    assert leader.state.recoveries == 1


async def test_a_crashed_leader_that_returns_leads_again(make_group: MakeGroup) -> None:
    group = make_group(2)
    group.start(0)
    other = group.start(1)
    await group.until_ready()
    await group.crash(0)
    await group.until(lambda: other.member.pid is None, "rank 1 ends its rank")
    assert other.state.phase is GroupPhase.WAITING
    leader = group.start(0)
    await group.until_ready()
    assert (leader.state.attempt, leader.state.recoveries) == (1, 1)


async def test_a_rank_that_is_being_started_when_the_leader_goes_is_ended(make_group: MakeGroup) -> None:
    group = make_group(2)
    (group.faults / "init-hang-1").touch()
    group.start(0)
    other = group.start(1)
    await group.until(lambda: other.member._attempt == 1 and other.member._stage == "init", "rank 1 is being started")
    await group.crash(0)
    (group.faults / "init-hang-1").unlink()
    await group.until(lambda: other.member.pid is None, "its rank is gone")
    group.start(0)
    await group.until_ready()


@pytest.mark.parametrize("moment", ["serving", "settling"])
async def test_a_member_can_be_ended_while_its_leader_goes(make_group: MakeGroup, moment: str) -> None:
    group = make_group(2)
    group.start(0)
    other = group.start(1)
    await group.until_ready()
    await group.crash(0)
    if moment == "settling":
        await group.until(lambda: other.state.phase is GroupPhase.WAITING, "rank 1 has lost its leader")
    other.end()
    await asyncio.wait_for(group.running[1][1], 60)
    assert other.member.pid is None


async def test_a_stale_epoch_is_refused_at_both_ends(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader = group.start(0)
    stale = group.plan.model_copy(update={"epoch": 2})
    other = group.start(1, plan=stale)
    await group.until(lambda: "epoch 2 is stale" in other.state.message, "rank 1 knows why")
    assert "epoch 2 is stale" in leader.state.message
    assert leader.state.ranks[1].phase is RankPhase.ABSENT
    assert "epoch 2 is stale" in leader.state.ranks[1].message


async def test_a_second_claimant_is_refused_and_the_group_continues(make_group: MakeGroup, tmp_path: Path) -> None:
    group = make_group(2)
    leader = group.start(0)
    other = group.start(1)
    await group.until_ready()

    async def serve(_: connection.Connection) -> str:
        raise AssertionError("a second claimant was let in")

    with pytest.raises(join.JoinRefused, match="an earlier process of rank"):
        await join.join_group(group.plan, control.client_tls(group.keys), other._hello(), serve)
    assert leader.state.phase is GroupPhase.READY


async def test_a_different_model_is_refused(make_group: MakeGroup, make_model: Callable[[Path], Path]) -> None:
    group = make_group(2)
    leader = group.start(0)
    odd = make_model(group.folder / "odd")
    (odd / "config.json").write_text('{"model_type": "llama"}')
    group.start(1, plan=group.plan.model_copy(update={"model_path": str(odd)}))
    await group.until(lambda: "is not the one on studio-0" in leader.state.message, "the leader says so")


async def test_a_model_that_was_put_right_on_both_macs_is_let_in(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader = group.start(0)
    await group.until(lambda: leader.role.machine.present, "the leader is up")
    (group.model / "config.json").write_text('{"model_type": "llama"}')
    group.start(1)
    await group.until_ready()


async def test_a_lasting_port_that_is_still_held_is_waited_for(make_group: MakeGroup) -> None:
    group = make_group(1)
    entry = group.plan.ranks[0]
    with socket.create_server((entry.address, entry.control_port)):
        leader = group.start(0)
        await group.until(lambda: (group.folder / "state-0").exists(), "the supervisor has begun")
        assert leader.state.phase is GroupPhase.WAITING
    await group.until_ready()


async def test_a_missing_model_is_for_a_person_and_mends_itself(
    make_group: MakeGroup, make_model: Callable[[Path], Path]
) -> None:
    group = make_group(2)
    (group.model / "model.safetensors").write_bytes(b"")
    leader = group.start(0)
    group.start(1)
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader asks for a person")
    assert leader.state.failure.fault is FaultClass.CONFIGURE
    assert leader.state.failure.reason == "ModelIncomplete"
    make_model(group.model)
    machine = leader.role.machine
    leader.role.feed(_timer(machine.timer))
    await group.until_ready()


async def test_a_stranger_without_the_groups_key_gets_nothing(make_group: MakeGroup, make_keys: Callable[[Path], Path]) -> None:
    group = make_group(2)
    leader = group.start(0)
    await group.until(lambda: leader.role.machine.present, "the leader is up")
    other_keys = make_keys(group.folder / "other-keys")
    with pytest.raises(aiohttp.ClientError):
        await _get_state(group, other_keys)
    group.start(1)
    entry = group.plan.ranks[0]
    _, writer = await asyncio.open_connection(entry.address, entry.control_port)
    writer.write(b"GET /v1/state HTTP/1.1\r\n\r\n")
    await group.until_ready()
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


async def test_only_rank_0_answers_for_the_group(make_group: MakeGroup) -> None:
    group = make_group(2)
    group.start(0)
    group.start(1)
    await group.until_ready()
    state = await _get_state(group, group.keys)
    assert (state.uid, state.epoch, state.phase) == ("5c1f", 3, GroupPhase.READY)
    entry = group.plan.ranks[1]
    async with _session(group.keys) as session:
        url = f"https://{entry.address}:{entry.control_port}/v1/state"
        async with session.get(url, server_hostname="group.thunderfleet.io") as answer:
            assert answer.status == 421
            assert f"{group.plan.ranks[0].control_port}" in (await answer.json())["message"]


async def test_sigterm_drains_stops_together_and_leaves_nothing(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    pids = [leader.member.pid, other.member.pid]
    stream = leader.service.submit(protocol.Request(id="last", prompt=protocol.Prompt.of((1,)), max_tokens=200))
    await anext(stream)
    leader.end()
    other.end()
    await group.until(lambda: leader.service.draining, "the leader drains")
    with pytest.raises(Unavailable, match="draining"):
        await anext(leader.service.submit(protocol.Request(id="new", prompt=protocol.Prompt.of((1,)), max_tokens=1)))
    assert isinstance([event async for event in stream][-1], protocol.Done)
    await asyncio.gather(*(task for _, task in group.running.values()))
    assert not any(map(exists, pids))
    assert leader.state.failure is None


async def test_a_stream_that_outlasts_a_drains_grace_gets_an_error(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader = group.start(0, limits=replace(group.settings(0).limits, drain_seconds=0.2, stop_seconds=0.2))
    group.start(1)
    await group.until_ready()
    stream = leader.service.submit(protocol.Request(id="long", prompt=protocol.Prompt.of((1,)), max_tokens=10_000_000))
    await anext(stream)
    leader.end()
    with pytest.raises(Unavailable, match="being stopped or moved, and its grace period is over"):
        async for _ in stream:
            pass
    await group.running[0][1]


async def test_a_member_that_is_evicted_drains_the_group_and_its_successor_joins(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    other.end()
    await group.running[1][1]
    await group.until(lambda: leader.state.phase is GroupPhase.WAITING, "the leader waits for a successor")
    assert leader.state.failure is None
    group.start(1)
    await group.until_ready()


async def test_drain_by_the_control_port(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    entry = group.plan.ranks[0]
    async with _session(group.keys) as session:
        url = f"https://{entry.address}:{entry.control_port}/v1/drain"
        async with session.post(url, server_hostname="group.thunderfleet.io") as answer:
            assert answer.status == 202
    await group.until(lambda: leader.role.released.is_set(), "the group has stopped")
    assert leader.member.pid is None and other.member.pid is None
    assert leader.state.phase is GroupPhase.DRAINING


def test_a_plan_that_does_not_name_the_pod_is_refused(make_group: MakeGroup) -> None:
    group = make_group(2)
    with pytest.raises(ValueError, match="does not name pod other"):
        _ = group.settings(0, pod="other").rank


@pytest.mark.parametrize(
    ("phase", "done", "words"),
    [
        (Phase.FORMING, {1}, "attempt 1: the ranks connect to each other; waiting for rank 0 (studio-0)"),
        (Phase.FORMING, set(), "attempt 1: the ranks connect to each other; waiting for rank 0 (studio-0), rank 1 (studio-1)"),
        (Phase.LOADING, {0}, "loading the model on rank 1 (studio-1)"),
        (Phase.LOADING, set(), "loading the model on rank 0 (studio-0), rank 1 (studio-1)"),
        (Phase.CHECKING, {1}, "attempt 1: running preflight checks on rank 0 (studio-0)"),
        (Phase.COMPARING, set(), "all ranks have loaded; running the test prompt"),
        (Phase.READY, set(), "serving"),
        (Phase.DRAINING, set(), "draining: 0 requests still running"),
        (Phase.STOPPING, set(), "stopping the ranks"),
        (Phase.STOPPED, set(), "stopped"),
    ],
)
def test_the_message_names_the_ranks_that_the_phase_waits_for(
    make_group: MakeGroup, phase: Phase, done: set[int], words: str
) -> None:
    leader = Supervisor(make_group(2).settings(0)).role
    assert isinstance(leader, Leader)
    present = frozenset({0, 1})
    leader.machine = replace(leader.machine, phase=phase, attempt=1, present=present, done=frozenset(done))
    assert leader.state.message == words


def _timer(number: int) -> Any:
    return events.Timer(number)


def _session(keys: Path) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=control.client_tls(keys)))


async def _get_state(group: Any, keys: Path) -> GroupState:
    entry = group.plan.ranks[0]
    async with _session(keys) as session:
        url = f"https://{entry.address}:{entry.control_port}/v1/state"
        async with session.get(url, server_hostname="group.thunderfleet.io") as answer:
            return GroupState.model_validate_json(await answer.text())


def test_peers_messages_survive_the_wire() -> None:
    order = peers.Launch(attempt=2, hosts=("127.0.0.1:1",))
    assert peers.ORDER.validate_json(order.model_dump_json()) == order


def _nice(supervisor: Any) -> list[int]:
    """The nice values of this process and of the rank's."""
    return [os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, supervisor.member.pid)]


async def test_a_group_comes_before_other_programs_until_it_is_ready(make_group: MakeGroup, preferred: int) -> None:
    group = make_group(1)
    loading = group.faults / "slow-load-0"
    loading.touch()
    leader = group.start(0)
    await group.until(lambda: leader.member.running, "a rank runs")
    assert _nice(leader) == [preferred, preferred]
    loading.unlink()
    await group.until_ready()
    assert _nice(leader) == [max(preferred, 0)] * 2


async def test_a_rank_that_waits_for_its_peers_comes_before_other_programs_for_a_limited_time(
    make_group: MakeGroup, preferred: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "START_SECONDS", 0.3)
    waiting = make_group(2).start(0).member.slot

    def nice() -> int | None:
        return os.getpriority(os.PRIO_PROCESS, waiting.spare_pid) if waiting.spare_pid else None

    await until_async(lambda: nice() == max(preferred, 0), "it is equal to other programs")


async def test_a_group_comes_before_other_programs_for_a_limited_time(
    make_group: MakeGroup, preferred: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "START_SECONDS", 0.3)
    group = make_group(1)
    loading = group.faults / "slow-load-0"
    loading.touch()
    leader = group.start(0)
    equal = [max(preferred, 0)] * 2
    await group.until(lambda: leader.member.running and _nice(leader) == equal, "it is equal to other programs")
    assert leader.state.phase is not GroupPhase.READY
    loading.unlink()
