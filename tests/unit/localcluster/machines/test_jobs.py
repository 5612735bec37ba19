"""The launchd of a recorded Mac: what it does with property lists, as launchd.plist(5) and launchctl(1) say."""

import os
import plistlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster.machines.jobs import IN_PROGRESS, IO_ERROR, NO_PROCESS, NOT_FOUND, NOT_PERMITTED, Jobs

from tests.support.processes import alive
from tests.support.waiting import until

LABEL = "io.example.job"
TARGET = f"system/{LABEL}"


class Mac:
    """A system domain whose clock is set by hand; its processes are real."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "LaunchDaemons"
        self.folder.mkdir()
        self.overrides = folder / "disabled.json"
        self.now = 1000.0
        self.jobs = self.booted()

    def booted(self) -> Jobs:
        jobs = Jobs(str(self.folder), str(self.overrides), "/recorded/bin", lambda: self.now)
        jobs.boot()
        self.jobs = jobs
        return jobs

    def write(self, script: str, label: str = LABEL, **keys: Any) -> Path:
        path = self.folder / f"{label}.plist"
        path.write_bytes(plistlib.dumps({"Label": label, "ProgramArguments": ["/bin/sh", "-c", script], **keys}))
        path.chmod(0o644)
        return path

    def call(self, *arguments: str, user: int = 0) -> int:
        return self.jobs.answer(list(arguments), user).code

    def load(self, script: str, **keys: Any) -> None:
        assert self.call("bootstrap", "system", str(self.write(script, **keys))) == 0

    @property
    def pid(self) -> int | None:
        return self.jobs.loaded[LABEL].pid

    def reap(self, pid: int) -> int:
        """Wait for a process that ends, as launchd's loop does; returns its exit code."""

        def ended() -> tuple[int] | None:
            found, status = os.waitpid(pid, os.WNOHANG)
            return (os.waitstatus_to_exitcode(status),) if found else None

        (code,) = until(ended, "the process has ended", pause=0.01)
        self.jobs.exited(pid, code)
        return code

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.jobs.tick()


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[Mac]:
    one = Mac(tmp_path)
    yield one
    for job in one.jobs.loaded.values():
        if job.pid is not None:
            os.killpg(job.pid, signal.SIGKILL)
            os.waitpid(job.pid, 0)


def test_a_job_that_ends_starts_again_after_the_throttle_interval(mac: Mac) -> None:
    mac.load("exit 0", KeepAlive=True)
    first = mac.pid
    assert first is not None
    mac.pass_time(4)
    assert mac.reap(first) == 0
    assert mac.pid is None and mac.jobs.deadline() == pytest.approx(6)
    mac.pass_time(5.9)
    assert mac.pid is None
    mac.pass_time(0.2)
    assert mac.pid not in (None, first)
    mac.pass_time(30)
    again = mac.pid
    assert again is not None
    mac.reap(again)
    assert mac.pid is not None, "one that ran longer than the interval starts at once"


@pytest.mark.parametrize(
    ("keys", "code", "again"),
    [
        ({"RunAtLoad": True}, 1, False),
        ({"KeepAlive": {"SuccessfulExit": False}}, 1, True),
        ({"KeepAlive": {"SuccessfulExit": False}}, 0, False),
        ({"KeepAlive": {"SuccessfulExit": True}}, 0, True),
        ({"KeepAlive": {"Crashed": True}}, 1, False),
        ({"KeepAlive": {"Crashed": True}}, -9, True),
    ],
)
def test_what_starts_again(mac: Mac, keys: dict[str, Any], code: int, again: bool) -> None:
    mac.load("kill -9 $$" if code < 0 else f"exit {code}", **keys)
    pid = mac.pid
    assert pid is not None and mac.reap(pid) == code
    mac.pass_time(100)
    assert (mac.pid is not None) == again


def test_a_job_without_a_reason_to_run_waits_for_kickstart(mac: Mac) -> None:
    mac.load("exec sleep 600")
    assert mac.pid is None
    assert mac.call("kickstart", TARGET) == 0
    first = mac.pid
    assert first is not None
    assert mac.call("kickstart", TARGET) == 0 and mac.pid == first
    assert mac.call("kickstart", "system/io.example.other") == NOT_FOUND


def test_kickstart_k_starts_another_process_at_once(mac: Mac) -> None:
    mac.load("exec sleep 600", KeepAlive=True)
    first = mac.pid
    assert first is not None and mac.call("kickstart", "-k", TARGET) == 0
    assert mac.reap(first) == -signal.SIGKILL
    assert mac.pid not in (None, first)


def test_bootout_returns_before_the_job_has_ended(mac: Mac, tmp_path: Path) -> None:
    """Until then its label is taken, and launchd answers bootstrap with an input/output error."""
    ready = tmp_path / "ready"
    path = mac.write(f"trap '' TERM; touch {ready}; while :; do sleep 0.05; done", KeepAlive=True, ExitTimeOut=7)
    assert mac.call("bootstrap", "system", str(path)) == 0
    until(ready.exists, "it ignores SIGTERM", pause=0.01)
    pid = mac.pid
    assert pid is not None
    assert mac.call("bootout", TARGET) == 0
    assert mac.call("bootout", TARGET) == IN_PROGRESS
    assert mac.call("bootstrap", "system", str(path)) == IO_ERROR
    assert "state = SIGTERMed" in mac.jobs.answer(["print", TARGET], 0).stdout
    mac.pass_time(6.9)
    assert alive(pid)
    mac.pass_time(0.2)
    assert mac.reap(pid) == -signal.SIGKILL
    assert mac.call("print", TARGET) == NOT_FOUND
    assert mac.call("bootout", TARGET) == NO_PROCESS
    assert mac.call("bootstrap", "system", str(path)) == 0


