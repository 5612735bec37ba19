"""RDMA preflight against what recorded Macs print, and against commands that misbehave."""

import os
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.vocabulary import FaultClass
from thunderfleet_lib.host.hostcmd import BlockingHost
from thunderfleet_lib.rdma import parse, rules
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.recorded.folder import write_machine
from thunderfleet_runner.host import rdma

MAC = "model: Mac Studio (M3 Ultra), memory: 96 GB"


def record(folder: Path, monkeypatch: pytest.MonkeyPatch, one: str = "rdma: true", speed: str = "80") -> None:
    """Puts the commands of the first of two Macs on PATH."""
    fleet = parse_fleet(
        f"machines:\n  - {{name: a, {MAC}, {one}}}\n  - {{name: b, {MAC}, rdma: true}}\n"
        f"cables:\n  - {{a: 'a:1', b: 'b:1', speed: '{speed}'}}\n"
    )
    layout = plan_layout(fleet, "namespaces")
    write_machine(layout, layout.machine("a"), folder / "bin")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def device(folder: Path) -> str:
    """The device of the port with the cable."""
    return parse.parse_devices((folder / "recorded" / "ibv_devices").read_text())[0]


def command(folder: Path, name: str, body: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_an_active_device_with_an_address_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch)
    assert rdma.check(BlockingHost(), "a", (device(tmp_path),)) is None


def found(fault: Any) -> tuple[FaultClass, str]:
    assert fault is not None
    return fault.fault, fault.reason


def test_rdma_that_is_off_is_for_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, "rdma: false")
    fault = rdma.check(BlockingHost(), "a", ("rdma_en2",))
    assert found(fault) == (FaultClass.CONFIGURE, "RDMADisabled")
    assert fault is not None and "rdma_ctl enable" in fault.message


def test_a_port_in_a_bridge_names_what_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, "rdma: true, bridge: [1]")
    fault = rdma.check(BlockingHost(), "a", (device(tmp_path),))
    assert found(fault) == (FaultClass.CONFIGURE, "BridgeMember")
    assert fault is not None and "`sudo thunderfleet doctor --fix` on a" in fault.message


def test_devices_that_are_not_there_or_down_need_another_placement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, speed="40")
    assert found(rdma.check(BlockingHost(), "a", (device(tmp_path),))) == (FaultClass.REPLAN, "PortDown")
    assert found(rdma.check(BlockingHost(), "a", ("rdma_en99",))) == (FaultClass.REPLAN, "DeviceMissing")


def test_a_device_without_an_ipv4_address_is_for_a_person() -> None:
    name = "rdma_en2"
    reading = rdma.Reading(rules.Stack(), (name,), {name: parse.DeviceInfo(name, "PORT_ACTIVE")})
    assert found(rdma.judge("a", (name,), reading)) == (FaultClass.CONFIGURE, "NoIPv4Address")


def test_commands_that_are_missing_hang_or_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch)
    name = device(tmp_path)
    command(tmp_path, "ibv_devinfo", "exec sleep 60")
    monkeypatch.setattr(rdma, "SECONDS", 0.5)
    fault = rdma.check(BlockingHost(), "a", (name,))
    assert found(fault) == (FaultClass.REBOOT, "StackHung")
    assert fault is not None and "`ibv_devinfo -v` did not answer within 0.5 s" in fault.message
    monkeypatch.undo()
    record(tmp_path, monkeypatch)
    command(tmp_path, "ibv_devinfo", "echo broken >&2; exit 3")
    fault = rdma.check(BlockingHost(), "a", (name,))
    assert found(fault) == (FaultClass.RETRY, "CommandFailed")
    assert fault is not None and "broken" in fault.message
    monkeypatch.setenv("PATH", "/nonexistent")
    assert found(rdma.check(BlockingHost(), "a", (name,))) == (FaultClass.CONFIGURE, "RDMAUnsupported")
