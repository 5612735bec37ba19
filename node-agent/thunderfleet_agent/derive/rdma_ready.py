"""Condition RDMAReady: whether this Mac's side of RDMA works. The other end and the cable are the link's affair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunderfleet_crds.nodeprofile import RDMADevice
from thunderfleet_crds.vocabulary import RDMADeviceState
from thunderfleet_lib.hostcmd import FailureKind

from thunderfleet_agent.derive.bridges import leave_bridge
from thunderfleet_agent.derive.condition import ConditionValue
from thunderfleet_agent.derive.hardware import virtual_model
from thunderfleet_agent.derive.thunderbolt import address_without_gid
from thunderfleet_agent.observe.facts import RDMA_SOURCES, Facts, Source


def rdma_ready(facts: Facts, devices: Sequence[RDMADevice], bridged: Mapping[str, str]) -> ConditionValue:
    """The stack first, then the ports. ``bridged`` maps an interface to its bridge."""
    return _stack(facts) or _ports(facts, devices, bridged)


def _stack(facts: Facts) -> ConditionValue | None:
    """What keeps RDMA off on the whole Mac; None if nothing does."""
    if model := virtual_model(facts):
        return ConditionValue(
            False, "Unsupported", f"this is a virtual machine ({model}), which has no Thunderbolt port: use a physical Mac"
        )
    failures = [facts.failures[source] for source in RDMA_SOURCES if source in facts.failures]
    for failure in failures:
        if failure.kind is FailureKind.TIMED_OUT:
            return ConditionValue(False, "StackHung", f"{failure}; the RDMA stack hangs: restart this Mac")
    switch = facts.failures.get(Source.RDMA_SWITCH)
    if switch and switch.kind is FailureKind.ABSENT:
        return ConditionValue(
            False, "Unsupported", f"{switch}; RDMA over Thunderbolt needs macOS 26.2 or newer: update this Mac"
        )
    if facts.rdma_switch is False:
        return ConditionValue(
            False, "RDMADisabled", "RDMA is disabled: start this Mac in Recovery, run `rdma_ctl enable` there, and restart"
        )
    if failures:
        return ConditionValue(None, "CommandFailed", f"{failures[0]}; run it on this Mac to see why")
    if facts.rdma_switch is None or facts.rdma_devices is None:
        return ConditionValue(None, "NotObserved", "the agent has not read the state of RDMA yet")
    return None


def _ports(facts: Facts, devices: Sequence[RDMADevice], bridged: Mapping[str, str]) -> ConditionValue:
    if not devices:
        return ConditionValue(
            False, "NoDevices", "RDMA is enabled, but `ibv_devices` lists no device: RDMA needs a Mac with Thunderbolt 5"
        )
    active = [device for device in devices if device.state is RDMADeviceState.ACTIVE]
    if not active:
        names = ", ".join(device.name for device in devices)
        return ConditionValue(
            False, "PortDown", f"no port of {names} is Active: connect a Mac that has RDMA enabled with a Thunderbolt 5 cable"
        )
    ready = [device for device in active if device.gid and device.interface not in bridged]
    if ready:
        return ConditionValue(True, "Ready", f"Active: {', '.join(device.name for device in ready)}")
    members = {name: bridged[name] for device in active if (name := device.interface) and name in bridged}
    if members:
        return ConditionValue(False, "BridgeMember", leave_bridge(members, facts))
    return _no_address(facts, active)


def _no_address(facts: Facts, active: Sequence[RDMADevice]) -> ConditionValue:
    """Active ports, none with an IPv4-mapped GID."""
    interface = active[0].interface or active[0].name
    text = f"{', '.join(device.name for device in active)}: Active, but without an IPv4-mapped GID"
    info = {device.name: device for device in facts.rdma_info or ()}
    address = address_without_gid(info[active[0].name], facts) if active[0].name in info else None
    if address is None:
        fix = f"assign an IPv4 address to the port, for example `sudo ifconfig {interface} inet 10.0.0.1/30`"
        return ConditionValue(False, "NoIPv4Address", f"{text}: {fix}")
    fix = f"run `ibv_devinfo -v`; if it shows none, assign the address again: `sudo ifconfig {interface} inet {address}`"
    return ConditionValue(False, "NoIPv4Address", f"{text}, although {interface} has {address}: {fix}")
