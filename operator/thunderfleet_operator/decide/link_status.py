"""The status of a ThunderboltLink: conditions and columns, from the reports of its two ends.

The message of a condition that is False has the fix. The report of an end whose Node is not Ready is out of date and does not
count.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from thunderfleet_crds.kinds.nodeprofile import THUNDERBOLT4_MBPS, NodeProfile, NodeProfileStatus, ThunderboltPort
from thunderfleet_crds.kinds.thunderboltlink import CONDITION_TYPES, SUMMARY_FIELDS, Endpoint, ThunderboltLink, generation
from thunderfleet_crds.meta.conditions import Condition, find_condition, set_condition
from thunderfleet_crds.meta.fields import quantity
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, MeasurementTransport
from thunderfleet_lib.rdma import rules

Json = dict[str, Any]
Profiles = Mapping[str, NodeProfile | None]

DEGRADED_PERCENT = 50
"""A cable that carries less than this share of the expected rate is Degraded."""
TCP_MBPS = 2_000
"""The rate expected of TCP on any Thunderbolt cable, or the negotiated speed if that is lower. The Macs' processors limit TCP,
not the cable; half of this is what Gigabit Ethernet gives. RDMA is expected to reach the negotiated speed."""


class Verdict(NamedTuple):
    """One condition's status, reason and message."""

    status: bool
    reason: str
    message: str


def link_ends(link: ThunderboltLink) -> tuple[str, str]:
    """The Macs at the two ends."""
    return link.spec.a.node, link.spec.b.node


def _port(link: ThunderboltLink, node: str) -> int:
    return link.spec.a.port if link.spec.a.node == node else link.spec.b.port


def _agent(node: str) -> str:
    return f"`kubectl get pods -A -o wide --field-selector spec.nodeName={node}`"


def _current_endpoints(link: ThunderboltLink, ready: frozenset[str]) -> dict[str, Endpoint]:
    """By Mac, the reports of ends whose Node is Ready."""
    return {end.node: end for end in link.status.endpoints if end.node in ready}


def _hubs(endpoints: Mapping[str, Endpoint]) -> str:
    return ", ".join(sorted({hub for end in endpoints.values() for hub in end.through}))


# --- what was measured -----------------------------------------------------------------------------------------------


def _best(link: ThunderboltLink) -> tuple[MeasurementTransport, int] | None:
    """The transport with the highest rate in its slower direction, and that rate in Mb/s."""
    rates: dict[MeasurementTransport, int] = {}
    for one in link.status.measurements:
        if one.throughput_mbps:
            rates[one.transport] = min(one.throughput_mbps, rates.get(one.transport, one.throughput_mbps))
    return max(rates.items(), key=lambda rate: rate[1], default=None)


def _each_way(link: ThunderboltLink, transport: MeasurementTransport) -> str:
    """Gb/s from a to b and from b to a, such as ``38.4/9.1``; a dash for a direction without a rate."""
    rates = {one.from_: one.throughput_mbps for one in link.status.measurements if one.transport is transport}
    # Two significant digits, so that a slow direction does not show as zero.
    parts = [
        quantity(rate / 1000, 1 if rate >= 1000 else 2 if rate >= 100 else 3) if rate else "-"
        for rate in map(rates.get, link_ends(link))
    ]
    return "/".join(parts)


def _longest_trip(link: ThunderboltLink) -> int | None:
    """Microseconds of a round trip, over the transport that is quickest in its slower direction."""
    trips: dict[MeasurementTransport, int] = {}
    for one in link.status.measurements:
        if one.rtt_microseconds:
            trips[one.transport] = max(one.rtt_microseconds, trips.get(one.transport, 0))
    return min(trips.values(), default=None)


