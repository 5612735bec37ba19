"""One fault of RDMA has one reason in the agent, the operator and the runner: each looks at the same recorded Macs.

For a new rule, add to ``SHOWN`` how a Mac's commands show its fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from thunderfleet_agent.derive.links import PeerPort, link_reports
from thunderfleet_agent.derive.profile import profile
from thunderfleet_agent.inspection.problems import rdma_fault
from thunderfleet_agent.observe.collector import Collector
from thunderfleet_crds.kinds.nodeprofile import NodeProfile, NodeProfileStatus
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink, ThunderboltLinkStatus
from thunderfleet_crds.meta.apimodel import ObjectMeta
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, Host, Output, Stop
from thunderfleet_lib.rdma import rules
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.recorded.folder import write_machine
from thunderfleet_operator.decide.link_status import summary
from thunderfleet_runner.host import rdma

from tests.unit.lib.conftest import Commands

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MAC = "model: Mac Studio (M3 Ultra), memory: 96 GB"
DEVICE = "rdma_en2"
HANG_SECONDS = 1.0
ANSWER_SECONDS = 120.0


class Limits:
    """A short limit for the command that hangs, and a long one for those that answer: this machine may be busy."""

    def __init__(self, hangs: str) -> None:
        self._hangs = hangs

    def seconds(self, argv: Sequence[str]) -> float:
        return HANG_SECONDS if argv[0] == self._hangs else ANSWER_SECONDS


class AgentHost(Host):
    """The agent's, with other limits."""

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__((path,))
        self._limits = limits

    async def run(self, argv: Sequence[str], seconds: float, given: bytes = b"") -> Output | Failure:
        return await super().run(argv, self._limits.seconds(argv), given)


class RunnerHost(BlockingHost):
    """The runner's, with other limits."""

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__((path,))
        self._limits = limits

    def run(self, argv: Sequence[str], seconds: float, stop: Stop | None = None, given: bytes = b"") -> Output | Failure:
        return super().run(argv, self._limits.seconds(argv), stop, given)


class Reasons(NamedTuple):
    """The reason that each program reports for the first Mac or its port; None: RDMA works."""

    node_profile: Reason | None
    """The agent, ``derive/rdma_ready``."""
    inspect: Reason | None
    """The agent, ``inspection/problems``."""
    thunderbolt_link: Reason | None
    """The operator, ``decide/link_status``."""
    preflight: Reason | None
    """The runner, ``host/rdma``."""

    @classmethod
    def all(cls, reason: Reason | None) -> Reasons:
        """The same in every program."""
        return cls(*(reason for _ in cls._fields))


class Pair:
    """Two recorded Macs with one cable; the first is called a. ``hangs``: a command that gets a short limit."""

    def __init__(self, folder: Path, one: str = "rdma: true", hangs: str = "") -> None:
        self._limits = Limits(hangs)
        fleet = parse_fleet(
            f"machines:\n  - {{name: a, {MAC}, {one}}}\n  - {{name: b, {MAC}, rdma: true}}\n"
            "cables:\n  - {a: 'a:1', b: 'b:1', speed: '80'}\n"
        )
        layout = plan_layout(fleet, "namespaces")
        self.folders = {name: folder / name / "bin" for name in "ab"}
        for name, bin_ in self.folders.items():
            bin_.parent.mkdir()
            write_machine(layout, layout.machine(name), bin_)
        self.commands = Commands(self.folders["a"])

    def edit(self, replace: Callable[[str], str], *names: str) -> None:
        """Changes what commands of the first Mac print."""
        for path in (self.folders["a"].parent / "recorded").iterdir():
            if path.name.startswith(names):
                path.write_text(replace(path.read_text()))

    async def _status(self, name: str) -> NodeProfileStatus:
        collector = Collector(AgentHost(self.folders[name], self._limits))
        await asyncio.gather(collector.fast(), collector.slow())
        return profile(collector.facts, NOW).status

    async def reasons(self) -> Reasons:
        """What each program reports."""
        statuses = {name: await self._status(name) for name in "ab"}
        (link,) = self._links(statuses)
        profiles = {name: NodeProfile(metadata=ObjectMeta(name=name), status=status) for name, status in statuses.items()}
        usable = Reason(summary(link, profiles, NOW)["rdma"])
        found = statuses["a"].rdma
        assert found is not None and found.state is not None
        fault = await asyncio.to_thread(rdma.check, RunnerHost(self.folders["a"], self._limits), "a", (DEVICE,))
        if fault is not None:
            assert fault.fault is rules.FAULT_CLASS[Reason(fault.reason)]
        thunderbolt = statuses["a"].thunderbolt
        assert thunderbolt is not None
        port = next(port for port in thunderbolt.ports if port.peers)
        inspected = rdma_fault(port, statuses["a"])
        return Reasons(
            node_profile=None if found.state == Reason.READY else Reason(found.state),
            inspect=None if inspected is None else inspected[0],
            thunderbolt_link=None if usable is Reason.USABLE else usable,
            preflight=None if fault is None else Reason(fault.reason),
        )

    def _links(self, statuses: dict[str, NodeProfileStatus]) -> list[ThunderboltLink]:
        ports = {
            port.domain_uuid.lower(): PeerPort(name, port.receptacle)
            for name, status in statuses.items()
            for port in (status.thunderbolt.ports if status.thunderbolt else ())
            if port.domain_uuid
        }
        ends = [cable for name, status in statuses.items() for cable in link_reports(name, status, ports)]
        return [
            ThunderboltLink(
                metadata=ObjectMeta(name=name),
                spec=next(end.spec for end in ends if end.name == name),
                status=ThunderboltLinkStatus(endpoints=tuple(end.endpoint for end in ends if end.name == name)),
            )
            for name in dict.fromkeys(end.name for end in ends)
        ]


