"""The choice by predicted speed: ``spec.placement.policy``.

Thresholds alone are not transitive: four Macs may be worth it instead of two and two instead of one, but not four instead of
one. So there is one procedure. It starts from the best placement on the fewest Macs, moves to the smallest number of Macs
whose best placement is faster by the threshold, and repeats that from there.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from thunderfleet_crds.vocabulary import PlacementPolicy, Split

from thunderfleet_operator.placement.assembly import predicted
from thunderfleet_operator.placement.buckets import MEMORY_STEP, Buckets
from thunderfleet_operator.placement.fleet import Fleet
from thunderfleet_operator.placement.request import Request
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.candidates import Candidate, CandidateSearch
from thunderfleet_operator.placement.speed import bandwidth

MORE_MACS = 8
"""So many Macs more than the fewest are considered."""
CLASSES = 6
"""Most classes of memory bandwidth among which groups are searched."""


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


def choose(fleet: Fleet, request: Request, policy: PlacementPolicy, steps: int) -> Choice | None:
    """The placement by predicted speed; None if there is none, or if the speed of one cannot be predicted."""
    by_size: dict[int, list[Choice]] = {}
    classes = list(_classes(fleet))
    for names in classes:
        search = CandidateSearch(fleet, request, StepBudget(max(1, steps // len(classes))), only=names)
        for candidate in search.by_size(min(by_size, default=None), MORE_MACS):
            speed = predicted(candidate, request)
            if speed is None:
                return None
            by_size.setdefault(len(candidate.found.order), []).append(Choice(candidate, speed.decode))
    thresholds = THRESHOLDS[policy]
    best = [_best(by_size[size], thresholds.tensor) for size in sorted(by_size)]
    current = best[0] if best else None
    for choice in best[1:]:
        # Larger groups are compared with the current choice, which only gets faster.
        if current is not None and choice.speed >= thresholds.macs * current.speed:
            current = choice
    return current


def _classes(fleet: Fleet) -> Iterator[list[str]]:
    """Macs with at least so much memory bandwidth, class by class: the slowest Mac of a group decides."""
    rates = {name: bandwidth(mac) for name, mac in fleet.macs.items()}
    buckets = Buckets(rates.values(), MEMORY_STEP)
    least = sorted({buckets.of(rate) for rate in rates.values()})
    for edge in _spread(least):
        yield [name for name, rate in rates.items() if buckets.of(rate) >= edge]


def _spread(edges: list[int]) -> Iterable[int]:
    """The lowest, so that every Mac counts, and the highest ones."""
    return edges if len(edges) <= CLASSES else [edges[0], *edges[1 - CLASSES :]]


def _best(choices: list[Choice], tensor: float) -> Choice:
    """The fastest of one size; tensor parallelism only if it is faster by the threshold."""

    def order(choice: Choice) -> tuple[object, ...]:
        # Three digits: what differs by less is equal, and the score decides.
        return (-float(f"{choice.speed:.3g}"), choice.candidate.order)

    split = sorted((choice for choice in choices if choice.candidate.split is Split.TENSOR), key=order)
    whole = sorted((choice for choice in choices if choice.candidate.split is not Split.TENSOR), key=order)
    if not split or not whole:
        return (split or whole)[0]
    return split[0] if split[0].speed >= tensor * whole[0].speed else whole[0]


def is_better(choice: Choice, kept: float, policy: PlacementPolicy) -> bool:
    """Whether a group that runs with ``kept`` tokens per second would be faster by the threshold."""
    return choice.speed >= THRESHOLDS[policy].macs * kept
