"""A rank ends with its supervisor, also while MLX holds its interpreter and no thread of it sees anything."""

import asyncio
import os
import signal
import sys

from tests.support.processes import alive, with_variable
from tests.support.waiting import until_async

MARK = "THUNDERFLEET_TESTS_PARENT_DEATH"
CHILD = """
import os, signal, sys
from thunderfleet_runner.host.parentdeath import die_with
die_with(int(sys.argv[1]))
print(os.getpid(), flush=True)
if sys.argv[2] == "stay":
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.sigwait([signal.SIGUSR1])
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), "stay"], process_group=0)
child.wait()
"""


async def test_a_process_that_reacts_to_nothing_ends_with_its_parent() -> None:
    mark = f"{MARK}={os.getpid()}-stay"
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, CHILD, stdout=asyncio.subprocess.PIPE, env=_marked(mark)
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    try:
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        await until_async(lambda: not alive(child) and not with_variable(mark))
    finally:
        for pid in with_variable(mark):
            os.kill(pid, signal.SIGKILL)


async def test_nothing_stays_when_the_process_ends_first() -> None:
    mark = f"{MARK}={os.getpid()}-go"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(os.getpid()), "go", stdout=asyncio.subprocess.PIPE, env=_marked(mark)
    )
    # Ends when all holders of its output have closed it.
    output, _ = await child.communicate()
    assert int(output) == child.pid
    await until_async(lambda: not with_variable(mark))


async def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(os.getppid()), "go", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    assert (output, child.returncode) == (b"", 1)


def _marked(mark: str) -> dict[str, str]:
    name, _, value = mark.partition("=")
    return {**os.environ, name: value}
