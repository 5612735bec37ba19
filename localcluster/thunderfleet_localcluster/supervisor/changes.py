"""The effects of a command such as ``cable pull``: new faults, and their network configuration. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.actions import CABLE_ACTIONS
from thunderfleet_localcluster.fleet.fault_state import FaultState, find_cable
from thunderfleet_localcluster.fleet.layout import Layout, MachineLayout
from thunderfleet_localcluster.network.plan import NetworkPlan, lan_address, lan_port, plug_in, unplug_cable, update_cable
from thunderfleet_localcluster.recorded.jaccl_faults import checked_points

_NAMESPACES = (
    "needs network namespaces (`thunderfleet local up --network namespaces`, on Linux); this cluster uses loopback addresses"
)


@dataclass(frozen=True)
class Situation:
    """The state before a change: the layout of the fleet file, current faults, and first processes of machines that are on."""

    plan: Layout
    faults: FaultState
    pids: Mapping[str, int]


@dataclass(frozen=True)
class Change:
    """The steps of a change, in this order: store ``faults``, rewrite the recorded commands, configure the ``network``."""

    faults: FaultState
    network: tuple[NetworkPlan, ...] = ()
    jaccl: tuple[str, Sequence[Mapping[str, object]]] | None = None
    """A Mac and the points at which its recorded JACCL fails from now on."""


def decide(request: Mapping[str, Any], now: Situation) -> Change:
    """The requested change. Raises LocalClusterError if it is invalid or impossible."""
    kinds: dict[str, Callable[[Mapping[str, Any], Situation], Change]] = {
        "cable": _cable,
        "lan": _lan,
        "rdma": _rdma,
        "command": _command,
        "jaccl": _jaccl,
    }
    kind = str(request.get("what"))
    if kind not in kinds:
        raise LocalClusterError(f"unknown change {kind!r}; allowed: {', '.join(kinds)}")
    return kinds[kind](request, now)


def machine_named(plan: Layout, name: str) -> MachineLayout:
    """The machine with this name. Raises LocalClusterError that lists all machines."""
    for machine in plan.machines:
        if machine.name == name:
            return machine
    names = ", ".join(machine.name for machine in plan.machines)
    raise LocalClusterError(f"unknown machine {name!r}; machines: {names}", usage=True)


def _cable(request: Mapping[str, Any], now: Situation) -> Change:
    action, end = str(request.get("action")), str(request.get("end"))
    if action not in CABLE_ACTIONS:
        raise LocalClusterError(f"unknown action {action!r}; allowed: {', '.join(CABLE_ACTIONS)}", usage=True)
    if action == "move":
        return _move(end, str(request.get("to")), now)
    namespaces = now.plan.mode == "namespaces"
    index = find_cable(now.faults.rewired(now.plan), end)
    rate: int | None = request.get("rate")
    if action == "cut":
        if not namespaces:
            raise LocalClusterError(f"cutting one direction of a cable {_NAMESPACES}", usage=True)
        faults = now.faults.with_one_way(index, end.partition(":")[0])
    else:
        if rate is not None and not namespaces:
            raise LocalClusterError(f"--rate {_NAMESPACES}; --speed works with both", usage=True)
        faults = now.faults.with_cable(index, action, rate, request.get("speed"))
    return Change(faults, (update_cable(now.plan, faults, now.pids.keys(), index),) if namespaces else ())


def _move(end: str, to: str, now: Situation) -> Change:
    index = find_cable(now.faults.rewired(now.plan), end)
    faults = now.faults.with_move(now.plan, end, to)
    if now.plan.mode != "namespaces":
        return Change(faults)
    unplug = unplug_cable(now.plan, now.faults, now.pids.keys(), index)
    return Change(faults, (unplug, plug_in(now.plan, faults, now.pids, (), moved=index)))


def _lan(request: Mapping[str, Any], now: Situation) -> Change:
    machine = machine_named(now.plan, str(request.get("name")))
    if request.get("action") == "address":
        return _lease(_mac(request, now), str(request.get("address")), now)
    if now.plan.mode != "namespaces":
        raise LocalClusterError(f"unplugging a machine from the LAN {_NAMESPACES}", usage=True)
    faults = now.faults.with_lan(machine.name, str(request.get("action")))
    if machine.name not in now.pids:
        return Change(faults)
    index = now.plan.machines.index(machine)
    return Change(faults, (NetworkPlan(lan_port(index, plugged=machine.name not in faults.lan_unplugged), {}, ()),))


def _lease(mac: MachineLayout, address: str, now: Situation) -> Change:
    faults = now.faults.with_lease(now.plan, mac.name, address)
    if now.plan.mode != "namespaces" or mac.name not in now.pids:
        return Change(faults)
    before, after = (state.rewired(now.plan).machine(mac.name) for state in (now.faults, faults))
    return Change(faults, (NetworkPlan("", {mac.name: lan_address(before, after)}, ()),))


def _mac(request: Mapping[str, Any], now: Situation) -> MachineLayout:
    machine = machine_named(now.plan, str(request.get("name")))
    if machine.machine.kind != "mac":
        raise LocalClusterError(f"{machine.name} is not a Mac", usage=True)
    return machine


def _rdma(request: Mapping[str, Any], now: Situation) -> Change:
    return Change(now.faults.with_rdma(_mac(request, now).name, str(request.get("action"))))


def _command(request: Mapping[str, Any], now: Situation) -> Change:
    mac = _mac(request, now)
    return Change(now.faults.with_damage(mac.name, str(request.get("command")), str(request.get("action"))))


def _jaccl(request: Mapping[str, Any], now: Situation) -> Change:
    mac = _mac(request, now)
    if mac.machine.jaccl != "recorded":
        raise LocalClusterError(f"{mac.name} has no recorded JACCL; set jaccl: recorded in the fleet file", usage=True)
    return Change(now.faults, jaccl=(mac.name, checked_points(request.get("points"))))
