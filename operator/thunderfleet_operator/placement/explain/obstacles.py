"""Why Macs are not connected, and why single Macs cannot take part, with the cost of changing it."""

from thunderfleet_crds.vocabulary import PlacedTransport, Transport

from thunderfleet_operator.placement.cohorts import Cohort, mlx_versions
from thunderfleet_operator.placement.eligibility import wanted_model
from thunderfleet_operator.placement.explain.miss import COST_CABLE, COST_CHECK, COST_MEMORY, COST_SETTING, Obstacle
from thunderfleet_operator.placement.fleet import Fleet, Mac
from thunderfleet_operator.placement.graph.hops import LANHops, rdma_hops, rdma_problem, ring_hops, ring_problem
from thunderfleet_operator.placement.preferences import RDMA_TRANSPORTS, backend
from thunderfleet_operator.placement.request import Request
from thunderfleet_operator.placement.search.candidates import CandidateSearch

COST_SELECTED_OUT = COST_MEMORY + 5
"""Of a Mac that the selector excludes: its deployment does not want it, so memory elsewhere is suggested first."""


def hop_obstacle(fleet: Fleet, one: str, other: str, transport: PlacedTransport) -> Obstacle | None:
    """What this hop is missing; None if it is usable."""
    rdma = transport in RDMA_TRANSPORTS
    usable = rdma_hops(fleet, one) if rdma else ring_hops(fleet, one, LANHops(fleet, relay=True))
    if other in usable:
        return None
    pair = " ↔ ".join(sorted((one, other)))
    cables = sorted((c for c in fleet.links(one) if c.other(one) == other), key=lambda c: (-c.speed_mbps, c.name))
    for cable in cables:
        if cable.connected:
            problem = rdma_problem(cable) if rdma else ring_problem(fleet, cable)
            return Obstacle(COST_SETTING, f"{pair}: {problem}")
    if not rdma and not cables and fleet.macs[one].dials is not None:
        return Obstacle(COST_CHECK, f"{pair}: no Thunderbolt cable, and no connection over the LAN")
    return Obstacle(COST_CABLE, f"{pair}: the cable is unplugged" if cables else f"{pair}: no Thunderbolt cable")


def mac_obstacles(search: CandidateSearch, cohort: Cohort | None, transport: PlacedTransport) -> dict[str, Obstacle]:
    """Macs that cannot join those of ``cohort`` over this transport, the cheapest to mend first.

    Each text is the end of a sentence that begins with the Mac's name.
    """
    found = dict[str, Obstacle]()
    macs = search.fleet.macs
    for name, mac in macs.items():
        if name in search.ineligible:
            found[name] = Obstacle(_cost(mac, search.request), search.ineligible[name])
        elif cohort is not None and name not in cohort.macs:
            found[name] = Obstacle(COST_CABLE, _other_cohort(mac, cohort, search.request))
        elif transport is not Transport.NONE and backend(transport) not in mac.backends:
            found[name] = Obstacle(COST_CABLE, f"runs an MLX without the {backend(transport)} backend")
    return dict(sorted(found.items(), key=lambda entry: (entry[1].cost, -macs[entry[0]].free_bytes, entry[0])))


def _cost(mac: Mac, request: Request) -> int:
    """The cost of making an ineligible Mac eligible."""
    if mac.name in request.avoid:
        return COST_CABLE
    if not mac.ready or mac.quarantine or not mac.address or not mac.profiled:
        return COST_CHECK
    if any(mac.labels.get(key) != value for key, value in request.selector.items()):
        return COST_SELECTED_OUT
    return COST_SETTING if any(model.complete and model.sized for model in wanted_model(mac, request)) else COST_CABLE


def _other_cohort(mac: Mac, cohort: Cohort, request: Request) -> str:
    if mlx_versions(mac) != cohort.mlx:
        return f"runs {_versions(mlx_versions(mac))}, the others {_versions(cohort.mlx)}"
    return f"has different files of {request.model} than the others"


def _versions(mlx: tuple[str, str]) -> str:
    return f"MLX {mlx[0] or '(unknown)'} with mlx-lm {mlx[1] or '(unknown)'}"