def _degraded(link: ThunderboltLink, speed: int) -> str | None:
    """Why a cable counts as slow, and what to do; None if it does not. ``speed``: negotiated, in Mb/s."""
    best = _best(link)
    if best is None or not speed:
        return None
    transport, rate = best
    expected = speed if transport is MeasurementTransport.RDMA else min(speed, TCP_MBPS)
    if rate * 100 >= expected * DEGRADED_PERCENT:
        return None
    over = "RDMA" if transport is MeasurementTransport.RDMA else "TCP"
    hubs = _hubs({end.node: end for end in link.status.endpoints})
    return (
        f"the cable negotiated {speed / 1000:g} Gb/s, but {rate / 1000:.3g} Gb/s were measured over {over} in the slower "
        f"direction (expected: at least {expected * DEGRADED_PERCENT / 100_000:g}); likely causes: "
        f"{hubs or 'a Thunderbolt 3 or 4 dock or hub'} in between, a cable that is damaged or not rated for that speed, or a "
        "busy Mac; connect the Macs directly with another cable"
    )


# --- conditions ------------------------------------------------------------------------------------------------------


def _unplugged_end(link: ThunderboltLink, profiles: Profiles, ready: frozenset[str]) -> str | None:
    """The end whose Mac reports that nothing is plugged in.

    When the other Mac is switched off, this end reports it long before the Node of that Mac is not Ready.
    """
    for end in (link.spec.a, link.spec.b):
        port = _port_of(profiles.get(end.node), end.port)
        if end.node in ready and port is not None and not port.connected:
            return end.node
    return None


def _end_without_carrier(link: ThunderboltLink, profiles: Profiles, ready: frozenset[str]) -> str | None:
    """The end that detects only a hub or a display, and over which no network works.

    When the hub was unplugged at the other Mac, and the agent there does not run, only this end can report it. If a display
    only hides the other Mac, the network interface still has a carrier.
    """
    endpoints = _current_endpoints(link, ready)
    for end in (link.spec.a, link.spec.b):
        profile = profiles.get(end.node)
        port = _port_of(profile, end.port)
        seen = end.node in endpoints and endpoints[end.node].sees_peer
        if end.node not in ready or profile is None or port is None or seen or port.peers or profile.status.network is None:
            continue
        if any(one.name == port.interface and one.up is False for one in profile.status.network.interfaces):
            return end.node
    return None


def _seen_in_profiles(link: ThunderboltLink, profiles: Profiles, ready: frozenset[str]) -> bool:
    """Whether the profile of a Mac shows that its end detects the other one.

    When a cable is pulled, an agent first updates its profile and then removes its end from the link. So if an end is missing
    from the link but the profile still shows it, another client has removed it. The agent reports it again within a minute.
    """
    if not ready.issuperset(link_ends(link)):
        return False
    a, b = (_port_of(profiles.get(end.node), end.port) for end in (link.spec.a, link.spec.b))
    return a is not None and b is not None and (_sees(a, b) or _sees(b, a))


def _port_of(profile: NodeProfile | None, number: int) -> ThunderboltPort | None:
    ports = profile.status.thunderbolt.ports if profile and profile.status.thunderbolt else ()
    return next((port for port in ports if port.receptacle == number), None)


def _sees(port: ThunderboltPort, other: ThunderboltPort) -> bool:
    uuid = (other.domain_uuid or "").lower()
    return bool(uuid) and any(peer.domain_uuid.lower() == uuid for peer in port.peers)


def _connected(link: ThunderboltLink, profiles: Profiles, ready: frozenset[str], speed: int) -> Verdict:
    endpoints = _current_endpoints(link, ready)
    flapping = [f"port {end.port} of {end.node}" for end in endpoints.values() if end.flapping]
    if flapping:
        where = " and ".join(flapping)
        remedy = "reseat both plugs; if that does not help, replace the cable"
        return Verdict(False, Reason.FLAPPING, f"the cable connects and disconnects often at {where}: {remedy}")
    if not any(end.sees_peer for end in endpoints.values()) and not _seen_in_profiles(link, profiles, ready):
        return _disconnected(link, ready)
    node = _unplugged_end(link, profiles, ready)
    if node is not None:
        (other,) = set(link_ends(link)) - {node} or {node}
        where = f"nothing is plugged into port {_port(link, node)} of {node}"
        remedy = f"switch {other} on, or plug the cable in"
        return Verdict(False, Reason.NOTHING_PLUGGED_IN, f"{where}: {other} is off, or the cable was unplugged; {remedy}")
    node = _end_without_carrier(link, profiles, ready)
    if node is not None:
        (other,) = set(link_ends(link)) - {node} or {node}
        where = f"{node} detects no Mac behind the hub or display at its port {_port(link, node)}, which has no carrier"
        cause = f"{other} is off, or the cable, hub or display was unplugged at its port {_port(link, other)}"
        remedy = f"plug it in; if {other} is on, check that its agent runs: {_agent(other)}"
        return Verdict(False, Reason.NO_CARRIER, f"{where}: {cause}; {remedy}")
    slow = _degraded(link, speed)
    if slow is not None:
        return Verdict(True, Reason.CABLE_DEGRADED, slow)
    return Verdict(True, Reason.CONNECTED, "the cable is connected")


