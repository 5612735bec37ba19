"""Reads the network settings of this Mac."""

import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Interface
from types import MappingProxyType
from typing import Final

from thunderfleet_lib.host.hostcmd import Failure, Output
from thunderfleet_lib.host.interfaces import route_interface
from thunderfleet_lib.host.parsing import ParseError
from thunderfleet_lib.macnet import parse
from thunderfleet_lib.macnet.parse import Interface, Service
from thunderfleet_lib.macnet.values import SERVICE_PREFIX, THUNDERBOLT_PORT, Bridge, Network, Port

COMMAND_SECONDS: Final = 10.0
# bridge100 and above belong to Internet Sharing and virtual machines, which manage their members.
_BRIDGE = re.compile(r"bridge\d{1,2}")

Run = Callable[[Sequence[str], float], Output | Failure]
"""Runs a command. The number is its time limit in seconds."""


class Unreadable(Exception):
    """The settings cannot be read; the text names the command."""


def read(run: Run, server: str) -> Network:
    """The network of this Mac. ``server``: the host of the API server's URL. Raises Unreadable."""
    try:
        ports = parse.parse_hardware_ports(_text(run, parse.HARDWARE_PORTS_COMMAND))
        services = parse.parse_service_order(_text(run, parse.SERVICE_ORDER_COMMAND))
        interfaces = parse.parse_ifconfig(_text(run, parse.IFCONFIG_COMMAND))
        own = [service.name for service in services if service.name.startswith(SERVICE_PREFIX)]
        configured = {name: parse.parse_info(_text(run, (*parse.INFO_COMMAND, name))) for name in own}
    except ParseError as error:
        raise Unreadable(str(error)) from None
    route = run(("route", "-n", "get", server), COMMAND_SECONDS)
    interface = None if isinstance(route, Failure) else route_interface(route.text)
    return network(ports, services, interfaces, configured, interface)


def _text(run: Run, argv: Sequence[str]) -> str:
    said = run(argv, COMMAND_SECONDS)
    if isinstance(said, Failure):
        raise Unreadable(str(said))
    return said.text


def network(
    ports: Mapping[str, str],
    services: tuple[Service, ...],
    interfaces: tuple[Interface, ...],
    configured: Mapping[str, IPv4Interface | None] = MappingProxyType({}),
    route: str | None = None,
) -> Network:
    """The network from what the commands print. ``ports``: hardware port by device; ``configured``: of our services."""
    by_name = {interface.name: interface for interface in interfaces}
    bridges = {one.name: one for one in interfaces if _BRIDGE.fullmatch(one.name)}
    member_of = {member: bridge.name for bridge in bridges.values() for member in bridge.members}
    thunderbolt = {device: name for device, name in ports.items() if THUNDERBOLT_PORT.fullmatch(name)}
    found = []
    for device, name in thunderbolt.items():
        interface = by_name.get(device)
        if interface is not None:
            found.append(Port(name, device, bool(interface.active), addresses(interface), member_of.get(device)))
    own = {service.name: service for service in services if service.name.startswith(SERVICE_PREFIX)}
    return Network(
        ports=tuple(sorted(found, key=lambda port: port.number)),
        services={name: configured.get(name) for name in own},
        disabled=frozenset(name for name, service in own.items() if not service.enabled),
        foreign=frozenset(s.hardware_port for s in services if s.hardware_port and s.enabled and s.name not in own),
        bridges=tuple(_bridge(bridge, services, thunderbolt) for bridge in bridges.values()),
        networks=tuple(
            address.network
            for interface in interfaces
            if interface.name not in thunderbolt and interface.name not in bridges and "LOOPBACK" not in interface.flags
            for address in addresses(interface)
        ),
        route=route,
    )


def served(found: Network) -> frozenset[str]:
    """The ports with an enabled network service of their own."""
    own = {port.name for port in found.ports if port.service in found.services and port.service not in found.disabled}
    return frozenset(own) | found.foreign


def addresses(interface: Interface) -> tuple[IPv4Interface, ...]:
    """The IPv4 addresses of an interface."""
    return tuple(IPv4Interface(f"{a.address}/{a.prefix_length}") for a in interface.addresses if ":" not in a.address)


def _bridge(bridge: Interface, services: tuple[Service, ...], thunderbolt: Mapping[str, str]) -> Bridge:
    service = next((service for service in services if service.device == bridge.name), None)
    return Bridge(
        bridge.name,
        service.name if service else None,
        service is not None and service.enabled,
        addresses(bridge),
        tuple(member for member in bridge.members if member not in thunderbolt),
    )
