"""The status and labels of this Mac's NodeProfile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds.kinds.nodeprofile import (
    RDMA,
    Agent,
    Benchmarks,
    ModelStore,
    Network,
    NodeProfileStatus,
    OperatingSystem,
    Panic,
    Reachability,
    Thunderbolt,
    domain_labels,
)
from thunderfleet_crds.meta.conditions import Condition, set_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionType
from thunderfleet_crds.weights.copies import ModelCopy

from thunderfleet_agent.derive import clock as clocks
from thunderfleet_agent.derive.bridges import bridge_free
from thunderfleet_agent.derive.condition import ConditionValue
from thunderfleet_agent.derive.hardware import hardware
from thunderfleet_agent.derive.inventory import inventory_complete
from thunderfleet_agent.derive.network import interfaces
from thunderfleet_agent.derive.rdma_ready import rdma_ready
from thunderfleet_agent.derive.thunderbolt import ports, rdma_devices
from thunderfleet_agent.observe.facts import Facts

# The conditions that the agent writes; the operator writes Quarantined.
OWN_CONDITIONS = (
    ConditionType.INVENTORY_COMPLETE,
    ConditionType.RDMA_READY,
    ConditionType.BRIDGE_FREE,
    ConditionType.BENCHMARKS_FRESH,
    ConditionType.CLOCK_SYNCHRONIZED,
)
MAX_MODELS = 64

NEVER_MEASURED = ConditionValue(False, Reason.NOT_MEASURED, "no benchmark has run on this Mac yet")


@dataclass(frozen=True)
class Profile:
    """Status and labels of the NodeProfile to publish."""

    status: NodeProfileStatus
    labels: Mapping[str, str]


def profile(
    facts: Facts,
    now: datetime,
    *,
    agent: Agent | None = None,
    before: Iterable[Condition] = (),
    reachability: tuple[Reachability, ...] = (),
    benchmarks: Benchmarks | None = None,
    benchmarks_fresh: ConditionValue = NEVER_MEASURED,
    clock: ConditionValue = clocks.UNKNOWN,
    store: ModelStore | None = None,
    copies: tuple[ModelCopy, ...] = (),
) -> Profile:
    """The profile for these facts.

    ``before`` are the conditions published last: one that does not change keeps its transition time, one that changes gets
    ``now``.
    """
    known = interfaces(facts)
    bridged = {interface.name: interface.bridge for interface in known if interface.bridge}
    devices = rdma_devices(facts)
    found_ports = ports(facts, {device.interface or device.name: device.name for device in devices})
    values = {
        ConditionType.INVENTORY_COMPLETE: inventory_complete(facts),
        ConditionType.RDMA_READY: rdma_ready(facts, devices, bridged, found_ports),
        ConditionType.BRIDGE_FREE: bridge_free(facts, bridged),
        ConditionType.BENCHMARKS_FRESH: benchmarks_fresh,
        ConditionType.CLOCK_SYNCHRONIZED: clock,
    }
    conditions: tuple[Condition, ...] = tuple(condition for condition in before if condition.type in OWN_CONDITIONS)
    for type_, value in values.items():
        conditions = set_condition(conditions, type_, value.holds, value.reason, value.message, now=now)
    links = sum(len(port.peers) for port in found_ports)
    status = NodeProfileStatus(
        hardware=hardware(facts),
        os=OperatingSystem(version=facts.system.version, build=facts.system.build) if facts.system else None,
        runtime=facts.runtime,
        agent=agent,
        network=Network(interfaces=known) if facts.interfaces is not None else None,
        thunderbolt=Thunderbolt(ports=found_ports, links=links) if facts.thunderbolt else None,
        rdma=RDMA(enabled=facts.rdma_switch, state=values[ConditionType.RDMA_READY].reason, devices=devices),
        reachability=reachability,
        benchmarks=benchmarks,
        models=(facts.models or ())[:MAX_MODELS],
        store=store,
        copies=copies,
        last_panic=last_panic(facts),
        conditions=conditions,
    )
    return Profile(status, domain_labels({port.domain_uuid for port in found_ports if port.domain_uuid}))


def last_panic(facts: Facts) -> Panic | None:
    """The newest kernel panic of the Mac, and a known remedy."""
    if facts.panic is None:
        return None
    memory = "iogpu" in facts.panic.text.lower()
    remedy = "set spec.runtime.wiredLimit: Unlimited for the models on this Mac, or lower spec.memory.concurrentRequests"
    return Panic(time=facts.panic.at, message=f"{facts.panic.text}; {remedy}" if memory else facts.panic.text)
