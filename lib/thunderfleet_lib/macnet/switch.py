"""Whether ports may leave a bridge, whether the switch has succeeded, and how it is undone. Pure.

A bridge may carry the only route to the API server. Then its address moves to the port with the cable, if there is exactly one.
A switch is confirmed when the API server has answered for some seconds since. It is undone when the API server has not answered
for LOST_SECONDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface
from typing import Final

from thunderfleet_lib.macnet.values import Bridge, Network, Port, Record

LOST_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 3.0
UNVERIFIED_SECONDS: Final = 60.0
"""How long the settings may take to show what was set."""
REMOVALS: Final = 4
"""How often the removal of disabled services is tried before they are left as they are."""

Argv = tuple[str, ...]


@dataclass(frozen=True)
class Reach:
    """How the API server is reached. Seconds since the ports were switched, or since this program started."""

    answers: bool
    steady_seconds: float = 0.0
    """Seconds for which it has answered."""
    lost_seconds: float = 0.0
    """Seconds for which it has not answered."""
    trial_seconds: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What to do next: write ``record``, then run ``commands``. Without commands and with the same record, nothing."""

    record: Record
    commands: tuple[Argv, ...] = ()
    note: str = ""
    """What is done, for the log."""
    problem: str = ""
    """Why ports are not as they should be, and what to do."""
    waiting: str = ""
    """What it waits for, if no action is needed."""
    outcome: str = ""
    """Confirmed or Undone: the end of a switch."""


def carrier(network: Network, server: str) -> Bridge | None:
    """The bridge that the API server is reached through: by the route, or because it has the server's address itself."""
    for bridge in network.bridges:
        if network.route == bridge.name or any(str(address.ip) == server for address in bridge.addresses):
            return bridge
    return None


def kept_addresses(network: Network, server: str) -> Mapping[str, IPv4Interface]:
    """The address that moves with the route to the API server from a bridge to its only port with a cable."""
    bridge = carrier(network, server)
    if bridge is None or not bridge.addresses:
        return {}
    cabled = [port for port in network.members if port.bridge == bridge.name and port.active]
    return {cabled[0].name: bridge.addresses[0]} if len(cabled) == 1 else {}


def situation(network: Network) -> str:
    """What has to change before a switch that was undone is tried again."""
    ports = ",".join(f"{port.name}{'+' if port.active else '-'}" for port in network.members)
    return f"{network.route or 'unknown'} {ports}"


def obstacle(network: Network, record: Record, server: str) -> str:
    """Why the ports must stay in their bridge; empty if they may leave it."""
    if record.refused and record.refused == situation(network):
        return (
            "the Thunderbolt ports are back in their bridge: without it the API server was not reached, or the ports were not "
            "ready in time. Connect this Mac to a LAN, or set thunderboltPorts: Unmanaged in the configuration of the kubelet"
        )
    bridge = carrier(network, server)
    if bridge is not None and not kept_addresses(network, server):
        return (
            f"the Thunderbolt ports stay in {bridge.name}: it carries the route to the API server, and its address cannot move "
            "to one port, because none or several of them have a cable. Connect this Mac to a LAN"
        )
    return ""


def leave(network: Network, record: Record, *, trial: bool) -> Decision:
    """Take all ports out of their bridges."""
    members = {port.name: str(port.bridge) for port in network.members}
    commands = tuple(("ifconfig", str(port.bridge), "deletem", port.device) for port in network.members)
    changed = replace(record, members={**record.members, **members}, trial=trial)
    return Decision(changed, commands, f"taking {', '.join(members)} out of {', '.join(sorted(set(members.values())))}")


def judge(network: Network, record: Record, reach: Reach) -> Decision:
    """Decides whether a switch is confirmed or undone. The caller has checked that ``record.trial`` is set."""
    if reach.lost_seconds >= LOST_SECONDS:
        return undo(network, _refuse(network, record), f"the API server was not reached for {LOST_SECONDS:.0f} s")
    if reach.trial_seconds >= UNVERIFIED_SECONDS:
        return undo(network, _refuse(network, record), f"the ports were not ready within {UNVERIFIED_SECONDS:.0f} s")
    if any(port.name in record.members for port in network.members):
        # Interrupted between the record and the commands, or a command failed.
        return leave(network, record, trial=True)
    unset = [port.name for port in network.ports if not _has_address(port, network)]
    if unset or not reach.answers or reach.steady_seconds < STEADY_SECONDS:
        return Decision(record)
    return Decision(replace(record, trial=False, confirmed=True, refused=""), outcome="Confirmed")


def _has_address(port: Port, network: Network) -> bool:
    """Whether a port with a cable has the address of its service. An automatic one may take minutes, and is not waited for."""
    wanted = network.services.get(port.service)
    return wanted is None or not port.active or wanted in port.addresses


def _refuse(network: Network, record: Record) -> Record:
    """The record of a switch that is undone: as it will be when the ports are members again."""
    again = replace(
        network, ports=tuple(replace(port, bridge=record.members.get(port.name, port.bridge)) for port in network.ports)
    )
    return replace(record, trial=False, confirmed=False, undoing=True, refused=situation(again))


def why_undoing(record: Record) -> str:
    """Why managed ports are being put back. The record has that they are, but not the reason."""
    if record.refused:
        return "the API server was not reached without the bridge, or the ports were not ready in time"
    return "the changes were already being undone when thunderboltPorts was set back to Managed"


def undo(network: Network, record: Record, why: str) -> Decision:
    """Undo everything in ``record``: first the bridges, so that their route is back before the ports' addresses go."""
    record = replace(record, undoing=True, trial=False, confirmed=False)
    commands: list[Argv] = []
    off = {bridge.service for bridge in network.bridges if bridge.service and not bridge.enabled}
    commands += [("networksetup", "-setnetworkserviceenabled", name, "on") for name in record.disabled if name in off]
    for port in network.ports:
        bridge = record.members.get(port.name)
        # A bridge that no longer exists cannot have its members back.
        if bridge is not None and port.bridge is None and network.bridge(bridge) is not None:
            commands.append(("ifconfig", bridge, "addm", port.device))
    enabled = [name for name in network.services if name not in network.disabled]
    commands += [("networksetup", "-setnetworkserviceenabled", name, "off") for name in enabled]
    # macOS may refuse to remove the last service of a port. One that is disabled has no effect.
    removed: list[Argv] = [("networksetup", "-removenetworkservice", name) for name in network.services]
    if commands:
        return Decision(record, (*commands, *removed), f"putting the Thunderbolt ports back as they were: {why}")
    if removed and record.removals < REMOVALS:
        again = replace(record, removals=record.removals + 1)
        return Decision(again, tuple(removed), f"removing the network services of the Thunderbolt ports: {why}")
    note = f"the Thunderbolt ports have their earlier settings again: {why}"
    return Decision(Record(refused=record.refused), outcome="Undone", note=note)
