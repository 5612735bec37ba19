"""Why Macs are not connected, and why single Macs cannot take part, with the cost of changing it."""

from collections.abc import Iterable
from functools import cache
from heapq import nsmallest

from thunderfleet_crds.vocabulary import PlacedTransport, Transport
from thunderfleet_lib.rdma.rules import LEAST_MACOS_TEXT

from thunderfleet_operator.placement.cohorts import Cohort, mlx_versions
from thunderfleet_operator.placement.eligibility import ineligible_reasons, wanted_model
from thunderfleet_operator.placement.explain.miss import COST_CABLE, COST_CHECK, COST_MEMORY, COST_SETTING, Obstacle
from thunderfleet_operator.placement.graph.hops import (
    Hop,
    LANHops,
    rdma_hops,
    rdma_problem,
    ring_hops,
    ring_problem,
    too_few_queue_pairs,
)
from thunderfleet_operator.placement.inputs.fleet import Cable, Fleet, Mac
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.rating.preferences import RDMA_TRANSPORTS, backend

COST_SELECTED_OUT = COST_MEMORY + 5
"""Cost for a Mac that the selector excludes. The deployment excludes this Mac, so memory elsewhere is suggested first."""


class HopObstacles:
    """What the hops of one transport lack, by pair of Macs."""

    def __init__(self, fleet: Fleet, transport: PlacedTransport) -> None:
        self._fleet = fleet
        self._rdma = transport in RDMA_TRANSPORTS
        self._lan = LANHops(fleet, relay=True)
        self.hops = cache(self._hops)
        """The usable hops of a Mac, by the name of the other Mac."""

    def _hops(self, node: str) -> dict[str, Hop]:
        if node not in self._fleet.macs:
            return {}
        return rdma_hops(self._fleet, node) if self._rdma else ring_hops(self._fleet, node, self._lan)

    def of(self, one: str, other: str) -> Obstacle | None:
        """What is missing for the hop between two Macs, regardless of its direction; None if it is usable."""
        if other in self.hops(one):
            return None
        fleet, pair = self._fleet, " ↔ ".join(sorted((one, other)))
        cables = sorted((c for c in fleet.links(one) if c.other(one) == other), key=lambda c: (-c.speed_mbps, c.name))
        for cable in cables:
            if cable.connected:
                return Obstacle(COST_SETTING, f"{pair}: {self._problem(cable)}")
        known = fleet.macs.get(one)
        if not self._rdma and not cables and known is not None and known.dials is not None:
            return Obstacle(COST_CHECK, f"{pair}: no Thunderbolt cable, and no connection over the LAN")
        return Obstacle(COST_CABLE, f"{pair}: the cable is unplugged" if cables else f"{pair}: no Thunderbolt cable")

    def _problem(self, cable: Cable) -> str:
        problem = (rdma_problem(cable) if self._rdma else ring_problem(self._fleet, cable)) or "cannot be used"
        if not self._rdma or cable.rdma_problem is None:
            return problem
        full = [
            too_few_queue_pairs(end.node, end.device, 0) for end in (cable.a, cable.b) if end.device and end.queue_pairs < 1
        ]
        return ", and ".join([problem, *full])


def helpful_macs(
    macs: Iterable[Mac], request: Request, cohort: Cohort, transport: PlacedTransport, most: int
) -> dict[str, Obstacle]:
    """The Macs that are cheapest to fix among those that cannot join ``cohort`` over this transport."""
    costs = ((_cost(mac, request, cohort, transport), -mac.free_bytes, mac.name, mac) for mac in macs)
    return {name: Obstacle(cost, mac_lacks(mac, request, cohort, transport)) for cost, _, name, mac in nsmallest(most, costs)}


def mac_lacks(mac: Mac, request: Request, cohort: Cohort, transport: PlacedTransport) -> str:
    """All that keeps a Mac from joining those of ``cohort``, as the end of a sentence that begins with its name."""
    found = [*(_software(mac, cohort, transport) if mac.profiled else ()), *ineligible_reasons(mac, request)]
    if transport is Transport.RING and mac.name in request.no_ring_ports:
        found.insert(0, request.no_ring_ports[mac.name])
    own = [model for model in wanted_model(mac, request) if model.usable]
    if mac.profiled and own and cohort.model not in own:
        found.append(f"has different files of {request.model} at {own[0].path} than the others (copy the same files to all)")
    return " and ".join(found)


def without_backends(mac: Mac) -> str:
    """Why a Mac does not have a backend, as a clause."""
    if not mac.mlx_version:
        return (
            "its agent has not published the version and backends of its MLX (the condition InventoryComplete of its "
            "NodeProfile shows why)"
        )
    backends = f"supports only {', '.join(sorted(mac.backends))}" if mac.backends else "has no backend for groups of Macs"
    return f"its MLX {mac.mlx_version} {backends}"


def _software(mac: Mac, cohort: Cohort, transport: PlacedTransport) -> list[str]:
    found = []
    if mlx_versions(mac) != cohort.mlx:
        found.append(
            f"runs {_versions(mlx_versions(mac))}, the others {_versions(cohort.mlx)} (install the same versions on all)"
        )
    if transport is not Transport.NONE and backend(transport) not in mac.backends:
        needs = f" (it needs {LEAST_MACOS_TEXT})" if transport in RDMA_TRANSPORTS else ""
        found.append(f"runs an MLX without the {backend(transport)} backend{needs}")
    return [f"cannot join the others: {without_backends(mac)}"] if found and not mac.mlx_version else found


def _cost(mac: Mac, request: Request, cohort: Cohort, transport: PlacedTransport) -> int:
    """The cost of making a Mac able to join."""
    if any(mac.labels.get(key) != value for key, value in request.selector.items()):
        return COST_SELECTED_OUT
    if transport is Transport.RING and mac.name in request.no_ring_ports:
        return COST_MEMORY - 1
    if mac.name in request.avoid:
        return COST_CABLE
    if not mac.ready or mac.quarantine or not mac.address or not mac.profiled:
        return COST_CHECK
    same = cohort.model in mac.models and mlx_versions(mac) == cohort.mlx
    return COST_SETTING if same and (transport is Transport.NONE or backend(transport) in mac.backends) else COST_CABLE


def _versions(mlx: tuple[str, str]) -> str:
    return f"MLX {mlx[0] or '(unknown)'} with mlx-lm {mlx[1] or '(unknown)'}"
