"""LaunchDaemons are started, replaced and ended with the launchctl of a recorded Mac, whose answers are those of macOS."""

import os
import plistlib
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.daemons import put_daemon, remove_daemon, why_not
from thunderfleet_controlplane.install.mac.launchctl import Launchctl
from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, FailureKind, Output
from thunderfleet_localcluster.machines.jobs import Jobs

from tests.support.processes import PROC
from tests.support.waiting import until

LABEL = "io.thunderfleet.example"


def ignores(pid: int, number: int) -> bool:
    """Whether process ``pid`` ignores a signal."""
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", (PROC / str(pid) / "status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


class Launchd(BlockingHost):
    """Hands calls of launchctl to a recorded launchd, and lets its time pass."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder / "LaunchDaemons"
        self.now = 0.0
        self.calls: list[str] = []
        self.jobs = Jobs(str(self.folder), str(folder / "disabled.json"), "", lambda: self.now)

    def run(self, argv: Sequence[str], seconds: float, stop: object = None, given: bytes = b"") -> Output | Failure:
        self._reap()
        self.calls.append(argv[1])
        reply = self.jobs.answer(list(argv[1:]), 0)
        command = " ".join(argv)
        if reply.code:
            return Failure(
                command, FailureKind.FAILED, f"exited with code {reply.code}", reply.code, reply.stdout, reply.stderr
            )
        return Output(command, reply.stdout)

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.jobs.tick()
        self._reap()

    def _reap(self) -> None:
        for job in list(self.jobs.loaded.values()):
            if job.pid is not None:
                # The time that a process takes to end once it was killed is not the recorded clock's.
                killed = job.leaving and (job.kill_at is None or not ignores(job.pid, signal.SIGTERM))
                pid, status = os.waitpid(job.pid, 0 if killed else os.WNOHANG)
                if pid:
                    self.jobs.exited(pid, os.waitstatus_to_exitcode(status))

    @property
    def pid(self) -> int | None:
        return self.jobs.loaded[LABEL].pid


@pytest.fixture
def launchd(tmp_path: Path) -> Iterator[Launchd]:
    one = Launchd(tmp_path)
    yield one
    for job in one.jobs.loaded.values():
        if job.pid is not None:
            os.killpg(job.pid, signal.SIGKILL)
            os.waitpid(job.pid, 0)


@pytest.fixture
def launchctl(launchd: Launchd) -> Launchctl:
    return Launchctl(launchd, lambda: launchd.now, launchd.pause)


STUBBORN = "trap '' TERM; touch {}; while :; do sleep 0.01; done"
"""Does not end at SIGTERM once its file exists."""


def text(script: str = "exec sleep 600", **keys: object) -> bytes:
    return plistlib.dumps({"Label": LABEL, "ProgramArguments": ["/bin/sh", "-c", script], "KeepAlive": True, **keys})


def test_a_daemon_is_started_once(launchd: Launchd, launchctl: Launchctl) -> None:
    path = launchd.folder / f"{LABEL}.plist"
    assert put_daemon(launchctl, path, LABEL, text(), 20)
    first = launchd.pid
    assert path.stat().st_mode & 0o777 == 0o644
    assert not put_daemon(launchctl, path, LABEL, text(), 20)
    assert launchd.pid == first


def test_a_changed_daemon_replaces_the_running_one(launchd: Launchd, launchctl: Launchctl) -> None:
    path = launchd.folder / f"{LABEL}.plist"
    put_daemon(launchctl, path, LABEL, text(), 20)
    first = launchd.pid
    assert put_daemon(launchctl, path, LABEL, text(ThrottleInterval=5), 20)
    assert launchd.pid not in (None, first)
    assert launchd.jobs.loaded[LABEL].spec["ThrottleInterval"] == 5


def test_a_daemon_that_ends_slowly_is_waited_for(launchd: Launchd, launchctl: Launchctl) -> None:
    """As long as the old one is there, launchd does not take the new one."""
    path = launchd.folder / f"{LABEL}.plist"
    ready = launchd.folder.parent / "ready"
    put_daemon(launchctl, path, LABEL, text(STUBBORN.format(ready), ExitTimeOut=7), 7)
    until(ready.exists, "it ignores SIGTERM", pause=0.01)
    assert put_daemon(launchctl, path, LABEL, text(), 7)
    assert launchd.now >= 7 and launchd.pid is not None


def test_the_time_of_a_start_is_after_the_end_of_the_former_process(launchd: Launchd, launchctl: Launchctl) -> None:
    """What the former process does until it ends is not taken for something that the new one has done."""
    path, folder = launchd.folder / f"{LABEL}.plist", launchd.folder.parent
    script = f"trap 'touch {folder}/ended; exit 0' TERM; touch {folder}/ready; while :; do sleep 0.01; done"
    put_daemon(launchctl, path, LABEL, text(script), 20)
    until((folder / "ready").exists, "it handles SIGTERM", pause=0.01)
    began = put_daemon(launchctl, path, LABEL, text(), 20)
    assert began is not None and began.timestamp() >= (folder / "ended").stat().st_mtime


def test_a_daemon_that_does_not_end_is_an_error(launchd: Launchd, launchctl: Launchctl) -> None:
    path = launchd.folder / f"{LABEL}.plist"
    ready = launchd.folder.parent / "ready"
    stubborn = text(STUBBORN.format(ready), ExitTimeOut=10_000)
    put_daemon(launchctl, path, LABEL, stubborn, 1)
    until(ready.exists, "it ignores SIGTERM", pause=0.01)
    with pytest.raises(InstallError, match="did not end within 21 s; run the same command again"):
        put_daemon(launchctl, path, LABEL, text(), 1)
    assert path.read_bytes() == stubborn, "it still runs"


def test_what_an_interruption_left_is_completed(launchd: Launchd, launchctl: Launchctl) -> None:
    path = launchd.folder / f"{LABEL}.plist"
    path.parent.mkdir()
    path.write_bytes(text())
    path.chmod(0o644)
    assert put_daemon(launchctl, path, LABEL, text(), 20), "written and not loaded"
    path.unlink()
    assert put_daemon(launchctl, path, LABEL, text(), 20), "loaded and not written"
    assert launchd.pid is not None and path.exists()


def test_a_disabled_daemon_is_enabled(launchd: Launchd, launchctl: Launchctl) -> None:
    launchd.jobs.answer(["disable", f"system/{LABEL}"], 0)
    assert put_daemon(launchctl, launchd.folder / f"{LABEL}.plist", LABEL, text(), 20)
    assert launchd.pid is not None
    assert launchd.calls.count("enable") == 1


def test_what_launchd_does_not_take_is_an_error(launchd: Launchd, launchctl: Launchctl) -> None:
    with pytest.raises(InstallError, match="launchd does not load"):
        put_daemon(launchctl, launchd.folder / f"{LABEL}.plist", LABEL, plistlib.dumps({"Label": LABEL}), 20)
    assert 30 <= launchd.now < 40


def test_removing_ends_the_daemon_and_its_file(launchd: Launchd, launchctl: Launchctl) -> None:
    path = launchd.folder / f"{LABEL}.plist"
    put_daemon(launchctl, path, LABEL, text(), 20)
    assert remove_daemon(launchctl, path, LABEL, 20)
    assert not path.exists() and LABEL not in launchd.jobs.loaded
    assert not remove_daemon(launchctl, path, LABEL, 20)


def test_a_daemon_that_fails_is_described(launchd: Launchd, launchctl: Launchctl, tmp_path: Path) -> None:
    layout = HostLayout("1", logs=tmp_path)
    log = layout.log("example")
    put_daemon(launchctl, launchd.folder / f"{LABEL}.plist", LABEL, text("echo too bad; exit 3", StandardOutPath=str(log)), 20)

    def ended() -> bool:
        launchd.run(["launchctl", "print", "system/x"], 1)
        return launchd.jobs.loaded[LABEL].last_exit is not None

    until(ended, "it has ended", pause=0.01)
    said = why_not(launchctl, layout, "example", LABEL)
    assert "state: spawn scheduled" in said and "last exit code: 3" in said and "too bad" in said
    assert "not loaded" in why_not(launchctl, layout, "other", "io.thunderfleet.other")


def test_a_missing_launchctl_is_an_error() -> None:
    class Nothing(BlockingHost):
        def run(self, argv: Sequence[str], seconds: float, stop: object = None, given: bytes = b"") -> Output | Failure:
            return Failure("launchctl", FailureKind.ABSENT, "does not exist")

    with pytest.raises(InstallError, match="cannot manage LaunchDaemons"):
        Launchctl(Nothing()).describe(LABEL)