@pytest.mark.parametrize("abandon", [False, True])
def test_the_process_group_ends_with_the_job_unless_it_is_abandoned(mac: Mac, tmp_path: Path, abandon: bool) -> None:
    left = tmp_path / "left"
    mac.load(f"sleep 600 & echo $! > {left}; exit 0", RunAtLoad=True, AbandonProcessGroup=abandon)
    pid = mac.pid
    assert pid is not None and mac.reap(pid) == 0
    child = int(left.read_text())
    if abandon:
        assert alive(child)
        os.kill(child, signal.SIGKILL)
    until(lambda: not alive(child), "the rest of the group has ended", pause=0.01)


def test_what_is_on_disk_starts_at_boot_and_disabled_jobs_do_not(mac: Mac) -> None:
    mac.write("exec sleep 600", RunAtLoad=True)
    mac.write("exec sleep 600", "io.example.off", RunAtLoad=True)
    assert mac.call("disable", "system/io.example.off") == 0
    mac.booted()
    assert mac.pid is not None and list(mac.jobs.loaded) == [LABEL]
    assert '"io.example.off" => disabled' in mac.jobs.answer(["print-disabled", "system"], 0).stdout
    path = str(mac.folder / "io.example.off.plist")
    assert mac.call("bootstrap", "system", path) == IO_ERROR
    assert mac.call("enable", "system/io.example.off") == 0
    assert mac.call("bootstrap", "system", path) == 0


def test_launchd_refuses_files_that_others_can_change(mac: Mac) -> None:
    path = mac.write("exec sleep 600", RunAtLoad=True)
    path.chmod(0o664)
    assert mac.call("bootstrap", "system", str(path)) == IO_ERROR
    mac.booted()
    assert not mac.jobs.loaded
    path.chmod(0o644)
    assert mac.call("bootstrap", "system", str(path)) == 0
    assert mac.call("bootstrap", "system", str(path)) == IO_ERROR, "it is loaded already"
    (mac.folder / "io.example.bad.plist").write_text("<plist>")
    assert mac.call("bootstrap", "system", str(mac.folder / "io.example.bad.plist")) == IO_ERROR


def test_only_root_changes_anything(mac: Mac) -> None:
    path = mac.write("exec sleep 600", RunAtLoad=True)
    assert mac.call("bootstrap", "system", str(path), user=501) == NOT_PERMITTED
    assert mac.call("bootstrap", "system", str(path)) == 0
    for command in (["bootout", TARGET], ["kickstart", "-k", TARGET], ["disable", TARGET], ["kill", "TERM", TARGET]):
        assert mac.jobs.answer(command, 501).code == NOT_PERMITTED
    assert mac.call("print", TARGET, user=501) == 0
    assert mac.call("kill", "SIGTERM", TARGET) == 0
    pid = mac.pid
    assert pid is not None and mac.reap(pid) == -signal.SIGTERM


def test_a_job_gets_what_its_property_list_says(mac: Mac, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("kept\n")
    mac.load(
        "echo $PATH; echo $A; pwd; ulimit -n; umask; nice; echo bad >&2",
        RunAtLoad=True,
        EnvironmentVariables={"A": "b c"},
        WorkingDirectory="/tmp",
        StandardOutPath=str(log),
        StandardErrorPath=str(log),
        SoftResourceLimits={"NumberOfFiles": 77},
        Umask=0o027,
        Nice=17,
    )
    pid = mac.pid
    assert pid is not None and mac.reap(pid) == 0
    path = "/recorded/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    assert log.read_text().splitlines() == ["kept", path, "b c", "/tmp", "77", "0027", "17", "bad"]


def test_a_program_that_does_not_exist_is_tried_again(mac: Mac) -> None:
    path = mac.folder / f"{LABEL}.plist"
    path.write_bytes(plistlib.dumps({"Label": LABEL, "ProgramArguments": ["/no/such"], "KeepAlive": True}))
    path.chmod(0o644)
    assert mac.call("bootstrap", "system", str(path)) == 0
    shown = mac.jobs.answer(["print", TARGET], 0).stdout
    assert "last exit code = 78" in shown and "state = spawn scheduled" in shown
    mac.pass_time(11)
    assert "runs = 2" in mac.jobs.answer(["print", TARGET], 0).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_job_runs_as_its_account(mac: Mac, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    log = tmp_path / "log"
    log.touch()
    mac.load("id -un; echo $USER", RunAtLoad=True, UserName="daemon", StandardOutPath=str(log))
    pid = mac.pid
    assert pid is not None and mac.reap(pid) == 0
    assert log.read_text().split() == ["daemon", "daemon"]