def _disconnected(link: ThunderboltLink, ready: frozenset[str]) -> Verdict:
    """Why no end detects the other."""
    a, b = link_ends(link)
    silent = [node for node in (a, b) if node not in ready]
    if len(silent) == 2:
        text = f"neither {a} nor {b} is Ready: switch them on, or check their kubelets"
        return Verdict(False, Reason.NODES_NOT_READY, text)
    if silent:
        return Verdict(False, Reason.NODE_NOT_READY, f"{silent[0]} is not Ready: switch it on, or check its kubelet")
    where = f"port {link.spec.a.port} of {a} and port {link.spec.b.port} of {b}"
    return Verdict(False, Reason.UNPLUGGED, f"neither {a} nor {b} detects the other: plug the cable into {where}")


def _symmetric(link: ThunderboltLink, ready: frozenset[str], connected: Verdict) -> Verdict:
    endpoints = _current_endpoints(link, ready)
    blind = [node for node in link_ends(link) if node not in endpoints or not endpoints[node].sees_peer]
    if not blind:
        return Verdict(True, Reason.BOTH_ENDS, "both ends detect each other")
    if len(blind) == 2 and connected.status:
        a, b = link_ends(link)
        text = f"{a} and {b} detect each other, but do not report their ends of this link: check that their agents run:"
        return Verdict(False, Reason.NO_END, f"{text} {_agent(a)}, {_agent(b)}")
    if len(blind) == 2:
        return Verdict(False, Reason.NO_END, _disconnected(link, ready).message)
    (node,) = blind
    if node not in endpoints:
        return Verdict(False, Reason.ONE_END, f"{node} has not reported its end: check that its agent runs: {_agent(node)}")
    text = (
        f"{node} does not detect the other end through port {_port(link, node)}; a display or hub in between can cause "
        "this. The link works; to detect it at both ends, connect the Macs directly"
    )
    return Verdict(False, Reason.ONE_END, text)


def _rdma(link: ThunderboltLink, profiles: Profiles, ready: frozenset[str], speed: int) -> Verdict:
    """Whether RDMA works: both ends report, the cable is Thunderbolt 5, and no rule of RDMA fails at either end."""
    endpoints = _current_endpoints(link, ready)
    for node in link_ends(link):
        if node not in endpoints:
            text = f"{node} does not report its end: check the cable in its port {_port(link, node)}, and that its agent runs:"
            return Verdict(False, Reason.END_MISSING, f"{text} {_agent(node)}")
    if not speed:
        text = f"neither {' nor '.join(link_ends(link))} reports a negotiated speed"
        remedy = (
            "run `system_profiler SPThunderboltDataType` on both; if these ports show no speed, replug the cable, then reboot "
            "the Macs"
        )
        return Verdict(False, Reason.SPEED_UNKNOWN, f"{text}: {remedy}")
    if speed <= THUNDERBOLT4_MBPS:
        hubs = _hubs(endpoints)
        remedy = f"connect them without {hubs}, or use a Thunderbolt 5 hub" if hubs else "use a Thunderbolt 5 cable"
        text = f"the cable runs at {speed / 1000:g} Gb/s; RDMA needs Thunderbolt 5 (above 40 Gb/s)"
        return Verdict(False, Reason.BELOW_THUNDERBOLT5, f"{text}: if both Macs have it, {remedy}")
    statuses = {node: profile.status if (profile := profiles.get(node)) else None for node in endpoints}
    sides = {node: (_stack(status), _rdma_port(endpoints[node], status)) for node, status in statuses.items()}
    found = rules.first_fault(sides.values())
    if found is None:
        return Verdict(True, Reason.USABLE, "both ends are ready for RDMA")
    unread = next(filter(None, (_unread(profiles.get(node)) for node in endpoints)), None)
    if unread is not None:
        return unread
    reason, index = found
    node = list(sides)[index]
    return Verdict(False, reason, rules.explain(reason, node, sides[node][1]))


