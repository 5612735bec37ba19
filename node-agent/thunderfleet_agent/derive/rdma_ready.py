"""Condition RDMAReady: whether RDMA works on a port of this Mac, by the rules that operator and runner share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunderfleet_crds.kinds.nodeprofile import RDMADevice, ThunderboltPort
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import RDMADeviceState
from thunderfleet_lib.host.hostcmd import FailureKind
from thunderfleet_lib.rdma import rules

from thunderfleet_agent.derive.bridges import leave_bridge
from thunderfleet_agent.derive.condition import ConditionValue
from thunderfleet_agent.derive.hardware import virtual_model
from thunderfleet_agent.derive.thunderbolt import address_without_gid
from thunderfleet_agent.observe.facts import RDMA_SOURCES, Facts, Source

THIS_MAC = "this Mac"


def rdma_ready(
    facts: Facts, devices: Sequence[RDMADevice], bridged: Mapping[str, str], cabled: Sequence[ThunderboltPort] = ()
) -> ConditionValue:
    """Checks the stack, then the ports. ``bridged`` maps an interface to its bridge; ``cabled`` are the Thunderbolt ports."""
    if model := virtual_model(facts):
        text = f"this is a virtual machine ({model}), which has no Thunderbolt port: use a physical Mac"
        return ConditionValue(False, Reason.RDMA_UNSUPPORTED, text)
    failures = [facts.failures[source] for source in RDMA_SOURCES if source in facts.failures]
    observed = not failures and facts.rdma_switch is not None and facts.rdma_devices is not None
    hung = next((str(failure) for failure in failures if failure.kind is FailureKind.TIMED_OUT), "")
    switch = facts.failures.get(Source.RDMA_SWITCH)
    absent = str(switch) if switch and switch.kind is FailureKind.ABSENT else ""
    macos = facts.system.version if facts.system else None
    if not absent and rules.too_old(macos):
        absent = f"this Mac runs macOS {macos}"
    stack = rules.Stack(
        supported=not absent, hung=bool(hung), enabled=facts.rdma_switch, has_devices=bool(devices) if observed else None
    )
    if reason := rules.stack_fault(stack):
        evidence = {Reason.STACK_HUNG: hung, Reason.RDMA_UNSUPPORTED: absent}.get(reason, "")
        return ConditionValue(False, reason, rules.explain(reason, THIS_MAC, evidence=evidence))
    if failures:
        return ConditionValue(None, Reason.COMMAND_FAILED, f"{failures[0]}; run the command on this Mac to see why")
    if not observed:
        return ConditionValue(None, Reason.NOT_OBSERVED, "the agent has not read the state of RDMA yet")
    return _ports(facts, stack, devices, bridged, _without_device(cabled))


def _without_device(ports: Sequence[ThunderboltPort]) -> list[rules.Port]:
    """The ports that are cabled to a computer and have no RDMA device."""
    return [
        rules.Port(device=f"{rules.DEVICE_PREFIX}{port.interface}", interface=port.interface, state=None)
        for port in ports
        if port.peers and port.interface and port.rdma_device is None
    ]


def _ports(
    facts: Facts, stack: rules.Stack, devices: Sequence[RDMADevice], bridged: Mapping[str, str], missing: Sequence[rules.Port]
) -> ConditionValue:
    """One working port is enough. If none works, reports the first fault of the Active ports, otherwise of the cabled ones."""
    described = {device.name: device for device in facts.rdma_info or ()}
    ports = [
        rules.Port(
            device=device.name,
            interface=device.interface or device.name,
            state=device.state,
            bridge=bridged.get(device.interface or ""),
            mapped=device.gid is not None,
            address=address_without_gid(described[device.name], facts) if device.name in described else None,
        )
        for device in devices
    ]
    if ready := [port.device for port in ports if port.device and rules.port_fault(port) is None]:
        return ConditionValue(True, Reason.READY, f"Active: {', '.join(ready)}")
    candidates = [port for port in ports if port.state is RDMADeviceState.ACTIVE] or list(missing) or ports
    found = rules.first_fault((stack, port) for port in candidates)
    assert found is not None
    reason, index = found
    if reason is Reason.BRIDGE_MEMBER:
        members = {port.interface: port.bridge for port in candidates if port.interface and port.bridge}
        return ConditionValue(False, reason, leave_bridge(members))
    if reason is Reason.PORT_DOWN:
        names = ", ".join(device.name for device in devices)
        text = f"none of {names} is Active: use a Thunderbolt 5 cable to connect a Mac on which RDMA is enabled"
        return ConditionValue(False, reason, text)
    return ConditionValue(False, reason, rules.explain(reason, THIS_MAC, candidates[index]))
