"""Ethernet and the Thunderbolt Bridge. Pure."""

import re
from dataclasses import dataclass

from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.host.hostcmd import Failure, Output
from thunderfleet_lib.host.parsing import ParseError
from thunderfleet_lib.macnet import advice, parse
from thunderfleet_lib.macnet.observe import network as values_of
from thunderfleet_lib.macnet.observe import served
from thunderfleet_lib.macnet.values import Network

from thunderfleet_cli.doctor.checks.check import THIS_MAC, Answers, Argv, Check, Repair, State, printed, shown, unexpected

ROUTE: Argv = ("route", "-n", "get", "default")
INTERFACES: Argv = ("ifconfig", "-a")
PORTS: Argv = ("networksetup", "-listallhardwareports")
SERVICES: Argv = ("networksetup", "-listnetworkserviceorder")
GIGABIT_MBPS = 1000
USUAL_MTU = 1500

_HEAD = re.compile(r"^(\S{1,64}?): flags=\S+.* mtu (\d{1,6})\s*$")
_FIELD = re.compile(r"^\t(media|status): (.*)$")
_RATE = re.compile(r"\((\d{1,5})(G?)base", re.IGNORECASE)
_PORT = re.compile(r"^Hardware Port: (.+)\nDevice: (\S+)$", re.MULTILINE)
_ROUTE_INTERFACE = re.compile(r"^\s*interface: (\S{1,64})\s*$", re.MULTILINE)
_NO_ROUTE = "not in table"
_THUNDERBOLT = re.compile(r"Thunderbolt \d+")


@dataclass(frozen=True)
class Interface:
    """An interface: ``media`` and ``status`` as printed; empty if not printed."""

    mtu: int
    media: str = ""
    status: str = ""

    @property
    def mbps(self) -> int | None:
        """The speed in Mb/s, if the media has one."""
        found = _RATE.search(self.media)
        return int(found.group(1)) * (1000 if found.group(2) else 1) if found else None


def parse_interfaces(text: str) -> dict[str, Interface]:
    """The interfaces by name. Raises ParseError when there is none."""
    found: dict[str, Interface] = {}
    name = ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = head.group(1)
            found[name] = Interface(int(head.group(2)))
        elif (field := _FIELD.match(line)) and name:
            now = found[name]
            media, status = (field.group(2), now.status) if field.group(1) == "media" else (now.media, field.group(2))
            found[name] = Interface(now.mtu, media, status)
    if not found:
        raise unexpected(INTERFACES, text)
    return found


def parse_ports(text: str) -> dict[str, str]:
    """Device to hardware port. Raises ParseError when there is none."""
    found = {device: port for port, device in _PORT.findall(text)}
    if not found:
        raise unexpected(PORTS, text)
    return found


def ethernet(answers: Answers) -> Check:
    """The interface of the default route: what it is, its speed and its MTU."""
    answer = answers[ROUTE]
    if isinstance(answer, Failure) and _NO_ROUTE in answer.text + answer.error:
        finding = "this Mac has no default route: connect it to a network, unless its only network is a cable to another Mac"
        return Check("ethernet", State.WARNING, finding)
    text = printed(answers, ROUTE)
    route = _ROUTE_INTERFACE.search(text)
    if route is None:
        raise unexpected(ROUTE, text)
    name = route.group(1)
    interface = parse_interfaces(printed(answers, INTERFACES)).get(name)
    if interface is None:
        raise ParseError(" ".join(INTERFACES), f"does not show {name}, the interface of the default route")
    return _interface(name, interface, parse_ports(printed(answers, PORTS)).get(name, ""))


def _interface(name: str, interface: Interface, port: str) -> Check:
    if interface.mbps is None:
        if port == "Wi-Fi" or port == "Thunderbolt Bridge" or _THUNDERBOLT.fullmatch(port):
            finding = f"the default route uses {name} ({port}): connect Ethernet, so that the cluster does not depend on it"
            return Check("ethernet", State.WARNING, finding)
        raise ParseError(" ".join(INTERFACES), f"shows no speed of {name}: media {interface.media or 'missing'}")
    speed = f"{name} runs at {interface.mbps} Mb/s with MTU {interface.mtu}"
    if interface.mbps < GIGABIT_MBPS:
        return Check("ethernet", State.WARNING, f"{speed}: use a cable and a switch for Gigabit Ethernet or faster")
    if interface.mtu < USUAL_MTU:
        fix = shown([("networksetup", "-setMTU", name, str(USUAL_MTU))], {})
        return Check("ethernet", State.WARNING, f"{speed}, less than the usual {USUAL_MTU}", fix)
    return Check("ethernet", State.OK, speed)


def bridge(answers: Answers, managed: bool) -> Check:
    """Whether Thunderbolt ports have addresses of their own: outside of a bridge, and with a network service.

    ``managed``: whether the kubelet of this Mac does this.
    """
    text = printed(answers, INTERFACES)
    parse_interfaces(text)
    now = values_of(
        parse.parse_hardware_ports(printed(answers, PORTS)),
        parse.parse_service_order(printed(answers, SERVICES)),
        parse.parse_ifconfig(text),
    )
    if now.members:
        return _members(answers, now, managed)
    missing = [port for port in now.ports if port.name not in served(now)]
    if not missing:
        text = "no Thunderbolt port is a member of a bridge, and each has a network service"
        return Check("thunderbolt-bridge", State.OK, text, reason=Reason.NO_MEMBERS)
    ports = ", ".join(port.name for port in missing)
    found = f"{THIS_MAC} has no network service for {ports}, so a cable there gets no address"
    if managed:
        return Check("thunderbolt-bridge", State.WARNING, f"{found}: {_KUBELET}")
    commands = tuple(("networksetup", "-createnetworkservice", port.service, port.name) for port in missing)
    repair = Repair(commands, tuple(advice.remove_services(missing)))
    return Check("thunderbolt-bridge", State.WARNING, found, shown(commands, {}), repair=repair)


_KUBELET = "the kubelet repairs this when it can; `kubectl describe node` shows why it has not"


def _members(answers: Answers, now: Network, managed: bool) -> Check:
    """Ports in a bridge. The repair survives a restart. It is not done if the bridge may be the only connection to this Mac."""
    members = ", ".join(f"{port.device} of {THIS_MAC} is a member of {port.bridge}" for port in now.members)
    found = f"{members}, where RDMA does not work"
    if managed:
        return Check("thunderbolt-bridge", State.FAILURE, f"{found}: {_KUBELET}", "", Reason.BRIDGE_MEMBER)
    commands, undo = advice.separate(now.members, now.bridges, served(now))
    fix = shown(commands, {})
    answer = answers[ROUTE]
    route = _ROUTE_INTERFACE.search(answer.text) if isinstance(answer, Output) else None
    if route is None or route.group(1).startswith("bridge"):
        why = "the bridge may carry the only connection to this Mac, so --fix leaves it as it is"
        text = f"{found}: {why}; connect this Mac to a LAN first"
        return Check("thunderbolt-bridge", State.FAILURE, text, fix, Reason.BRIDGE_MEMBER)
    return Check(
        "thunderbolt-bridge", State.FAILURE, found, fix, Reason.BRIDGE_MEMBER, repair=Repair(tuple(commands), tuple(undo))
    )
