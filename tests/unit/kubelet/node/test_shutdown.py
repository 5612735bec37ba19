"""The machine shuts down: how the kubelet knows, in which order pods end, and what they and the Node say."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_kubelet.cli import main
from thunderfleet_kubelet.config import Config, ConfigError
from thunderfleet_kubelet.configfile import parse
from thunderfleet_kubelet.node.commands import Commands
from thunderfleet_kubelet.node.shutdown import STATES, is_shutting_down
from thunderfleet_kubelet.pods import manager
from thunderfleet_kubelet.pods.decide import podspec

from tests.support.pods import World, sh, state

Json = dict[str, Any]
CRITICAL = {"priority": podspec.CRITICAL_PRIORITY}
PERIOD = 60.0
TRAPS = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


def command(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("notifyutil", "ps", "expected"),
    [
        ('echo "$2 0"', "echo /sbin/launchd", False),
        (f'case $2 in {STATES[0]}) echo "$2 1";; *) echo "$2 0";; esac', "echo /sbin/launchd", True),
        (f'case $2 in {STATES[1]}) echo "$2 7";; *) echo "$2 0";; esac', "echo /sbin/launchd", True),
        ('echo "$2 0"', "echo /sbin/launchd; echo /sbin/shutdown", True),
        ('echo "$2 0"', "echo /Applications/shutdown.app/Contents/MacOS/shutdown-helper", False),
        ("exit 1", "exit 1", False),
        ("echo garbage", "echo", False),
        ('echo "$2 -1"', "echo", False),
    ],
)
async def test_a_mac_shuts_down(tmp_path: Path, notifyutil: str, ps: str, expected: bool) -> None:
    command(tmp_path, "notifyutil", notifyutil)
    command(tmp_path, "ps", ps)
    assert await is_shutting_down(Commands([tmp_path]), mac=True) is expected


@pytest.mark.parametrize(
    ("script", "expected"), [("echo stopping; exit 1", True), ("echo running", False), ("echo degraded; exit 1", False)]
)
async def test_a_linux_machine_shuts_down(tmp_path: Path, script: str, expected: bool) -> None:
    command(tmp_path, "systemctl", script)
    assert await is_shutting_down(Commands([tmp_path]), mac=False) is expected


def test_the_part_of_critical_pods_is_within_the_whole() -> None:
    with pytest.raises(ConfigError, match="must be at most shutdownGracePeriodSeconds, 10"):
        parse("shutdownGracePeriodSeconds: 10\nshutdownGracePeriodCriticalPodsSeconds: 11", "kubelet.yaml")
    assert Config().shutdown_grace_period_seconds == 0


def test_launchd_waits_as_long_as_pods_may_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("shutdownGracePeriodSeconds: 90\n")
    assert main(["launchd-plist", "--config", str(tmp_path / "c.yaml")]) == 0
    assert "<key>ExitTimeOut</key>\n\t<integer>150</integer>" in capsys.readouterr().out
    (tmp_path / "c.yaml").write_text("shutdownGracePeriodSeconds: soon\n")
    assert main(["launchd-plist", "--config", str(tmp_path / "c.yaml")]) == 2
    assert "shutdownGracePeriodSeconds" in capsys.readouterr().err


async def test_critical_pods_end_last_and_all_have_failed(world: World) -> None:
    await world.boot()
    for name, spec in (("plain", {}), ("critical", CRITICAL)):
        world.api.add_pod(name, {"containers": [sh(TRAPS)], "restartPolicy": "Always", **spec})
        await world.phase(name, "Running")
    seen: list[tuple[str, str]] = []

    def note() -> None:
        for name in ("plain", "critical"):
            phase = (name, str(world.api.pod(name)["status"]["phase"]))
            if phase[1] == "Failed" and phase not in seen:
                seen.append(phase)
        world.managers[-1].sync(world.api.pods())

    world.api.on_change = note
    await world.managers[-1].shut_down(PERIOD, PERIOD / 2)
    assert seen == [("plain", "Failed"), ("critical", "Failed")]
    for name in ("plain", "critical"):
        status = world.api.pod(name)["status"]
        assert (status["reason"], status["message"]) == (podspec.SHUTDOWN_REASON, podspec.SHUTDOWN_MESSAGE)
        (disrupted,) = [one for one in status["conditions"] if one["type"] == "DisruptionTarget"]
        assert (disrupted["status"], disrupted["reason"]) == ("True", "TerminationByKubelet")
    assert world.processes() == []
    late = world.api.add_pod("late", {"containers": [sh("true")]})
    await world.phase("late", "Failed")
    assert world.api.pod("late")["status"]["reason"] == "NodeShutdown", late


async def test_a_pod_that_does_not_end_is_killed_in_time_and_keeps_its_exit_code(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.boot()
    monkeypatch.setattr(manager, "KILL_SECONDS", PERIOD - 1)
    stubborn = {
        "containers": [sh("trap '' TERM; echo up; while :; do sleep 0.05; done")],
        "terminationGracePeriodSeconds": 3600,
    }
    world.api.add_pod("stubborn", {**stubborn, "restartPolicy": "Always"})
    await world.phase("stubborn", "Running")
    async with asyncio.timeout(PERIOD):
        await world.managers[-1].shut_down(PERIOD, 0)
    status = await world.phase("stubborn", "Failed")
    assert state(status)["terminated"]["exitCode"] == 137 and status["reason"] == podspec.SHUTDOWN_REASON


async def test_sidecars_end_one_after_the_other_within_the_grace_of_their_pod(world: World) -> None:
    await world.boot()
    ends_late = "trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.05; done"
    hook = {"preStop": {"exec": {"command": ["sleep", "0.3"]}}}
    sidecars = [
        sh(TRAPS, restartPolicy="Always") | {"name": "first"},
        sh(ends_late, restartPolicy="Always", lifecycle=hook) | {"name": "second"},
    ]
    spec = {"initContainers": sidecars, "containers": [sh(ends_late)], "terminationGracePeriodSeconds": 3600}
    world.api.add_pod("one", spec)
    await world.phase("one", "Running")
    await world.managers[-1].shut_down(PERIOD, 0)
    assert (await world.phase("one", "Failed"))["reason"] == podspec.SHUTDOWN_REASON
    folder = world.folder("one")
    graces = [float((folder.attempt(name, 0) / "stop").read_text()) for name in ("main", "second", "first")]
    whole = PERIOD - manager.KILL_SECONDS
    assert whole / 2 < graces[0] <= whole
    # The time of the main container and of the hook, and then that of the second sidecar too.
    assert whole / 2 < graces[1] <= whole - 0.6 and whole / 2 < graces[2] <= graces[1] - 0.3


async def test_pods_that_end_while_the_api_server_is_away_do_not_hold_the_kubelet(world: World) -> None:
    await world.boot()
    world.api.add_pod("plain", {"containers": [sh("sleep 3600")], "restartPolicy": "Always"})
    await world.phase("plain", "Running")
    world.api.away = True
    await world.managers[-1].shut_down(4.0, 1.0)
    await world.until(lambda: not world.processes())
    world.api.away = False
    assert (await world.phase("plain", "Failed"))["reason"] == podspec.SHUTDOWN_REASON
