"""Condition BridgeFree: members of a bridge have no IPv4 address, and without an address RDMA has no GID."""

from __future__ import annotations

from collections.abc import Mapping

from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.macnet import advice

from thunderfleet_agent.derive.condition import ConditionValue
from thunderfleet_agent.derive.network import bridge_names, expected_interfaces, port_interfaces
from thunderfleet_agent.observe.facts import Facts, Source


def bridge_free(facts: Facts, bridged: Mapping[str, str]) -> ConditionValue:
    """Whether no Thunderbolt port is a member of a bridge. ``bridged`` maps an interface to its bridge."""
    for source in (Source.INTERFACES, Source.HARDWARE_PORTS):
        if failure := facts.failures.get(source):
            return ConditionValue(None, Reason.COMMAND_FAILED, f"{failure}; run the command on this Mac to see why")
    if facts.interfaces is None or facts.hardware_ports is None:
        return ConditionValue(None, Reason.NOT_OBSERVED, "the agent has not read the interfaces yet")
    thunderbolt = set(port_interfaces(facts).values())
    members = {name: bridge for name, bridge in bridged.items() if name in thunderbolt}
    if members:
        return ConditionValue(False, Reason.BRIDGE_MEMBER, leave_bridge(members))
    incomplete = _incomplete_bridge(facts)
    if incomplete is not None:
        return ConditionValue(
            None,
            Reason.COMMAND_FAILED,
            f"`ifconfig -a` does not show {incomplete}: run the command on this Mac and check its output",
        )
    return ConditionValue(True, Reason.NO_MEMBERS, "no Thunderbolt port is a member of a bridge")


def _incomplete_bridge(facts: Facts) -> str | None:
    """A bridge that `ifconfig` does not show completely, and whose members are therefore unknown."""
    active = {interface.name: interface.active for interface in facts.interfaces or ()}
    shown = set(bridge_names(facts))
    for name in sorted({name for name in expected_interfaces(facts) if name.startswith("bridge")} | shown):
        if active.get(name) is None:
            return f"all of {name}" if name in shown else name
    return None


def leave_bridge(members: Mapping[str, str]) -> str:
    """Which interfaces are in which bridge, and how to remove them permanently."""
    by_bridge: dict[str, list[str]] = {}
    for name, bridge in sorted(members.items()):
        by_bridge.setdefault(bridge, []).append(name)
    found = (
        f"{', '.join(names)} {'is a member' if len(names) == 1 else 'are members'} of {bridge}"
        for bridge, names in by_bridge.items()
    )
    return f"{'; '.join(found)}: {advice.leave_bridge('this Mac')}"
