"""Addresses, interfaces and identifiers of a fleet. Namespaces, recorded commands and kubelets all follow this layout.

Pure: the same fleet and mode give the same layout, so the output of ``ifconfig`` matches the kernel.
"""

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Literal

from thunderfleet_localcluster.fleet.network_settings import NetworkSettings
from thunderfleet_localcluster.fleet.spec import Cable, End, Fleet, Machine

Mode = Literal["namespaces", "loopback"]

KUBELET_PORT = 10250
LAN = IPv4Network("192.168.64.0/24")
CABLES = IPv4Network("10.64.0.0/16")
FIRST_PAIR = 256
"""Offset of the first cable's addresses in its network; in loopback mode the LAN is in front of it."""
_IDS = uuid.UUID("3f0c5d9e-8a57-4d0c-9d25-1b6f6b1f7b11")


@dataclass(frozen=True)
class Address:
    """An IPv4 address of an interface."""

    ip: IPv4Address
    prefix: int

    @property
    def network(self) -> IPv4Network:
        return IPv4Network(f"{self.ip}/{self.prefix}", strict=False)


@dataclass(frozen=True)
class CableEnd:
    """One end of a cable. ``upstream``: the hubs of the cable, if any, are at this end."""

    cable: Cable
    index: int
    port: int
    interface: str
    address: Address | None
    peer: str
    peer_port: int
    upstream: bool
    sees_peer: bool
    side: int
    """0: end a in the fleet file; 1: end b."""


@dataclass(frozen=True)
class MachineLayout:
    """One machine: its LAN address and its cable ends, sorted by port."""

    machine: Machine
    lan: Address
    ends: tuple[CableEnd, ...]
    boots: int = 0
    """Number of restarts; domain UUIDs and the boot session UUID depend on it."""
    lan_plugged: bool = True
    lan_leased: bool = True
    """Whether the machine has its LAN address."""
    settings: NetworkSettings | None = None
    """The network settings, once a command on this Mac has changed them."""

    @property
    def name(self) -> str:
        return self.machine.name

    def end(self, port: int) -> CableEnd | None:
        return next((end for end in self.ends if end.port == port), None)


@dataclass(frozen=True)
class Layout:
    """The whole cluster. ``control_plane`` is the address of the API server in the network of the machines."""

    mode: Mode
    control_plane: Address
    machines: tuple[MachineLayout, ...]

    def cable(self, index: int) -> Cable:
        """The cable with this index in the fleet file."""
        return next(end.cable for machine in self.machines for end in machine.ends if end.index == index)

    def machine(self, name: str) -> MachineLayout:
        return next(machine for machine in self.machines if machine.name == name)


def mac_address(machine: str, interface: str) -> str:
    """A locally administered MAC address, derived from machine and interface."""
    digest = hashlib.sha256(f"{machine}/{interface}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def link_local(mac: str) -> str:
    """The IPv6 link-local address that a kernel derives from ``mac`` (EUI-64)."""
    octets = [int(part, 16) for part in mac.split(":")]
    eui = [octets[0] ^ 2, octets[1], octets[2], 0xFF, 0xFE, *octets[3:]]
    return str(IPv6Address(bytes([0xFE, 0x80, 0, 0, 0, 0, 0, 0, *eui])))


def port_uuid(machine: str, port: int, what: str) -> str:
    """An upper-case UUID, derived from the port and its use (``what``)."""
    return str(uuid.uuid5(_IDS, f"{machine}/{port}/{what}")).upper()


def switch_uid(machine: str, port: int) -> str:
    """UID of a port's Thunderbolt switch; UIDs of one Mac differ only in the last digit."""
    digest = hashlib.sha256(machine.encode()).hexdigest().upper()
    return f"0x05AC{digest[:11]}{port - 1:X}"


def _free(network: IPv4Network, taken: set[IPv4Address], first: int) -> Iterator[IPv4Address]:
    for offset in range(first, network.num_addresses - 1):
        address = network[offset]
        if address not in taken:
            yield address


def cable_end(cable: Cable, index: int, owner: Machine, port: int, there: End, address: Address | None, side: int) -> CableEnd:
    """The cable end at a port of ``owner``; ``there`` is the other end, ``side`` is 0 for end a and 1 for end b."""
    return CableEnd(
        cable=cable,
        index=index,
        port=port,
        interface=owner.mac.thunderbolt_interfaces[port - 1],
        address=None if port in owner.bridge else address,
        peer=there.machine,
        peer_port=there.port,
        upstream=side == 0 and bool(cable.through),
        sees_peer=cable.seen in ("both", "ab"[side]),
        side=side,
    )


def plan_layout(fleet: Fleet, mode: Mode, block: int = 64) -> Layout:
    """Assign addresses to everything in ``fleet``.

    ``block`` is the second octet of all addresses in loopback mode (127.block.x.y); it differs between clusters on one machine.
    """
    lan, cables = (
        (LAN, CABLES) if mode == "namespaces" else (IPv4Network(f"127.{block}.0.0/24"), IPv4Network(f"127.{block}.0.0/16"))
    )
    ends = _cable_ends(fleet, mode, cables)
    wanted = {
        machine.name: lan[int(machine.address.split(".")[3])] for machine in fleet.machines if machine.address is not None
    }
    spare = _free(lan, set(wanted.values()), 11)
    addresses = {machine.name: Address(wanted.get(machine.name) or next(spare), lan.prefixlen) for machine in fleet.machines}
    return Layout(
        mode=mode,
        control_plane=Address(lan[1], lan.prefixlen),
        machines=tuple(
            MachineLayout(machine, addresses[machine.name], tuple(sorted(ends[machine.name], key=lambda end: end.port)))
            for machine in fleet.machines
        ),
    )


def _cable_ends(fleet: Fleet, mode: Mode, network: IPv4Network) -> dict[str, list[CableEnd]]:
    """Cable ends by machine. A cable has a /30 of ``network``, or in namespaces the addresses in the fleet file."""
    ends: dict[str, list[CableEnd]] = {machine.name: [] for machine in fleet.machines}
    given = {IPv4Address(address) for cable in fleet.cables for address in cable.addresses or () if mode == "namespaces"}
    pair = FIRST_PAIR
    for index, cable in enumerate(fleet.cables):
        if cable.addresses is not None and mode == "namespaces":
            ips = [IPv4Address(address) for address in cable.addresses]
        else:
            while {network[pair + 1], network[pair + 2]} & given:
                pair += 4
            ips = [network[pair + 1], network[pair + 2]]
            pair += 4
        for side, (here, there) in enumerate(((cable.a, cable.b), (cable.b, cable.a))):
            owner = fleet.machine(here.machine)
            ends[here.machine].append(cable_end(cable, index, owner, here.port, there, Address(ips[side], 30), side))
    return ends
