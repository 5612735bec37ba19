"""The intake process and its replacement: each way in which a request can end it, and what the others notice of it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_runner.api.errors import ApiError
from thunderfleet_runner.api.intake import Intake
from thunderfleet_runner.api.intakehealth import CALM_SECONDS, HUNG_SECONDS, IntakeHealth
from thunderfleet_runner.api.service import GroupFailed, Unavailable
from thunderfleet_runner.host import intakeprocess
from thunderfleet_runner.host.intakeprocess import Cause, IntakeProcess, IntakeStarter
from thunderfleet_runner.intakeprotocol import ModelLimits

from tests.support.processes import exists
from tests.support.waiting import until_async

COMMAND = [sys.executable, str(Path(__file__).parents[1] / "stand_in_intake.py")]
LIMITS = ModelLimits(model="m", vocabulary=0, context_tokens=64)


class Watched:
    """Intakes of the real kind, with the processes that they have started."""

    def __init__(self) -> None:
        self.processes: list[IntakeProcess] = []
        self.causes: list[Cause] = []
        self.now = 0.0
        self.intake = Intake(self.start, self.causes.append, lambda: self.now)

    async def start(self) -> IntakeProcess:
        self.processes.append(await IntakeStarter(COMMAND).start())
        return self.processes[-1]

    async def ask(self, prompt: str) -> int:
        """The number of tokens of a completion's prompt."""
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1}).encode()
        async with asyncio.timeout(60):
            return (await self.intake.prepare("completion", body, LIMITS)).prompt.count


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    yield watched
    await watched.intake.close()
    assert not any(exists(process.pid) for process in watched.processes)


@pytest.mark.parametrize(("deed", "cause", "word"), [("burn", Cause.CPU, "CPU"), ("abort", Cause.MEMORY, "memory")])
async def test_who_asks_too_much_is_refused_and_the_next_one_served(
    watched: Watched, deed: str, cause: Cause, word: str
) -> None:
    assert await watched.ask("a b c") == 3
    bad, *others = await asyncio.gather(watched.ask(deed), watched.ask("a b"), watched.ask("a"), return_exceptions=True)
    assert isinstance(bad, ApiError) and (bad.status, bad.code) == (400, "request_too_expensive") and word in str(bad)
    assert others == [2, 1]
    assert watched.causes == [cause]
    assert len(watched.processes) == 2


async def test_memory_is_watched_where_the_system_does_not_limit_it(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intakeprocess, "MEMORY_BYTES", 200 << 20)
    with pytest.raises(ApiError, match="memory"):
        await watched.ask("grow")
    assert watched.causes == [Cause.MEMORY]
    assert await watched.ask("a b") == 2