def _unread(profile: NodeProfile | None) -> Verdict | None:
    """Returns why the state of RDMA on a Mac is not known. A device that the agent could not read does not count as missing."""
    found = find_condition(profile.status.conditions, ConditionType.RDMA_READY) if profile is not None else None
    if profile is None or found is None or found.status is not ConditionStatus.UNKNOWN:
        return None
    return Verdict(False, Reason(found.reason), f"{profile.metadata.name}: {found.message}")


def _stack(status: NodeProfileStatus | None) -> rules.Stack:
    """The RDMA stack of a Mac as its agent reports it."""
    rdma = status.rdma if status else None
    return rules.Stack(enabled=rdma.enabled, reported=rdma.state) if rdma else rules.Stack()


def _rdma_port(end: Endpoint, status: NodeProfileStatus | None) -> rules.Port:
    """The port of one end of a cable as its agent reports it."""
    interfaces = status.network.interfaces if status and status.network else ()
    devices = status.rdma.devices if status and status.rdma else ()
    return rules.Port(
        device=end.rdma_device,
        interface=end.interface,
        state=end.rdma_state,
        bridge=next((i.bridge for i in interfaces if i.name == end.interface and i.bridge), None),
        mapped=any(device.gid for device in devices if device.name == end.rdma_device),
        address=end.address if end.address and ":" not in end.address else None,
    )


# --- the status ------------------------------------------------------------------------------------------------------


def summary(
    link: ThunderboltLink, profiles: Mapping[str, NodeProfile | None], now: datetime, ready: frozenset[str] | None = None
) -> Json:
    """The operator's part of the status: conditions and columns. ``ready``: the ends whose Node is Ready; None for both."""
    alive = frozenset(link_ends(link)) if ready is None else ready
    ends = _current_endpoints(link, alive)
    speed = min((end.speed_mbps for end in ends.values() if end.speed_mbps), default=0)
    conditions: tuple[Condition, ...] = tuple(c for c in link.status.conditions if c.type in CONDITION_TYPES)
    connected = _connected(link, profiles, alive, speed)
    usable = _rdma(link, profiles, alive, speed) if connected.status else Verdict(False, Reason.PORT_DOWN, connected.message)
    symmetric = _symmetric(link, alive, connected)
    if symmetric.reason == Reason.ONE_END and not connected.status:
        # The other end is missing because the cable or its Mac is.
        symmetric = Verdict(False, Reason.ONE_END, connected.message)
    for kind, verdict in (
        (ConditionType.CONNECTED, connected),
        (ConditionType.SYMMETRIC, symmetric),
        (ConditionType.RDMA_USABLE, usable),
    ):
        conditions = set_condition(conditions, kind, *verdict, now=now, observed_generation=link.metadata.generation)
    status: Json = {"rdma": usable.reason, "conditions": [condition.dump() for condition in conditions]}
    if speed:
        status |= {"speed": f"{speed // 1000}G", "generation": generation(speed)}
    best = _best(link)
    if best is not None:
        status["gbps"] = _each_way(link, best[0])
    trip = _longest_trip(link)
    if trip is not None:
        status["rtt"] = f"{trip}us"
    return status


def current(link: ThunderboltLink) -> Json:
    """The operator's part of the status as it is."""
    dumped = link.status.dump()
    status = {key: dumped[key] for key in SUMMARY_FIELDS if key in dumped}
    status["conditions"] = [c.dump() for c in link.status.conditions if c.type in CONDITION_TYPES]
    return status
