"""Faults and changes of a running fleet: cables, LAN ports, RDMA, power, damaged commands. Pure.

A FaultState is an immutable value. Applied to the layout of the fleet file, it yields the current layout, which recorded
commands print and network namespaces follow, so that both ends of a cable always match.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from types import MappingProxyType
from typing import Any, cast

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.actions import (
    CABLE_ACTIONS,
    COMMANDS,
    DAMAGES,
    LAN_ACTIONS,
    NO_ADDRESS,
    RDMA_ACTIONS,
    SPEEDS,
)
from thunderfleet_localcluster.fleet.catalogue import TB4_GBPS
from thunderfleet_localcluster.fleet.layout import Address, CableEnd, Layout, MachineLayout, cable_end
from thunderfleet_localcluster.fleet.network_settings import NetworkSettings
from thunderfleet_localcluster.fleet.own_settings import effective
from thunderfleet_localcluster.fleet.spec import End

# With a hung RDMA stack these never exit; rdma_ctl only reads the setting.
HUNG_COMMANDS = ("ibv_devices", "ibv_devinfo")
MAX_RATE_MBPS = 100_000


def _none() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class FaultState:
    """All changes since the cluster started. Methods return a changed copy and raise LocalClusterError for invalid changes."""

    pulled: frozenset[int] = frozenset()
    """Indexes of unplugged cables."""
    one_way: frozenset[tuple[int, str]] = frozenset()
    """(cable index, machine): connections that the machine opens over the cable do not arrive."""
    moved: Mapping[int, tuple[End, End]] = field(default_factory=_none)
    """Present ends a and b of moved cables, by cable index."""
    rates: Mapping[int, int] = field(default_factory=_none)
    """Rate limits in Mb/s, by cable index."""
    negotiated: Mapping[int, str] = field(default_factory=_none)
    """Negotiated speeds in Gb/s that both ends report, by cable index."""
    rdma: Mapping[str, str] = field(default_factory=_none)
    """RDMA of a machine: on, off or hang."""
    off: frozenset[str] = frozenset()
    """Machines without power."""
    lan_unplugged: frozenset[str] = frozenset()
    """Machines whose LAN port is unplugged."""
    leases: Mapping[str, IPv4Address | None] = field(default_factory=_none)
    """LAN addresses that changed, by machine; None: it has none."""
    boots: Mapping[str, int] = field(default_factory=_none)
    """Number of restarts, by machine."""
    damage: Mapping[tuple[str, str], str] = field(default_factory=_none)
    """Damage (a key of DAMAGES), by machine and command."""
    settings: Mapping[str, NetworkSettings] = field(default_factory=_none)
    """Network settings that a Mac's own commands have changed, by machine."""

    # -- changes -----------------------------------------------------------------------------------------------------------

    def with_cable(self, index: int, action: str, rate_mbps: int | None = None, speed: str | None = None) -> "FaultState":
        """Pull, plug or slow a cable.

        ``plug`` also removes all limits; ``slow`` limits the rate to ``rate_mbps``, or sets the negotiated speed to ``speed``.
        """
        match action:
            case "pull":
                return replace(self, pulled=self.pulled | {index})
            case "plug":
                one_way = frozenset(key for key in self.one_way if key[0] != index)
                rates, negotiated = _without(self.rates, index), _without(self.negotiated, index)
                return replace(self, pulled=self.pulled - {index}, one_way=one_way, rates=rates, negotiated=negotiated)
            case "slow":
                _check_slow(rate_mbps, speed)
                rates, negotiated = _without(self.rates, index), _without(self.negotiated, index)
                if rate_mbps is not None:
                    rates[index] = rate_mbps
                if speed is not None:
                    negotiated[index] = speed
                return replace(self, pulled=self.pulled - {index}, rates=rates, negotiated=negotiated)
        raise LocalClusterError(f"unknown action {action!r}; allowed: {', '.join(CABLE_ACTIONS)}", usage=True)

    def with_one_way(self, index: int, machine: str) -> "FaultState":
        """Drop connections that ``machine`` opens over the cable; connections from the other end still work."""
        return replace(self, one_way=self.one_way | {(index, machine)})

    def with_move(self, plan: Layout, end: str, to: str) -> "FaultState":
        """Move the plug at ``end`` to the port ``to`` of the same or another Mac (both machine:port)."""
        now = self.rewired(plan)
        index = find_cable(now, end)
        sides = _sides(now, index)
        fixed = next(side for side in sides if str(side) != end)
        macs = {machine.name: machine for machine in now.machines if machine.machine.kind == "mac"}
        target = _free_port(macs, to, fixed)
        ends = (target if str(sides[0]) == end else sides[0], target if str(sides[1]) == end else sides[1])
        negotiated = _without(self.negotiated, index)
        slowest = min(macs[side.machine].machine.mac.max_gbps for side in ends)
        if plan.cable(index).gbps > TB4_GBPS >= slowest:
            negotiated[index] = str(TB4_GBPS)
        one_way = frozenset(key for key in self.one_way if key[0] != index)
        return replace(self, moved={**self.moved, index: ends}, negotiated=negotiated, one_way=one_way)

    def with_rdma(self, machine: str, action: str) -> "FaultState":
        """Turn RDMA of a machine on or off, or make its stack hang."""
        if action not in RDMA_ACTIONS:
            raise LocalClusterError(f"unknown action {action!r}; allowed: {', '.join(RDMA_ACTIONS)}", usage=True)
        return replace(self, rdma={**self.rdma, machine: action})

    def with_lan(self, machine: str, action: str) -> "FaultState":
        """Unplug a machine from the LAN (pull), or plug it in; its Thunderbolt cables stay."""
        if action not in ("pull", "plug"):
            raise LocalClusterError(f"unknown action {action!r}; allowed: {', '.join(LAN_ACTIONS)}", usage=True)
        unplugged = self.lan_unplugged | {machine} if action == "pull" else self.lan_unplugged - {machine}
        return replace(self, lan_unplugged=unplugged)

    def with_lease(self, plan: Layout, machine: str, text: str) -> "FaultState":
        """Give a machine another LAN address, as a new DHCP lease does, or none. The address stays when it restarts."""
        if text == NO_ADDRESS:
            return replace(self, leases={**self.leases, machine: None})
        network = plan.control_plane.network
        try:
            address = IPv4Address(text)
        except ValueError:
            raise LocalClusterError(
                f"{text!r} is not an IPv4 address; use one in {network}, or {NO_ADDRESS!r} to remove the address", usage=True
            ) from None
        if address not in network or address in (network.network_address, network.broadcast_address):
            raise LocalClusterError(f"{address} is not an address in the LAN, which is {network}", usage=True)
        here = [other for other in self.rewired(plan).machines if other.name != machine and other.lan.ip == address]
        if here or address == plan.control_plane.ip:
            raise LocalClusterError(f"{address} is the address of {here[0].name if here else 'the control plane'}", usage=True)
        return replace(self, leases={**self.leases, machine: address})

    def with_power(self, machine: str, on: bool) -> "FaultState":
        """Turn a machine off, or on again with new domain UUIDs and a working RDMA stack, as after a restart."""
        if not on:
            return replace(self, off=self.off | {machine})
        rdma = {name: "on" if name == machine and state == "hang" else state for name, state in self.rdma.items()}
        settings = {name: found.restarted() if name == machine else found for name, found in self.settings.items()}
        boots = {**self.boots, machine: self.boots.get(machine, 0) + 1}
        return replace(self, off=self.off - {machine}, rdma=rdma, boots=boots, settings=settings)

    def with_settings(self, machine: str, settings: NetworkSettings) -> "FaultState":
        """Store the network settings that a machine's own command has changed."""
        return replace(self, settings={**self.settings, machine: settings})

    def with_damage(self, machine: str, command: str, damage: str) -> "FaultState":
        """Make a command of a machine fail, or repair it."""
        if command not in COMMANDS:
            raise LocalClusterError(f"unknown command {command!r}; a recorded Mac has {', '.join(COMMANDS)}", usage=True)
        if damage not in DAMAGES:
            raise LocalClusterError(f"unknown damage {damage!r}; allowed: {', '.join(DAMAGES)}", usage=True)
        found = {key: value for key, value in self.damage.items() if key != (machine, command)}
        if damage != "mend":
            found[(machine, command)] = damage
        return replace(self, damage=found)

    # -- results -----------------------------------------------------------------------------------------------------------

    def damaged(self, machine: str) -> dict[str, str]:
        """Damage of one machine's commands, by command."""
        found = dict.fromkeys(HUNG_COMMANDS, "hang") if self.rdma.get(machine) == "hang" else {}
        return found | {command: damage for (name, command), damage in self.damage.items() if name == machine}

    def carries(self, index: int) -> bool:
        """Whether the cable is plugged in at both ends."""
        return index not in self.pulled

    def rate(self, end: CableEnd) -> int | None:
        """The rate limit of a cable in Mb/s; None without one."""
        return self.rates.get(end.index, end.cable.rate_mbps)

    def rewired(self, plan: Layout) -> Layout:
        """The layout with current LAN addresses and network settings, and moved cables at their current ports."""
        plan = replace(plan, machines=tuple(self._leased(machine) for machine in plan.machines))
        return self._settled(self._moved(plan))

    def _settled(self, plan: Layout) -> Layout:
        if not self.settings:
            return plan
        found = (self.settings.get(machine.name) for machine in plan.machines)
        pairs = zip(plan.machines, found, strict=True)
        return replace(plan, machines=tuple(effective(one, own) if own is not None else one for one, own in pairs))

    def _moved(self, plan: Layout) -> Layout:
        if not self.moved:
            return plan
        ends = {machine.name: [end for end in machine.ends if end.index not in self.moved] for machine in plan.machines}
        for index, sides in self.moved.items():
            addresses = _addresses(plan, index)
            for side, (here, there) in enumerate(((sides[0], sides[1]), (sides[1], sides[0]))):
                owner = plan.machine(here.machine).machine
                cable = plan.cable(index)
                ends[here.machine].append(cable_end(cable, index, owner, here.port, there, addresses[side], side))
        machines = (
            replace(machine, ends=tuple(sorted(ends[machine.name], key=lambda end: end.port))) for machine in plan.machines
        )
        return replace(plan, machines=tuple(machines))

    def layout(self, plan: Layout) -> Layout:
        """The current layout: unplugged cables and cables to a Mac without power have no ends."""
        return replace(plan, machines=tuple(self._machine(machine) for machine in self.rewired(plan).machines))

    def _leased(self, layout: MachineLayout) -> MachineLayout:
        address = self.leases.get(layout.name, layout.lan.ip)
        if address is None:
            return replace(layout, lan_leased=False)
        return replace(layout, lan=replace(layout.lan, ip=address))

    def _machine(self, layout: MachineLayout) -> MachineLayout:
        ends = tuple(self._end(end) for end in layout.ends if self.carries(end.index) and end.peer not in self.off)
        machine = layout.machine
        if layout.name in self.rdma:
            machine = machine.model_copy(update={"rdma": self.rdma[layout.name] != "off"})
        boots, plugged = self.boots.get(layout.name, 0), layout.name not in self.lan_unplugged
        return replace(layout, machine=machine, ends=ends, boots=boots, lan_plugged=plugged)

    def _end(self, end: CableEnd) -> CableEnd:
        speed = self.negotiated.get(end.index)
        return end if speed is None else replace(end, cable=end.cable.model_copy(update={"speed": cast(Any, speed)}))


