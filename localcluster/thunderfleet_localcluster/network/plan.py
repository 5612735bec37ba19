"""The network configuration for a layout and its faults, as commands of ``ip`` and ``tc``. Pure.

The LAN is one bridge; a Thunderbolt cable is a veth pair between two machines. Commands for the host side run in the network
namespace of the supervisor, the others inside the machine that they name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from thunderfleet_localcluster.fleet.fault_state import FaultState, ends_of
from thunderfleet_localcluster.fleet.layout import Address, CableEnd, Layout, MachineLayout, mac_address
from thunderfleet_localcluster.fleet.network_settings import BRIDGE as BRIDGE0
from thunderfleet_localcluster.fleet.own_settings import bridge_address

BRIDGE = "lan0"
# Drops incoming TCP connection attempts (SYN without ACK). Classic BPF: load the protocol, check IPv4, load the IP protocol,
# check TCP, skip the IP header, test the flags.
_DROP_NEW_CONNECTIONS = "10,40 0 0 12,21 0 7 2048,48 0 0 23,21 0 5 6,177 0 0 14,80 0 0 27,84 0 0 18,21 0 1 2,6 0 0 2,6 0 0 0"


@dataclass(frozen=True)
class Tc:
    """One call of ``tc`` inside a machine. ``optional``: it may fail, for example because there is nothing to delete."""

    machine: str
    arguments: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class NetworkPlan:
    """Commands in this order: ``host`` (supervisor's namespace) and ``inside`` (by machine) for ``ip -batch``, then ``tc``."""

    host: str
    inside: Mapping[str, str]
    tc: tuple[Tc, ...]


def lan_commands(layout: Layout) -> str:
    """``ip`` commands that create the LAN with the control plane on it."""
    at = layout.control_plane
    return (
        "link set lo up\n"
        f"link add {BRIDGE} type bridge forward_delay 0\n"
        f"addr add {at.ip}/{at.prefix} dev {BRIDGE}\n"
        f"link set {BRIDGE} up\n"
    )


def plug_in(
    plan: Layout, faults: FaultState, pids: Mapping[str, int], started: Collection[str], moved: int | None = None
) -> NetworkPlan:
    """Connect the ``started`` machines: their LAN ports and every cable that ends at one of them; and the cable ``moved``.

    ``pids`` are the first processes of all machines that are on. A cable with an end at a machine that is off is not created.
    """
    host, inside = "", dict.fromkeys(pids, "")
    present = faults.rewired(plan)
    for index, machine in enumerate(present.machines):
        if machine.name in started:
            host += _plug_lan(index, machine, pids[machine.name])
            if machine.name in faults.lan_unplugged:
                host += lan_port(index, plugged=False)
            inside[machine.name] += _lan_interface(machine)
    tc: list[Tc] = []
    for index in sorted({end.index for machine in present.machines for end in machine.ends}):
        ends = dict(ends_of(present, index))
        if (index != moved and ends.keys().isdisjoint(started)) or not ends.keys() <= pids.keys():
            continue
        host += _veth_pair({pids[name]: (name, end) for name, end in ends.items()})
        for name, end in ends.items():
            inside[name] += _cable_interface(present.machine(name), end)
            inside[name] += "" if faults.carries(index) else cable_port(end, plugged=False)
            tc += _limits(name, end, faults)
    return NetworkPlan(host, {name: text for name, text in inside.items() if text}, tuple(tc))


def update_cable(plan: Layout, faults: FaultState, on: Collection[str], index: int) -> NetworkPlan:
    """Update both ends of a cable for ``faults``; nothing if one of its machines is not ``on``."""
    ends = ends_of(faults.rewired(plan), index)
    if not all(name in on for name, _ in ends):
        return NetworkPlan("", {}, ())
    tc: list[Tc] = []
    for name, end in ends:
        rate = faults.rate(end)
        if rate is None:
            tc.append(Tc(name, rate_rule(end.interface, None), optional=True))
        tc.append(Tc(name, ("qdisc", "del", "dev", end.interface, "ingress"), optional=True))
        tc += _limits(name, end, faults)
    return NetworkPlan("", {name: cable_port(end, plugged=faults.carries(index)) for name, end in ends}, tuple(tc))


def unplug_cable(plan: Layout, faults: FaultState, on: Collection[str], index: int) -> NetworkPlan:
    """Delete a cable, both ends with it; nothing if one of its machines is not ``on``, since the cable then does not exist."""
    ends = ends_of(faults.rewired(plan), index)
    if not all(name in on for name, _ in ends):
        return NetworkPlan("", {}, ())
    name, end = ends[0]
    return NetworkPlan("", {name: f"link del {end.interface}\n"}, ())


def links_of(plan: Layout, faults: FaultState, name: str) -> tuple[str, list[tuple[str, str]]]:
    """The interfaces that connect a machine: its LAN port in the supervisor's namespace, and the other ends of its cables."""
    present = faults.rewired(plan)
    position = [machine.name for machine in present.machines].index(name)
    others = [
        (other, end.interface)
        for index in sorted({end.index for end in present.machines[position].ends})
        for other, end in ends_of(present, index)
        if other != name
    ]
    return _lan_port_name(position), others


def changed_settings(before: MachineLayout, after: MachineLayout) -> str:
    """``ip`` commands inside a Mac whose network settings have changed. ``before`` and ``after``: with plugged cables only."""
    text = ""
    for end in after.ends:
        old = before.end(end.port)
        if _has_bridge(after) and _member(before, end) != _member(after, end):
            text += f"link set {end.interface} {f'master {BRIDGE0}' if _member(after, end) else 'nomaster'}\n"
        text += _changed_address(old.address if old else None, end.address, end.interface)
    return text + _changed_address(bridge_address(before), bridge_address(after), BRIDGE0)


def _changed_address(was: Address | None, now: Address | None, interface: str) -> str:
    if was == now:
        return ""
    text = f"addr del {was.ip}/{was.prefix} dev {interface}\n" if was else ""
    return text + (f"addr add {now.ip}/{now.prefix} broadcast + dev {interface}\n" if now else "")


def _has_bridge(machine: MachineLayout) -> bool:
    return machine.machine.bridge_address is not None


def _member(machine: MachineLayout, end: CableEnd) -> bool:
    return end.port in machine.machine.bridge


def _bridge_interface(machine: MachineLayout) -> str:
    """``ip`` commands that create the Thunderbolt Bridge inside a Mac on which it has an address."""
    if not _has_bridge(machine):
        return ""
    address = _changed_address(None, bridge_address(machine), BRIDGE0)
    return f"link add {BRIDGE0} type bridge forward_delay 0\n{address}link set {BRIDGE0} up\n"


def lan_port(index: int, plugged: bool) -> str:
    """``ip`` commands that unplug a machine from the LAN (its en0 loses its carrier), or plug it in."""
    return f"link set {_lan_port_name(index)} {'up' if plugged else 'down'}\n"


def lan_address(before: MachineLayout, after: MachineLayout) -> str:
    """``ip`` commands inside a machine that change its LAN address."""
    lost = f"addr del {before.lan.ip}/{before.lan.prefix} dev en0\n" if before.lan_leased else ""
    return lost + _leased_address(after)


def cable_port(end: CableEnd, plugged: bool) -> str:
    """``ip`` commands inside a machine that unplug its end of a cable, or plug it in."""
    return f"link set {end.interface} {'up' if plugged else 'down'}\n"


def rate_rule(interface: str, rate_mbps: int | None) -> tuple[str, ...]:
    """Arguments of ``tc`` that limit the rate of an interface, or end the limit."""
    if rate_mbps is None:
        return ("qdisc", "del", "dev", interface, "root")
    burst = max(16, min(1024, rate_mbps // 4))
    shaper = ("tbf", "rate", f"{rate_mbps}mbit", "burst", f"{burst}kb", "latency", "50ms")
    return ("qdisc", "replace", "dev", interface, "root", *shaper)


def missing_aliases(layout: Layout, can_bind: Callable[[str], bool]) -> list[str]:
    """Commands that add the loopback addresses that this machine needs and does not have; macOS only has 127.0.0.1."""
    addresses = [layout.control_plane.ip, *(machine.lan.ip for machine in layout.machines)]
    addresses += [end.address.ip for machine in layout.machines for end in machine.ends if end.address]
    return [f"sudo ifconfig lo0 alias {address} up" for address in addresses if not can_bind(str(address))]


def _lan_port_name(index: int) -> str:
    return f"lan-{index}"


def _plug_lan(index: int, machine: MachineLayout, pid: int) -> str:
    port = _lan_port_name(index)
    return (
        f"link add {port} type veth peer name en0 address {mac_address(machine.name, 'en0')} netns {pid}\n"
        f"link set {port} master {BRIDGE}\n"
        f"link set {port} up\n"
    )


def _veth_pair(ends: Mapping[int, tuple[str, CableEnd]]) -> str:
    (pid, (name, end)), (pid2, (name2, end2)) = ends.items()
    return (
        f"link add {end.interface} address {mac_address(name, end.interface)} netns {pid} type veth "
        f"peer name {end2.interface} address {mac_address(name2, end2.interface)} netns {pid2}\n"
    )


def _lan_interface(machine: MachineLayout) -> str:
    return f"link set lo up\n{_leased_address(machine)}link set en0 up\n{_bridge_interface(machine)}"


def _leased_address(machine: MachineLayout) -> str:
    return f"addr add {machine.lan.ip}/{machine.lan.prefix} broadcast + dev en0\n" if machine.lan_leased else ""


def _cable_interface(machine: MachineLayout, end: CableEnd) -> str:
    address = _changed_address(None, end.address, end.interface)
    member = f"link set {end.interface} master {BRIDGE0}\n" if _has_bridge(machine) and _member(machine, end) else ""
    return f"{address}{member}link set {end.interface} up\n"


def _limits(name: str, end: CableEnd, faults: FaultState) -> Sequence[Tc]:
    """``tc`` calls for the rate limit and the dropped direction of a cable end, if it has any."""
    found: list[Tc] = []
    rate = faults.rate(end)
    if rate is not None:
        found.append(Tc(name, rate_rule(end.interface, rate)))
    if (end.index, end.peer) in faults.one_way:
        found.append(Tc(name, ("qdisc", "add", "dev", end.interface, "ingress")))
        program = ("bpf", "direct-action", "bytecode", _DROP_NEW_CONNECTIONS)
        found.append(Tc(name, ("filter", "add", "dev", end.interface, "ingress", *program)))
    return found
