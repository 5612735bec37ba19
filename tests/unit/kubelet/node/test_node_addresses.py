"""The machine's address: where it is read, when a change counts, and what waits while there is none."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from thunderfleet_kubelet.node import addresses
from thunderfleet_kubelet.node.addresses import AddressReader, NodeAddresses, Reading, balanced_servers
from thunderfleet_kubelet.node.commands import Commands
from thunderfleet_lib.host.interfaces import inet_addresses, route_interface

from tests.support.waiting import until_async

ROUTE = """   route to: default
destination: default
       mask: default
    gateway: 192.168.64.1
  interface: {interface}
      flags: <UP,GATEWAY,DONE,STATIC,PRCLONING,GLOBAL>
"""
EN0 = """en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 02:00:00:00:00:01
\tinet6 fe80::1%en0 prefixlen 64 secured scopeid 0xb
\tinet {address} netmask 0xffffff00 broadcast 192.168.64.255
\tstatus: active
"""
LO0 = """lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
"""


def test_what_route_and_ifconfig_print() -> None:
    assert route_interface(ROUTE.format(interface="en0")) == "en0"
    assert route_interface("route: writing to routing socket: not in table") is None
    assert inet_addresses(EN0.format(address="192.168.64.11")) == ("192.168.64.11",)
    assert inet_addresses(EN0.replace("\tinet ", "\tx ").format(address="")) == ()
    assert inet_addresses(LO0) == (), "a loopback address is none for other machines"
    assert inet_addresses("utun4: flags=8051<UP> mtu 1380\n\tinet 10.8.0.2 --> 10.8.0.1 netmask 0xffffffff\n") == ("10.8.0.2",)
    assert inet_addresses("") is None
    cut = EN0.format(address="192.168.64.11").partition(" netmask")[0]
    assert inet_addresses(cut[:-1]) == (), "half an address is none"


class Mac:
    """A Mac's route and ifconfig, and its AddressReader. Loopback addresses stand in, since any can be bound."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = ["192.168.64.1"]
        self.reader = AddressReader(Commands([folder]), lambda: self.servers, mac=True)
        self.say("route", "exit 3")
        self.say("ifconfig", "exit 3")

    def say(self, name: str, script: str) -> None:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def routes(self, **interfaces: str) -> None:
        cases = "".join(
            f"{host.replace('_', '.')}) cat <<END\n{ROUTE.format(interface=to)}END\n;;" for host, to in interfaces.items()
        )
        lost = "*) echo 'route: writing to routing socket: not in table' >&2; exit 1 ;;"
        self.say("route", f"case $3 in {cases} {lost} esac")

    def has(self, *found: str) -> None:
        texts = EN0.format(address=found[0]) + "".join(f"\tinet {one} netmask 0xffffff00\n" for one in found[1:])
        self.say("ifconfig", f"case $1 in lo0) cat <<END\n{LO0}END\n;; *) cat <<END\n{texts}END\n;; esac")

    async def read(self, *current: str) -> Reading:
        return await self.reader.read(current)


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(tmp_path)


async def test_the_way_to_the_api_server_decides_and_then_the_default_route(mac: Mac) -> None:
    mac.has("127.9.9.9")
    mac.routes(default="en0")
    assert await mac.read() == ("127.9.9.9",)
    mac.routes(default="lo0", **{"192_168_64_1": "bridge0"})
    assert await mac.read() == ("127.9.9.9",), "two Macs with nothing but a cable, or a VPN with the default route"
    mac.routes()
    assert await mac.read() == ()
    mac.routes(default="lo0", **{"192_168_64_1": "lo0"})
    assert await mac.read() == (), "never a loopback interface"


async def test_of_several_api_servers_the_first_that_another_interface_reaches_decides(mac: Mac) -> None:
    """The first is this Mac's own."""
    mac.has("127.9.9.9")
    mac.routes(default="lo0", **{"192_168_64_1": "lo0", "192_168_64_2": "bridge0"})
    mac.servers = ["192.168.64.1", "192.168.64.2"]
    assert await mac.read() == ("127.9.9.9",)
    mac.servers = ["192.168.64.1"]
    assert await mac.read() == ()


async def test_without_a_default_route_the_address_of_the_own_api_server_counts(mac: Mac) -> None:
    """Two Macs with only a cable: macOS routes an address of its own to lo0."""
    mac.has("127.9.9.9")
    mac.routes(**{"127_9_9_8": "lo0"})
    mac.servers = ["198.51.100.7", "127.9.9.8"]
    assert await mac.read() == ("127.9.9.8",)
    mac.routes(default="en0", **{"127_9_9_8": "lo0"})
    assert await mac.read() == ("127.9.9.9",), "the default route comes first"
    mac.routes()
    mac.servers = ["198.51.100.7"]
    assert await mac.read() == (), "an address that this Mac does not have"


