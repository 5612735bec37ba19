"""The limit of GPU memory is set now and after each restart, with the launchd and the sysctl of a recorded Mac."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from thunderfleet_cli.doctor import limit
from thunderfleet_cli.doctor.limit import megabytes
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.mac import gpu_memory
from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, FailureKind, Output
from thunderfleet_localcluster.fleet.fault_state import FaultState
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.machines.jobs import Jobs
from thunderfleet_localcluster.recorded.folder import write_machine

from tests.support.waiting import until

FLEET = "machines:\n  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB}\n"


class Studio(BlockingHost):
    """A recorded Mac with its launchd."""

    def __init__(self, folder: Path) -> None:
        super().__init__([folder / "bin"])
        self.folder, self.layout = folder, HostLayout("0.1.0", daemons=folder / "LaunchDaemons")
        self.plan, self.faults = plan_layout(parse_fleet(FLEET), "namespaces"), FaultState()
        self.start()

    def start(self) -> None:
        now = self.faults.layout(self.plan)
        write_machine(now, now.machine("studio-1"), self.folder / "bin")
        self.jobs = Jobs(str(self.layout.daemons), str(self.folder / "disabled.json"), str(self.folder / "bin"))
        self.jobs.boot()
        self.jobs.tick()

    def restart(self) -> None:
        self.faults = self.faults.with_power("studio-1", False).with_power("studio-1", True)
        self.start()

    def run(self, argv: Sequence[str], seconds: float, stop: object = None, given: bytes = b"") -> Output | Failure:
        if argv[0] != "launchctl":
            return super().run(argv, seconds)
        reply = self.jobs.answer(list(argv[1:]), 0)
        self.jobs.tick()
        if reply.code:
            return Failure("launchctl", FailureKind.FAILED, "", reply.code, reply.stdout, reply.stderr)
        return Output("launchctl", reply.stdout)

    def ended(self) -> bool:
        """Whether what launchd has started has ended well."""
        for job in list(self.jobs.loaded.values()):
            if job.pid is not None:
                pid, status = os.waitpid(job.pid, os.WNOHANG)
                if not pid:
                    return False
                assert os.waitstatus_to_exitcode(status) == 0
                self.jobs.exited(pid, 0)
        return True

    def limit(self) -> int:
        """What sysctl shows when nothing of launchd runs any more."""
        until(self.ended, "the LaunchDaemon has ended")
        said = self.run(["sysctl", "-n", "iogpu.wired_limit_mb"], 5)
        assert isinstance(said, Output)
        return int(said.text)


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Studio:
    one = Studio(tmp_path)
    monkeypatch.setattr(limit, "BlockingHost", lambda: one)
    return one


def test_a_limit_outlives_a_restart_until_it_is_forgotten(studio: Studio) -> None:
    assert studio.limit() == 0 and not gpu_memory.is_kept(studio.layout)
    done = limit.put("80000", studio.layout)
    assert done.ran and studio.limit() == 80000 and gpu_memory.is_kept(studio.layout)
    studio.restart()
    assert studio.limit() == 80000
    assert limit.put("max", studio.layout).ran and studio.limit() == 88474
    studio.restart()
    assert studio.limit() == 88474
    assert limit.put("default", studio.layout).ran and studio.limit() == 0 and not gpu_memory.is_kept(studio.layout)
    assert gpu_memory.LABEL not in studio.jobs.loaded
    studio.restart()
    assert studio.limit() == 0


def test_a_limit_that_somebody_has_set_is_lost_when_the_mac_starts(studio: Studio) -> None:
    studio.run(["sysctl", "iogpu.wired_limit_mb=70000"], 5)
    assert studio.limit() == 70000 and not gpu_memory.forget(studio, studio.layout), "reset leaves what is not ours"
    assert studio.limit() == 70000
    assert limit.put("default", studio.layout).ran and studio.limit() == 0
    studio.run(["sysctl", "iogpu.wired_limit_mb=70000"], 5)
    studio.restart()
    assert studio.limit() == 0


def test_what_leaves_macos_too_little_or_is_refused_changes_nothing(studio: Studio) -> None:
    said = limit.put("97000", studio.layout)
    assert not said.ran and "97000 MB of 98304 MB leave macOS less than 4096 MB" in said.failure
    (studio.folder / "bin/sysctl").write_text("#!/bin/sh\n[ $1 = -n ] && { echo 0; echo 103079215104; exit; }\nexit 1\n")
    said = limit.put("80000", studio.layout)
    assert "the limit of GPU memory cannot be set" in said.failure and not gpu_memory.is_kept(studio.layout)


def test_values_of_the_option() -> None:
    assert [megabytes(text) for text in ("max", "default", "1024", "88000")] == ["max", "default", "1024", "88000"]
    for text in ("", "0", "1023", "-5", "88 GB", "9" * 30, "٤٠٠٠٠", "maximum"):
        with pytest.raises(ValueError, match=r"^"):
            megabytes(text)
