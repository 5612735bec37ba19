"""The fleet for the planner, kept from round to round: what has not changed is not made again.

Every object is turned into its value once a version, equal models are one value for all Macs, and a fleet that differs in
few Macs from the last is made from it (``Fleet.changed``). Nothing is decided here.
"""

from collections.abc import Mapping
from functools import lru_cache
from operator import is_

from thunderfleet_crds.common import LABEL_OS, find_condition
from thunderfleet_crds.nodeprofile import Model, NodeProfile, NodeProfileStatus
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.thunderboltlink import Endpoint, LinkEnd, ThunderboltLink
from thunderfleet_crds.vocabulary import (
    AddressClass,
    ConditionStatus,
    ConditionType,
    InterfaceKind,
    MeasurementTransport,
    ReachabilityState,
)
from thunderfleet_lib.kube import Json
from thunderfleet_lib.quantity import to_bytes

from thunderfleet_operator.observe.snapshot import Parsed, Taken, internal_ip, is_ready
from thunderfleet_operator.placement import (
    QUEUE_PAIRS,
    AddressKind,
    AddressKinds,
    Cable,
    Dials,
    End,
    Fleet,
    Kind,
    KVLayer,
    Mac,
    ModelFacts,
    Taint,
    TensorFacts,
)
from thunderfleet_operator.watch.cache import LINKS, NODEPROFILES, NODES, Cache

KINDS = {
    InterfaceKind.THUNDERBOLT: Kind.THUNDERBOLT,
    InterfaceKind.ETHERNET: Kind.ETHERNET,
    InterfaceKind.WIFI: Kind.WIFI,
}


def _facts(model: Model) -> ModelFacts:
    pipeline = model.pipeline
    return ModelFacts(
        path=model.path,
        repository=model.repository,
        revision=model.revision,
        bytes=model.bytes,
        complete=model.complete,
        problem=model.problem,
        sized=any(size.tensor_bytes_per_rank for size in model.sizes) and bool(model.kv),
        tensor=tuple(TensorFacts(size.world_size, size.tensor_bytes_per_rank, size.refusal) for size in model.sizes),
        layer_bytes=pipeline.layer_bytes if pipeline else (),
        shared_bytes=pipeline.shared_bytes if pipeline else 0,
        pipeline_refusal=pipeline.refusal if pipeline else "no dry run of a pipeline is known",
        kv=tuple(KVLayer(kv.fixed_bytes, kv.bytes_per_token, kv.window_tokens, kv.tensor_split) for kv in model.kv),
        prefill_bytes=model.prefill_workspace_bytes or 0,
        prefill_bytes_per_token=model.prefill_workspace_bytes_per_token or 0,
    )


@lru_cache(maxsize=256)
def _kind(kind: InterfaceKind, private: bool, speed_mbps: int) -> AddressKind:
    """One value for the many addresses that are alike."""
    return AddressKind(KINDS.get(kind, Kind.OTHER), private, speed_mbps)


def _kinds(status: NodeProfileStatus) -> dict[str, AddressKind]:
    # An address of 127/8 on a port is a recorded Mac's, and counts as private.
    private = (AddressClass.PRIVATE, AddressClass.LOOPBACK)
    return {
        entry.address: _kind(interface.kind, entry.class_ in private, interface.speed_mbps or 0)
        for interface in (status.network.interfaces if status.network else ())
        for entry in interface.addresses
    }


def _dials(status: NodeProfileStatus) -> Dials | None:
    if not status.reachability:
        return None
    reached = [entry for entry in status.reachability if entry.state is ReachabilityState.REACHABLE]
    speeds = {}
    for entry in reached:
        known = [rate for rate in (entry.sent_mbps, entry.received_mbps) if rate]
        if known:
            speeds[entry.node, entry.address] = min(known)
    return Dials.of(((entry.node, entry.address) for entry in reached), speeds)


def _memory_rate(status: NodeProfileStatus) -> int:
    measured = status.benchmarks.memory if status.benchmarks else None
    return measured.megabytes_per_second if measured else 0


