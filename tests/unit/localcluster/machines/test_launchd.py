"""The first process of a machine: it starts and ends jobs, adopts orphans, and no process outlives it."""

import json
import os
import selectors
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster.machines import descendants, launchctl, launchd
from thunderfleet_localcluster.machines.jobs import Jobs

from tests.support.processes import alive
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans have another parent elsewhere")


class Machine:
    """A launchd in loopback mode."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-s", launchd.__file__, "m", "loopback"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.event()["pid"] == self.process.pid

    def order(self, **order: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"env": {"PATH": os.defpath}, **order}).encode() + b"\n")
        self.process.stdin.flush()

    def event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        event: dict[str, Any] = json.loads(self.process.stdout.readline())
        return event


@pytest.fixture
def machine() -> Iterator[Machine]:
    one = Machine()
    yield one
    one.process.communicate(timeout=60)


def test_a_job_starts_and_ends(machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    machine.order(do="start", name="kubelet", argv=["sh", "-c", "echo hello; exit 3"], log=str(log))
    started = machine.event()
    assert (started["event"], started["name"]) == ("started", "kubelet")
    assert machine.event() == {"event": "exited", "name": "kubelet", "pid": started["pid"], "code": 3}
    assert log.read_text() == "hello\n"


def test_refusals_are_sentences(machine: Machine, tmp_path: Path) -> None:
    machine.order(do="start", name="kubelet", argv=["/no/such"], log=str(tmp_path / "log"))
    assert "cannot start /no/such" in machine.event()["reason"]
    machine.order(do="kill", name="kubelet", signal=9)
    assert machine.event()["reason"] == "kubelet is not running"
    machine.order(do="start", name="kubelet", argv=["sleep", "600"], log=str(tmp_path / "log"))
    pid = machine.event()["pid"]
    machine.order(do="start", name="kubelet", argv=["sleep", "600"], log=str(tmp_path / "log"))
    assert machine.event()["reason"] == f"kubelet is already running (process {pid})"


def test_a_command_with_input_and_output(machine: Machine) -> None:
    machine.order(do="run", id=7, argv=["sh", "-c", "cat; echo bad >&2; exit 5"], input="good", seconds=20)
    assert machine.event() == {"event": "ran", "id": 7, "code": 5, "stdout": "good", "stderr": "bad\n"}
    machine.order(do="run", id=8, argv=["/no/such"], seconds=20)
    assert machine.event()["code"] == 127


def test_a_command_that_hangs_is_ended(machine: Machine) -> None:
    machine.order(do="run", id=9, argv=["sleep", "600"], seconds=0.1)
    assert machine.event()["code"] == -9


def _orphan(machine: Machine, folder: Path) -> tuple[int, int]:
    """Process ids of a job and of a process that it left in another session, as a kubelet leaves its shims."""
    left = folder / "left"
    argv = ["sh", "-c", f"setsid sh -c 'echo $$ > {left}; exec sleep 600' & sleep 600"]
    machine.order(do="start", name="kubelet", argv=argv, log=str(folder / "log"))
    job = int(machine.event()["pid"])
    until(lambda: left.exists() and left.read_text().strip() != "", "the process that stays has written its pid", pause=0.01)
    return job, int(left.read_text())


def test_processes_left_by_a_killed_job_continue(machine: Machine, tmp_path: Path) -> None:
    job, left = _orphan(machine, tmp_path)
    machine.order(do="kill", name="kubelet", signal=9)
    assert machine.event()["code"] == -9
    assert not alive(job)
    assert alive(left)
    assert left in descendants.of(machine.process.pid)


def test_nothing_outlives_the_end_of_the_input(machine: Machine, tmp_path: Path) -> None:
    job, left = _orphan(machine, tmp_path)
    machine.process.communicate(timeout=60)
    assert not alive(job) and not alive(left)


def test_nothing_outlives_a_polite_end(machine: Machine, tmp_path: Path) -> None:
    job, left = _orphan(machine, tmp_path)
    machine.process.terminate()
    machine.process.wait(60)
    assert not alive(job) and not alive(left)


def test_ps_does_not_count_itself() -> None:
    """A machine that ends waits until it has no descendants."""
    table = descendants._parents_by_ps()
    assert table[os.getpid()] == os.getppid()
    assert os.getpid() not in table.values()


def test_launchctl_hands_its_arguments_to_launchd_and_prints_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launchctl, "ADDRESS", str(tmp_path / "launchd"))
    first = launchd.Launchd(True, Jobs(str(tmp_path), str(tmp_path / "disabled"), "/recorded/bin"))
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(first, "say", lambda **event: said.append(event))

    def call(*arguments: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a launchctl in another thread; this one is launchd."""
        codes: list[int] = []
        caller = threading.Thread(target=lambda: codes.append(launchctl.main(list(arguments))))
        caller.start()
        while caller.is_alive():
            for key, _ in watched.select(0.01):
                first.look(key, watched)
            if said:
                first.answer({"id": said.pop()["id"], "code": 4, "stdout": "two\nlines\n", "stderr": "é\n"})
        caller.join()
        return codes[0], *capsys.readouterr()

    with first.listen() as listener, selectors.DefaultSelector() as watched:
        watched.register(listener, selectors.EVENT_READ, "launchctl")
        code, output, errors = call("print", "system/no such")
        assert (code, output) == (113, "") and "no such" in errors
        assert call("print-disabled", "system") == (0, "\tdisabled services = {\n\t}\n", "")
        assert call()[0] == 64
        monkeypatch.setattr(struct, "unpack", lambda *_: (0, 0, 0))
        assert call("--network", "ifconfig", "", "é x\n") == (4, "two\nlines\n", "é\n")
        monkeypatch.setattr(struct, "unpack", lambda *_: (0, 501, 0))
        assert call("--network", "ifconfig") == launchd.NO_ROOT
    assert launchctl.arguments_of(launchctl.call_of(["ifconfig", "", "é x\n"])) == ["ifconfig", "", "é x\n"]
