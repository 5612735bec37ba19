"""What has happened to a fleet since it came up: cables pulled and slowed, RDMA switched, Macs off, commands damaged. Pure.

One immutable value; from it and the fleet's plan comes the plan of now, which recorded commands print and network namespaces
follow, so that both ends of a cable always tell the same story.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from types import MappingProxyType
from typing import Any, cast

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.catalogue import TB4_GBPS
from thunderfleet_localcluster.fleet.file import End
from thunderfleet_localcluster.fleet.layout import Address, CableEnd, Layout, MachineLayout, cable_end

CABLE_ACTIONS = ("pull", "plug", "slow", "cut", "move")
LAN_ACTIONS = ("pull", "plug")
RDMA_ACTIONS = ("on", "off", "hang")
COMMANDS = (
    "system_profiler",
    "networksetup",
    "ifconfig",
    "netstat",
    "route",
    "vm_stat",
    "ibv_devices",
    "ibv_devinfo",
    "rdma_ctl",
    "sysctl",
    "sw_vers",
)
DAMAGES = {
    "hang": "never answers",
    "fail": "says that it failed, exit code 5",
    "garble": "prints its beginning and then garbage",
    "half": "prints the first half of its answer",
    "empty": "prints nothing, exit code 0",
    "flood": "prints 50 MB",
    "absent": "is not there",
    "mend": "works again",
}
# What a dead RDMA stack does: these never answer; rdma_ctl only reads the switch.
HUNG_COMMANDS = ("ibv_devices", "ibv_devinfo")
SPEEDS = ("20", "40", "80", "120/40")
MAX_RATE_MBPS = 100_000


def _none() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Live:
    """``pulled`` and ``rates`` (Mbit/s) are by the cable's index, ``negotiated`` what its ends then say in Gb/s; ``oneway`` are
    (cable, machine) where nothing that the machine begins over the cable arrives; ``moved`` are the ends a and b that a cable
    has by now; ``rdma`` is by machine: on, off or hang; ``cut`` are the machines whose LAN port is unplugged; ``boots`` counts
    how often a machine came up again; ``damage`` is by (machine, command).
    """

    pulled: frozenset[int] = frozenset()
    oneway: frozenset[tuple[int, str]] = frozenset()
    moved: Mapping[int, tuple[End, End]] = field(default_factory=_none)
    rates: Mapping[int, int] = field(default_factory=_none)
    negotiated: Mapping[int, str] = field(default_factory=_none)
    rdma: Mapping[str, str] = field(default_factory=_none)
    off: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()
    boots: Mapping[str, int] = field(default_factory=_none)
    damage: Mapping[tuple[str, str], str] = field(default_factory=_none)

    # -- changes -----------------------------------------------------------------------------------------------------------

    def cable(self, index: int, action: str, rate_mbps: int | None = None, speed: str | None = None) -> "Live":
        """A cable pulled, plugged (whole and fast as at first) or slowed to ``rate_mbps``; ``speed`` is what is then
        negotiated. Raises LocalClusterError for what cannot be.
        """
        rates, negotiated = dict(self.rates), dict(self.negotiated)
        if action == "pull":
            return replace(self, pulled=self.pulled | {index})
        rates.pop(index, None)
        negotiated.pop(index, None)
        if action == "slow":
            if rate_mbps is None and speed is None:
                raise LocalClusterError("say how slow: --rate MBPS, --speed GBPS, or both", usage=True)
            if rate_mbps is not None:
                if not 1 <= rate_mbps <= MAX_RATE_MBPS:
                    raise LocalClusterError(f"a rate is 1 to {MAX_RATE_MBPS} Mbit/s, not {rate_mbps}", usage=True)
                rates[index] = rate_mbps
            if speed is not None:
                if speed not in SPEEDS:
                    raise LocalClusterError(f"a negotiated speed is one of {', '.join(SPEEDS)}, not {speed}", usage=True)
                negotiated[index] = speed
        elif action != "plug":
            raise LocalClusterError(f"unknown action {action!r}: {', '.join(CABLE_ACTIONS)}", usage=True)
        oneway = frozenset(key for key in self.oneway if key[0] != index) if action == "plug" else self.oneway
        return replace(self, pulled=self.pulled - {index}, oneway=oneway, rates=rates, negotiated=negotiated)

    def one_way(self, index: int, machine: str) -> "Live":
        """Nothing that ``machine`` begins over that cable arrives any more; what the other end begins is answered."""
        return replace(self, oneway=self.oneway | {(index, machine)})

    def move(self, plan: Layout, end: str, to: str) -> "Live":
        """The plug at ``end`` pulled out and put into the port ``to`` of the same or another Mac, both written machine:port.
        Raises LocalClusterError for what cannot be.
        """
        now = self.rewired(plan)
        index = find_cable(now, end)
        sides = _sides(now, index)
        stays = next(side for side in sides if str(side) != end)
        name, _, number = to.partition(":")
        macs = {machine.name: machine for machine in now.machines if machine.machine.kind == "mac"}
        if name not in macs or not number.isdigit():
            raise LocalClusterError(f"no Mac has a port {to}; write machine:port with one of {', '.join(macs)}", usage=True)
        mac, port = macs[name].machine, int(number)
        if not 1 <= port <= mac.mac.ports:
            raise LocalClusterError(f"{name}: a {mac.mac.name} {mac.mac.port_range}, not {port}", usage=True)
        if name == stays.machine:
            raise LocalClusterError(f"the cable's other end is at {stays}: a cable joins two different machines", usage=True)
        taken = macs[name].end(port) or next((device for device in mac.devices if device.port == port), None)
        if taken is not None:
            raise LocalClusterError(f"port {to} is taken; a port takes one plug", usage=True)
        fresh = End(machine=name, port=port)
        ends = (fresh if str(sides[0]) == end else sides[0], fresh if str(sides[1]) == end else sides[1])
        negotiated = {cable: speed for cable, speed in self.negotiated.items() if cable != index}
        slowest = min(macs[side.machine].machine.mac.max_gbps for side in ends)
        if plan.cable(index).gbps > TB4_GBPS >= slowest:
            negotiated[index] = str(TB4_GBPS)
        oneway = frozenset(key for key in self.oneway if key[0] != index)
        return replace(self, moved={**self.moved, index: ends}, negotiated=negotiated, oneway=oneway)

    def switch(self, machine: str, action: str) -> "Live":
        """RDMA of a machine on, off, or its stack dead."""
        if action not in RDMA_ACTIONS:
            raise LocalClusterError(f"unknown action {action!r}: {', '.join(RDMA_ACTIONS)}", usage=True)
        return replace(self, rdma={**self.rdma, machine: action})

    def lan(self, machine: str, action: str) -> "Live":
        """A machine's LAN port unplugged, or plugged in again; its cables are not touched."""
        if action not in LAN_ACTIONS:
            raise LocalClusterError(f"unknown action {action!r}: {', '.join(LAN_ACTIONS)}", usage=True)
        return replace(self, cut=self.cut | {machine} if action == "pull" else self.cut - {machine})

    def power(self, machine: str, on: bool) -> "Live":
        """A machine that went off, or came up again with fresh domain UUIDs and a working RDMA stack, as a reboot gives."""
        if not on:
            return replace(self, off=self.off | {machine})
        rdma = {name: "on" if name == machine and state == "hang" else state for name, state in self.rdma.items()}
        return replace(self, off=self.off - {machine}, rdma=rdma, boots={**self.boots, machine: self.boots.get(machine, 0) + 1})

    def command(self, machine: str, command: str, damage: str) -> "Live":
        """A command of a machine damaged or mended."""
        if command not in COMMANDS:
            raise LocalClusterError(f"a recorded Mac has no command {command}; it has {', '.join(COMMANDS)}", usage=True)
        if damage not in DAMAGES:
            raise LocalClusterError(f"unknown damage {damage!r}: {', '.join(DAMAGES)}", usage=True)
        found = {key: value for key, value in self.damage.items() if key != (machine, command)}
        if damage != "mend":
            found[(machine, command)] = damage
        return replace(self, damage=found)

    # -- what is ------------------------------------------------------------------------------------------------------------

    def damaged(self, machine: str) -> dict[str, str]:
        """Command → damage of one machine."""
        found = dict.fromkeys(HUNG_COMMANDS, "hang") if self.rdma.get(machine) == "hang" else {}
        return found | {command: damage for (name, command), damage in self.damage.items() if name == machine}

    def carries(self, index: int) -> bool:
        """Whether the cable is plugged in at both ends."""
        return index not in self.pulled

    def rate(self, end: CableEnd) -> int | None:
        """To how many Mbit/s a cable is slowed, None when it is not."""
        return self.rates.get(end.index, end.cable.rate_mbps)

    def rewired(self, plan: Layout) -> Layout:
        """The plan with every cable at the ports that it has by now. The address of an end goes with the plug."""
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
        """The plan as it is now: a pulled cable and one to a Mac that is off have no ends."""
        return replace(plan, machines=tuple(self._machine(machine) for machine in self.rewired(plan).machines))

    def _machine(self, layout: MachineLayout) -> MachineLayout:
        ends = tuple(self._end(end) for end in layout.ends if self.carries(end.index) and end.peer not in self.off)
        machine = layout.machine
        if layout.name in self.rdma:
            machine = machine.model_copy(update={"rdma": self.rdma[layout.name] != "off"})
        boots, plugged = self.boots.get(layout.name, 0), layout.name not in self.cut
        return replace(layout, machine=machine, ends=ends, boots=boots, lan_plugged=plugged)

    def _end(self, end: CableEnd) -> CableEnd:
        speed = self.negotiated.get(end.index)
        return end if speed is None else replace(end, cable=end.cable.model_copy(update={"speed": cast(Any, speed)}))