def taints(node: Json) -> tuple[Taint, ...]:
    # What a cordon and a missed heartbeat leave behind is judged by its cause, with a better sentence.
    return tuple(
        Taint(str(t.get("key")), str(t.get("value") or ""), str(t.get("effect")))
        for t in (node.get("spec") or {}).get("taints") or []
        if not str(t.get("key")).startswith("node.kubernetes.io/")
        or str(t.get("key")).endswith(("-pressure", "/out-of-service"))
    )


def endpoint_of(link: ThunderboltLink, end: LinkEnd, profile: NodeProfile | None) -> Endpoint | None:
    """What one end says of the cable; else, where a display hides the other end from it, what its Mac says of the port."""
    told = next((entry for entry in link.status.endpoints if entry.node == end.node), None)
    if told is not None or profile is None:
        return told
    status = profile.status
    ports = status.thunderbolt.ports if status.thunderbolt else ()
    port = next((entry for entry in ports if entry.receptacle == end.port), None)
    if port is None:
        return None
    interfaces = status.network.interfaces if status.network else ()
    interface = next((entry for entry in interfaces if entry.name == port.interface), None)
    device = next((d for d in (status.rdma.devices if status.rdma else ()) if d.name == port.rdma_device), None)
    return Endpoint(
        node=end.node,
        port=end.port,
        interface=port.interface,
        rdma_device=port.rdma_device,
        rdma_state=device.state if device else None,
        address=interface.addresses[0].address if interface and interface.addresses else None,
        speed_mbps=port.speed_mbps,
    )


def _measured(link: ThunderboltLink, *transports: MeasurementTransport) -> int | None:
    """The worse direction, by the first of these that was measured."""
    for transport in transports:
        rates = [m.throughput_mbps for m in link.status.measurements if m.transport is transport and m.throughput_mbps]
        if rates:
            return min(rates)
    return None


def _same(one: object, other: object) -> bool:
    """Whether a cable would be made from the very same: objects are replaced, never changed."""
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return one is other
    return one[0] == other[0] and len(one) == len(other) and all(map(is_, one[1:], other[1:]))


