"""The nice values of processes that start."""

import os
import subprocess
from collections.abc import Iterator

import pytest
from thunderfleet_runner.host import priority

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process with a value below 0")


@pytest.fixture
def started(preferred: int) -> Iterator[int]:
    """A process group that was started with priority. This process has lost it meanwhile."""
    process = subprocess.Popen(["sleep", "600"], process_group=0)
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    assert _nice(process.pid) == preferred < priority.LOADED
    yield process.pid
    process.kill()
    process.wait()


def _nice(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


def test_a_process_that_was_started_before_its_parent_lost_priority_loses_it(started: int) -> None:
    priority.inherited(started)
    assert _nice(started) == 0


def test_a_process_keeps_the_priority_that_its_parent_has(started: int, preferred: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, preferred)
    priority.inherited(started)
    assert _nice(started) == preferred


def test_what_has_loaded_lets_others_come_first_and_what_is_ordinary_stays_so(preferred: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, preferred)
    priority.loaded()
    assert _nice(0) == priority.LOADED
    priority.ordinary()
    priority.loaded()
    assert _nice(0) == 0


def test_a_process_that_has_ended_is_no_error() -> None:
    process = subprocess.Popen(["true"], process_group=0)
    process.wait()
    priority.ordinary(process.pid)
    priority.inherited(process.pid)