def _sides(plan: Layout, index: int) -> tuple[End, End]:
    """The ends a and b of a cable as ``plan`` has them."""
    found = {}
    for name, end in ends_of(plan, index):
        found[end.side] = End(machine=name, port=end.port)
    return found[0], found[1]


def _addresses(plan: Layout, index: int) -> tuple[Address | None, Address | None]:
    """The pair of addresses that the fleet's plan gave to a cable's ends a and b, also where one has none (in a bridge)."""
    known = {end.side: end.address for _, end in ends_of(plan, index)}
    for side, address in known.items():
        if address is not None:
            other = Address(IPv4Address(int(address.ip) + (1 if side == 0 else -1)), address.prefix)
            return (address, other) if side == 0 else (other, address)
    return None, None


def find_cable(plan: Layout, text: str) -> int:
    """The index of the cable at an end written machine:port. Raises LocalClusterError, naming the ends that there are."""
    name, _, port = text.partition(":")
    for machine in plan.machines:
        for end in machine.ends:
            if machine.name == name and port.isdigit() and end.port == int(port):
                return end.index
    ends = ", ".join(f"{machine.name}:{end.port}" for machine in plan.machines for end in machine.ends)
    raise LocalClusterError(f"no cable ends at {text}; ends: {ends or 'none'}", usage=True)


def ends_of(plan: Layout, index: int) -> list[tuple[str, CableEnd]]:
    """The two ends of a cable with their machines' names."""
    return [(machine.name, end) for machine in plan.machines for end in machine.ends if end.index == index]
