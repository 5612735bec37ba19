"""The kubelet keeps Thunderbolt ports out of bridges: its clocks, its Events, and the addresses of cables."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, cast

import pytest
from thunderfleet_kubelet.node import ports
from thunderfleet_kubelet.node.ports import ThunderboltPorts, Wanted, cable_addresses
from thunderfleet_lib.host.hostcmd import BlockingHost
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_lib.macnet.subnets import DEFAULT_NETWORK, cable_address

from tests.support.network.mac_network import BRIDGED, SERVER, Mac, persistent


def link(one: tuple[str, int], other: tuple[str, int], seen: bool = True, by: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
    """A ThunderboltLink, of which the agents of the Macs ``by`` report their ends."""
    ends = {"a": {"node": one[0], "port": one[1]}, "b": {"node": other[0], "port": other[1]}}
    endpoints = [{**end, "seesPeer": seen} for end in ends.values() if end["node"] in by]
    name = f"{one[0]}.tb{one[1]}--{other[0]}.tb{other[1]}"
    return {"metadata": {"name": name}, "spec": ends, "status": {"endpoints": endpoints}}


LINK = link(("a", 1), ("b", 2))


class Api:
    """An API server that answers while the Mac reaches it."""

    def __init__(self, mac: Mac, links: list[Any]) -> None:
        self.mac, self.links, self.up = mac, links, True
        self.selectors: list[object] = []

    async def list(self, path: str, **query: object) -> tuple[list[Any], str]:
        self.selectors.append(query.get("fieldSelector"))
        await self.request("GET", path)
        return self.links, "1"

    async def request(self, method: str, path: str, seconds: float = 0) -> dict[str, Any]:
        if not (self.up and self.mac.reached()):
            raise ApiError(0, "Unreachable", "cannot reach it")
        return {}

    async def reconnect(self) -> None:
        return


class Run:
    """The kubelet's part, on a clock of its own. It ends when nothing has happened for a while."""

    def __init__(self, mac: Mac, folder: Path, links: list[Any], managed: bool = True) -> None:
        self.mac, self.now, self.quiet = mac, 0.0, 0
        self.api = Api(mac, links)
        self.events: list[tuple[str, str]] = []
        wanted = Wanted("a", lambda: SERVER, managed, DEFAULT_NETWORK)
        self.ports = ThunderboltPorts(
            wanted,
            cast(BlockingHost, mac),
            folder,
            lambda: self.now,
            self.sleep,
        )
        self.attach()
        self.each: Callable[[], Awaitable[None]] | None = None

    def attach(self) -> None:
        self.ports.attach(lambda: cast(Kube, self.api), lambda reason, message, kind: self.events.append((reason, kind)))

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.quiet = self.quiet + 1 if seconds >= ports.POLL_SECONDS else 0
        if self.quiet > 3:
            raise asyncio.CancelledError

    def __call__(self) -> None:
        async def run() -> None:
            try:
                await self.ports.run()
            except asyncio.CancelledError:
                return

        self.quiet = 0
        asyncio.run(run())


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_ports_leave_the_bridge_with_the_address_of_their_cable(tmp_path: Path) -> None:
    mac = Mac("1, 2", cables=1)
    run = Run(mac, tmp_path, [LINK])
    run()
    assert mac.settings.members == () and mac.address(1) == cable_address(DEFAULT_NETWORK, ("a", 1), ("b", 2))
    assert run.events == [("ThunderboltPortsSeparated", "Normal")]
    assert set(run.api.selectors) == {"spec.a.node=a", "spec.b.node=a"}, "its own only"


class Booted:
    """The kubelet of a Mac that boots while its only network is a cable: it waits for an address until the port has one.

    ``seconds``: for how long it waits at least.
    """

    def __init__(self, mac: Mac, folder: Path, seconds: float = 0) -> None:
        self.seconds = seconds
        self.run, self.found = Run(mac, folder, [LINK]), asyncio.Event()
        self.run.ports = ThunderboltPorts(
            Wanted("a", lambda: SERVER, True, DEFAULT_NETWORK),
            cast(BlockingHost, mac),
            folder,
            lambda: self.run.now,
            self.sleep,
        )

    async def sleep(self, seconds: float) -> None:
        self.run.now += seconds
        if (self.run.mac.address(1) is not None and self.run.now >= self.seconds) or self.run.now > 120:
            self.found.set()

    def __call__(self) -> None:
        asyncio.run(self.run.ports.run(self.found))


