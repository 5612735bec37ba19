"""The fleet and the request with the changes of a near miss, and whether they have a placement."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Split, Transport

from thunderfleet_operator.placement.cohorts import Cohort
from thunderfleet_operator.placement.eligibility import mended
from thunderfleet_operator.placement.inputs.fleet import Cable, Dials, End, Fleet, Mac
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.rating.preferences import RDMA_TRANSPORTS, backend
from thunderfleet_operator.placement.result import Changes
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.candidates import CandidateSearch

STEPS = 20_000
"""Step limit of the search on a changed fleet, which has only the Macs of one near miss."""


def fixed(mac: Mac, request: Request, cohort: Cohort, transport: PlacedTransport) -> Mac:
    """A Mac that can join those of ``cohort``."""
    others = tuple(model for model in mac.models if model.path != cohort.model.path and model != cohort.model)
    return replace(
        mended(mac, request),
        address=mac.address or mac.name,
        profiled=True,
        models=(cohort.model, *others),
        mlx_version=cohort.mlx[0] or None,
        mlx_lm_version=cohort.mlx[1] or None,
        backends=mac.backends | ({backend(transport)} if transport is not Transport.NONE else set()),
    )


def changed(
    fleet: Fleet, request: Request, cohort: Cohort, transport: PlacedTransport, nodes: Sequence[str], changes: Changes
) -> tuple[Fleet, Request]:
    """These Macs and the request once all ``changes`` are made. ``nodes``: the Macs of the near miss, new ones included."""
    known = {name: fleet.macs.get(name) or Mac(name, name, 0) for name in nodes}
    macs = {name: fixed(mac, request, cohort, transport) if name in changes.macs else mac for name, mac in known.items()}
    macs.update({name: replace(macs[name], free_bytes=max(size, macs[name].free_bytes)) for name, size in changes.free_bytes})
    if changes.reach:
        macs = {name: replace(mac, dials=_all_reached(mac, macs)) for name, mac in macs.items()}
    cables = {cable.name: cable for pair in changes.hops for cable in _connected(fleet, pair, transport)}
    for name, device in changes.queue_pairs:
        for cable in fleet.links(name):
            cables[cable.name] = _with_queue_pairs(cables.get(cable.name, cable), name, device)
    part = fleet.part(name for name in nodes if name in fleet.macs)
    made = part.changed((mac for name, mac in macs.items() if mac is not fleet.macs.get(name)), cables.values())
    avoid, ports = (
        {k: v for k, v in table.items() if k not in changes.macs} for table in (request.avoid, request.no_ring_ports)
    )
    return made, replace(request, avoid=avoid, no_ring_ports=ports)


def has_placement(
    fleet: Fleet, request: Request, transport: PlacedTransport, split: PlacedSplit, nodes: Sequence[str], budget: StepBudget
) -> bool:
    """Whether exactly these Macs can take the group over this transport. The steps of the search are taken from ``budget``."""
    wanted = request.transport if transport is Transport.NONE else transport
    splits = Split.AUTO if split is Split.NONE else split
    size = len(nodes)
    asked = replace(request, min_nodes=size, max_nodes=size, current=(), transport=wanted, split=splits)
    own = StepBudget(STEPS)
    found = next(CandidateSearch(fleet, asked, own, only=nodes).candidates(1), None)
    budget.spend(STEPS - own.left)
    return found is not None


def _all_reached(mac: Mac, macs: Mapping[str, Mac]) -> Dials:
    dials = mac.dials or Dials()
    rows = {(node, address): speed for node, address, speed in dials.rows}
    reached = {(name, other.address or name): 0 for name, other in macs.items() if name != mac.name}
    return Dials.of({**reached, **rows}, rows, dials.failed - reached.keys())


def _connected(fleet: Fleet, pair: tuple[str, str], transport: PlacedTransport) -> list[Cable]:
    """A cable between two Macs that the transport can use, in place of the ones that it cannot."""
    one, other = pair
    name = f"{one}--{other}"
    number = len(fleet.cables)
    a, b = (End(node, f"{name}.{node}.{number}", f"{name}.{node}") for node in pair)
    removed = [replace(cable, connected=False) for cable in fleet.links(one) if cable.other(one) == other]
    speed = max(80_000 if transport in RDMA_TRANSPORTS else 40_000, *(cable.speed_mbps for cable in removed), 0)
    return [*removed, Cable(f"new {name}", a, b, speed_mbps=speed, rdma_problem=None)]


def _with_queue_pairs(cable: Cable, node: str, device: str) -> Cable:
    a, b = (replace(end, queue_pairs=99) if (end.node, end.device) == (node, device) else end for end in (cable.a, cable.b))
    return replace(cable, a=a, b=b)
