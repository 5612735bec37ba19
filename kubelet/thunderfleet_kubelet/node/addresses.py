"""The address at which other machines reach this one, and its changes: a new DHCP lease, another interface, none at all.

Loopback addresses are ignored: a Node that publishes 127.0.0.1 looks Ready, but no other machine reaches it.
Without another address the kubelet waits.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

from thunderfleet_lib.host.hostcmd import Failure, FailureKind
from thunderfleet_lib.host.interfaces import inet_addresses, route_interface

from thunderfleet_kubelet.node.commands import Commands

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
WAIT_SECONDS = 1.0
"""The pause while a kubelet that starts has no address."""
CONFIRM_SECONDS = 1.0
"""A change counts when it is read again after this time: one command may print half of an interface that is being set up."""
REMIND_SECONDS = 300.0
MISSING = (
    "this machine has no IPv4 address on the interface that reaches the API server or that has the default route; connect it "
    "to the network, or set addresses in the kubelet's configuration"
)
SERVERS = 16
FILE_BYTES = 65536
_DOCUMENTATION_HOST = "192.0.2.1"

Reading = tuple[str, ...] | None
"""The machine's addresses, none if it is empty; None if a command failed."""


def balanced_servers(file: Path) -> tuple[str, ...]:
    """The addresses of the API servers in the file that the balancer of this Mac keeps; none if it cannot be read."""
    try:
        with file.open(encoding="utf-8") as stream:
            hosts = [one["host"] for one in json.loads(stream.read(FILE_BYTES))["servers"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(host for host in hosts[:SERVERS] if _is_address(host))


def _is_address(host: object) -> bool:
    try:
        # The Node's address is that of IPv4.
        return isinstance(host, str) and ip_address(host).version == 4 and not ip_address(host).is_loopback
    except ValueError:
        return False


class AddressReader:
    """Reads the address of the interface that reaches one of the hosts ``servers``, else of the one with the default route.

    API servers connect to the kubelet, so the route to them is used, even when a VPN has the default route. ``servers``
    is called each time, and its hosts are tried in order. The route to a server on this machine is the loopback interface. Its
    address is used last: other machines reach the API server there, over a cable if there is no default route.
    """

    def __init__(self, commands: Commands, servers: Callable[[], Sequence[str]], *, mac: bool) -> None:
        self._commands = commands
        self._servers = servers
        self._mac = mac

    async def read(self, current: tuple[str, ...]) -> Reading:
        """The addresses now. An interface with several keeps that of ``current``."""
        servers = await asyncio.to_thread(self._servers)
        if self._mac and current and await asyncio.to_thread(_source_towards, servers) == current:
            # The usual case, which needs no command.
            return current
        found = await (self._read_mac(current, servers) if self._mac else asyncio.to_thread(_routed, servers))
        if found is None and not current:
            # A starting kubelet needs an address, and the kernel may have one even if the command fails.
            found = await asyncio.to_thread(_routed, servers) or None
        # A command may print anything. An address that this machine cannot bind is not its own.
        return found if found is None or all(map(_is_ours, found)) else None

    async def _read_mac(self, current: tuple[str, ...], servers: Sequence[str]) -> Reading:
        for destination in (*servers, "default"):
            found = await self._towards(destination)
            if found is None:
                return None
            if found:
                return next(((one,) for one in found if one in current), found[:1])
        return next(((one,) for one in servers if _is_ours(one)), ())

    async def _towards(self, destination: str) -> Reading:
        """The addresses of the interface that reaches ``destination``; none without a route."""
        route = await self._commands.run("route", "-n", "get", destination)
        if isinstance(route, Failure):
            return () if route.kind is FailureKind.FAILED and "not in table" in route.error else None
        interface = route_interface(route.text)
        if interface is None:
            return None
        shown = await self._commands.run("ifconfig", interface)
        return None if isinstance(shown, Failure) else inet_addresses(shown.text)


def _source_towards(servers: Sequence[str]) -> Reading:
    """Same as ``_routed``, but ignores servers on this machine, because the route to them is the loopback interface."""
    return _routed([host for host in servers if not _is_ours(host)])


def _routed(servers: Sequence[str]) -> Reading:
    """The source address that the kernel would use. Sends no packet: connecting a UDP socket only looks up the route."""
    for host in (*servers, _DOCUMENTATION_HOST):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, 9))
            except OSError:
                continue
            address = str(probe.getsockname()[0])
        if not address.startswith("127."):
            return (address,)
    return ()


def _is_ours(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


class NodeAddresses:
    """The Node's addresses, which the kubelet publishes and listens on.

    ``fixed``: those of the configuration; they never change. Without any, ``read`` reads those of the machine. ``missing``: the
    machine has none now; ``current`` are the last ones then.
    """

    def __init__(self, fixed: Sequence[str], read: Callable[[tuple[str, ...]], Awaitable[Reading]]) -> None:
        self._fixed = bool(fixed)
        self._read = read
        self.current = tuple(fixed)
        self.missing = False

    async def look(self) -> bool:
        """Reads the address of a machine that has none yet; whether it has one."""
        if not self.current and (found := await self._read(())):
            self.current = found
            log.info("the address of this machine is %s", ", ".join(found))
        return bool(self.current)

    async def wait(self) -> None:
        """Waits until there is an address."""
        left = 0.0
        while not await self.look():
            if left <= 0:
                log.warning("the Node waits for an address: %s", MISSING)
                left = REMIND_SECONDS
            await asyncio.sleep(WAIT_SECONDS)
            left -= WAIT_SECONDS

    async def follow(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` whenever ``current`` or ``missing`` has changed, until cancelled."""
        while not self._fixed:
            # The condition for a missing address keeps pods away, but often the API server is reachable only once it is over.
            await asyncio.sleep(CONFIRM_SECONDS if self.missing else POLL_SECONDS)
            found = await self._read(self.current)
            if self._same(found):
                continue
            await asyncio.sleep(CONFIRM_SECONDS)
            if found is None or await self._read(self.current) != found:
                continue
            before, self.missing = self.current, not found
            if found:
                self.current = found
                log.warning("the address of this machine changed from %s to %s", ", ".join(before), ", ".join(found))
            else:
                log.warning("%s; until then the Node keeps the address %s", MISSING, ", ".join(before))
            changed()

    def _same(self, found: Reading) -> bool:
        return found is None or (self.missing if not found else not self.missing and found == self.current)
