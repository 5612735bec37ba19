"""What a cable comes to: the conditions and columns of a ThunderboltLink, from what its two ends say. Pure."""

from datetime import datetime

from thunderfleet_crds.common import Condition, quantity, set_condition
from thunderfleet_crds.kube import Json
from thunderfleet_crds.nodeprofile import THUNDERBOLT4_MBPS, NodeProfile, RDMADeviceState
from thunderfleet_crds.thunderboltlink import (
    CONDITION_TYPES,
    CONNECTED,
    RDMA_USABLE,
    SYMMETRIC,
    Endpoint,
    ThunderboltLink,
    generation,
)


def _rdma(link: ThunderboltLink, profiles: dict[str, NodeProfile], speed: int) -> tuple[bool, str, str]:
    ends = {end.node: end for end in link.status.endpoints}
    for node in (link.spec.a.node, link.spec.b.node):
        if node not in ends:
            return False, "EndMissing", f"{node} has not reported its end of the cable: is its agent running?"
    if speed <= THUNDERBOLT4_MBPS:
        return False, "BelowThunderbolt5", f"the cable runs at {speed // 1000} Gb/s; RDMA needs Thunderbolt 5 (above 40 Gb/s)"
    for end in ends.values():
        profile = profiles.get(end.node)
        status = profile.status if profile else None
        rdma = status.rdma if status else None
        if rdma is not None and rdma.enabled is False:
            return False, "RDMADisabled", f"RDMA is off on {end.node}: start it in Recovery and run rdma_ctl enable"
        interfaces = status.network.interfaces if status and status.network else ()
        bridge = next((i.bridge for i in interfaces if i.name == end.interface and i.bridge), None)
        if bridge:
            return False, "BridgeMember", f"{end.interface} of {end.node} is a member of {bridge}: remove it from the bridge"
        if end.rdma_state is not RDMADeviceState.ACTIVE:
            state = end.rdma_state.value if end.rdma_state else "missing"
            return False, "PortDown", f"{end.rdma_device or 'the RDMA device'} of {end.node} is {state}, not Active"
        device = next((d for d in (rdma.devices if rdma else ()) if d.name == end.rdma_device), None)
        if device is None or not device.gid:
            advice = f"give {end.interface} an IPv4 address"
            return False, "NoIPv4Address", f"{end.rdma_device} of {end.node} has no IPv4-mapped GID: {advice}"
    return True, "Usable", "both ends are ready for RDMA"


def _connected(link: ThunderboltLink, ends: tuple[Endpoint, ...]) -> tuple[bool, str, str]:
    if any(end.sees_peer for end in ends):
        return True, "Connected", "the cable is there"
    return False, "NotSeen", f"neither {link.spec.a.node} nor {link.spec.b.node} sees the other"


def summary(link: ThunderboltLink, profiles: dict[str, NodeProfile], now: datetime) -> Json:
    """``status`` as the operator applies it: conditions and columns, nothing of the agents' parts."""
    ends = link.status.endpoints
    speed = min((end.speed_mbps for end in ends if end.speed_mbps), default=0)
    conditions: tuple[Condition, ...] = tuple(c for c in link.status.conditions if c.type in CONDITION_TYPES)
    at = link.metadata.generation
    connected = _connected(link, ends)
    conditions = set_condition(conditions, CONNECTED, *connected, now=now, observed_generation=at)
    seeing = [end.node for end in ends if end.sees_peer]
    blind = [node for node in (link.spec.a.node, link.spec.b.node) if node not in seeing]
    text = "both ends see each other" if not blind else f"{' and '.join(blind)} does not see the other end"
    conditions = set_condition(
        conditions, SYMMETRIC, not blind, "BothEnds" if not blind else "OneEnd", text, now=now, observed_generation=at
    )
    usable = _rdma(link, profiles, speed) if connected[0] else (False, "PortDown", connected[2])
    conditions = set_condition(conditions, RDMA_USABLE, *usable, now=now, observed_generation=at)
    status: Json = {"rdma": usable[1], "conditions": [condition.dump() for condition in conditions]}
    if speed:
        status |= {"speed": f"{speed // 1000}G", "generation": generation(speed)}
    measured = [m for m in link.status.measurements if m.throughput_mbps]
    if measured:
        status["gbps"] = quantity(min(m.throughput_mbps or 0 for m in measured) / 1000)
    trips = [m.rtt_microseconds for m in link.status.measurements if m.rtt_microseconds]
    if trips:
        status["rtt"] = f"{max(trips)}us"
    return status


def current(link: ThunderboltLink) -> Json:
    """The same part of the status, as it is."""
    kept = ("rdma", "speed", "generation", "gbps", "rtt")
    told = link.status.dump()
    status = {key: told[key] for key in kept if key in told}
    status["conditions"] = [c.dump() for c in link.status.conditions if c.type in CONDITION_TYPES]
    return status


def gone_ends(link: ThunderboltLink, nodes: frozenset[str]) -> tuple[str, ...]:
    """Ends whose Node is gone."""
    return tuple(node for node in (link.spec.a.node, link.spec.b.node) if node not in nodes)


def removal(link: ThunderboltLink, node: str) -> list[Json]:
    """A JSON patch that takes the entry of ``node`` out, and nothing if somebody was faster."""
    for position, end in enumerate(link.status.endpoints):
        if end.node == node:
            path = f"/status/endpoints/{position}"
            return [{"op": "test", "path": f"{path}/node", "value": node}, {"op": "remove", "path": path}]
    return []