def test_what_the_balancer_knows(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    assert balanced_servers(file) == ()
    hosts: list[object] = ["192.168.64.11", "studio-1.local", "127.0.0.1", "fd00::1", 7, None, "192.168.64.12"]
    file.write_text(json.dumps({"servers": [{"host": host, "port": 6443} for host in hosts]}))
    assert balanced_servers(file) == ("192.168.64.11", "192.168.64.12")
    file.write_text(json.dumps({"servers": [{"host": f"10.0.0.{number}"} for number in range(100)]}))
    assert len(balanced_servers(file)) == 16
    for text in ("", "[]", '{"servers": 1}', '{"servers": [1]}', '{"servers": [{}]}', "[" * 100_000):
        file.write_text(text)
        assert balanced_servers(file) == ()


async def test_an_interface_with_two_addresses_keeps_the_published_one(mac: Mac) -> None:
    mac.routes(default="en0")
    mac.has("127.9.9.8", "127.9.9.9")
    assert await mac.read() == ("127.9.9.8",)
    assert await mac.read("127.9.9.9") == ("127.9.9.9",)


@pytest.mark.parametrize("broken", ["exit 5", "echo garbage", "kill -9 $$", "exit 0"])
async def test_a_broken_command_says_nothing_about_the_address(mac: Mac, broken: str) -> None:
    mac.has("127.9.9.9")
    mac.say("route", broken)
    assert await mac.read("127.9.9.9") is None
    mac.routes(default="en0")
    mac.say("ifconfig", broken)
    assert await mac.read("127.9.9.9") is None


async def test_a_kubelet_that_starts_asks_the_kernel_when_a_command_is_broken(
    mac: Mac, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mac.folder.joinpath("route").exists()
    monkeypatch.setattr(addresses, "_routed", lambda server: ("127.9.9.9",))
    assert await mac.read() == ("127.9.9.9",)
    monkeypatch.setattr(addresses, "_routed", lambda server: ())
    assert await mac.read() is None


async def test_commands_run_only_when_the_kernel_no_longer_uses_the_published_address(
    mac: Mac, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands here are broken, so what they would say is None."""
    asked: list[list[str]] = []

    def routed(servers: Sequence[str]) -> Reading:
        asked.append(list(servers))
        return ("127.9.9.9",)

    monkeypatch.setattr(addresses, "_routed", routed)
    mac.servers = ["127.9.9.7", "192.168.64.1"]
    assert await mac.read("127.9.9.9") == ("127.9.9.9",)
    assert asked == [["192.168.64.1"]], "the way to its own API server says nothing"
    assert await mac.read("127.9.9.8") is None
    mac.has("127.9.9.8", "127.9.9.9")
    mac.routes(default="en0")
    assert await mac.read("127.9.9.8") == ("127.9.9.8",), "of two addresses the published one, whatever the kernel prefers"


async def test_what_cannot_be_bound_is_no_address_of_this_machine(mac: Mac) -> None:
    mac.routes(default="en0")
    mac.has("198.51.100.7")
    assert await mac.read("127.9.9.9") is None


class Machine:
    """A machine whose readings the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(addresses, "POLL_SECONDS", 0.001)
        monkeypatch.setattr(addresses, "WAIT_SECONDS", 0.001)
        monkeypatch.setattr(addresses, "CONFIRM_SECONDS", 0.001)
        self.readings: list[Reading] = []
        self.now: Reading = ()
        self.reads = 0
        self.changes: list[tuple[tuple[str, ...], bool]] = []
        self.node = NodeAddresses((), self.read)

    async def read(self, current: tuple[str, ...]) -> Reading:
        self.reads += 1
        return self.readings.pop(0) if self.readings else self.now

    async def follows(self, test: Callable[[], None] | None = None) -> None:
        """Runs until everything that is to be read has been read, twice."""
        task = asyncio.ensure_future(self.node.follow(lambda: self.changes.append((self.node.current, self.node.missing))))
        start = self.reads
        await until_async(lambda: not self.readings and self.reads >= start + 4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


async def test_a_mac_that_boots_before_dhcp_waits_and_says_so(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.readings = [(), None, ()]
    machine.now = ("192.168.64.11",)
    await asyncio.wait_for(machine.node.wait(), 60)
    assert machine.node.current == ("192.168.64.11",)
    assert caplog.text.count("the Node waits for an address") == 1


async def test_a_new_lease_counts_when_it_is_read_twice(machine: Machine) -> None:
    machine.node.current = machine.now = ("a",)
    machine.readings = [("b",), ("a",), None, ("c",), None]
    await machine.follows()
    assert machine.changes == []
    machine.now = ("b",)
    await machine.follows()
    assert machine.changes == [(("b",), False)]


async def test_a_lost_address_stays_current_until_there_is_another(machine: Machine) -> None:
    machine.node.current, machine.now = ("a",), ()
    await machine.follows()
    machine.now = ("a",)
    await machine.follows()
    assert machine.changes == [(("a",), True), (("a",), False)]


async def test_addresses_of_the_configuration_are_never_read(machine: Machine) -> None:
    fixed = NodeAddresses(("a",), machine.read)
    await asyncio.wait_for(fixed.wait(), 60)
    await asyncio.wait_for(fixed.follow(lambda: None), 60)
    assert (fixed.current, machine.reads) == (("a",), 0)
