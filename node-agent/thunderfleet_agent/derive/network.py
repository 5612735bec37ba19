"""Network interfaces, their kinds and addresses; which interface a Thunderbolt port is."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from thunderfleet_crds.kinds.nodeprofile import Interface, InterfaceAddress
from thunderfleet_crds.vocabulary import AddressClass, InterfaceKind
from thunderfleet_lib.macnet import parse as parser

from thunderfleet_agent.observe.facts import Facts

MAX_INTERFACES = 64
MAX_ADDRESSES = 32

_THUNDERBOLT_PORT = re.compile(r"^Thunderbolt (\d{1,3})$")
_LOOPBACK = re.compile(r"^lo\d*$")
_BRIDGE = re.compile(r"^bridge\d+$")
_WIFI = re.compile(r"^(wi-?fi|wlan|airport)", re.IGNORECASE)
_ETHERNET = re.compile(r"ethernet|\blan\b", re.IGNORECASE)
_VPN = re.compile(r"^(utun|ipsec|ppp|tun|tap|wg|zt|tailscale)\d*")
_SHARED = ipaddress.ip_network("100.64.0.0/10")
_PRIVATE = tuple(ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))


def address_class(text: str) -> AddressClass:
    """Who can reach the address.

    Loopback counts as Private: ``lo0`` is never published, and only a recorded Mac has a loopback address on another
    interface, where it stands for that Mac's LAN or cable.
    """
    address = ipaddress.ip_address(text)
    if address.is_link_local:
        return AddressClass.LINK_LOCAL
    if address.is_loopback or any(address in network for network in _PRIVATE if network.version == address.version):
        return AddressClass.PRIVATE
    if address.version == 4 and address in _SHARED:
        return AddressClass.SHARED
    return AddressClass.PUBLIC


def interfaces(facts: Facts) -> tuple[Interface, ...]:
    """Hardware ports, bridges and their members, and every other interface with an address that other machines can reach."""
    seen = tuple(i for i in facts.interfaces or () if "LOOPBACK" not in i.flags and not _LOOPBACK.match(i.name))
    ports = facts.hardware_ports or {}
    bridges = {member: bridge.name for bridge in seen for member in bridge.members}
    speeds = _thunderbolt_speeds(facts)
    known = []
    for interface in seen:
        addresses = _addresses(interface)
        kind = _kind(interface, ports.get(interface.name), addresses)
        reachable = any(address.class_ is not AddressClass.LINK_LOCAL for address in addresses)
        if interface.name in ports or kind is InterfaceKind.BRIDGE or interface.name in bridges or reachable:
            known.append(
                Interface(
                    name=interface.name,
                    kind=kind,
                    hardware_port=ports.get(interface.name),
                    up=interface.up,
                    addresses=addresses,
                    speed_mbps=speeds.get(interface.name, interface.speed_mbps),
                    bridge=bridges.get(interface.name),
                )
            )
    return tuple(known[:MAX_INTERFACES])


def _addresses(interface: parser.Interface) -> tuple[InterfaceAddress, ...]:
    """IPv4 before IPv6, without unspecified addresses."""
    parsed = ((ipaddress.ip_address(a.address), a) for a in interface.addresses)
    usable = sorted((ip.version, a.address, a.prefix_length) for ip, a in parsed if not ip.is_unspecified)
    found = (InterfaceAddress(address=text, prefix_length=bits, class_=address_class(text)) for _, text, bits in usable)
    return tuple(found)[:MAX_ADDRESSES]


def _kind(interface: parser.Interface, port: str | None, addresses: Sequence[InterfaceAddress]) -> InterfaceKind:
    named = _kind_of_port(port) if port is not None else None
    if named is not None:
        return named
    if interface.members or _BRIDGE.match(interface.name):
        return InterfaceKind.BRIDGE
    shared = any(address.class_ is AddressClass.SHARED for address in addresses)
    if _VPN.match(interface.name) or (port is None and shared):
        return InterfaceKind.VPN
    return InterfaceKind.OTHER


def _kind_of_port(port: str) -> InterfaceKind | None:
    if _THUNDERBOLT_PORT.match(port):
        return InterfaceKind.THUNDERBOLT
    if "bridge" in port.lower():
        return InterfaceKind.BRIDGE
    if _WIFI.match(port):
        return InterfaceKind.WIFI
    return InterfaceKind.ETHERNET if _ETHERNET.search(port) else None


def bridge_names(facts: Facts) -> tuple[str, ...]:
    """The interfaces that are bridges by name."""
    return tuple(interface.name for interface in facts.interfaces or () if _BRIDGE.match(interface.name))


def port_interfaces(facts: Facts) -> dict[int, str]:
    """Receptacle number to interface: receptacle N is the hardware port named `Thunderbolt N`."""
    found: dict[int, str] = {}
    for interface, port in (facts.hardware_ports or {}).items():
        match = _THUNDERBOLT_PORT.match(port)
        if match:
            found.setdefault(int(match.group(1)), interface)
    return found


def _thunderbolt_speeds(facts: Facts) -> dict[str, int | None]:
    interfaces = port_interfaces(facts)
    ports = facts.thunderbolt.ports if facts.thunderbolt else ()
    return {interfaces[port.receptacle]: port.speed_mbps for port in ports if port.receptacle in interfaces}


def expected_interfaces(facts: Facts) -> dict[str, str]:
    """The interfaces that `ifconfig -a` must show, with their hardware ports.

    These are the Thunderbolt ports, and every hardware port that has an enabled network service. One command alone proves
    nothing: an adapter that was removed keeps its service, and a bridge that was destroyed stays a hardware port.
    """
    served = {service.device for service in facts.services or () if service.enabled}
    thunderbolt = set(port_interfaces(facts).values())
    return {
        name: port
        for name, port in (facts.hardware_ports or {}).items()
        if name in thunderbolt or (name in served and re.match(r"^(en|bridge)\d+$", name))
    }
