"""Thunderbolt ports, network services and bridges of a Mac, and the record of what was changed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network
from types import MappingProxyType
from typing import Final

FILE_NAME: Final = "thunderbolt-ports.json"
"""The file of the record, in the kubelet's folder."""

SERVICE_PREFIX: Final = "Thunderfleet "
"""Our network service of a port has the port's name after it: Thunderfleet Thunderbolt 1."""

THUNDERBOLT_PORT: Final = re.compile(r"Thunderbolt (\d{1,3})")


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Port:
    """A Thunderbolt port. ``name``: its hardware port, such as Thunderbolt 1. ``bridge``: the bridge that it is a member of."""

    name: str
    device: str
    active: bool
    """Whether it has a carrier: a cable with a computer at the other end."""
    addresses: tuple[IPv4Interface, ...] = ()
    bridge: str | None = None

    @property
    def number(self) -> int:
        """The number of the receptacle."""
        return int(self.name.rpartition(" ")[2])

    @property
    def service(self) -> str:
        """The name that our network service of this port has."""
        return SERVICE_PREFIX + self.name


@dataclass(frozen=True)
class Bridge:
    """A bridge. ``service``: its network service, if it has one."""

    name: str
    service: str | None
    enabled: bool
    addresses: tuple[IPv4Interface, ...] = ()
    others: tuple[str, ...] = ()
    """Members that are not Thunderbolt ports."""


@dataclass(frozen=True)
class Network:
    """The settings and the state of the network at one moment."""

    ports: tuple[Port, ...]
    services: Mapping[str, IPv4Interface | None] = field(default_factory=dict)
    """Our network services that exist, and the address that each is to set; None: automatic (DHCP, else link-local)."""
    disabled: frozenset[str] = frozenset()
    """Our network services that a user has disabled."""
    foreign: frozenset[str] = frozenset()
    """Ports with an enabled network service that is not ours."""
    bridges: tuple[Bridge, ...] = ()
    networks: tuple[IPv4Network, ...] = ()
    """What the other interfaces reach directly."""
    route: str | None = None
    """The interface of the route to the API server; None if it is not known."""

    @property
    def members(self) -> tuple[Port, ...]:
        """The ports that are members of a bridge."""
        return tuple(port for port in self.ports if port.bridge is not None)

    def bridge(self, name: str) -> Bridge | None:
        """The bridge of this name."""
        return next((bridge for bridge in self.bridges if bridge.name == name), None)


@dataclass(frozen=True)
class Record:
    """What was changed, so that it can be undone. It is written before the change, so it may list more than was done."""

    services: tuple[str, ...] = ()
    """Network services that were created."""
    members: Mapping[str, str] = field(default_factory=_nothing)
    """Ports that were taken out of a bridge, and the bridge."""
    disabled: tuple[str, ...] = ()
    """Network services of bridges that were disabled."""
    kept: Mapping[str, str] = field(default_factory=_nothing)
    """Ports that have the address that their bridge had, as address/prefix length."""
    trial: bool = False
    """The ports have left the bridge, and it is not known yet whether the API server can still be reached."""
    confirmed: bool = False
    """The API server was reached without the bridge. After a restart the ports leave the bridge again without a trial."""
    undoing: bool = False
    """Everything in this record is being undone."""
    removals: int = 0
    """How often the removal of the services, all disabled, was tried: macOS may refuse it, and a run may end before it."""
    refused: str = ""
    """The situation in which the switch was undone; it is not tried again before something has changed."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to undo."""
        return not (self.services or self.members or self.disabled)
