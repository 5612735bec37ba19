"""Commands that hang, flood, fail, are not there, or cannot be ended."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_agent.observe import host as host_module
from thunderfleet_agent.observe.host import Failure, FailureKind, Host, Output

from tests.support.processes import alive


async def test_output_in_the_locale_c(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    machine.script("say", 'echo "$1 $LC_ALL"; printf "\\377"')
    assert await Host().run(("say", "hello"), 10) == Output("say hello", "hello C\n\ufffd")


async def test_absent(machine: Any) -> None:
    failure = await Host().run(("no_such_command", "status"), 10)
    assert isinstance(failure, Failure) and failure.kind is FailureKind.ABSENT
    assert "`no_such_command status`" in str(failure)


async def test_not_executable(machine: Any) -> None:
    (machine.folder / "broken").write_text("not a program")
    failure = await Host().run((str(machine.folder / "broken"),), 10)
    assert isinstance(failure, Failure) and failure.kind is FailureKind.ABSENT and "Permission denied" in failure.message


async def test_failed_with_code_and_words(machine: Any) -> None:
    machine.script("fails", "echo before; echo 'no device' >&2; exit 3")
    failure = await Host().run(("fails",), 10)
    assert isinstance(failure, Failure) and failure.kind is FailureKind.FAILED
    assert (failure.code, failure.text, failure.error) == (3, "before\n", "no device\n")
    assert str(failure) == "`fails` exited with code 3: no device"


async def test_ended_by_a_signal(machine: Any) -> None:
    machine.script("dies", "kill -9 $$")
    failure = await Host().run(("dies",), 10)
    assert isinstance(failure, Failure) and failure.code == -9 and "signal 9" in failure.message


async def test_a_hanging_command_and_its_children_end_at_the_limit(machine: Any, tmp_path: Path, until: Any) -> None:
    machine.script("hangs", f"sleep 600 & echo $! > {tmp_path}/child; echo waiting >&2; wait")
    failure = await Host().run(("hangs",), 0.5)
    assert isinstance(failure, Failure) and failure.kind is FailureKind.TIMED_OUT
    assert str(failure) == "`hangs` did not answer within 0.5 s: waiting"
    child = int((tmp_path / "child").read_text())
    await until(lambda: not alive(child))


async def test_a_child_that_holds_the_output_of_a_command_that_has_ended_goes_too(
    machine: Any, tmp_path: Path, until: Any
) -> None:
    machine.script("leaves", f"sleep 600 & echo $! > {tmp_path}/child; echo done")
    failure = await Host().run(("leaves",), 0.5)
    assert isinstance(failure, Failure) and failure.kind is FailureKind.TIMED_OUT
    await until(lambda: not alive(int((tmp_path / "child").read_text())))


async def test_too_much_output_is_ended(machine: Any) -> None:
    machine.script("floods", "while :; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; done")
    failure = await Host().run(("floods",), 60)
    assert isinstance(failure, Failure) and failure.kind is FailureKind.TOO_MUCH_OUTPUT


async def test_cancelling_ends_the_command(machine: Any, tmp_path: Path, until: Any) -> None:
    machine.script("hangs", f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600")
    (machine.folder.parent / "tools" / "mv").symlink_to("/bin/mv")
    running = asyncio.create_task(Host().run(("hangs",), 600))
    await until((tmp_path / "pid").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not alive(pid))


async def test_what_cannot_be_ended_is_left_behind_and_not_started_again(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process in uninterruptible sleep cannot be made to order; a kill that does nothing looks the same from here.
    machine.script("stuck", f"echo started >> {tmp_path}/starts; exec sleep 600")
    host, kill = Host(), os.killpg
    monkeypatch.setattr(host_module.os, "killpg", lambda pid, number: None)
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda self: None)
    monkeypatch.setattr(asyncio.base_subprocess.BaseSubprocessTransport, "close", lambda self: self._close_pipes_only())
    monkeypatch.setattr(
        asyncio.base_subprocess.BaseSubprocessTransport,
        "_close_pipes_only",
        lambda self: [proto.pipe.close() for proto in self._pipes.values() if proto is not None],
        raising=False,
    )
    first = await host.run(("stuck",), 0.5)
    second = await host.run(("stuck",), 0.5)
    assert isinstance(first, Failure) and first.kind is FailureKind.TIMED_OUT
    assert isinstance(second, Failure) and second.kind is FailureKind.TIMED_OUT and "still hangs" in second.message
    assert (tmp_path / "starts").read_text() == "started\n"
    (process,) = host._stuck.values()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{machine.folder}:{machine.folder.parent / 'tools'}")
    kill(process.pid, 9)
    await process.wait()
    machine.script("stuck", "echo well again")
    assert await host.run(("stuck",), 10) == Output("stuck", "well again\n")
