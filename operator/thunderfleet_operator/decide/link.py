"""What a cable comes to: the conditions and columns of a ThunderboltLink, from what its two ends say. Pure.

Every "no" says what mends it. An end whose Node is not Ready says nothing any more: its last words are of another moment.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from thunderfleet_crds.common import Condition, find_condition, quantity, set_condition
from thunderfleet_crds.nodeprofile import THUNDERBOLT4_MBPS, NodeProfile, NodeProfileStatus
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.thunderboltlink import CONDITION_TYPES, Endpoint, ThunderboltLink, generation
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, MeasurementTransport
from thunderfleet_lib.kube import Json
from thunderfleet_lib.rdma import rules

LINGER_SECONDS = 60.0
"""A cable that neither end has is a link for so long: whoever looks sees that it was pulled, and a plug that is put back is no
new object. Then the link goes, and an Event tells of it."""

DEGRADED_PERCENT = 50
"""A cable that carries less than so much of what it should is called Degraded."""
TCP_MBPS = 2_000
"""What TCP carries on any Thunderbolt cable, also between Macs that have much else to do: there the processors are the limit,
not the cable, so what it gives is held against this, or the negotiated speed if that is less; half of it is what Gigabit
Ethernet would give. RDMA is held against the negotiated speed."""

Verdict = tuple[bool, str, str]


def _ends(link: ThunderboltLink) -> tuple[str, str]:
    return link.spec.a.node, link.spec.b.node


def _port(link: ThunderboltLink, node: str) -> int:
    return link.spec.a.port if link.spec.a.node == node else link.spec.b.port


def _agent(node: str) -> str:
    return f"kubectl get pods -A -o wide --field-selector spec.nodeName={node}"


def _speaking(link: ThunderboltLink, ready: frozenset[str]) -> dict[str, Endpoint]:
    return {end.node: end for end in link.status.endpoints if end.node in ready}


def _best(link: ThunderboltLink) -> tuple[MeasurementTransport, int] | None:
    """The transport that carries most by its worse way, and that way's Mbit/s."""
    rates: dict[MeasurementTransport, int] = {}
    for one in link.status.measurements:
        if one.throughput_mbps:
            rates[one.transport] = min(one.throughput_mbps, rates.get(one.transport, one.throughput_mbps))
    return max(rates.items(), key=lambda rate: rate[1], default=None)


def _each_way(link: ThunderboltLink, transport: MeasurementTransport) -> str:
    """Gbit/s from a to b and from b to a, for people: ``38.4/9.1``. A way that has no rate is a dash."""
    rates = {one.from_: one.throughput_mbps for one in link.status.measurements if one.transport is transport}
    # Two digits that mean something, so that a slow way is not shown as none.
    said = [
        quantity(rate / 1000, 1 if rate >= 1000 else 2 if rate >= 100 else 3) if rate else "-"
        for rate in map(rates.get, _ends(link))
    ]
    return "/".join(said)


def _degraded(link: ThunderboltLink, speed: int) -> str | None:
    """What to look at when a cable carries much less than it should."""
    best = _best(link)
    if best is None or not speed:
        return None
    transport, rate = best
    due = speed if transport is MeasurementTransport.RDMA else min(speed, TCP_MBPS)
    if rate * 100 >= due * DEGRADED_PERCENT:
        return None
    over = "RDMA" if transport is MeasurementTransport.RDMA else "TCP"
    hubs = sorted({hub for end in link.status.endpoints for hub in end.through})
    way = f"{', '.join(hubs)} on the way, " if hubs else "a Thunderbolt 3 or 4 dock or hub on the way, "
    return (
        f"the cable negotiated {speed / 1000:g} Gb/s, and {rate / 1000:.3g} Gb/s were measured over {over} in the worse way "
        f"(at least {due * DEGRADED_PERCENT / 100_000:g} were to be expected); likely causes: {way}a cable that is not rated "
        "for that speed or is damaged, or a Mac that was busy: plug in another cable, straight between the Macs"
    )


def _hears_nothing(link: ThunderboltLink, profiles: Mapping[str, NodeProfile], ready: frozenset[str]) -> str | None:
    """The end whose own Mac says that nothing is plugged in there: when the other one is off, that is known long before its
    Node is not Ready.
    """
    for end in (link.spec.a, link.spec.b):
        profile = profiles.get(end.node)
        found = profile.status.thunderbolt.ports if profile and profile.status.thunderbolt else ()
        if end.node in ready and any(port.receptacle == end.port and not port.connected for port in found):
            return end.node
    return None


