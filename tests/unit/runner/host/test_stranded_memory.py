"""Memory after kills, with the figures of a Mac."""

import os
import signal
from collections.abc import Callable
from typing import Any

from thunderfleet_crds.vocabulary import FaultClass, GroupPhase
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.recorded.folder import texts
from thunderfleet_runner.host import memory, wired_memory
from thunderfleet_runner.host.wired_memory import Ledger, MemoryState

GIB = 1 << 30


def test_memory_that_comes_back_in_time_is_no_fault() -> None:
    ledger = Ledger().started(8 * GIB).killed(100.0)
    assert ledger.state(101.0, 400 * GIB, 400 * GIB) is MemoryState.WAIT
    assert ledger.state(129.0, 400 * GIB, 400 * GIB) is MemoryState.WAIT
    # Other programs may have wired an eighth of the reservation in the meantime.
    assert ledger.state(110.0, 58 * GIB, 400 * GIB) is MemoryState.FREE
    assert ledger.settled().state(200.0, 400 * GIB, 400 * GIB) is MemoryState.FREE


def test_memory_that_stays_away_asks_for_a_reboot() -> None:
    ledger = Ledger().started(8 * GIB).killed(100.0)
    assert ledger.state(130.0, 422 * GIB, 414 * GIB) is MemoryState.STRANDED
    fault = wired_memory.stranded("studio-1", 8 * GIB, 422 * GIB)
    assert fault.fault is FaultClass.REBOOT
    assert "414.0 GiB on studio-1" in fault.message


def test_what_cannot_be_read_is_no_fault() -> None:
    assert Ledger().killed(100.0).state(200.0, 1, 1) is MemoryState.FREE
    assert Ledger().started(1).killed(100.0).state(200.0, None, 1) is MemoryState.FREE


def test_two_kills_within_an_hour_hold_the_group() -> None:
    once = Ledger().killed(0.0)
    assert once.hold_seconds(1.0) == 0
    twice = once.killed(600.0)
    assert twice.hold_seconds(601.0) == 2999
    assert twice.hold_seconds(3600.0) == 0
    assert once.killed(4000.0).hold_seconds(4001.0) == 0


def test_vm_stat_as_a_mac_prints_it() -> None:
    layout = plan_layout(parse_fleet("machines: [{name: a, model: Mac Studio (M3 Ultra), memory: 96 GB}]\n"), "namespaces")
    text = texts(layout, layout.machine("a"))["vm_stat"]
    wired = memory.wired_of_vm_stat(text)
    assert wired is not None and 0 < wired < 96 * GIB
    assert memory.wired_of_vm_stat("nothing") is None


async def test_a_group_on_a_mac_that_keeps_memory_gives_up_with_the_reason(
    make_group: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(wired_memory, "BACK_SECONDS", 0.5)
    group = make_group(1)
    wired = [2 * GIB]
    leader = group.start(0, wired=lambda: wired[0])
    await group.until_ready()
    wired[0] = 60 * GIB
    os.kill(leader.member.pid, signal.SIGKILL)
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the leader gives up")
    assert (leader.state.failure.fault, leader.state.failure.reason) == (FaultClass.REBOOT, "MemoryStranded")


async def test_a_second_kill_holds_the_group(make_group: Callable[..., Any]) -> None:
    group = make_group(1)
    leader = group.start(0, wired=lambda: 2 * GIB)
    for _ in range(wired_memory.KILLS):
        await group.until_ready()
        os.kill(leader.member.pid, signal.SIGKILL)
        await group.until(lambda: leader.state.phase is not GroupPhase.READY, "the kill is noticed")
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the group waits")
    assert leader.state.failure.reason == "KilledTooOften"
    assert "60 min" in leader.state.failure.message
