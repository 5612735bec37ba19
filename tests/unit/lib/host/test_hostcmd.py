"""Commands that hang, flood, fail, do not exist, or cannot be killed; in asyncio and in a thread alike."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from thunderfleet_lib.host import hostcmd
from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, FailureKind, Host, Output

from tests.support.processes import PROC, alive
from tests.support.waiting import until_async
from tests.unit.lib.conftest import Commands

Run = Callable[..., Awaitable[Output | Failure]]


async def in_asyncio(*argv: str, seconds: float = 30.0, path: tuple[Path, ...] = (), given: bytes = b"") -> Output | Failure:
    return await Host(path).run(argv, seconds, given)


async def in_a_thread(*argv: str, seconds: float = 30.0, path: tuple[Path, ...] = (), given: bytes = b"") -> Output | Failure:
    return await asyncio.to_thread(BlockingHost(path).run, argv, seconds, given=given)


@pytest.fixture(params=[in_asyncio, in_a_thread], ids=["asyncio", "thread"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


@pytest.fixture(autouse=True)
def grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a killed process may take more than a second to end."""
    monkeypatch.setattr(hostcmd, "GRACE_SECONDS", 60.0)


def children() -> set[str]:
    """The processes that this one started and has not reaped."""
    while True:
        # A thread that ends meanwhile leaves its children to another one.
        with suppress(FileNotFoundError, ProcessLookupError):
            return {pid for file in (PROC / "self/task").glob("*/children") for pid in file.read_text().split()}


def failed(outcome: Output | Failure, kind: FailureKind) -> Failure:
    assert isinstance(outcome, Failure)
    assert outcome.kind is kind
    return outcome


def read(file: Path) -> str:
    """What a command has written, if it has."""
    return file.read_text() if file.exists() else ""


async def hung(run: Run, said: Path, command: str, given: bytes = b"") -> tuple[Failure, int]:
    """What ends a command that writes the number of a process to ``said`` and hangs, and that number.

    On a busy machine its time may be over before it has come so far; then it is run again.
    """
    while not (text := read(said)):
        failure = failed(await run(command, seconds=0.5, given=given), FailureKind.TIMED_OUT)
    return failure, int(text)


