"""What messages recommend about addresses and bridges: settings that outlive a restart. Pure.

Agent, operator, runner and doctor use the same text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from thunderfleet_lib.macnet.switch import Argv
from thunderfleet_lib.macnet.values import Bridge, Port

REPAIR: Final = "sudo thunderfleet doctor --fix"
_KUBELET: Final = (
    "a kubelet that runs as root changes that, and `kubectl describe node` shows why it has not; without such a kubelet, "
)


def leave_bridge(mac: str) -> str:
    """How Thunderbolt ports leave a bridge permanently."""
    return f"{_KUBELET}run `{REPAIR}` on {mac}, which gives each port a network service of its own permanently"


def why_no_address(node: str) -> str:
    """Where to see why a kubelet has not given an end of a cable its address, in a few words."""
    return f"a kubelet that runs as root sets one, and `kubectl describe node {node}` shows why it has not"


def set_address(mac: str) -> str:
    """How a port gets an address permanently."""
    service = "networksetup -setmanual SERVICE 10.0.0.1 255.255.255.252 ''"
    return (
        f"{_KUBELET}give both ends of the cable addresses of one network, such as `sudo {service}` on {mac} and 10.0.0.2 at "
        "the other end, where SERVICE is the network service of the port"
    )


def separate(ports: Iterable[Port], bridges: Sequence[Bridge], has_service: Iterable[str]) -> tuple[list[Argv], list[Argv]]:
    """The commands that take ports out of their bridges permanently, and those that undo them.

    ``has_service``: ports with an enabled network service of their own.
    """
    members, served = [port for port in ports if port.bridge is not None], frozenset(has_service)
    alone = [port for port in members if port.name not in served]
    do: list[Argv] = [("networksetup", "-createnetworkservice", port.service, port.name) for port in alone]
    undo: list[Argv] = []
    for bridge in bridges:
        of_bridge = [port for port in members if port.bridge == bridge.name]
        do += [("ifconfig", bridge.name, "deletem", port.device) for port in of_bridge]
        if bridge.service and bridge.enabled and of_bridge and not bridge.others:
            do.append(("networksetup", "-setnetworkserviceenabled", bridge.service, "off"))
            undo.append(("networksetup", "-setnetworkserviceenabled", bridge.service, "on"))
        undo += [("ifconfig", bridge.name, "addm", port.device) for port in of_bridge]
    return do, undo + remove_services(alone)


def remove_services(ports: Iterable[Port]) -> list[Argv]:
    """The commands that remove our services of ports. macOS may refuse to remove the last one of a port; it is off then."""
    commands: list[Argv] = []
    for port in ports:
        commands.append(("networksetup", "-setnetworkserviceenabled", port.service, "off"))
        commands.append(("networksetup", "-removenetworkservice", port.service))
    return commands


def shown(commands: Iterable[Argv]) -> str:
    """Commands as they are typed."""
    return " && ".join(shlex.join(["sudo", *argv]) for argv in commands)
