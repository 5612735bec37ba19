"""The near misses of one transport among the Macs of one cohort."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Split, Transport

from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.explain.miss import COST_MEMORY, NAMED, NEAR_MISS_NODES, Miss, listed, named
from thunderfleet_operator.placement.explain.recruiting import group_with_recruits
from thunderfleet_operator.placement.explain.relaxed import cheapest_set
from thunderfleet_operator.placement.explain.shortage import group_shortage, has_room
from thunderfleet_operator.placement.fleet import Fleet, Mac
from thunderfleet_operator.placement.memory import Bounds
from thunderfleet_operator.placement.preferences import LABELS, RDMA_TRANSPORTS, allowed_splits, backend
from thunderfleet_operator.placement.result import NearMiss
from thunderfleet_operator.placement.search.candidates import CandidateSearch

ENOUGH = 12
"""No larger size is explained once there are more near misses than this."""


@dataclass(frozen=True)
class _Able:
    """Macs that can use the transport."""

    fleet: Fleet
    macs: Sequence[Mac]

    @cached_property
    def ranked(self) -> list[Mac]:
        """By free memory, the most first."""
        return sorted(self.macs, key=_by_free_memory)

    @cached_property
    def components(self) -> list[list[Mac]]:
        """Macs joined by cables; sets and Macs with the most free memory come first."""
        table = {mac.name: mac for mac in self.macs}
        joined = [[table[name] for name in component if name in table] for component in self.fleet.components]
        ranked = [sorted(component, key=_by_free_memory) for component in joined if component]
        return sorted(ranked, key=lambda component: (-sum(mac.free_bytes for mac in component), component[0].name))


def _by_free_memory(mac: Mac) -> tuple[int, str]:
    return -mac.free_bytes, mac.name


def transport_misses(search: CandidateSearch, cohort: Cohort, transport: PlacedTransport) -> list[Miss]:
    """What keeps these Macs from forming a group over this transport, the cheapest to mend first."""
    request = search.request
    excluded = request.no_ring_ports if transport is Transport.RING else {}
    macs = [mac for mac in cohort.macs.values() if backend(transport) in mac.backends and mac.name not in excluded]
    if len(macs) < max(2, request.min_nodes):
        return _too_few(search, cohort, transport, macs)
    able = _Able(search.fleet, macs)
    misses = [_no_ports(search)] if excluded else []
    refused: dict[str, Miss] = {}
    for size in range(max(2, request.min_nodes), min(search.most_ranks(transport), len(macs)) + 1):
        for split in allowed_splits(transport, request):
            need = cohort.needs.bounds(split, size)
            if isinstance(need, str):
                near = NearMiss((), transport, split, f"{split} over {size} Macs: {need}")
                refused.setdefault(need, Miss(COST_MEMORY + 1, size, near, Reason.NO_ROOM))
            else:
                misses += _size_misses(cohort, transport, split, size, need, able)
        if len(misses) > ENOUGH:
            break
    if all(miss.cost >= COST_MEMORY for miss in misses):
        # Perhaps nothing has to be bought.
        found = group_with_recruits(search, cohort, transport, macs)
        misses += [found] if found is not None else []
    return sorted([*misses, *refused.values()], key=lambda miss: miss.order)


def _too_few(search: CandidateSearch, cohort: Cohort, transport: PlacedTransport, able: Sequence[Mac]) -> list[Miss]:
    needed = backend(transport)
    without = sorted(mac.name for mac in cohort.macs.values() if needed not in mac.backends)
    if without and search.most_ranks(transport) >= max(2, search.request.min_nodes):
        label = "RDMA" if transport in RDMA_TRANSPORTS else LABELS[transport]
        text = f"{label}: the MLX of {named(without)} has no {needed} backend"
        near = NearMiss(tuple(without[:NEAR_MISS_NODES]), transport, Split.NONE, text)
        return [Miss(COST_MEMORY + 2, 0, near, Reason.TRANSPORT_UNAVAILABLE)]
    found = group_with_recruits(search, cohort, transport, able)
    return [found] if found is not None else []


def _no_ports(search: CandidateSearch) -> Miss:
    ports = search.request.no_ring_ports
    text = f"{LABELS[Transport.RING]}: {'; '.join(f'{name} {ports[name]}' for name in sorted(ports)[:NAMED])}"
    near = NearMiss(tuple(sorted(ports)[:NEAR_MISS_NODES]), Transport.RING, Split.NONE, text)
    return Miss(COST_MEMORY - 1, 0, near, Reason.NO_PORTS_LEFT)


def _size_misses(
    cohort: Cohort,
    transport: PlacedTransport,
    split: PlacedSplit,
    size: int,
    need: Bounds,
    able: _Able,
) -> Iterator[Miss]:
    ranked = able.ranked
    if not has_room(ranked, need, size):
        subject = f"the {size} Macs with the most free memory have"
        yield group_shortage(ranked, need, transport, split, size, subject)
        return
    found = cheapest_set(able.fleet, able.macs, cohort.needs, transport, split, size, need)
    if found is None:
        subject = "its layers cannot be divided to fit Macs that together have"
        yield group_shortage(ranked, need, transport, split, size, subject)
        return
    nodes, obstacles = found
    if obstacles:
        text = f"{LABELS[transport]} of {named(nodes)}: {listed([entry.text for entry in obstacles])}"
        cost = sum(entry.cost for entry in obstacles)
        yield Miss(cost, 0, NearMiss(nodes, transport, split, text), Reason.NOT_CONNECTED)
    # If no Mac publishes what it has reached, only cables join Macs.
    by_cables_only = transport in RDMA_TRANSPORTS or all(mac.dials is None for mac in able.macs)
    for joined in able.components if by_cables_only else ():
        if len(joined) >= size and sum(mac.free_bytes for mac in joined[:size]) < need.together:
            yield group_shortage(joined, need, transport, split, size, "the largest connected set has")
            return