class Fleets:
    """Makes fleets, each from the one before it."""

    def __init__(self) -> None:
        self._models: dict[ModelFacts, ModelFacts] = {}
        self._lists: dict[tuple[ModelFacts, ...], tuple[ModelFacts, ...]] = {}
        self._nodes: dict[str, Json] = {}
        self._profiles: dict[str, Json | None] = {}
        """By Mac, the objects that it was made from."""
        self._cable_states: dict[str, object] = {}
        """By cable, what it was made from: the link alone, where nothing else counts."""
        self._seen: tuple[int, int, int] | None = None
        self._used: Taken | None = None
        self._fleet = Fleet()

    def fleet(self, cache: Cache, parsed: Parsed, used: Taken) -> Fleet:
        """All Macs (Nodes that say darwin) and all cables. The same value as last time while nothing has changed."""
        seen = (cache[NODES].revision, cache[NODEPROFILES].revision, cache[LINKS].revision)
        past, past_used = self._seen, self._used
        macs_are_news = past is None or past[:2] != seen[:2] or used is not past_used
        cables_are_news = past is None or past_used is None or past[1:] != seen[1:]
        if past_used is not None and used is not past_used:
            cables_are_news |= (used.addresses, used.queue_pairs) != (past_used.addresses, past_used.queue_pairs)
        before, gone = self._fleet, set[str]()
        macs = self._changed_macs(cache, parsed, used, gone) if macs_are_news else []
        cables = self._changed_cables(cache, parsed, used, gone) if cables_are_news else []
        self._seen, self._used = seen, used
        if macs or cables or gone:
            self._fleet = before.changed(macs, cables, gone) if before.macs else Fleet(macs, cables)
        return self._fleet

    def _changed_macs(self, cache: Cache, parsed: Parsed, used: Taken, gone: set[str]) -> list[Mac]:
        """Adds to ``gone`` the Macs that are."""
        profiles, before = cache[NODEPROFILES].items, self._fleet.macs
        past_nodes, past_profiles = self._nodes, self._profiles
        following: dict[str, Json] = {}
        their_profiles: dict[str, Json | None] = {}
        changed: list[Mac] = []
        for name, node in cache[NODES].items.items():
            profile = profiles.get(name)
            if past_nodes.get(name) is node and past_profiles[name] is profile:
                known = before[name]
                free = max(0, known.allocatable_bytes - used.memory.get(name, 0))
                if known.free_bytes == free and known.in_use == (name in used.groups):
                    following[name], their_profiles[name] = node, profile
                    continue
            if ((node["metadata"].get("labels") or {}).get(LABEL_OS)) != "darwin":
                continue
            mac = self._mac(node, parsed.get(NodeProfile, profile) if profile else None, used)
            following[name], their_profiles[name] = node, profile
            if before.get(name) != mac:
                changed.append(mac)
        gone |= before.keys() - following.keys()
        self._nodes, self._profiles = following, their_profiles
        return changed

    def _changed_cables(self, cache: Cache, parsed: Parsed, used: Taken, gone: set[str]) -> list[Cable]:
        """Adds to ``gone`` the cables that are."""
        profiles, before, states = cache[NODEPROFILES].items, self._fleet.cables, self._cable_states
        busy = {node for node, _ in used.addresses} | {node for node, _ in used.queue_pairs}
        following: dict[str, object] = {}
        changed: list[Cable] = []
        for name, item in cache[LINKS].items.items():
            spec, past = item["spec"], states.get(name)
            ends = (str(spec["a"]["node"]), str(spec["b"]["node"]))
            state: object = item
            if past is not item or not busy.isdisjoint(ends):
                used_by_others = () if busy.isdisjoint(ends) else self._usage(item, used)
                # What an end does not say is taken from its profile.
                complete = len((item.get("status") or {}).get("endpoints") or ()) > 1
                if used_by_others or not complete:
                    state = (used_by_others, item, *(() if complete else map(profiles.get, ends)))
            following[name] = state
            if _same(past, state):
                continue
            link = parsed.get(ThunderboltLink, item)
            if link is None:
                del following[name]
                continue
            cable = self._cable(link, {end: parsed.get(NodeProfile, profiles[end]) for end in ends if end in profiles}, used)
            if before.get(name) != cable:
                changed.append(cable)
        gone |= before.keys() - following.keys()
        self._cable_states = following
        return changed

    def without(self, fleet: Fleet, cache: Cache, parsed: Parsed, used: Taken, less: Taken) -> Fleet:
        """``fleet``, which was made with ``used``, as it is for a group whose own use ``less`` leaves out."""
        other = {name for name in used.memory.keys() | less.memory.keys() if used.memory.get(name) != less.memory.get(name)}
        other |= used.groups ^ less.groups
        macs = []
        for name in other & fleet.macs.keys():
            profile = cache[NODEPROFILES].items.get(name)
            macs.append(self._mac(cache[NODES].items[name], parsed.get(NodeProfile, profile) if profile else None, less))
        cables = []
        if used.addresses != less.addresses or used.queue_pairs != less.queue_pairs:
            near = {cable.name for name in other for cable in fleet.links(name)}
            for name in near:
                link = parsed.get(ThunderboltLink, cache[LINKS].items[name])
                if link is not None:
                    ends = (link.spec.a.node, link.spec.b.node)
                    known = cache[NODEPROFILES].items
                    cables.append(self._cable(link, {e: parsed.get(NodeProfile, known[e]) for e in ends if e in known}, less))
        return fleet.changed(macs, cables) if macs or cables else fleet

    def _usage(self, item: Json, used: Taken) -> tuple[object, ...]:
        """What others do on a cable, as far as it makes a difference."""
        told = (item.get("status") or {}).get("endpoints") or []
        found = tuple(
            ((e.get("node"), e.get("address")) in used.addresses, used.queue_pairs.get((e.get("node"), e.get("rdmaDevice")), 0))
            for e in told
        )
        return found if any(addressed or pairs for addressed, pairs in found) else ()

    def _models_of(self, profile: NodeProfile) -> tuple[ModelFacts, ...]:
        name = profile.metadata.name
        past, before = self._profiles.get(name), self._fleet.macs.get(name)
        if past and before is not None and past["metadata"].get("resourceVersion") == profile.metadata.resource_version:
            return before.models
        made = tuple(self._models.setdefault(facts, facts) for facts in map(_facts, profile.status.models))
        return self._lists.setdefault(made, made)

    def _mac(self, node: Json, profile: NodeProfile | None, used: Taken) -> Mac:
        name = str(node["metadata"]["name"])
        status = profile.status if profile else None
        state = node.get("status") or {}
        allocatable = _bytes(str((state.get("allocatable") or {}).get("memory") or 0))
        quarantine = status.quarantine if status else None
        boot = (state.get("nodeInfo") or {}).get("bootID")
        runtime = status.runtime if status else None
        return Mac(
            name=name,
            address=internal_ip(node),
            allocatable_bytes=allocatable,
            free_bytes=max(0, allocatable - used.memory[name]) if used.memory.get(name) else allocatable,
            ready=is_ready(node) and not node["metadata"].get("deletionTimestamp"),
            schedulable=not (node.get("spec") or {}).get("unschedulable"),
            labels=node["metadata"].get("labels") or {},
            taints=taints(node),
            backends=_backends(tuple(runtime.backends)) if runtime else frozenset(),
            mlx_version=runtime.mlx_version if runtime else None,
            mlx_lm_version=runtime.mlx_lm_version if runtime else None,
            profiled=runtime is not None,
            models=self._models_of(profile) if profile else (),
            in_use=name in used.groups,
            quarantine=quarantine.reason if quarantine and quarantine.boot_id == boot else None,
            dials=_dials(status) if status else None,
            memory_bandwidth=_memory_rate(status) if status else 0,
            kinds=AddressKinds.of(_kinds(status)) if status else AddressKinds(),
        )

    def _cable(self, link: ThunderboltLink, profiles: Mapping[str, NodeProfile | None], used: Taken) -> Cable:
        known = {name: profile for name, profile in profiles.items() if profile is not None}
        ends = [(end, endpoint_of(link, end, known.get(end.node))) for end in (link.spec.a, link.spec.b)]
        told = [endpoint for _, endpoint in ends if endpoint is not None]
        speed = min((endpoint.speed_mbps for endpoint in told if endpoint.speed_mbps), default=0)
        usable = find_condition(link.status.conditions, ConditionType.RDMA_USABLE)
        can = usable is not None and usable.status is ConditionStatus.TRUE
        why = usable.message if usable is not None else "it is not known yet whether RDMA can be used"
        connected = find_condition(link.status.conditions, ConditionType.CONNECTED)
        unsteady = connected is not None and connected.reason in (Reason.FLAPPING, Reason.NOTHING_PLUGGED_IN)

        def value(end: LinkEnd, endpoint: Endpoint | None) -> End:
            device = endpoint.rdma_device if endpoint else None
            left = QUEUE_PAIRS - used.queue_pairs.get((end.node, device or ""), 0)
            return End(end.node, endpoint.address if endpoint else None, device, max(0, left))

        a, b = (value(end, endpoint) for end, endpoint in ends)
        return Cable(
            name=link.metadata.name,
            a=a,
            b=b,
            speed_mbps=speed,
            connected=any(endpoint.sees_peer for endpoint in told) and not unsteady,
            rdma_problem=None if can else why,
            ring_mbps=_measured(link, MeasurementTransport.RING, MeasurementTransport.SOCKET),
            rdma_mbps=_measured(link, MeasurementTransport.RDMA),
            in_use=any(
                (end.node, end.address or "") in used.addresses or (end.node, end.device or "") in used.queue_pairs
                for end in (a, b)
            ),
        )


@lru_cache(maxsize=1024)
def _bytes(quantity: str) -> int:
    return to_bytes(quantity)


@lru_cache(maxsize=64)
def _backends(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)