def test_after_a_boot_the_port_of_the_only_cable_gets_its_address_without_an_api_server(tmp_path: Path) -> None:
    mac = Mac("1, 2", cables=1, route="bridge0")
    Run(mac, tmp_path, [LINK])()
    assert mac.address(1) == BRIDGED
    mac.restart()
    assert mac.settings.members and not mac.reached(), "the ports are in a bridge that has no address"
    booted = Booted(mac, tmp_path)
    booted()
    assert mac.address(1) == BRIDGED and mac.reached() and booted.run.now < 10
    booted.run.attach()
    booted.run.ports._sleep = booted.run.sleep
    booted.run()
    assert mac.settings.members == () and booted.run.events == []


def test_a_switch_that_a_boot_interrupted_is_undone_without_an_api_server(tmp_path: Path) -> None:
    mac = Mac("1, 2", cables=1, route="bridge0", shown="en0")
    run = Run(mac, tmp_path, [LINK])

    async def power_off(seconds: float) -> None:
        run.now += seconds
        if run.ports._keeper.record.trial:
            raise asyncio.CancelledError

    run.ports._sleep = power_off
    run()
    mac.restart()
    assert mac.settings.members == ("en2", "en3")
    booted = Booted(mac, tmp_path, 60)
    booted()
    assert persistent(mac.settings) == persistent(mac.start)
    booted.run.attach()
    booted.run.ports._sleep = booted.run.sleep
    booted.run()
    assert ("ThunderboltPortsRestored", "Warning") in booted.run.events, "reported once there is an API server"


def test_an_unknown_cable_is_waited_for_and_then_gets_an_automatic_address(tmp_path: Path) -> None:
    mac = Mac("1", cables=1)
    run = Run(mac, tmp_path, [])
    run()
    assert mac.settings.members == () and str(mac.address(1)).startswith("169.254.")
    assert run.now >= ports.CABLE_SECONDS
    run.api.links = [LINK]
    run()
    assert mac.address(1) == cable_address(DEFAULT_NETWORK, ("a", 1), ("b", 2)), "known later"
    run.api.links = []
    run()
    assert mac.address(1) == cable_address(DEFAULT_NETWORK, ("a", 1), ("b", 2)), "an unplugged cable keeps its address"


def test_a_lost_api_server_puts_them_back_after_half_a_minute(tmp_path: Path) -> None:
    mac = Mac("1, 2", cables=2, route="bridge0", shown="en0")
    run = Run(mac, tmp_path, [LINK])
    run()
    assert persistent(mac.settings) == persistent(mac.start)
    assert run.events == [("ThunderboltPortsRestored", "Warning"), ("ThunderboltPortsNotSeparated", "Warning")]


def test_an_api_server_that_is_down_begins_nothing(tmp_path: Path) -> None:
    mac = Mac("1")
    run = Run(mac, tmp_path, [LINK])
    run.api.up = False

    async def sleep(seconds: float) -> None:
        run.now += seconds
        if run.now > 600:
            raise asyncio.CancelledError

    run.ports._sleep = sleep
    run()
    assert mac.settings.members == ("en2",) and run.events == []


def test_unmanaged_ports_are_put_back_and_then_left_alone(tmp_path: Path) -> None:
    mac = Mac("1, 2", cables=1)
    Run(mac, tmp_path, [LINK])()
    again = Run(mac, tmp_path, [LINK], managed=False)
    again()
    assert persistent(mac.settings) == persistent(mac.start)
    assert again.events == [("ThunderboltPortsRestored", "Normal")] and again.api.selectors == []
    assert list(tmp_path.iterdir()) == []


def test_who_is_not_root_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    mac = Mac("1")
    Run(mac, tmp_path, [LINK])()
    assert mac.done == []


def test_the_first_cable_of_a_port_by_name_counts() -> None:
    second = link(("a", 1), ("c", 1), by=("a",))
    gone = link(("a", 1), ("ab", 1))
    gone["metadata"]["deletionTimestamp"] = "now"
    network = IPv4Network("172.20.0.0/16")
    found = cable_addresses([second, gone, LINK], "a", network)
    assert found == {"Thunderbolt 1": cable_address(network, ("a", 1), ("b", 2))}
    assert cable_addresses([LINK], "b", network) == {"Thunderbolt 2": cable_address(network, ("b", 2), ("a", 1))}
    assert cable_addresses([LINK], "z", network) == {}


def test_a_link_that_only_another_mac_reports_changes_nothing() -> None:
    forged = link(("a", 1), ("b", 1), by=("b",))
    assert cable_addresses([forged], "a", DEFAULT_NETWORK) == {}
    echoed = link(("a", 1), ("aa", 1), seen=False)
    found = cable_addresses([echoed, LINK], "a", DEFAULT_NETWORK)
    assert found == cable_addresses([LINK], "a", DEFAULT_NETWORK), "what this Mac's agent sees itself comes first"
    assert cable_addresses([echoed], "a", DEFAULT_NETWORK), "a display may hide the other Mac"
