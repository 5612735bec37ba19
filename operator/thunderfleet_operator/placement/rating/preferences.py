"""The planner's order of preference: transports first, then how to split the model."""

from collections.abc import Mapping
from typing import NamedTuple

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport, Split, Transport

from thunderfleet_operator.placement.inputs.request import Request

RDMA_TRANSPORTS = (Transport.JACCL, Transport.JACCL_RING)
RANKING: tuple[PlacedTransport, ...] = (Transport.NONE, Transport.JACCL, Transport.JACCL_RING, Transport.RING)
"""All transports, the best first."""
LAN_RING = len(RANKING)
"""Rank of the least preferred transport: a TCP ring with hops over a LAN."""
LABELS: Mapping[PlacedTransport, str] = {
    Transport.NONE: "one Mac",
    Transport.JACCL: "JACCL mesh",
    Transport.JACCL_RING: "JACCL ring",
    Transport.RING: "TCP ring",
}
"""Names of transports in messages."""
MESH_RANKS = 8
"""JACCL's limit for a mesh."""


class Stage(NamedTuple):
    """One step of the planner: a transport, and whether its hops may cross a LAN."""

    transport: PlacedTransport
    lan: bool

    @property
    def rank(self) -> int:
        """Position in the order of preference: the score's first part."""
        return LAN_RING if self.lan else RANKING.index(self.transport)


def allowed_transports(request: Request) -> tuple[PlacedTransport, ...]:
    """The transports that a request allows, the best first. A single Mac is always allowed, since it needs none."""
    if request.transport is Transport.AUTO:
        return RANKING
    return (Transport.NONE, request.transport)


def stages(request: Request) -> tuple[Stage, ...]:
    """The stages of a request, the best first. Hops over a LAN come after everything that cables carry."""
    allowed = allowed_transports(request)
    over_lan = (Stage(Transport.RING, True),) if Transport.RING in allowed else ()
    return (*(Stage(transport, False) for transport in allowed), *over_lan)


def allowed_splits(transport: PlacedTransport, request: Request) -> tuple[PlacedSplit, ...]:
    """The splits that a request allows over a transport, the best first.

    Tensor parallelism exchanges many small messages and profits from RDMA; a pipeline runs well over TCP.
    """
    if transport is Transport.NONE:
        return (Split.NONE,)
    if request.split is not Split.AUTO:
        return (request.split,)
    return (Split.TENSOR, Split.PIPELINE) if transport in RDMA_TRANSPORTS else (Split.PIPELINE, Split.TENSOR)


def backend(transport: PlacedTransport) -> str:
    """The MLX backend that a transport needs on every Mac."""
    return "jaccl" if transport in RDMA_TRANSPORTS else "ring"
