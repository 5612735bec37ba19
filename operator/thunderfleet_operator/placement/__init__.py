"""Placement: a pure function from a fleet and a request to a decision with its reasons.

Nothing in this package knows Kubernetes, a clock, a file or a socket: its inputs are values, so every decision can be
replayed from a snapshot and checked against brute force.
"""

from thunderfleet_operator.placement.fleet import Cable, End, Fleet, KVLayer, Mac, ModelFacts, Taint, TensorFacts
from thunderfleet_operator.placement.planner import plan
from thunderfleet_operator.placement.request import (
    Lack,
    MemoryRequest,
    NearMiss,
    Placement,
    RankPlacement,
    Request,
    Split,
    Toleration,
    Transport,
    Unplaceable,
    WantedSplit,
    WantedTransport,
)

__all__ = [
    "Cable",
    "End",
    "Fleet",
    "KVLayer",
    "Lack",
    "Mac",
    "MemoryRequest",
    "ModelFacts",
    "NearMiss",
    "Placement",
    "RankPlacement",
    "Request",
    "Split",
    "Taint",
    "TensorFacts",
    "Toleration",
    "Transport",
    "Unplaceable",
    "WantedSplit",
    "WantedTransport",
    "plan",
]
