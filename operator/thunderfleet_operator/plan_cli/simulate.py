"""Plans every group of a deployment, by the decision that the operator makes (``port_aware_placement.choose``)."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from thunderfleet_crds.common import LABEL_GROUP
from thunderfleet_crds.modeldeployment import ModelDeployment
from thunderfleet_crds.vocabulary import Transport
from thunderfleet_lib.kube import key_of

from thunderfleet_operator.decide import port_aware_placement
from thunderfleet_operator.decide.ports import PortSettings
from thunderfleet_operator.observe import snapshot
from thunderfleet_operator.observe.fleet import Fleets
from thunderfleet_operator.observe.snapshot import Parsed, RankPorts, Taken
from thunderfleet_operator.placement import Fleet, Placement, Unplaceable
from thunderfleet_operator.placement.graph.hops import rdma_hops, ring_hops
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, PODS, Cache


def _with_reported_use(cache: Cache, fleet: Fleet, used: Taken, uid: str | None, own: Container[int]) -> Taken:
    """``used`` with the cables and queue pairs of groups that report a status but whose plans are not in the file.

    They are assumed to use the best cable of each pair. Groups ``own`` of deployment ``uid`` do not count.
    """
    in_file = {
        (snapshot.owner_uid(item), (item["metadata"].get("labels") or {}).get(LABEL_GROUP)) for item in cache[CONFIGMAPS]
    }
    addresses, queue_pairs = set(used.addresses), dict(used.queue_pairs)
    for item in cache[DEPLOYMENTS]:
        md = ModelDeployment.load(item)
        for group in md.status.groups:
            if (md.metadata.uid == uid and group.index in own) or (md.metadata.uid, str(group.index)) in in_file:
                continue
            nodes = [rank.node for rank in sorted(group.ranks, key=lambda rank: rank.rank) if rank.node in fleet.macs]
            if len(nodes) < 2:
                continue
            pairs = list(combinations(nodes, 2))
            if group.transport is not Transport.JACCL:
                pairs = [(node, nodes[(i + 1) % len(nodes)]) for i, node in enumerate(nodes)]
            for one, other in pairs:
                rdma = group.transport in (Transport.JACCL, Transport.JACCL_RING)
                hop = (rdma_hops(fleet, one) if rdma else ring_hops(fleet, one)).get(other)
                for end in (hop.cable.a, hop.cable.b) if hop and hop.cable else ():
                    if rdma and end.device:
                        queue_pairs[end.node, end.device] = queue_pairs.get((end.node, end.device), 0) + 1
                    elif end.address:
                        addresses.add((end.node, end.address))
    return replace(used, addresses=frozenset(addresses), queue_pairs=queue_pairs)


@dataclass(frozen=True, slots=True)
class Planned:
    """One group: its placement with ports, or why it has none."""

    index: int
    found: Placement | Unplaceable
    free: Mapping[str, int]
    """Bytes by Mac before this group was placed."""
    ports: tuple[RankPorts, ...] = ()


def plan_groups(cache: Cache, deployment: ModelDeployment, settings: PortSettings, runners_up: int) -> list[Planned]:
    """Plans all groups of a deployment in order, each beside those before it and the groups of other deployments."""
    parsed, planned, left = Parsed(), list[Planned](), Cache()
    for name, store in cache.stores.items():
        left.stores[name].items.update(store.items)
    uid, settled = deployment.metadata.uid, set[int]()
    for index in range(deployment.spec.replicas):
        # Running groups of this deployment: those before this one hold what was planned, those after it what they have.
        used = snapshot.taken(left, uid, index)
        bare = Fleets().fleet(left, parsed, used)
        used = _with_reported_use(left, bare, used, uid, settled | {index})
        fleet = Fleets().fleet(left, parsed, used)
        for earlier in planned:
            if isinstance(earlier.found, Placement):
                fleet, used = _with_group(fleet, used, earlier.found, earlier.ports)
        free = {name: mac.free_bytes for name, mac in fleet.macs.items()}
        before = next((group for group in deployment.status.groups if group.index == index), None)
        current = tuple(rank.node for rank in sorted(before.ranks, key=lambda rank: rank.rank)) if before else ()
        kept = _kept_ports(left, deployment, index)
        found = port_aware_placement.choose(
            fleet, deployment, used, settings, current=current, kept=kept, runners_up=runners_up
        )
        if isinstance(found, Unplaceable):
            planned.append(Planned(index, found, free))
            continue
        planned.append(Planned(index, found[0], free, tuple(found[1])))
        settled.add(index)
        for collection in (PODS, CONFIGMAPS):
            for item in snapshot.children(left[collection], deployment):
                if snapshot.group_index(item) == index:
                    left[collection].forget(key_of(item))
    return planned


def _kept_ports(cache: Cache, deployment: ModelDeployment, index: int) -> dict[str, RankPorts]:
    """The ports of a running group, which the operator lets it keep."""
    view = snapshot.groups(cache, deployment)[index]
    pods = [pod for pod in snapshot.children(cache[PODS], deployment) if snapshot.group_index(pod) == index]
    return snapshot.kept_ports(view, pods)


def _with_group(fleet: Fleet, used: Taken, made: Placement, ports: tuple[RankPorts, ...]) -> tuple[Fleet, Taken]:
    """The fleet and what is used on it, with one more group."""
    macs = []
    held = dict(used.ports)
    for rank, taken in zip(made.ranks, ports, strict=True):
        mac = fleet.macs[rank.node]
        macs.append(replace(mac, free_bytes=max(0, mac.free_bytes - rank.memory_bytes), in_use=True))
        held[rank.node] = held.get(rank.node, frozenset()) | taken.all
    faced: dict[tuple[str, str], int] = {}
    for rank in made.ranks:
        for device in rank.devices:
            if device is not None:
                faced[rank.node, device] = faced.get((rank.node, device), 0) + 1
    cables = []
    for cable in {c.name: c for rank in made.ranks for c in fleet.links(rank.node)}.values():
        a, b = (
            replace(end, queue_pairs=max(0, end.queue_pairs - faced.get((end.node, end.device or ""), 0)))
            for end in (cable.a, cable.b)
        )
        cables.append(replace(cable, a=a, b=b, in_use=cable.in_use or cable.name in made.cables))
    return fleet.changed(macs, cables), replace(used, ports=held)
