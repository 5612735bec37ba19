"""The choice by predicted speed: ``spec.placement.policy``.

Thresholds alone are not transitive: four Macs may be worth it instead of two and two instead of one, but not four instead of
one. So there is one procedure. It starts from the best placement on the fewest Macs, moves to the smallest number of Macs
whose best placement is faster by the threshold, and repeats that from there.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from thunderfleet_crds.vocabulary import PlacementPolicy, Split

from thunderfleet_operator.placement.assembly import predicted
from thunderfleet_operator.placement.buckets import MEMORY_STEP, Buckets
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.candidates import Candidate, CandidateSearch
from thunderfleet_operator.placement.speed import bandwidth, unknown

MORE_MACS = 8
"""So many Macs more than the fewest are considered."""
CLASSES = 5
"""Most classes of memory bandwidth among which groups are searched, besides all Macs."""
ALIKE = MEMORY_STEP
"""Predicted speeds that differ by less are equal, and the score decides: no prediction is that exact."""


class Thresholds(NamedTuple):
    """By how much a placement must be faster."""

    macs: float
    """With more Macs."""
    tensor: float
    """With tensor parallelism instead of a pipeline on as many Macs."""


THRESHOLDS = {PlacementPolicy.FEWEST: Thresholds(2.0, 1.5), PlacementPolicy.FASTEST: Thresholds(1.1, 1.1)}


class Choice(NamedTuple):
    """A candidate and its predicted tokens per second."""

    candidate: Candidate
    speed: float


class Chosen(NamedTuple):
    """What was chosen. ``proven``: whether the search completed."""

    choice: Choice
    proven: bool


class Unpredicted(NamedTuple):
    """There are placements, but predicted speeds cannot decide. ``why`` is a clause."""

    why: str


def choose(search: CandidateSearch, policy: PlacementPolicy) -> Chosen | Unpredicted | None:
    """The placement by predicted speed; None if ``search`` found none, within its steps."""
    by_size: dict[int, list[Choice]] = {}
    proven = True
    for part in _searches(search):
        for candidate in part.by_size(min(by_size, default=None), MORE_MACS):
            speed = predicted(candidate, search.request)
            if speed is None:
                return Unpredicted(unknown(candidate.cohort.model, candidate.found.graph.members(candidate.found.order)))
            by_size.setdefault(len(candidate.found.order), []).append(Choice(candidate, speed.decode))
        proven = proven and not part.budget.exhausted
        if not by_size:
            return None
    thresholds = THRESHOLDS[policy]
    current, *larger = [best(by_size[size], policy) for size in sorted(by_size)]
    for choice in larger:
        # Larger groups are compared with the current choice, which only gets faster.
        if choice.speed >= thresholds.macs * current.speed:
            current = choice
    return Chosen(current, proven)


def _searches(search: CandidateSearch) -> Iterator[CandidateSearch]:
    """Among all Macs, and then among those with at least so much memory bandwidth: the slowest Mac of a group decides."""
    steps = search.budget.left
    yield search
    rates = {name: bandwidth(mac) for name, mac in search.eligible.items()}
    buckets = Buckets(rates.values(), MEMORY_STEP)
    edges = sorted({buckets.of(rate) for rate in rates.values()})[1:]
    for edge in edges[-CLASSES:]:
        names = [name for name, rate in rates.items() if buckets.of(rate) >= edge]
        yield CandidateSearch(search.fleet, search.request, StepBudget(max(1, steps // CLASSES)), only=names)


def best(choices: Sequence[Choice], policy: PlacementPolicy) -> Choice:
    """The best of one size. Tensor parallelism only if it is faster by the threshold."""
    split = [choice for choice in choices if choice.candidate.split is Split.TENSOR]
    whole = [choice for choice in choices if choice.candidate.split is not Split.TENSOR]
    if not split or not whole:
        return _fastest(split or whole)
    tensor, other = _fastest(split), _fastest(whole)
    return tensor if tensor.speed >= THRESHOLDS[policy].tensor * other.speed else other


def _fastest(choices: Sequence[Choice]) -> Choice:
    """The best score among those that are about as fast as the fastest."""
    least = max(choice.speed for choice in choices) / ALIKE
    return min((choice for choice in choices if choice.speed >= least), key=lambda choice: choice.candidate.order)


def threshold(one: Candidate, kept: Candidate, policy: PlacementPolicy) -> float:
    """By how much ``one`` must be faster than a placement that a group has."""
    if one.score.macs > kept.score.macs:
        return THRESHOLDS[policy].macs
    if one.split is Split.TENSOR and kept.split is not Split.TENSOR:
        return THRESHOLDS[policy].tensor
    return ALIKE