def _without(values: Mapping[int, Any], index: int) -> dict[int, Any]:
    return {key: value for key, value in values.items() if key != index}


def _check_slow(rate_mbps: int | None, speed: str | None) -> None:
    if rate_mbps is None and speed is None:
        raise LocalClusterError("slow needs --rate MBPS, --speed GBPS, or both", usage=True)
    if rate_mbps is not None and not 1 <= rate_mbps <= MAX_RATE_MBPS:
        raise LocalClusterError(f"rate {rate_mbps} is out of range; allowed: 1 to {MAX_RATE_MBPS} Mb/s", usage=True)
    if speed is not None and speed not in SPEEDS:
        raise LocalClusterError(f"unknown speed {speed!r}; allowed: {', '.join(SPEEDS)} Gb/s", usage=True)


def _free_port(macs: Mapping[str, MachineLayout], to: str, fixed: End) -> End:
    """The port ``to`` (machine:port) if a cable from ``fixed`` can be plugged in there. Raises LocalClusterError."""
    name, _, number = to.partition(":")
    if name not in macs or not number.isdigit():
        raise LocalClusterError(f"unknown port {to!r}; use machine:port with one of {', '.join(macs)}", usage=True)
    mac, port = macs[name].machine, int(number)
    if not 1 <= port <= mac.mac.ports:
        raise LocalClusterError(f"{name} has no port {port}: a {mac.mac.name} {mac.mac.port_range}", usage=True)
    if name == fixed.machine:
        raise LocalClusterError(f"the other end is at {fixed}; a cable must join two different machines", usage=True)
    if macs[name].end(port) is not None or any(device.port == port for device in mac.devices):
        raise LocalClusterError(f"port {to} is in use", usage=True)
    return End(machine=name, port=port)


