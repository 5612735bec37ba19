"""The separate graphs in which the groups of a request can form.

Hops and buckets are computed once for all searches of the request, also for those among a part of the Macs.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache, cached_property

from thunderfleet_crds.vocabulary import Transport

from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.graph.hops import RELAY_MBPS, Hop, LANHops, hops_of
from thunderfleet_operator.placement.inputs.fleet import MAX_RANKS, Fleet, Mac
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.rating.buckets import LINK_STEP, MEMORY_STEP, Buckets
from thunderfleet_operator.placement.rating.preferences import RDMA_TRANSPORTS, Stage, backend
from thunderfleet_operator.placement.search.hop_graph import HopGraph

HopsOf = Callable[[str], Mapping[str, Hop]]
KnownHops = dict[tuple[int, bool, bool, bool], tuple[Fleet, HopsOf]]
"""Hops by Mac that several requests use: by identity of the fleet, which is kept, RDMA, LAN, and whether LANs are relayed."""


class HopGraphs:
    """Makes the graphs of a request's cohorts on a fleet."""

    def __init__(self, fleet: Fleet, request: Request, known: KnownHops) -> None:
        """``known``: hops that other requests have examined; those of this one are added."""
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
        found = []
        for part in _joined(self._fleet, macs, lan):
            members = [mac for mac in part if mac.name not in excluded and needed in mac.backends]
            if len(members) > 1:
                hops, speeds = self._hops(rdma, lan), self._speeds(rdma, lan)
                found.append(HopGraph(members, hops, speeds, self._bandwidths, directed=lan))
        return sorted(found, key=lambda graph: graph.tie((0, 1, len(graph) - 1)))

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
        found = self._known.get(key)
        if found is None:
            hops = cache(hops_of(fleet, Transport.JACCL if rdma else Transport.RING, LANHops(fleet, relay) if lan else None))
            self._known[key] = found = fleet, hops
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
