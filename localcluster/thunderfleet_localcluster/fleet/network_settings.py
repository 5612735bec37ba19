"""The network settings of a recorded Mac, and the effects of ``networksetup`` and ``ifconfig`` on them. Pure.

As on macOS, network services and the configured members of the bridge survive a restart; changes by ``ifconfig`` do not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Interface
from types import MappingProxyType

BRIDGE = "bridge0"
BRIDGE_PORT = "Thunderbolt Bridge"
WRITES = frozenset(
    ("-createnetworkservice", "-removenetworkservice", "-setmanual", "-setdhcp", "-setv4off", "-setnetworkserviceenabled")
)


def _none() -> Mapping[str, IPv4Interface]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Service:
    """A network service. ``given``: it has the address that the fleet file gives the port; else ``manual`` or automatic."""

    name: str
    port: str
    device: str
    enabled: bool = True
    manual: IPv4Interface | None = None
    given: bool = False
    off: bool = False


@dataclass(frozen=True)
class NetworkSettings:
    """``bridged``: members of the bridge after a restart; ``members``: now. ``inet``: addresses that ifconfig has set."""

    services: tuple[Service, ...]
    bridged: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    inet: Mapping[str, IPv4Interface] = field(default_factory=_none)

    def service_of(self, device: str) -> Service | None:
        """The service that configures a device: the first enabled one."""
        return next((one for one in self.services if one.device == device and one.enabled), None)

    def restarted(self) -> "NetworkSettings":
        """The settings after a restart."""
        return replace(self, members=self.bridged, inet=_none())


class RefusedError(Exception):
    """The command is refused; ``code`` is its exit code, and the text is its output."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


INVALID = "** Error: The parameters were not valid.\n"


def carry_out(now: NetworkSettings, ports: Mapping[str, str], argv: Sequence[str]) -> NetworkSettings:
    """The settings after a command. ``ports``: device by hardware port. Raises RefusedError."""
    command, *rest = argv
    if command == "ifconfig":
        return _ifconfig(now, ports, rest)
    actions: Mapping[str, Callable[[NetworkSettings, Mapping[str, str], list[str]], NetworkSettings]] = {
        "-createnetworkservice": _create,
        "-removenetworkservice": _delete,
        "-setmanual": _manual,
        "-setdhcp": _automatic,
        "-setv4off": _automatic,
        "-setnetworkserviceenabled": _enable,
    }
    if command != "networksetup" or not rest or rest[0] not in actions:
        raise RefusedError(4, INVALID)
    return actions[rest[0]](now, ports, rest)


def _create(now: NetworkSettings, ports: Mapping[str, str], rest: list[str]) -> NetworkSettings:
    if len(rest) != 3 or "/" in rest[1] or any(one.name == rest[1] for one in now.services):
        raise RefusedError(4, INVALID)
    if rest[2] not in ports:
        raise RefusedError(8, f"{rest[2]} is not a recognized hardware port.\n** Error: The parameters were not valid.\n")
    return replace(now, services=(*now.services, Service(rest[1], rest[2], ports[rest[2]])))


def _delete(now: NetworkSettings, _: Mapping[str, str], rest: list[str]) -> NetworkSettings:
    doomed = _named(now, rest, 2)
    return replace(now, services=tuple(one for one in now.services if one is not doomed))


def _manual(now: NetworkSettings, _: Mapping[str, str], rest: list[str]) -> NetworkSettings:
    service = _named(now, rest, 5)
    try:
        address = IPv4Interface(f"{rest[2]}/{rest[3]}")
        if rest[4]:
            IPv4Address(rest[4])
    except ValueError:
        raise RefusedError(4, INVALID) from None
    return _changed(now, service, replace(service, manual=address, given=False, off=False))


def _automatic(now: NetworkSettings, _: Mapping[str, str], rest: list[str]) -> NetworkSettings:
    service = _named(now, rest, 2)
    return _changed(now, service, replace(service, manual=None, given=False, off=rest[0] == "-setv4off"))


def _enable(now: NetworkSettings, _: Mapping[str, str], rest: list[str]) -> NetworkSettings:
    service = _named(now, rest, 3)
    if rest[2] not in ("on", "off"):
        raise RefusedError(4, INVALID)
    return _changed(now, service, replace(service, enabled=rest[2] == "on"))


def _named(now: NetworkSettings, rest: list[str], length: int) -> Service:
    if len(rest) != length:
        raise RefusedError(4, INVALID)
    for service in now.services:
        if service.name == rest[1]:
            return service
    raise RefusedError(8, f"{rest[1]} is not a recognized network service.\n** Error: The parameters were not valid.\n")


def _changed(now: NetworkSettings, before: Service, after: Service) -> NetworkSettings:
    return replace(now, services=tuple(after if one is before else one for one in now.services))


def _ifconfig(now: NetworkSettings, ports: Mapping[str, str], rest: list[str]) -> NetworkSettings:
    match rest:
        case [name, "deletem", device] if name == BRIDGE and device in now.members:
            return replace(now, members=tuple(one for one in now.members if one != device))
        case [name, "addm", device] if name == BRIDGE and device in ports.values() and device not in now.members:
            return replace(now, members=(*now.members, device))
        case [name, "deletem" | "addm", device]:
            raise RefusedError(1, f"ifconfig: BRDG{rest[1][:3].upper()} {device}: Invalid argument\n")
        case [name, "inet", text] if name in ports.values():
            try:
                return replace(now, inet={**now.inet, name: IPv4Interface(text)})
            except ValueError:
                pass
    raise RefusedError(1, f"ifconfig: this recorded Mac does not have ifconfig {' '.join(rest)}\n")