def _sides(plan: Layout, index: int) -> tuple[End, End]:
    """Ends a and b of a cable in ``plan``."""
    found = {}
    for name, end in ends_of(plan, index):
        found[end.side] = End(machine=name, port=end.port)
    return found[0], found[1]


def _addresses(plan: Layout, index: int) -> tuple[Address | None, Address | None]:
    """Addresses of ends a and b of a cable in ``plan``, also of an end in a bridge, which does not use its own."""
    known = {end.side: end.address for _, end in ends_of(plan, index)}
    for side, address in known.items():
        if address is not None:
            other = Address(IPv4Address(int(address.ip) + (1 if side == 0 else -1)), address.prefix)
            return (address, other) if side == 0 else (other, address)
    return None, None


def find_cable(plan: Layout, text: str) -> int:
    """The index of the cable at ``text`` (machine:port). Raises LocalClusterError that lists all cable ends."""
    name, _, port = text.partition(":")
    for machine in plan.machines:
        for end in machine.ends:
            if machine.name == name and port.isdigit() and end.port == int(port):
                return end.index
    ends = ", ".join(f"{machine.name}:{end.port}" for machine in plan.machines for end in machine.ends)
    raise LocalClusterError(f"no cable at {text}; cable ends: {ends or 'none'}", usage=True)


def ends_of(plan: Layout, index: int) -> list[tuple[str, CableEnd]]:
    """Both ends of a cable: (machine name, end)."""
    return [(machine.name, end) for machine in plan.machines for end in machine.ends if end.index == index]
