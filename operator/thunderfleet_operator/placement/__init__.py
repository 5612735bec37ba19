"""Placement: a pure function from a fleet and a request to a decision with its reasons.

Nothing in this package knows Kubernetes, a clock, a file or a socket: its inputs are values, so every decision can be
replayed from a snapshot and checked against brute force.
"""

from thunderfleet_operator.placement.fleet import (
    AddressKind,
    AddressKinds,
    Cable,
    Dials,
    End,
    Fleet,
    Kind,
    KVLayer,
    Mac,
    ModelFacts,
    Taint,
    TensorFacts,
)
from thunderfleet_operator.placement.planner import better, plan
from thunderfleet_operator.placement.request import (
    Lack,
    MemoryRequest,
    NearMiss,
    Placement,
    RankPlacement,
    Request,
    RunnerUp,
    Toleration,
    Unplaceable,
)
from thunderfleet_operator.placement.score import Score
from thunderfleet_operator.placement.words import Split, Transport, WantedSplit, WantedTransport

__all__ = [
    "AddressKind",
    "AddressKinds",
    "Cable",
    "Dials",
    "End",
    "Fleet",
    "KVLayer",
    "Kind",
    "Lack",
    "Mac",
    "MemoryRequest",
    "ModelFacts",
    "NearMiss",
    "Placement",
    "RankPlacement",
    "Request",
    "RunnerUp",
    "Score",
    "Split",
    "Taint",
    "TensorFacts",
    "Toleration",
    "Transport",
    "Unplaceable",
    "WantedSplit",
    "WantedTransport",
    "better",
    "plan",
]
