"""Placement: from a fleet and a request to a placement with its reasons, or to why there is none.

A pure function of values: nothing here uses Kubernetes, a clock, a file or a socket, so every decision can be replayed from a
snapshot and checked against brute force.

questions    what may take long, as values that another process can answer
planner      the entry: ``plan`` a group, or find out whether another placement would be ``better``
policy       the choice by predicted speed
orders       the order of a pipeline's ranks by predicted speed
assembly     a placement made from the chosen candidate: ranks, addresses, devices, reason
explain      why there is no placement: near misses and a reason for every Mac
search       the search for the best sets of Macs
graph        which Mac reaches which, and which can be rank 0
cohorts      which Macs can work together
eligibility  which Macs may take a rank at all
memory       how much memory each rank reserves, and how a model is divided
rating       how good a placement is: score and predicted speed
result       the answer
inputs       the question, the fleet and the model
units        quantities as text
"""

from thunderfleet_operator.placement.inputs.fleet import (
    QUEUE_PAIRS,
    AddressKind,
    AddressKinds,
    Cable,
    CableFault,
    Dials,
    Difference,
    End,
    Fleet,
    Kind,
    Mac,
    Taint,
    Unsteady,
)
from thunderfleet_operator.placement.inputs.model import KVLayer, ModelFacts, TensorFacts
from thunderfleet_operator.placement.inputs.request import Lengths, MemoryRequest, Request, Toleration
from thunderfleet_operator.placement.planner import better, confirm, plan, present
from thunderfleet_operator.placement.questions import Answer, Answers, Question, WhatIsBetter, WherePlaced
from thunderfleet_operator.placement.rating.score import Score
from thunderfleet_operator.placement.rating.speed import Speed, predict
from thunderfleet_operator.placement.result import (
    MacReason,
    NearMiss,
    Placement,
    RankPlacement,
    Relay,
    RunnerUp,
    Unplaceable,
)

__all__ = [
    "QUEUE_PAIRS",
    "AddressKind",
    "AddressKinds",
    "Answer",
    "Answers",
    "Cable",
    "CableFault",
    "Dials",
    "Difference",
    "End",
    "Fleet",
    "KVLayer",
    "Kind",
    "Lengths",
    "Mac",
    "MacReason",
    "MemoryRequest",
    "ModelFacts",
    "NearMiss",
    "Placement",
    "Question",
    "RankPlacement",
    "Relay",
    "Request",
    "RunnerUp",
    "Score",
    "Speed",
    "Taint",
    "TensorFacts",
    "Toleration",
    "Unplaceable",
    "Unsteady",
    "WhatIsBetter",
    "WherePlaced",
    "better",
    "confirm",
    "plan",
    "predict",
    "present",
]