async def test_output_in_the_locale_c(run: Run, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    commands.script("say", 'echo "$1 $LC_ALL $LANG"; printf "\\377"')
    assert await run("say", "hello") == Output("say hello", "hello C C\n\ufffd")


async def test_no_input(run: Run, commands: Commands) -> None:
    assert await run("cat") == Output("cat", "")


@pytest.mark.parametrize("size", [1, 2**16, 2**22])
async def test_input_of_any_size_arrives_while_output_is_read(run: Run, commands: Commands, size: int) -> None:
    assert await run("cat", given=b"x" * size) == Output("cat", "x" * size)


async def test_a_command_need_not_read_its_input(run: Run, commands: Commands) -> None:
    commands.script("ignores", "exec <&-; echo done")
    assert await run("ignores", given=b"x" * 2**22) == Output("ignores", "done\n")


async def test_a_command_that_hangs_before_its_input_ends_at_the_limit(run: Run, commands: Commands, tmp_path: Path) -> None:
    commands.script("waits", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    _, pid = await hung(run, tmp_path / "pid", "waits", b"x" * 2**22)
    assert not alive(pid)


async def test_given_folders_come_before_path(run: Run, commands: Commands, tmp_path: Path) -> None:
    commands.script("which_one", "echo from PATH; inner")
    commands.script("inner", "echo inner from PATH")
    first = Commands(tmp_path / "first")
    first.folder.mkdir()
    first.script("inner", "echo inner from the folder")
    assert await run("which_one", path=(first.folder,)) == Output("which_one", "from PATH\ninner from the folder\n")
    assert Host((first.folder,)).find("inner") == str(first.folder / "inner")
    assert Host().find("inner") == str(commands.folder / "inner")
    assert Host().find("no_such_command") is None


async def test_absent(run: Run, commands: Commands) -> None:
    failure = failed(await run("no_such_command", "status"), FailureKind.ABSENT)
    assert str(failure) == "`no_such_command status` does not exist (no such command in PATH)"
    assert "does not exist" in failed(await run("/no/such/command"), FailureKind.ABSENT).message


async def test_not_executable(run: Run, commands: Commands) -> None:
    (commands.folder / "broken").write_text("not a program")
    failure = failed(await run(str(commands.folder / "broken")), FailureKind.ABSENT)
    assert failure.message == "cannot be started: Permission denied"


async def test_failed_with_code_and_words(run: Run, commands: Commands) -> None:
    commands.script("fails", "echo before; echo 'no device' >&2; exit 3")
    failure = failed(await run("fails"), FailureKind.FAILED)
    assert (failure.code, failure.text, failure.error) == (3, "before\n", "no device\n")
    assert str(failure) == "`fails` exited with code 3: no device"


async def test_failed_with_words_on_standard_output(run: Run, commands: Commands) -> None:
    commands.script("fails", "echo one; echo two; exit 1")
    assert str(await run("fails")) == "`fails` exited with code 1: one two"


async def test_killed_by_a_signal(run: Run, commands: Commands) -> None:
    commands.script("dies", "kill -9 $$")
    failure = failed(await run("dies"), FailureKind.FAILED)
    assert (failure.code, failure.message) == (-9, "was killed by signal 9")


async def test_a_hanging_command_and_its_children_end_at_the_limit(run: Run, commands: Commands, tmp_path: Path) -> None:
    commands.script("hangs", f"sleep 600 & echo so far; echo waiting >&2; echo $! > {tmp_path}/child; wait")
    failure, child = await hung(run, tmp_path / "child", "hangs")
    assert str(failure) == "`hangs` did not answer within 0.5 s: waiting"
    assert (failure.text, failure.error, failure.code) == ("so far\n", "waiting\n", None)
    await until_async(lambda: not alive(child))


async def test_a_child_that_holds_the_output_of_a_command_that_has_exited_ends_too(
    run: Run, commands: Commands, tmp_path: Path
) -> None:
    commands.script("leaves", f"sleep 600 & echo $! > {tmp_path}/child; echo done")
    _, child = await hung(run, tmp_path / "child", "leaves")
    await until_async(lambda: not alive(child))


async def test_a_command_that_closes_its_output_and_hangs(run: Run, commands: Commands, tmp_path: Path) -> None:
    commands.script("closes", f"exec >&- 2>&-; echo $$ > {tmp_path}/pid; exec sleep 600")
    _, pid = await hung(run, tmp_path / "pid", "closes")
    assert not alive(pid)


@pytest.mark.parametrize("stream", ["1", "2"])
async def test_too_much_output_is_killed(
    run: Run, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    monkeypatch.setattr(hostcmd, "OUTPUT_LIMIT_BYTES", 2**20)
    commands.script("floods", f"echo $$ > {tmp_path}/pid; exec yes 0123456789 >&{stream}")
    failure = failed(await run("floods"), FailureKind.TOO_MUCH_OUTPUT)
    assert str(failure) == "`floods` printed more than 1 MiB and was killed"
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_output_up_to_the_bound_is_kept(run: Run, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostcmd, "OUTPUT_LIMIT_BYTES", 2**18)
    commands.script("fills", f"head -c {2**18} /dev/zero | tr '\\0' x")
    assert await run("fills") == Output("fills", "x" * 2**18)
    commands.script("spills", f"head -c {2**18 + 1} /dev/zero | tr '\\0' x")
    failed(await run("spills"), FailureKind.TOO_MUCH_OUTPUT)


async def test_cancelling_kills_the_command(commands: Commands, tmp_path: Path) -> None:
    commands.script("hangs", f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600")
    running = asyncio.create_task(Host().run(("hangs",), 600))
    await until_async((tmp_path / "pid").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    pid = int((tmp_path / "pid").read_text())
    await until_async(lambda: not alive(pid))


@pytest.mark.parametrize("times", [1, 3])
async def test_no_command_outlives_a_cancelled_caller_at_any_step(commands: Commands, times: int) -> None:
    commands.script("hangs", "exec sleep 600")
    before = children()
    for step in range(20):
        running = asyncio.create_task(Host().run(("hangs",), 600))
        for _ in range(step):
            await asyncio.sleep(0)
        for _ in range(times):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert children() == before, f"cancelled after {step} steps of the event loop"


async def test_a_caller_cancelled_when_its_command_has_just_ended_is_cancelled(commands: Commands, tmp_path: Path) -> None:
    commands.script("ends", f"until [ -e {tmp_path}/end ]; do sleep 0.01; done")
    for step in range(8):
        host = Host()
        running = asyncio.create_task(host.run(("ends",), 600))
        await asyncio.sleep(0)
        (tmp_path / "end").touch()
        # Its thread has the exit code; the event loop has not heard of it yet.
        host._threads.shutdown(wait=True)
        for _ in range(step):
            await asyncio.sleep(0)
        running.cancel()
        (found,) = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(found, asyncio.CancelledError | Output), f"cancelled after {step} steps of the event loop: {found!r}"
        (tmp_path / "end").unlink()


async def test_the_end_of_the_loop_leaves_no_command(commands: Commands) -> None:
    commands.script("hangs", "exec sleep 600")
    before = children()

    async def main(step: int) -> None:
        running = asyncio.ensure_future(Host().run(("hangs",), 600))
        for _ in range(step):
            await asyncio.sleep(0)
        assert not running.done()

    for step in range(1, 20):
        await asyncio.to_thread(asyncio.run, main(step))
        assert children() == before, f"ended after {step} steps of the event loop"


# A process in uninterruptible sleep cannot be created on demand; a kill without effect looks the same to its parent.


async def test_a_command_that_cannot_be_killed_is_left_behind_and_not_started_again(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.script("stuck", f"echo started >> {tmp_path}/starts; exec sleep 600")
    host, kill = Host(), os.killpg
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda pid, number: None)
        patched.setattr(hostcmd, "GRACE_SECONDS", 1.0)
        failed(await host.run(("stuck",), 0.5), FailureKind.TIMED_OUT)
        second = failed(await host.run(("stuck",), 0.5), FailureKind.TIMED_OUT)
    (pid,) = children()
    assert f"still hangs: process {pid} cannot be killed; reboot this machine" in second.message
    await until_async(lambda: read(tmp_path / "starts") == "started\n")
    kill(int(pid), 9)
    await until_async(lambda: not alive(int(pid)))
    commands.script("stuck", "echo well again")
    assert await host.run(("stuck",), 30) == Output("stuck", "well again\n")


async def test_a_program_that_closes_its_output_is_waited_for(run: Run, commands: Commands) -> None:
    commands.script("quiet", "exec >&- 2>&-; sleep 0.3; exit 7")
    assert failed(await run("quiet"), FailureKind.FAILED).code == 7


def test_quotes_are_one_line_of_limited_length() -> None:
    assert hostcmd.quote("a\n  b\t c ") == "a b c"
    assert hostcmd.quote("x" * 300) == "x" * 300
    assert hostcmd.quote("x" * 301) == "x" * 299 + "…"


@contextmanager
def descriptors(spare: int) -> Iterator[None]:
    """This process can open only so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 40, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(spare):
            os.close(taken.pop())
        yield
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_too_few_descriptors_are_a_failure_that_leaves_nothing(run: Run, commands: Commands) -> None:
    """They end no program: a round that cannot read something now reads it later."""
    commands.script("say", "echo hello")
    assert isinstance(await run("say"), Output)
    outcomes, before = [], len(os.listdir("/dev/fd"))
    for spare in range(20):
        with descriptors(spare):
            outcomes.append(await run("say"))
        assert not children() and len(os.listdir("/dev/fd")) == before, spare
    assert "cannot be started: Too many open files" in str(outcomes[0])
    assert outcomes[-1] == Output("say", "hello\n")
