"""The spare process that waits for an attempt: it is used for the next attempt, replaced if it dies, and ended at the end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner import framing
from thunderfleet_runner.host import memory
from thunderfleet_runner.host.rankprocess import RankProcess, rank_command, resident_bytes

from tests.support.processes import PROC, exists
from tests.support.waiting import until

MakeGroup = Callable[..., Any]


def _waiting(supervisor: Any) -> int | None:
    """The process that waits, once it has imported what it can."""
    spare = supervisor.member.slot.spare
    return spare.process.pid if spare is not None and spare.up.is_set() and not spare.gone else None


async def test_the_process_that_waited_becomes_the_rank_and_its_memory_is_its_own(
    make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group(2)
    reserved = group.plan.ranks[0].memory_bytes
    # Less than the reservation, by no more than what the processes themselves hold.
    monkeypatch.setattr(memory, "free_bytes", lambda: reserved - (1 << 16))
    leader = group.start(0)
    await group.until(lambda: _waiting(leader), "a process waits")
    assert leader.state.phase is GroupPhase.WAITING
    assert not leader.member.running, "what waits is no rank"
    waiting = _waiting(leader)
    group.start(1)
    await group.until_ready()
    assert leader.state.attempt == 1
    assert leader.member.pid == waiting
    assert _waiting(leader) is None, "one process a rank"


async def test_one_that_dies_costs_no_attempt(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader = group.start(0)
    await group.until(lambda: _waiting(leader), "a process waits")
    waiting = _waiting(leader)
    assert waiting is not None
    os.kill(waiting, signal.SIGKILL)
    await group.until(lambda: _waiting(leader) != waiting, "its end is noticed")
    group.start(1)
    await group.until_ready()
    assert leader.state.attempt == 1
    assert leader.state.failure is None


async def test_every_attempt_has_a_process_of_its_own_and_none_is_left(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    first = leader.member.pid
    os.kill(other.member.pid, signal.SIGKILL)
    await group.until(lambda: leader.state.attempt == 2 and leader.state.phase is GroupPhase.READY, "the next attempt")
    second = leader.member.pid
    assert second != first
    assert not exists(first)
    await group.end()
    assert not exists(second)
    assert _waiting(leader) is None


async def test_a_supervisor_that_never_had_a_group_asks_it_to_leave(make_group: MakeGroup) -> None:
    group = make_group(2)
    leader = group.start(0)
    await group.until(lambda: _waiting(leader), "a process waits")
    process = leader.member.slot.spare.process
    await group.end()
    assert process._process.returncode == 0
    assert not leader.member.slot.pid_file.exists()


async def test_a_real_rank_that_waits_knows_no_model_and_is_small(tmp_path: Path) -> None:
    up = asyncio.Event()
    codes: list[int] = []
    process = await RankProcess.start(
        rank_command("default/tiny/0", 3, 0),
        pid_file=tmp_path / "rank.pid",
        on_message=lambda _: up.set(),
        on_exit=codes.append,
    )
    try:
        await asyncio.wait_for(up.wait(), 120)
        held = await asyncio.to_thread(resident_bytes, process.pid)
        if sys.platform == "linux":
            maps = await asyncio.to_thread((PROC / str(process.pid) / "maps").read_text)
            assert "libmlx" in maps
            assert "tokenizers" not in maps
        assert 0 < held < 128 << 20
    finally:
        await process.leave()
    assert codes == [0]


async def test_the_end_of_a_rank_is_noticed_though_a_program_that_it_started_holds_its_output(tmp_path: Path) -> None:
    code = "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=os.pipe()[0]); os.abort()"
    codes: asyncio.Queue[int] = asyncio.Queue()
    await RankProcess.start(
        [sys.executable, "-c", code],
        pid_file=tmp_path / "rank.pid",
        on_message=lambda _: None,
        on_exit=codes.put_nowait,
    )
    assert await asyncio.wait_for(codes.get(), 60) == -signal.SIGABRT


def test_a_waiting_rank_imports_only_the_standard_library_and_mlx() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from thunderfleet_runner.rank import __main__\n"
        "import mlx.core\n"
        "found = {name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "print(*found)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    # The last one is what fits MLX to recorded Macs.
    assert set(done.stdout.split()) - {"recorded_ring"} == {"mlx", "thunderfleet_runner"}


async def test_a_process_that_had_closed_its_channel_is_not_ended_by_the_supervisor(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    words = f"import os, signal; os.close(int(os.environ[{framing.FD_VARIABLE!r}])); open({str(closed)!r}, 'w'); signal.pause()"
    process = await RankProcess.start(
        [sys.executable, "-c", words],
        pid_file=tmp_path / "pid",
        on_message=lambda message: None,
        on_exit=lambda code: None,
    )
    # The event loop does not run meanwhile, so nothing but the channel itself shows that it is closed.
    until(closed.exists, "the process has closed its channel")
    await process.end()
    assert process.by_itself