def _connected(link: ThunderboltLink, profiles: Mapping[str, NodeProfile], ready: frozenset[str], speed: int) -> Verdict:
    ends = _speaking(link, ready)
    flapping = [f"port {end.port} of {end.node}" for end in ends.values() if end.flapping]
    if flapping:
        mend = "reseat both plugs; if that does not end it, replace the cable"
        return False, Reason.FLAPPING, f"the cable comes and goes at {' and '.join(flapping)}: {mend}"
    if any(end.sees_peer for end in ends.values()):
        if (blind := _hears_nothing(link, profiles, ready)) is not None:
            (other,) = set(_ends(link)) - {blind} or {blind}
            where = f"nothing is plugged into port {_port(link, blind)} of {blind}"
            return False, Reason.NOTHING_PLUGGED_IN, f"{where}: {other} is off, or the cable was pulled just now"
        if (lack := _degraded(link, speed)) is not None:
            return True, Reason.CABLE_DEGRADED, lack
        return True, Reason.CONNECTED, "the cable is there"
    silent = [node for node in _ends(link) if node not in ready]
    if len(silent) == 2:
        return (
            False,
            Reason.NODES_NOT_READY,
            f"neither {silent[0]} nor {silent[1]} is Ready: switch them on, or look at their kubelets",
        )
    if silent:
        return False, Reason.NODE_NOT_READY, f"{silent[0]} is not Ready: switch it on, or look at its kubelet"
    a, b = _ends(link)
    where = f"port {link.spec.a.port} of {a} and port {link.spec.b.port} of {b}"
    return False, Reason.UNPLUGGED, f"neither {a} nor {b} sees the other: plug the cable into {where}"


def _symmetric(link: ThunderboltLink, ready: frozenset[str]) -> Verdict:
    ends = _speaking(link, ready)
    blind = [node for node in _ends(link) if node not in ends or not ends[node].sees_peer]
    if not blind:
        return True, Reason.BOTH_ENDS, "both ends see each other"
    if len(blind) == 2:
        return False, Reason.NO_END, f"neither {blind[0]} nor {blind[1]} sees the other"
    (node,) = blind
    if node not in ends:
        text = f"{node} has not reported its end: is its agent running? {_agent(node)}"
        return False, Reason.ONE_END, text
    return (
        False,
        Reason.ONE_END,
        f"{node} does not see the other end through port {_port(link, node)}, as with a display or hub in between; the link "
        "works all the same, and a cable straight between the Macs shows it at both ends",
    )


def _rdma(link: ThunderboltLink, profiles: Mapping[str, NodeProfile], ready: frozenset[str], speed: int) -> Verdict:
    """Rule 5 of discovery. Causes come before what they lead to: with one Mac's RDMA off, the other's device is Down."""
    ends = _speaking(link, ready)
    for node in _ends(link):
        if node not in ends:
            text = f"{node} does not report its end: is the cable in its port {_port(link, node)}, and its agent running?"
            return False, Reason.END_MISSING, f"{text} {_agent(node)}"
    statuses = {node: profiles[node].status if node in profiles else None for node in ends}
    if not speed:
        mend = "run `system_profiler SPThunderboltDataType` on both and see what it says of these ports"
        return (
            False,
            Reason.SPEED_UNKNOWN,
            f"neither {' nor '.join(_ends(link))} says a speed of the cable that can be read: {mend}",
        )
    if speed <= THUNDERBOLT4_MBPS:
        hubs = sorted({hub for end in ends.values() for hub in end.through})
        cause = f"take {', '.join(hubs)} out of the way, or use a Thunderbolt 5 hub" if hubs else "use a Thunderbolt 5 cable"
        only = "; RDMA needs Thunderbolt 5 (above 40 Gb/s) at both Macs"
        return False, Reason.BELOW_THUNDERBOLT5, f"the cable runs at {speed / 1000:g} Gb/s{only}: {cause}"
    sides = {node: (_stack(status), _rdma_port(ends[node], status)) for node, status in statuses.items()}
    found = rules.first_fault(sides.values())
    if found is None:
        return True, Reason.USABLE, "both ends are ready for RDMA"
    reason, index = found
    node = list(sides)[index]
    return False, reason, rules.explain(reason, node, sides[node][1])


def _stack(status: NodeProfileStatus | None) -> rules.Stack:
    """The RDMA stack of a Mac as its agent reports it."""
    rdma = status.rdma if status else None
    if rdma is None:
        return rules.Stack()
    return rules.Stack(
        supported=rdma.state != Reason.RDMA_UNSUPPORTED,
        hung=rdma.state == Reason.STACK_HUNG,
        enabled=rdma.enabled,
        has_devices=False if rdma.state == Reason.NO_DEVICES else None,
    )


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


