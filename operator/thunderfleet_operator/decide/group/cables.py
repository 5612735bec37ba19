"""What is known to be wrong with the cables that a placement uses.

The conditions of the ThunderboltLinks decide about existing placements as they do about new ones. If a condition reports a
fault, the planner does not use the cable, and a group that uses it ends. A cable of which nothing is known ends no group, such
as one whose Macs do not report.
"""

import hashlib
import json
from collections.abc import Collection, Iterator
from typing import NamedTuple

from thunderfleet_crds.exchange.group import CONNECTIONS_CHARACTERS
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import Backend
from thunderfleet_lib.macnet import advice

from thunderfleet_operator.placement import Cable, CableFault, Fleet


class BrokenCable(NamedTuple):
    """A cable of a placement, and what is wrong with it."""

    name: str
    nodes: tuple[str, str]
    fault: CableFault

    @property
    def message(self) -> str:
        """The message for users, which names both ends."""
        return f"cable {self.name} between {self.nodes[0]} and {self.nodes[1]}: {self.fault.message}"


def broken_cable(plan: Plan, fleet: Fleet) -> BrokenCable | None:
    """The first cable of a placement that has a known fault."""
    for name, ranks in _hops(plan):
        cable = fleet.cables.get(name)
        fault = _fault(plan, ranks, cable) if cable is not None else None
        if cable is not None and fault is not None:
            return BrokenCable(name, (cable.a.node, cable.b.node), fault)
    return None


def _hops(plan: Plan) -> Iterator[tuple[str, tuple[int, int]]]:
    """The cable of each hop that has one, and the hop's ranks."""
    size = plan.world_size
    ring = plan.backend is Backend.RING or plan.jaccl_ring
    pairs = [(i, (i + 1) % size) for i in range(size)] if ring else [(i, j) for i in range(size) for j in range(i + 1, size)]
    # Plans of earlier versions do not name their cables.
    yield from ((name, pair) for name, pair in zip(plan.links, pairs, strict=False) if name)


def connections(plan: Plan, fleet: Fleet) -> str:
    """What identifies the connections of a placement's cables; it changes when one is interrupted. Empty without cables."""
    cables = sorted({name for name, _ in _hops(plan)})
    known = [fleet.cables.get(name) for name in cables]
    rdma = plan.backend is Backend.JACCL
    seen = [[cable.name, cable.connection, rdma and cable.rdma_fault is None] for cable in known if cable is not None]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:CONNECTIONS_CHARACTERS] if seen else ""


def cable_between(plan: Plan, one: int, other: int) -> str | None:
    """The cable over which the ranks of a placement exchange data; None if it is a LAN, or not known."""
    return next((name for name, ranks in _hops(plan) if set(ranks) == {one, other}), None)


def _fault(plan: Plan, ranks: tuple[int, int], cable: Cable) -> CableFault | None:
    if cable.fault is not None:
        return cable.fault
    return cable.rdma_fault if plan.backend is Backend.JACCL else _address_fault(plan, ranks[1], cable)


def _address_fault(plan: Plan, rank: int, cable: Cable) -> CableFault | None:
    """Checks the address of the cable's end at ``rank``: a ring dials the one that it had when the group was placed."""
    entry = plan.ranks[rank]
    end = cable.end(entry.node)
    if end.node != entry.node or not cable.connected or entry.relay is not None or end.address == entry.ring_address:
        return None
    if end.address is None and not end.reported:
        return None
    if end.address is None:
        text = f"{end.node} has no address at its end of the cable: {advice.why_no_address(end.node)}"
        return CableFault(Reason.NO_IPV4_ADDRESS, text)
    text = f"the address of {end.node} at its end of the cable changed from {entry.ring_address} to {end.address}"
    return CableFault(Reason.ADDRESS_LOST, text)


def unknown_rdma(fleet: Fleet, nodes: Collection[str]) -> str | None:
    """Returns a cable between these Macs for which RDMA is neither confirmed nor ruled out yet, if their MLX supports RDMA."""
    for node in nodes:
        for cable in fleet.links(node):
            ends = [fleet.macs.get(end) for end in (cable.a.node, cable.b.node) if end in nodes]
            able = len(ends) == 2 and all(mac is not None and Backend.JACCL in mac.backends for mac in ends)
            known = cable.fault is not None or cable.rdma_fault is not None or cable.rdma_problem is None
            if able and cable.connected and not known:
                return cable.name
    return None
