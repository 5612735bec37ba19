"""The next commands that give every Thunderbolt port a network service and an address of its own. Pure.

The steps are: create a service for each port, set its address, remove the ports from their bridges, disable the services of the
empty bridges. A step begins when the settings show the one before. Every step is decided from the current settings, so it does
not matter where an earlier run was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface

from thunderfleet_lib.macnet import switch
from thunderfleet_lib.macnet.switch import Argv, Decision, Reach
from thunderfleet_lib.macnet.values import Network, Port, Record


@dataclass(frozen=True)
class Goal:
    """The desired state. ``server``: the host of the API server's URL. ``managed``: False undoes everything."""

    server: str
    managed: bool = True
    addresses: Mapping[str, IPv4Interface] = field(default_factory=dict)
    """The addresses of ports whose cable is known, by port."""
    waiting: frozenset[str] = frozenset()
    """Ports whose cable is expected to become known soon."""


def next_step(network: Network, record: Record, goal: Goal, reach: Reach) -> Decision:
    """The next step from here."""
    if not goal.managed:
        return _release(network, record, "thunderboltPorts is Unmanaged")
    if record.undoing:
        return switch.undo(network, record, switch.why_undoing(record))
    if record.trial:
        return switch.judge(network, record, reach)
    blocked = switch.obstacle(network, record, goal.server) if network.members and not record.confirmed else ""
    if blocked:
        return Decision(record, problem=blocked)
    if network.members and not record.confirmed:
        kept = {name: str(address) for name, address in switch.kept_addresses(network, goal.server).items()}
        record = replace(record, kept=kept) if kept != dict(record.kept) else record
    wanted, problem = _addresses(network, record, goal)
    if step := _create(network, record) or _configure(network, record, wanted):
        return step
    if network.members:
        return _switch(network, record, goal, reach)
    return _disable(network, record) or Decision(record, problem=problem)


def _release(network: Network, record: Record, why: str) -> Decision:
    """Undo what was done, if anything was."""
    if record.empty and not record.undoing and network.disabled >= network.services.keys():
        return Decision(Record())
    return switch.undo(network, replace(record, refused=""), why)


def managed_ports(network: Network) -> Iterator[Port]:
    """The ports without an enabled network service that others created, who manage its settings."""
    return (port for port in network.ports if port.name not in network.foreign)


def _addresses(network: Network, record: Record, goal: Goal) -> tuple[dict[str, IPv4Interface | None], str]:
    """The address for the service of every managed port, and why it differs from ``goal``."""
    wanted: dict[str, IPv4Interface | None] = {}
    problem, taken = "", list(network.networks)
    for port in managed_ports(network):
        now = network.services.get(port.service)
        if port.name in record.kept:
            wanted[port.name] = IPv4Interface(record.kept[port.name])
        elif network.route == port.device:
            # This port leads to the API server, so it stays as it is.
            wanted[port.name] = now
        else:
            # A cable that is not reported now, because it is unplugged or a Mac is off, keeps its addresses.
            wanted[port.name] = goal.addresses.get(port.name, now)
        address = wanted[port.name]
        if address is None:
            continue
        if port.name not in record.kept and any(address.network.overlaps(other) for other in taken):
            problem = (
                f"the cable at {port.name} cannot have {address}, which this Mac reaches through another interface: set "
                "another cableNetwork in the configuration of the kubelets of all Macs"
            )
            wanted[port.name] = None
        else:
            taken.append(address.network)
    return wanted, problem


def _create(network: Network, record: Record) -> Decision | None:
    missing = [port for port in managed_ports(network) if port.service not in network.services]
    off = [port for port in managed_ports(network) if port.service in network.disabled]
    if not missing and not off:
        return None
    names = tuple(dict.fromkeys((*record.services, *(port.service for port in missing))))
    commands: list[Argv] = [("networksetup", "-createnetworkservice", port.service, port.name) for port in missing]
    commands += [("networksetup", "-setnetworkserviceenabled", port.service, "on") for port in off]
    services = ", ".join(port.service for port in (*missing, *off))
    return Decision(replace(record, services=names), tuple(commands), f"creating the network service {services}")


def set_address(service: str, address: IPv4Interface | None) -> Argv:
    """The command that sets the address of a network service; None: automatic."""
    if address is None:
        return ("networksetup", "-setdhcp", service)
    return ("networksetup", "-setmanual", service, str(address.ip), str(address.netmask), "")


def _configure(network: Network, record: Record, wanted: Mapping[str, IPv4Interface | None]) -> Decision | None:
    different = [port for port in managed_ports(network) if network.services[port.service] != wanted[port.name]]
    if not different:
        return None
    commands = tuple(set_address(port.service, wanted[port.name]) for port in different)
    addresses = ", ".join(f"{wanted[port.name] or 'an automatic address'} for {port.name}" for port in different)
    return Decision(record, commands, f"setting {addresses}")


def _switch(network: Network, record: Record, goal: Goal, reach: Reach) -> Decision:
    if record.confirmed:
        return switch.leave(network, record, trial=False)
    if not reach.answers:
        return Decision(record, waiting="the Thunderbolt ports stay in their bridge until the API server answers")
    if waiting := [port.name for port in network.members if port.active and port.name in goal.waiting]:
        text = f"the Thunderbolt ports stay in their bridge until the cable at {', '.join(waiting)} is known"
        return Decision(record, waiting=text)
    return switch.leave(network, record, trial=True)


def _disable(network: Network, record: Record) -> Decision | None:
    """Disable the services of bridges that we have emptied."""
    emptied = set(record.members.values())
    empty = [one for one in network.bridges if one.name in emptied and one.enabled and one.service and not one.others]
    if not empty or not record.confirmed:
        return None
    names = [str(bridge.service) for bridge in empty]
    commands = tuple(("networksetup", "-setnetworkserviceenabled", name, "off") for name in names)
    changed = replace(record, disabled=tuple(dict.fromkeys((*record.disabled, *names))))
    return Decision(changed, commands, f"disabling the network service {', '.join(names)}, which has no member left")
