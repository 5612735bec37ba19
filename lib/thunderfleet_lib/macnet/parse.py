"""Interfaces, hardware ports and network services, from ``networksetup`` and ``ifconfig``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from thunderfleet_lib.host.hostcmd import quote
from thunderfleet_lib.host.parsing import ParseError, Partial, clean, require_whole

HARDWARE_PORTS_COMMAND = ("networksetup", "-listallhardwareports")
SERVICE_ORDER_COMMAND = ("networksetup", "-listnetworkserviceorder")
IFCONFIG_COMMAND = ("ifconfig", "-a")
INFO_COMMAND = ("networksetup", "-getinfo")

# Addresses that macOS creates and removes automatically; publishing them would cause constant writes.
_PASSING = frozenset({"temporary", "deprecated", "tentative", "detached", "duplicated", "anycast"})
_HEADER = re.compile(r"^(\S{1,64}?):\s+flags=[0-9a-fA-Fx]+(?:<([^>]*)>)?")
_MEMBER = re.compile(r"^\s+member:\s*(\S{1,64})")
_STATUS = re.compile(r"^\s+status:\s*(\S+)")
_INET = re.compile(r"^\s+inet6?\s+(\S+)(.*)$")
_NETMASK = re.compile(r"\bnetmask\s+(\S+)")
_PREFIX = re.compile(r"\bprefixlen\s+(\d{1,3})\b")
# 1000baseT, 2500Base-T, 10Gbase-T, 2.5Gbase-T
_MEDIA = re.compile(r"(?<![\d.])(\d{1,5}(?:\.\d)?)(G?)base", re.IGNORECASE)
_SERVICE = re.compile(r"^\((\d+|\*)\)\s*(.+)$")
_SERVICE_PORT = re.compile(r"^\(Hardware Port:\s*(.*?),\s*Device:\s*([^)]*)\)\s*$")
# The end of `networksetup -listallhardwareports`, with or without VLANs; the words may be in another language.
_PORTS_END = re.compile(r"^(VLAN Configurations|={8,})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class InterfaceAddress:
    """An IP address without zone, and its prefix length in bits."""

    address: str
    prefix_length: int


@dataclass(frozen=True)
class Interface:
    """One interface. ``active`` is the carrier from the status line, None without such a line."""

    name: str
    flags: frozenset[str] = frozenset()
    addresses: tuple[InterfaceAddress, ...] = ()
    active: bool | None = None
    speed_mbps: int | None = None
    members: tuple[str, ...] = ()

    @property
    def up(self) -> bool:
        """Up, and with a carrier if that is known."""
        return "UP" in self.flags and (self.active if self.active is not None else "RUNNING" in self.flags)


@dataclass(frozen=True)
class Service:
    """A network service of System Settings."""

    name: str
    enabled: bool
    hardware_port: str | None = None
    device: str | None = None


def parse_hardware_ports(text: str) -> Mapping[str, str]:
    """Interface to hardware port (``en2`` to ``Thunderbolt 1``).

    Raises ParseError if the list is empty or truncated, Partial if it ends between two ports.
    """
    name = " ".join(HARDWARE_PORTS_COMMAND)
    ports: dict[str, str] = {}
    port: str | None = None
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            continue
        match key.strip():
            case "Hardware Port":
                port = clean(value, 128)
            case "Device":
                device = clean(value, 64)
                if port and device:
                    ports.setdefault(device, port)
                port = None
    if not ports:
        raise ParseError(name, f"lists no hardware port: {quote(text) or 'nothing'}")
    if not _PORTS_END.search(text):
        require_whole(name, text)
        if port is not None:
            raise ParseError(name, f"ends after the name of the port {port}")
        raise Partial(name, "ends before the VLAN Configurations: ports may be missing", ports)
    return ports


def parse_service_order(text: str) -> tuple[Service, ...]:
    """The services in order.

    Raises ParseError if the text is not such a list or ends in a line, Partial if it ends after a service's name. The list has
    no end mark: missing services after a complete one cannot be detected here (``derive.bridges`` reports those it needs).
    """
    require_whole(" ".join(SERVICE_ORDER_COMMAND), text)
    services: list[Service] = []
    for line in text.splitlines():
        port = _SERVICE_PORT.match(line.strip())
        if port:
            if services:
                services[-1] = replace(services[-1], hardware_port=clean(port.group(1), 128), device=clean(port.group(2), 64))
            continue
        service = _SERVICE.match(line.strip())
        if service:
            name = clean(service.group(2), 128)
            if name:
                services.append(Service(name, service.group(1) != "*"))
    if not services and "network service" not in text:
        raise ParseError(" ".join(SERVICE_ORDER_COMMAND), f"lists no network service: {quote(text) or 'nothing'}")
    if services and services[-1].hardware_port is None:
        problem = f"ends after the name of the service {services[-1].name}: services may be missing"
        raise Partial(" ".join(SERVICE_ORDER_COMMAND), problem, tuple(services[:-1]))
    return tuple(services)


def parse_info(text: str) -> ipaddress.IPv4Interface | None:
    """The address that a network service sets, from ``networksetup -getinfo SERVICE``; None if it is automatic or off.

    Raises ParseError for other text.
    """
    command = " ".join(INFO_COMMAND)
    require_whole(command, text)
    fields = {key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in text.splitlines()) if colon}
    if "IP address" not in fields and "IPv6" not in fields and " Configuration" not in text:
        raise ParseError(command, f"does not describe a network service: {quote(text) or 'nothing'}")
    if not text.startswith("Manual Configuration"):
        return None
    try:
        return ipaddress.IPv4Interface(f"{fields.get('IP address', '')}/{fields.get('Subnet mask', '')}")
    except ValueError:
        return None


def parse_ifconfig(text: str) -> tuple[Interface, ...]:
    """The interfaces in order, one per name. Raises ParseError without any.

    The output has no end mark: ``derive.inventory`` reports used ports that are missing; a missing tunnel cannot be detected.
    """
    found: dict[str, Interface] = {}
    current: Interface | None = None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            if current is not None:
                found.setdefault(current.name, current)
            flags = frozenset(flag for flag in (header.group(2) or "").split(",") if flag)
            current = Interface(clean(header.group(1), 64) or "?", flags)
        elif current is not None:
            current = _with_line(current, line)
    if current is not None:
        found.setdefault(current.name, current)
    if not found:
        raise ParseError(" ".join(IFCONFIG_COMMAND), f"shows no interface: {quote(text) or 'nothing'}")
    require_whole(" ".join(IFCONFIG_COMMAND), text)
    return tuple(found.values())


def _with_line(interface: Interface, line: str) -> Interface:
    if member := _MEMBER.match(line):
        name = clean(member.group(1), 64)
        return replace(interface, members=(*interface.members, name)) if name else interface
    if status := _STATUS.match(line):
        return replace(interface, active=status.group(1) == "active")
    if line.lstrip().startswith("media:"):
        media = _MEDIA.search(line)
        return replace(interface, speed_mbps=_media_speed(media)) if media else interface
    if inet := _INET.match(line):
        address = _address(inet.group(1), inet.group(2))
        if address and address not in interface.addresses:
            return replace(interface, addresses=(*interface.addresses, address))
    return interface


def _media_speed(media: re.Match[str]) -> int | None:
    return round(float(media.group(1)) * (1000 if media.group(2) else 1)) or None


def _address(text: str, rest: str) -> InterfaceAddress | None:
    if _PASSING & set(rest.split()):
        return None
    try:
        address = ipaddress.ip_address(text.partition("%")[0].partition("/")[0])
    except ValueError:
        return None
    length: int | None = None
    written = text.partition("/")[2]
    if prefix := _PREFIX.search(rest):
        length = int(prefix.group(1))
    elif written.isascii() and written.isdigit() and len(written) < 4:
        length = int(written)
    elif mask := _NETMASK.search(rest):
        length = _mask_length(mask.group(1))
    if length is None or length > address.max_prefixlen:
        length = address.max_prefixlen
    return InterfaceAddress(str(address), length)


def _mask_length(mask: str) -> int | None:
    """``0xffffff00`` as macOS prints it, or ``255.255.255.0``."""
    try:
        value = int(mask, 16) if mask.lower().startswith("0x") else int(ipaddress.IPv4Address(mask))
    except ValueError:
        return None
    return value.bit_count() if 0 <= value < 2**32 else None