async def test_a_process_that_does_not_answer_is_replaced(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await watched.ask("a") == 1
    monkeypatch.setattr(intakeprocess, "ANSWER_SECONDS", 0.2)
    with pytest.raises(GroupFailed, match="did not answer within"):
        await watched.ask("pause")
    monkeypatch.setattr(intakeprocess, "ANSWER_SECONDS", 30.0)
    assert await watched.ask("a b") == 2
    assert watched.causes == [Cause.TIME]


async def test_who_leaves_gets_no_other_ones_answer(watched: Watched) -> None:
    assert await watched.ask("a") == 1
    leaving = asyncio.create_task(watched.ask("a b c d"))
    waiting = asyncio.create_task(watched.ask("a b c"))
    gone = asyncio.create_task(watched.ask("burn"))
    last = asyncio.create_task(watched.ask("a b"))
    await asyncio.sleep(0)
    leaving.cancel()
    gone.cancel()
    assert await waiting == 3
    assert await last == 2


async def test_a_process_that_somebody_ended_is_not_asked_and_counts(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    assert await watched.ask("a") == 1
    os.kill(watched.processes[0].pid, signal.SIGKILL)
    await until_async(lambda: watched.processes[0].gone, "it is reaped", 30)
    assert await watched.ask("a b") == 2
    assert watched.causes == [Cause.OTHER] and "another process ended the intake process" in caplog.text


async def test_one_that_ends_by_itself_makes_the_request_one_that_may_be_the_cause(watched: Watched) -> None:
    with pytest.raises(GroupFailed, match="ended with exit code 7"):
        await watched.ask("exit")
    assert await watched.ask("a") == 1


async def test_tool_calls_that_cannot_be_parsed_in_time_are_text(watched: Watched) -> None:
    async with asyncio.timeout(60):
        assert (await watched.intake.parse_tools("", ("f",))).calls == ({"name": "f", "arguments": "{}"},)
        assert (await watched.intake.parse_tools("", ("f", "burn"))).unparsed == ("f", "burn")
    assert await watched.ask("a") == 1


async def test_a_renewed_intake_has_another_process_and_answers_on(watched: Watched) -> None:
    assert await watched.ask("a") == 1
    watched.intake.renew()
    assert await watched.ask("a b") == 2
    await until_async(lambda: len(watched.processes) == 2 and watched.processes[0].gone, "the first one has ended", 30)
    assert watched.causes == []


async def test_a_command_that_cannot_start_is_unavailable() -> None:
    for command in (["/nonexistent"], [sys.executable, "-c", "raise SystemExit(3)"]):
        intake = Intake(IntakeStarter(command).start)
        with pytest.raises(Unavailable, match="requests cannot be read now") as error:
            await intake.prepare("completion", b"{}", LIMITS)
        assert not isinstance(error.value, GroupFailed), "no process has seen the request"
        await intake.close()
        with pytest.raises(Unavailable, match="stopping"):
            await intake.prepare("completion", b"{}", LIMITS)


async def test_bodies_of_many_sizes_arrive_whole(watched: Watched) -> None:
    for size in (0, 1, 65_536, 1 << 20):
        with pytest.raises(ApiError, match="the prompt has"):
            await watched.ask("a " * (65 + size // 2))


async def test_a_start_that_is_cancelled_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def noted(*command: Any, **more: Any) -> asyncio.subprocess.Process:
        made.append(await create(*command, **more))
        return made[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    starting = asyncio.create_task(IntakeProcess.start(COMMAND))
    await until_async(lambda: made or starting.done(), "its process runs", 30, pause=0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert made[0].returncode is not None


async def test_a_process_that_works_for_clients_is_equal_to_other_programs(preferred: int) -> None:
    process = await IntakeProcess.start(COMMAND)
    try:
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == max(preferred, 0)
    finally:
        await process.end()


STOPPED = """
import asyncio, json, os, signal, sys
from thunderfleet_runner.api.intake import Intake
from thunderfleet_runner.host.intakeprocess import IntakeStarter
from thunderfleet_runner.intakeprotocol import ModelLimits

async def main():
    ended = []
    intake = Intake(IntakeStarter([sys.executable, sys.argv[1]]).start, ended.append)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    async def ask(prompt):
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1}).encode()
        limits = ModelLimits(model="m", vocabulary=0, context_tokens=64)
        return (await intake.prepare("completion", body, limits)).prompt.count
    counts = [await ask("a b")]
    os.killpg(0, signal.SIGTERM)
    counts.append(await ask("a"))
    print(counts, ended)
    await intake.close()

asyncio.run(main())
"""


def test_requests_that_run_while_a_pod_stops_keep_it() -> None:
    """A kubelet stops a pod with SIGTERM to the group of its main process."""
    command = [sys.executable, "-c", STOPPED, COMMAND[1]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True, check=False)
    assert (done.stdout, done.returncode) == ("[2, 1] []\n", 0), done.stderr


# --- what is wrong with it ---


def test_one_that_does_not_answer_is_named_while_it_hangs_and_a_moment_longer() -> None:
    now = 0.0
    health = IntakeHealth(lambda: now)
    health.asked()
    now = HUNG_SECONDS
    assert health.problem == ""
    now += 1
    assert health.problem == "it has not answered for 10 s"
    health.answered()
    now += CALM_SECONDS - 1
    assert health.problem == "it has not answered for 10 s", "one problem, not a new one with each request"
    now += 1
    assert health.problem == ""


def test_one_that_has_ended_is_named_until_another_works() -> None:
    now = 0.0
    health = IntakeHealth(lambda: now)
    health.asked()
    health.ended("it ended with signal 9")
    now = 10 * CALM_SECONDS
    assert health.problem == "it ended with signal 9"
    health.started()
    assert health.problem == ""


async def test_a_process_that_keeps_ending_is_one_problem(watched: Watched) -> None:
    for _ in range(2):
        with pytest.raises(Unavailable, match="ended with exit code 7"):
            await watched.ask("exit")
        assert watched.intake.problem == "it ended with exit code 7"
        assert await watched.ask("a") == 1
        assert watched.intake.problem == "it ended with exit code 7"
        watched.now += CALM_SECONDS - 1
    watched.now += 1
    assert watched.intake.problem == ""
    assert watched.causes == [Cause.OTHER] * 2


async def test_a_process_that_hangs_is_a_problem_before_its_request_fails(watched: Watched) -> None:
    assert await watched.ask("a") == 1
    asking = asyncio.create_task(watched.ask("pause"))

    def named() -> bool:
        # As much time as it takes, also if the question is not asked yet.
        watched.now += HUNG_SECONDS + 1
        return watched.intake.problem == "it has not answered for 10 s"

    await until_async(named, "it is named", 30)
    os.kill(watched.processes[0].pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="ended with signal 9"):
        await asking
    # Another one starts before anybody asks.
    await until_async(lambda: len(watched.processes) == 2, "another one has started", 30)
    watched.now += CALM_SECONDS
    await until_async(lambda: watched.intake.problem == "", "it works", 30)


async def test_too_expensive_a_request_is_no_problem_of_the_process(watched: Watched) -> None:
    with pytest.raises(ApiError):
        await watched.ask("burn")
    assert watched.intake.problem == ""


async def test_one_that_does_not_start_is_a_problem_that_lasts() -> None:
    now = 0.0
    causes: list[Cause] = []
    intake = Intake(IntakeStarter([sys.executable, "-c", "raise SystemExit(3)"]).start, causes.append, lambda: now)
    intake.renew()
    await until_async(lambda: intake.problem == "it ended with exit code 3", "the start has failed", 30)
    now = 10 * CALM_SECONDS
    assert intake.problem == "it ended with exit code 3"
    with pytest.raises(Unavailable, match="requests cannot be read now"):
        await intake.prepare("completion", b"{}", LIMITS)
    assert causes == [Cause.OTHER] * 2, "each start counts once"
    await intake.close()


BURNING = """
import sys, time
from thunderfleet_runner.intake import limits

def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

with limits.cpu(0.3):
    with limits.apart(30):
        burn(0.6)
    print("apart", flush=True)
    burn(float(sys.argv[1]))
print("done", flush=True)
"""


@pytest.mark.parametrize(("more", "said", "code"), [("0", "apart\ndone\n", 0), ("1", "apart\n", -signal.SIGPROF)])
def test_a_block_apart_does_not_count_and_does_not_end_the_limit(more: str, said: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", BURNING, more], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (said, code)
