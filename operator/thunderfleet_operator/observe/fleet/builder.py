"""The planner's Fleet, from Nodes, NodeProfiles and ThunderboltLinks."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import is_
from typing import Any, TypeVar, cast

from thunderfleet_crds.kinds.nodeprofile import Model, NodeProfile, NodeProfileStatus
from thunderfleet_crds.kinds.thunderboltlink import Endpoint, LinkEnd, ThunderboltLink
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.uris import is_kept_name
from thunderfleet_crds.vocabulary import (
    AddressClass,
    ConditionStatus,
    ConditionType,
    InterfaceKind,
    MeasurementTransport,
    ReachabilityState,
)
from thunderfleet_lib.rdma import rules

from thunderfleet_operator.observe.fleet.usage import Taken
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.placement import (
    QUEUE_PAIRS,
    AddressKind,
    AddressKinds,
    Cable,
    CableFault,
    Dials,
    End,
    Fleet,
    Kind,
    KVLayer,
    Mac,
    ModelFacts,
    TensorFacts,
)
from thunderfleet_operator.placement.units import one_line

K = TypeVar("K")
T = TypeVar("T")
KINDS = {
    InterfaceKind.THUNDERBOLT: Kind.THUNDERBOLT,
    InterfaceKind.ETHERNET: Kind.ETHERNET,
    InterfaceKind.WIFI: Kind.WIFI,
}
FAULTS = {
    Reason.UNPLUGGED: Reason.PORT_DOWN,
    Reason.NOTHING_PLUGGED_IN: Reason.PORT_DOWN,
    Reason.NO_CARRIER: Reason.PORT_DOWN,
    Reason.FLAPPING: Reason.FLAPPING,
}
"""Maps reasons of the condition Connected to why nothing can be sent. Reasons about Nodes that are not Ready are left out: it
is not known then."""
RDMA_FAULTS = frozenset({*rules.FAULT_CLASS, Reason.BELOW_THUNDERBOLT5}) - {Reason.COMMAND_FAILED}
"""Reasons of RDMAUsable for faults, not for what is unknown."""
NOT_SIZED = (
    "the agent has not computed the sizes of the model's layers yet; if this persists for more than a few minutes, see the "
    "log of the agent"
)
SHARED_LIMIT = 4096
"""Values that are kept to be shared between Macs. The facts of a model can take tens of kilobytes."""
Nodes = Mapping[str, Node]
Profiles = Mapping[str, NodeProfile | None]
Links = Mapping[str, ThunderboltLink | None]


# --- what is taken ---------------------------------------------------------------------------------------------------


def _occupied_mac(mac: Mac, taken: Taken) -> Mac:
    free = max(0, mac.allocatable_bytes - taken.memory.get(mac.name, 0))
    in_use = mac.name in taken.groups
    full = 0 < mac.max_pods <= taken.pods.get(mac.name, 0)
    if (mac.free_bytes, mac.in_use, mac.full) == (free, in_use, full):
        return mac
    return replace(mac, free_bytes=free, in_use=in_use, full=full)


def _occupied_cable(cable: Cable, taken: Taken) -> Cable:
    def occupied(end: End) -> End:
        left = max(0, QUEUE_PAIRS - taken.queue_pairs.get((end.node, end.device or ""), 0))
        return end if end.queue_pairs == left else replace(end, queue_pairs=left)

    a, b = occupied(cable.a), occupied(cable.b)
    in_use = any(
        (end.node, end.address or "") in taken.addresses or (end.node, end.device or "") in taken.queue_pairs for end in (a, b)
    )
    if a is cable.a and b is cable.b and in_use == cable.in_use:
        return cable
    return replace(cable, a=a, b=b, in_use=in_use)


def _occupation(fleet: Fleet, before: Taken, after: Taken) -> tuple[dict[str, Mac], dict[str, Cable]]:
    """The Macs and cables of ``fleet``, made with ``before``, that differ with ``after``."""
    names = {name for name in before.memory.keys() | after.memory.keys() if before.memory.get(name) != after.memory.get(name)}
    names |= before.groups ^ after.groups
    names |= {name for name in before.pods.keys() | after.pods.keys() if before.pods.get(name) != after.pods.get(name)}
    ends = {node for node, _ in before.addresses ^ after.addresses}
    ends |= {node for node, _ in dict(before.queue_pairs.items() ^ after.queue_pairs.items())}
    macs = {name: _occupied_mac(fleet.macs[name], after) for name in names if name in fleet.macs}
    cables = {cable.name: _occupied_cable(cable, after) for node in ends for cable in fleet.links(node)}
    return (
        {name: mac for name, mac in macs.items() if mac is not fleet.macs[name]},
        {name: cable for name, cable in cables.items() if cable is not fleet.cables[name]},
    )


def occupied(fleet: Fleet, before: Taken, after: Taken) -> Fleet:
    """``fleet``, which was made with ``before`` taken, with ``after`` taken."""
    macs, cables = _occupation(fleet, before, after) if before is not after else ({}, {})
    return fleet.changed(macs.values(), cables.values()) if macs or cables else fleet


def _without_uris(models: tuple[ModelFacts, ...]) -> tuple[ModelFacts, ...]:
    return tuple(model for model in models if not is_kept_name(model.repository))


# --- Macs ------------------------------------------------------------------------------------------------------------


def _text(text: str | None) -> str | None:
    """Cleans text of an agent that becomes part of messages."""
    return one_line(text) if text else text


def model_facts(model: Model) -> ModelFacts:
    """What placement reads of a model."""
    pipeline = model.pipeline
    return ModelFacts(
        path=model.path,
        repository=model.repository,
        revision=model.revision,
        bytes=model.bytes,
        complete=model.complete,
        problem=_text(model.problem),
        unsupported=_text(model.unsupported),
        sized=any(size.tensor_bytes_per_rank for size in model.sizes) and bool(model.kv),
        tensor=tuple(TensorFacts(size.world_size, size.tensor_bytes_per_rank, _text(size.refusal)) for size in model.sizes),
        layer_bytes=pipeline.layer_bytes if pipeline else (),
        shared_bytes=pipeline.shared_bytes if pipeline else 0,
        pipeline_refusal=_text(pipeline.refusal) if pipeline else NOT_SIZED,
        kv=tuple(KVLayer(kv.fixed_bytes, kv.bytes_per_token, kv.window_tokens, kv.tensor_split) for kv in model.kv),
        active_bytes=model.active_bytes or 0,
        mixture=model.experts is not None,
        bits=model.bits if model.quantized else None,
        prefill_bytes=model.prefill_workspace_bytes or 0,
        prefill_bytes_per_token=model.prefill_workspace_bytes_per_token or 0,
    )


def _dials(status: NodeProfileStatus) -> Dials | None:
    if not status.reachability:
        return None
    reached = [entry for entry in status.reachability if entry.state is ReachabilityState.REACHABLE]
    speeds = {}
    for entry in reached:
        known = [rate for rate in (entry.sent_mbps, entry.received_mbps) if rate]
        if known:
            speeds[entry.node, entry.address] = min(known)
    failed = ((e.node, e.address) for e in status.reachability if e.state is ReachabilityState.UNREACHABLE)
    return Dials.of(((entry.node, entry.address) for entry in reached), speeds, failed)


def _compute_rate(status: NodeProfileStatus) -> int:
    measured = status.benchmarks.compute if status.benchmarks else None
    return measured.fp16_gigaflops if measured else 0


def _memory_rate(status: NodeProfileStatus) -> int:
    measured = status.benchmarks.memory if status.benchmarks else None
    return measured.megabytes_per_second if measured else 0


# --- cables ----------------------------------------------------------------------------------------------------------


def endpoint_of(link: ThunderboltLink, end: LinkEnd, profile: NodeProfile | None) -> Endpoint | None:
    """One end as its agent reports it, or as its NodeProfile describes the port while a display hides the other end."""
    reported = next((entry for entry in link.status.endpoints if entry.node == end.node), None)
    if reported is not None or profile is None:
        return reported
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
    """Mb/s in the slower direction, over the first of these transports that was measured."""
    for transport in transports:
        rates = [m.throughput_mbps for m in link.status.measurements if m.transport is transport and m.throughput_mbps]
        if rates:
            return min(rates)
    return None


def _faults(link: ThunderboltLink) -> tuple[CableFault | None, CableFault | None]:
    """What is known to be wrong with a cable, and with RDMA on it, by its conditions."""
    connected = find_condition(link.status.conditions, ConditionType.CONNECTED)
    usable = find_condition(link.status.conditions, ConditionType.RDMA_USABLE)
    ends = {link.spec.a.node, link.spec.b.node}
    seen = any(end.sees_peer for end in link.status.endpoints if end.node in ends)
    if connected is not None and connected.reason == Reason.UNPLUGGED and seen:
        # The operator would not report this about these ends: the condition was edited, or is about to be updated.
        return None, None
    if connected is not None and connected.reason in FAULTS:
        fault = CableFault(FAULTS[Reason(connected.reason)], connected.message)
        return fault, fault
    if connected is None or connected.status is not ConditionStatus.TRUE or usable is None:
        return None, None
    if usable.status is ConditionStatus.TRUE or usable.reason not in RDMA_FAULTS:
        return None, None
    return None, CableFault(usable.reason, usable.message)


def _connection(link: ThunderboltLink) -> str:
    connected = find_condition(link.status.conditions, ConditionType.CONNECTED)
    since = connected.last_transition_time.isoformat() if connected is not None else ""
    return f"{link.metadata.uid or ''} {since}".strip()


def _end(end: LinkEnd, endpoint: Endpoint | None, profile: NodeProfile | None) -> End:
    # An agent that cannot read the interfaces reports its end without an address.
    reported = endpoint is not None and (profile is None or profile.status.network is not None)
    return End(
        end.node,
        endpoint.address if endpoint is not None else None,
        endpoint.rdma_device if endpoint is not None else None,
        reported=reported,
    )


def _cable(link: ThunderboltLink, profiles: Profiles) -> Cable:
    endpoints = [endpoint_of(link, end, profiles.get(end.node)) for end in (link.spec.a, link.spec.b)]
    known = [endpoint for endpoint in endpoints if endpoint is not None]
    usable = find_condition(link.status.conditions, ConditionType.RDMA_USABLE)
    lack = usable.message if usable is not None else "it is not known yet whether RDMA can be used"
    fault, rdma_fault = _faults(link)
    a, b = (
        _end(end, endpoint, profiles.get(end.node)) for end, endpoint in zip((link.spec.a, link.spec.b), endpoints, strict=True)
    )
    return Cable(
        name=link.metadata.name,
        a=a,
        b=b,
        speed_mbps=min((endpoint.speed_mbps for endpoint in known if endpoint.speed_mbps), default=0),
        connected=any(endpoint.sees_peer for endpoint in known) and fault is None,
        rdma_problem=None if usable is not None and usable.status is ConditionStatus.TRUE else lack,
        ring_mbps=_measured(link, MeasurementTransport.RING, MeasurementTransport.SOCKET),
        rdma_mbps=_measured(link, MeasurementTransport.RDMA),
        fault=fault,
        rdma_fault=rdma_fault,
        connection=_connection(link),
    )


def _same(one: object, other: object) -> bool:
    """Whether these are the same objects. Values are replaced when their object changes, never modified."""
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return one is other
    return len(one) == len(other) and all(map(is_, one, other))


def changed_names(past: Mapping[K, object], now: Mapping[K, object]) -> set[K]:
    """The keys whose value is another object, or that only one of the two has."""
    if past is now:
        return set()
    return {name for name, value in now.items() if past.get(name) is not value} | (past.keys() - now.keys())


def _has_other_models(before: tuple[Node, NodeProfile | None], after: tuple[Node, NodeProfile | None] | None) -> bool:
    profiles = before[1], after[1] if after is not None else None
    old, new = (profile.status.models if profile is not None else None for profile in profiles)
    return old is not new


# --- the fleet -------------------------------------------------------------------------------------------------------


class FleetBuilder:
    """Makes each Fleet from the one before it, because few of a thousand Macs change at a time.

    Equal models, backends and interfaces of different Macs are one value in memory.
    """

    def __init__(self) -> None:
        self._shared: dict[Any, Any] = {}
        self._facts: dict[int, tuple[tuple[Model, ...], tuple[ModelFacts, ...]]] = {}
        """Models and their facts, by the identity (``id``) of a profile's list of models. The list is kept here, so its
        identity is not reused."""
        self._macs: dict[str, tuple[Node, NodeProfile | None]] = {}
        """The objects from which each Mac was made, by name."""
        self._inputs: tuple[object, ...] = ()
        self._taken = Taken()
        self._fleet = Fleet()

    def fleet(self, nodes: Nodes, profiles: Profiles, links: Links, taken: Taken) -> Fleet:
        """All Nodes that run macOS, and all cables. The same value as before while nothing that counts has changed."""
        inputs, past = (nodes, profiles, links, taken), self._inputs
        if _same(past, inputs):
            return self._fleet
        before = self._fleet
        macs, cables = _occupation(before, self._taken, taken) if self._taken is not taken else ({}, {})
        gone: set[str] = set()
        if not _same(past[:2], inputs[:2]):
            self._add_macs(macs, gone, nodes, profiles, taken)
        if not _same(past[1:3], inputs[1:3]):
            self._add_cables(cables, gone, links, profiles, taken)
        self._inputs, self._taken = inputs, taken
        if macs or cables or gone:
            changed = before.macs or before.cables
            made = before.changed(macs.values(), cables.values(), gone) if changed else Fleet(macs.values(), cables.values())
            self._fleet = made
        return self._fleet

    def _add_macs(self, macs: dict[str, Mac], gone: set[str], nodes: Nodes, profiles: Profiles, taken: Taken) -> None:
        """Adds the Macs that differ to ``macs``, and the names of those that are no more to ``gone``."""
        past_nodes, past_profiles = cast("tuple[Nodes, Profiles]", self._inputs[:2] or ({}, {}))
        names = changed_names(past_nodes, nodes) | changed_names(past_profiles, profiles)
        before, past, following = self._fleet.macs, self._macs, dict(self._macs)
        for name in names:
            following.pop(name, None)
        for name in [name for name in nodes if name in names and nodes[name].mac]:
            node, profile, known = nodes[name], profiles.get(name), past.get(name)
            same_profile = known is not None and known[1] is profile
            models = before[name].models if same_profile else self._models(profile)
            mac = _occupied_mac(self._mac(node, profile, models), taken)
            following[name] = (node, profile)
            if before.get(name) != mac:
                macs[name] = mac
            else:
                macs.pop(name, None)
        gone |= before.keys() - following.keys()
        for name in gone:
            macs.pop(name, None)
        self._macs = following
        if any(_has_other_models(past[name], following.get(name)) for name in names if name in past):
            # One list can take megabytes, and a Mac can publish another one every second.
            used = {id(profile.status.models) for _, profile in following.values() if profile is not None}
            self._facts = {models: known for models, known in self._facts.items() if models in used}

    def _add_cables(self, cables: dict[str, Cable], gone: set[str], links: Links, profiles: Profiles, taken: Taken) -> None:
        """Adds the cables that differ to ``cables``, and the names of those that are no more to ``gone``."""
        before = self._fleet.cables
        for name in self._touched(links, profiles):
            link = links.get(name)
            cable = _occupied_cable(_cable(link, profiles), taken) if link is not None else None
            if cable is None and name in before:
                gone.add(name)
            if cable is None or before.get(name) == cable:
                cables.pop(name, None)
            else:
                cables[name] = cable

    def _touched(self, links: Links, profiles: Profiles) -> set[str]:
        """The cables whose link has changed, or the profile of a Mac at an end."""
        past_profiles, past_links = cast("tuple[Profiles, Links]", self._inputs[1:3] or ({}, {}))
        macs = changed_names(past_profiles, profiles)
        return changed_names(past_links, links) | {cable.name for mac in macs for cable in self._fleet.links(mac)}

    def _share(self, value: T) -> T:
        if len(self._shared) >= SHARED_LIMIT:
            self._shared.clear()
        found: T = self._shared.setdefault(value, value)
        return found

    def _models(self, profile: NodeProfile | None) -> tuple[ModelFacts, ...]:
        if profile is None:
            return ()
        models = profile.status.models
        known = self._facts.get(id(models))
        if known is None or known[0] is not models:
            shared = self._share(tuple(self._share(model_facts(model).sharing(self._share)) for model in models))
            known = self._facts[id(models)] = models, shared
        return known[1]

    def _backends(self, names: Iterable[str]) -> frozenset[str]:
        return self._share(frozenset(names))

    def _kinds(self, status: NodeProfileStatus) -> AddressKinds:
        # Only recorded Macs have addresses in 127.0.0.0/8 on ports; they count as private.
        private = (AddressClass.PRIVATE, AddressClass.LOOPBACK)
        found: dict[str, AddressKind] = {}
        for interface in status.network.interfaces if status.network else ():
            for entry in interface.addresses:
                kind = AddressKind(KINDS.get(interface.kind, Kind.OTHER), entry.class_ in private, interface.speed_mbps or 0)
                found[entry.address] = self._share(kind)
        return AddressKinds.of(found)

    def _mac(self, node: Node, profile: NodeProfile | None, models: tuple[ModelFacts, ...]) -> Mac:
        bare = Mac(
            name=node.name,
            address=node.address,
            allocatable_bytes=node.allocatable_bytes,
            free_bytes=node.allocatable_bytes,
            max_pods=node.max_pods,
            ready=node.ready and not node.deleting,
            schedulable=node.schedulable,
            labels=node.labels or {},
            taints=node.taints,
            backends=frozenset(),
            profiled=False,
        )
        if profile is None:
            return bare
        status = profile.status
        quarantine, runtime, hardware = status.quarantine, status.runtime, status.hardware
        return replace(
            bare,
            backends=self._backends(runtime.backends) if runtime else frozenset(),
            mlx_version=runtime.mlx_version if runtime else None,
            mlx_lm_version=runtime.mlx_lm_version if runtime else None,
            profiled=runtime is not None,
            # Those of a URI count for a ModelDeployment only once a pod of its namespace has read the list of their hashes.
            models=models if not any(is_kept_name(one.repository) for one in models) else _without_uris(models),
            quarantine=quarantine.reason if quarantine and quarantine.boot_id == node.boot_id else None,
            dials=_dials(status),
            memory_bandwidth=_memory_rate(status),
            gigaflops=_compute_rate(status),
            chip=(hardware.chip or "") if hardware else "",
            gpu_cores=(hardware.gpu_cores or 0) if hardware else 0,
            kinds=self._kinds(status),
            build=(status.os.build or "") if status.os else "",
            store=status.store.folder if status.store and not status.store.problem else "",
            store_bytes=status.store.free_bytes if status.store and not status.store.problem else 0,
        )
