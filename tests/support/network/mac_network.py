"""The network settings of one recorded Mac in this process, and the commands that read and change them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Interface

from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Output
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import MachineLayout, plan_layout
from thunderfleet_localcluster.fleet.network_settings import NetworkSettings, RefusedError, carry_out
from thunderfleet_localcluster.fleet.own_settings import bridge_address, effective, hardware_ports, initial
from thunderfleet_localcluster.recorded import network

SERVER = "192.168.64.1"
BRIDGED = IPv4Interface("169.254.7.1/16")
CABLE = IPv4Interface("10.200.0.1/30")


class Killed(Exception):
    """This program was killed, or the power was cut."""


class Mac:
    """A Mac whose commands are those of a recorded one. ``route``: the interface of the route to the API server.

    ``shown``: the output of ``route get`` for it. ``kill_at``: the number of the command before which this program is killed.
    """

    def __init__(self, bridged: str, cables: int = 1, route: str = "en0", shown: str | None = None) -> None:
        fleet = "machines:\n  - {name: a, model: Mac Studio (M4 Max), bridge: [" + bridged + "], bridgeAddress: 169.254.7.1}\n"
        fleet += "".join(f"  - {{name: b{number}, model: Mac mini (M4 Pro)}}\n" for number in range(cables))
        ends = "".join(f"  - {{a: 'a:{number + 1}', b: 'b{number}:1'}}\n" for number in range(cables))
        plan = plan_layout(parse_fleet(fleet + ("cables:\n" + ends if cables else ""), "test"), "namespaces")
        self.plan: MachineLayout = plan.machine("a")
        self.start = self.settings = initial(self.plan)
        self.route, self.shown = route, shown or route
        self.kill_at, self.writes = -1, 0
        self.done: list[tuple[str, ...]] = []

    @property
    def now(self) -> MachineLayout:
        return effective(self.plan, self.settings)

    def reached(self) -> bool:
        """Whether the API server is reached: over a LAN always, over a cable while its address is where the cable is."""
        if self.route == "en0":
            return True
        bridge = bridge_address(self.now)
        ports = [end.address.ip for end in self.now.ends if end.address]
        return bridge is not None or BRIDGED.ip in ports

    def run(self, argv: Sequence[str], _: float) -> Output | Failure:
        reads: Mapping[tuple[str, ...], str] = {
            ("networksetup", "-listallhardwareports"): network.hardware_ports(self.now),
            ("networksetup", "-listnetworkserviceorder"): network.service_order(self.now),
            ("ifconfig", "-a"): "".join(network.ifconfig(self.now).values()),
            ("route", "-n", "get", SERVER): f"   route to: {SERVER}\n  interface: {self.shown}\n",
        }
        key, command = tuple(argv), " ".join(argv)
        if key in reads:
            return Output(command, reads[key])
        if key[:2] == ("networksetup", "-getinfo"):
            return Output(command, network.service_info(self.now)[key[2]])
        self.writes += 1
        if self.writes == self.kill_at:
            raise Killed
        self.done.append(key)
        try:
            self.settings = carry_out(self.settings, hardware_ports(self.plan), argv)
        except RefusedError as error:
            return Failure(command, FailureKind.FAILED, str(error), error.code)
        return Output(command, "")

    def restart(self) -> None:
        self.settings = self.settings.restarted()

    def address(self, port: int) -> IPv4Interface | None:
        end = self.now.end(port)
        return IPv4Interface(f"{end.address.ip}/{end.address.prefix}") if end and end.address else None


def persistent(found: NetworkSettings) -> object:
    """The state to compare: the order of members has no meaning."""
    return replace(found, members=tuple(sorted(found.members)), bridged=tuple(sorted(found.bridged)))