def summary(
    link: ThunderboltLink, profiles: Mapping[str, NodeProfile], now: datetime, ready: frozenset[str] | None = None
) -> Json:
    """``status`` as the operator applies it: conditions and columns, nothing of the agents' parts. ``ready`` are the Nodes that
    are Ready; None: all.
    """
    alive = frozenset(_ends(link)) if ready is None else ready
    ends = _speaking(link, alive)
    speed = min((end.speed_mbps for end in ends.values() if end.speed_mbps), default=0)
    conditions: tuple[Condition, ...] = tuple(c for c in link.status.conditions if c.type in CONDITION_TYPES)
    connected = _connected(link, profiles, alive, speed)
    usable = _rdma(link, profiles, alive, speed) if connected[0] else (False, Reason.PORT_DOWN, connected[2])
    for kind, verdict in (
        (ConditionType.CONNECTED, connected),
        (ConditionType.SYMMETRIC, _symmetric(link, alive)),
        (ConditionType.RDMA_USABLE, usable),
    ):
        conditions = set_condition(conditions, kind, *verdict, now=now, observed_generation=link.metadata.generation)
    status: Json = {"rdma": usable[1], "conditions": [condition.dump() for condition in conditions]}
    if speed:
        status |= {"speed": f"{speed // 1000}G", "generation": generation(speed)}
    best = _best(link)
    if best is not None:
        status["gbps"] = _each_way(link, best[0])
    trips: dict[MeasurementTransport, int] = {}
    for one in link.status.measurements:
        if one.rtt_microseconds:
            trips[one.transport] = max(one.rtt_microseconds, trips.get(one.transport, 0))
    if trips:
        status["rtt"] = f"{min(trips.values())}us"
    return status


def current(link: ThunderboltLink) -> Json:
    """The same part of the status, as it is."""
    kept = ("rdma", "speed", "generation", "gbps", "rtt")
    told = link.status.dump()
    status = {key: told[key] for key in kept if key in told}
    status["conditions"] = [c.dump() for c in link.status.conditions if c.type in CONDITION_TYPES]
    return status


def lingers(link: ThunderboltLink, now: datetime) -> float | None:
    """None for a link that some end has; else the seconds until it goes, 0 when it is time."""
    if link.status.endpoints:
        return None
    found = find_condition(link.status.conditions, ConditionType.CONNECTED)
    if found is None or found.status is ConditionStatus.TRUE or found.last_transition_time is None:
        return LINGER_SECONDS
    left = found.last_transition_time + timedelta(seconds=LINGER_SECONDS) - now
    return max(0.0, left.total_seconds())


def change(link: ThunderboltLink, made: Json) -> tuple[str, str, bool] | None:
    """Reason, message and whether it is a warning, of an Event about a cable that was pulled, plugged in, began to flap or to
    give little; None when nothing of that kind is new in ``made``.
    """
    before = find_condition(link.status.conditions, ConditionType.CONNECTED)
    after = next((c for c in made["conditions"] if c["type"] == ConditionType.CONNECTED), None)
    if after is None or (before is None and after["status"] != "True"):
        return None
    if before is not None and (before.status.value, before.reason) == (after["status"], after["reason"]):
        return None
    return str(after["reason"]), str(after["message"]), after["reason"] != "Connected"


def gone_ends(link: ThunderboltLink, nodes: frozenset[str]) -> tuple[str, ...]:
    """Ends whose Node is gone."""
    return tuple(node for node in _ends(link) if node not in nodes)


def switch_of(profile: NodeProfile | None, port: int) -> str | None:
    """The UID of the switch behind a port, which stays with the hardware whatever the Mac is called; None when it is not known
    (or all zeros, which is nobody's).
    """
    ports = profile.status.thunderbolt.ports if profile and profile.status.thunderbolt else ()
    uid = next((one.switch_uid for one in ports if one.receptacle == port), None)
    return uid if uid and uid.strip("0xX") else None


def removal(link: ThunderboltLink, node: str) -> list[Json]:
    """A JSON patch that takes the entry of ``node`` out, and nothing if somebody was faster."""
    for position, end in enumerate(link.status.endpoints):
        if end.node == node:
            path = f"/status/endpoints/{position}"
            return [{"op": "test", "path": f"{path}/node", "value": node}, {"op": "remove", "path": path}]
    return []
