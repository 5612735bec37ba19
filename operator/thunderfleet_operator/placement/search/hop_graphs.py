"""The separate graphs in which the groups of a request can form.

Hops and buckets are computed once for all searches of the request, also for those among a part of the Macs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from operator import is_
from typing import NamedTuple

from thunderfleet_crds.vocabulary import Transport

from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.eligibility import ineligible_reason
from thunderfleet_operator.placement.graph.hops import RELAY_MBPS, Hop, LANHops, hops_of
from thunderfleet_operator.placement.inputs.fleet import MAX_RANKS, Cable, Fleet, Mac
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.rating.buckets import LINK_STEP, MEMORY_STEP, Buckets
from thunderfleet_operator.placement.rating.preferences import RDMA_TRANSPORTS, Stage, backend
from thunderfleet_operator.placement.search.hop_graph import HopGraph

HopsOf = Callable[[str], Mapping[str, Hop]]


class _Graph(NamedTuple):
    members: Sequence[Mac]
    links: Sequence[tuple[Cable, ...]]
    graph: HopGraph


class Known:
    """What searches have looked at, for those that follow, also on later fleets. No answer depends on it.

    A fleet differs from the one before in few Macs. A graph over cables is used again while its Macs and their cables are the
    same values, and the rates of the fleet are the same, which decide about buckets.
    """

    def __init__(self) -> None:
        self.hops: dict[tuple[int, bool, bool, bool], tuple[Fleet, HopsOf]] = {}
        """Hops by Mac: by identity of the fleet, which is kept, RDMA, LAN, and whether LANs are relayed."""
        self._graphs: dict[tuple[bool, int, str], _Graph] = {}
        self._before: dict[tuple[bool, int, str], _Graph] = {}
        self._rates: object = None
        self._request: Request | None = None
        self._reasons: dict[str, tuple[Mac, str | None]] = {}

    def begin(self) -> None:
        """Another question follows. What the last one has not used is forgotten, with the earlier fleets that it holds.

        Unless the last one has used nothing, such as advice about a group whose Macs are off.
        """
        self.hops.clear()
        if self._graphs:
            self._before, self._graphs = self._graphs, {}

    def ineligible(self, macs: Mapping[str, Mac], request: Request) -> dict[str, str]:
        """Why Macs may not take a rank, by name."""
        # Where the group is now keeps no Mac away.
        wanted = replace(request, current=())
        before = self._reasons if self._request == wanted else {}
        self._request, self._reasons = wanted, {}
        for name, mac in macs.items():
            known = before.get(name)
            self._reasons[name] = known if known is not None and known[0] is mac else (mac, ineligible_reason(mac, request))
        return {name: why for name, (_, why) in self._reasons.items() if why is not None}

    def follow(self, fleet: Fleet) -> None:
        """The next calls of ``of`` are about this fleet."""
        rates = fleet.rates(rdma=False), fleet.rates(rdma=True), fleet.memory_rates
        if self._rates != rates:
            self._graphs, self._before = {}, {}
        # The sets of this fleet, which compare by identity from here on.
        self._rates = rates

    def of(self, fleet: Fleet, members: Sequence[Mac], rdma: bool, hops: HopsOf, make: Callable[[], HopGraph]) -> HopGraph:
        """The graph of these Macs, as it is known, or as it is made."""
        key, links = (rdma, len(members), members[0].name), [fleet.links(mac.name) for mac in members]
        known = self._graphs.get(key) or self._before.get(key)
        if known is not None and all(map(is_, known.members, members)) and all(map(is_, known.links, links)):
            self._graphs[key] = known
            return known.graph.on(hops)
        made = make()
        self._graphs[key] = _Graph(members, links, made)
        return made


class HopGraphs:
    """Makes the graphs of a request's cohorts on a fleet."""

    def __init__(self, fleet: Fleet, request: Request, known: Known) -> None:
        """``known``: what other requests have looked at; what this one looks at is added."""
        self._fleet = fleet
        self._request = request
        self._known = known
        self._speeds = cache(self._speeds_of)

    def of(self, cohort: Cohort, stage: Stage) -> list[HopGraph]:
        """The graphs in which groups of a stage can form."""
        transport, lan = stage
        macs = cohort.macs
        if transport is Transport.NONE:
            return [HopGraph(list(macs.values()), lambda name: {}, Buckets((), LINK_STEP), self._bandwidths)]
        if len(macs) < 2 or (lan and all(mac.dials is None for mac in macs.values())):
            return []
        excluded = self._request.no_ring_ports if transport is Transport.RING else {}
        needed, rdma = backend(transport), transport in RDMA_TRANSPORTS
        hops, speeds = self._hops(rdma, lan), self._speeds(rdma, lan)
        self._known.follow(self._fleet)
        found = []
        for part in _joined(self._fleet, macs, lan):
            members = [mac for mac in part if mac.name not in excluded and needed in mac.backends]
            if len(members) > 1:
                make = partial(HopGraph, members, hops, speeds, self._bandwidths, directed=lan)
                # Over a LAN, the hops of a Mac depend on all others.
                found.append(make() if lan else self._known.of(self._fleet, members, rdma, hops, make))
        return sorted(found, key=lambda graph: graph.first)

    @cached_property
    def _bandwidths(self) -> Buckets:
        return Buckets(self._fleet.memory_rates, MEMORY_STEP)

    def _speeds_of(self, rdma: bool, lan: bool) -> Buckets:
        rates = self._fleet.rates(rdma=rdma)
        if lan:
            relayed = {min(rate, RELAY_MBPS) for rate in self._fleet.lan_rates}
            rates |= relayed | (self._fleet.lan_rates if self._request.ring_without_relay else set())
        return Buckets(rates, LINK_STEP)

    def _hops(self, rdma: bool, lan: bool) -> HopsOf:
        fleet, relay = self._fleet, not self._request.ring_without_relay
        key = (id(fleet), rdma, lan, relay)
        found = self._known.hops.get(key)
        if found is None:
            hops = cache(hops_of(fleet, Transport.JACCL if rdma else Transport.RING, LANHops(fleet, relay) if lan else None))
            self._known.hops[key] = found = fleet, hops
        return found[1]


def _joined(fleet: Fleet, macs: Mapping[str, Mac], lan: bool) -> Collection[Collection[Mac]]:
    """Sets of these Macs such that every group that can form has all its Macs in one of them."""
    if len(macs) <= MAX_RANKS:
        # For a few Macs, finding the parts of the whole fleet costs more than it saves.
        return (macs.values(),)
    parts = fleet.parts(lan=lan)
    found: dict[int, list[Mac]] = {}
    for name, mac in macs.items():
        for part in parts[name]:
            found.setdefault(part, []).append(mac)
    return found.values()