@dataclass(frozen=True)
class Shown:
    """How a fault shows on the first Mac of a pair: its settings in the fleet file, or what its commands print instead."""

    settings: str = "rdma: true"
    change: Callable[[Pair], None] = lambda pair: None
    hangs: str = ""
    """A command that gets a short limit, because ``change`` makes it hang."""


def _without_lines(word: str, *commands: str) -> Callable[[Pair], None]:
    """The commands print no line with this word."""

    def edited(text: str) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if word not in line)

    return lambda pair: pair.edit(edited, *commands)


def _absent(*commands: str) -> Callable[[Pair], None]:
    """The Mac has no such commands."""

    def change(pair: Pair) -> None:
        for command in commands:
            (pair.folders["a"] / command).unlink()

    return change


SHOWN = {
    Reason.STACK_HUNG: Shown(change=lambda pair: pair.commands.script("ibv_devinfo", "exec sleep 600"), hangs="ibv_devinfo"),
    Reason.RDMA_UNSUPPORTED: Shown(change=_absent("rdma_ctl", "ibv_devices", "ibv_devinfo")),
    Reason.RDMA_DISABLED: Shown("rdma: false"),
    Reason.NO_DEVICES: Shown(change=_without_lines("rdma_", "ibv_devices")),
    # The Mac has other ports, on which nothing is plugged in; the cable and the rank need this one.
    Reason.DEVICE_MISSING: Shown(change=_without_lines(DEVICE, "ibv_devices")),
    Reason.BRIDGE_MEMBER: Shown("rdma: true, bridge: [1]"),
    Reason.PORT_DOWN: Shown(
        change=lambda pair: pair.edit(lambda text: text.replace("PORT_ACTIVE (4)", "PORT_DOWN (1)"), "ibv_devinfo")
    ),
    Reason.NO_IPV4_ADDRESS: Shown(change=_without_lines("::ffff:", "ibv_devinfo")),
}


async def test_a_sound_cable_works_for_all(tmp_path: Path) -> None:
    assert await Pair(tmp_path).reasons() == Reasons.all(None)


@pytest.mark.parametrize("reason", [rule.reason for rule in (*rules.STACK_RULES, *rules.PORT_RULES)])
async def test_all_programs_report_the_reason_of_the_rule(tmp_path: Path, reason: Reason) -> None:
    assert reason in SHOWN, f"add to SHOWN how a Mac's commands show {reason}"
    shown = SHOWN[reason]
    pair = Pair(tmp_path, shown.settings, shown.hangs)
    shown.change(pair)
    assert await pair.reasons() == Reasons.all(reason), "see lib/thunderfleet_lib/rdma/rules.py on how to add a rule"
