"""The choice by predicted speed: ``spec.placement.policy``.

Thresholds alone are not transitive: four Macs may be worth it instead of two and two instead of one, but not four instead of
one. So there is one procedure. It starts from the best placement on the fewest Macs, moves to the smallest number of Macs
whose best placement is faster by the threshold, and repeats that from there.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from thunderfleet_crds.vocabulary import PlacedSplit, PlacementPolicy, Split

from thunderfleet_operator.placement.assembly import predicted
from thunderfleet_operator.placement.inputs.fleet import MAX_RANKS, Mac
from thunderfleet_operator.placement.orders import Orders, steps
from thunderfleet_operator.placement.rating.buckets import MEMORY_STEP, Buckets
from thunderfleet_operator.placement.rating.preferences import Stage
from thunderfleet_operator.placement.rating.speed import Speed, bandwidth, predict, unknown
from thunderfleet_operator.placement.search.budget import StepBudget
from thunderfleet_operator.placement.search.candidates import Candidate, CandidateSearch

MORE_MACS = 8
"""Placements on up to this many Macs more than the fewest are considered."""
CLASSES = 5
"""Most classes of memory bandwidth that are searched separately, in addition to all Macs. If there are more bandwidths, those
that are about equal form one class."""
PIPELINES = 16
"""Number of pipelines of one size that are compared, because all of their Macs affect the speed, not only the slowest."""
ALIKE = MEMORY_STEP
"""Predicted speeds that differ by less than this factor count as equal, and the score decides, because predictions are not more
exact."""


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
    parts = _Parts(search)
    current: Choice | None = None
    least, fastest = MAX_RANKS, 0.0
    for size in search.sizes():
        if size > least + MORE_MACS:
            break
        choices = _of_size(parts, size, THRESHOLDS[policy].macs * fastest)
        if isinstance(choices, Unpredicted):
            return choices
        if choices:
            # The current choice only gets faster, so sizes that were not fast enough need no second check.
            better = _of_better_split(choices, policy)
            current, fastest, least = _fastest(better), _top(better), min(least, size)
    return Chosen(current, parts.proven) if current is not None else None


class _Parts:
    """Searches among all Macs, and then, class by class, among those with at least a given memory bandwidth.

    The slowest Mac decides the speed of a group, but it is not the first part of the score.
    """

    def __init__(self, search: CandidateSearch) -> None:
        self.whole = search
        self._steps = max(1, search.budget.left // CLASSES // 2)
        self._rates = {name: bandwidth(mac) for name, mac in search.eligible.items()}
        self._classes: list[CandidateSearch] | None = None
        self.orders = Orders(search)

    @cached_property
    def _fastest(self) -> Mac:
        return self.whole.eligible[max(self._rates, key=lambda name: self._rates[name])]

    @property
    def classes(self) -> list[CandidateSearch]:
        """Among the faster Macs only."""
        if self._classes is None:
            fleet, request = self.whole.fleet, self.whole.request
            factors, others = request.corrections, request.corrections.get("", 1.0)
            rates = {name: int(rate * factors.get(fleet.macs[name].chip, others)) for name, rate in self._rates.items()}
            edges = sorted(set(rates.values()))[1:]
            if len(edges) > CLASSES:
                buckets = Buckets(rates.values(), MEMORY_STEP)
                edges = sorted(set(map(buckets.of, rates.values())))[1:][-CLASSES:]
            # An edge is the lowest rate of its bucket.
            groups = ({name for name, rate in rates.items() if rate >= edge} for edge in edges)
            self._classes = [self.whole.among(names, StepBudget(self._steps)) for names in groups]
        return self._classes

    @property
    def proven(self) -> bool:
        """Whether all searches completed."""
        return not any(part.budget.exhausted for part in (self.whole, *(self._classes or ())))

    def may_reach(self, speed: float, size: int, stage: Stage, split: PlacedSplit) -> bool:
        """Whether this many Macs like the fastest one would have this speed."""
        if not speed:
            return True
        macs, request = [self._fastest] * size, self.whole.request
        correction = max(request.corrections.values(), default=1.0)
        for model in self.whole.models(stage, size):
            self.whole.budget.spend(steps(model))
            found = predict(model, macs, stage.transport, split, lengths=request.lengths)
            if found is None or found.decode * correction >= speed:
                return True
        return False


def _predicted(parts: _Parts, candidate: Candidate) -> Speed | None:
    cohort, macs = candidate.cohort, candidate.found.graph.members(candidate.found.order)
    divided = cohort.needs.divide(candidate.split, [mac.free_bytes for mac in macs])
    parts.whole.budget.spend(steps(cohort.model, divided))
    return predicted(candidate, parts.whole.request)


def _of_size(parts: _Parts, size: int, least: float) -> list[Choice] | Unpredicted:
    """The candidates on this number of Macs with a speed of at least ``least``."""

    def wanted(stage: Stage, split: PlacedSplit) -> bool:
        return parts.may_reach(least, size, stage, split)

    found = {_place(candidate): candidate for candidate in parts.whole.of_size(size, wanted, PIPELINES)}
    if found:
        for part in parts.classes:
            for candidate in part.of_size(size, wanted, PIPELINES):
                found.setdefault(_place(candidate), candidate)
    choices = list[Choice]()
    for candidate in found.values():
        if choices and not parts.whole.budget.afford(1):
            break
        speed = _predicted(parts, candidate)
        if speed is None:
            return Unpredicted(unknown(candidate.cohort.model, candidate.found.graph.members(candidate.found.order)))
        choices.append(Choice(candidate, speed.decode))
    choices += _reordered(parts, choices)
    return [choice for choice in choices if choice.speed >= least]


def _place(candidate: Candidate) -> tuple[object, ...]:
    """A key that is equal for equal placements."""
    return candidate.score.transport, candidate.split, candidate.nodes, candidate.cohort.model.path


def _reordered(parts: _Parts, choices: Sequence[Choice]) -> list[Choice]:
    """The pipelines that are faster with their ranks in another order."""
    found: list[Choice] = []
    seen = set()
    for candidate, speed in choices:
        place = (candidate.score.transport, candidate.split, candidate.found.tie, candidate.cohort.order)
        if place not in seen:
            seen.add(place)
            other = parts.orders.faster(candidate, speed)
            again = _predicted(parts, other) if other is not None else None
            found += [Choice(other, again.decode)] if other is not None and again is not None else []
    return found


def best(choices: Sequence[Choice], policy: PlacementPolicy) -> Choice:
    """The best of one size. Tensor parallelism only if it is faster by the threshold."""
    return _fastest(_of_better_split(choices, policy))


def _of_better_split(choices: Sequence[Choice], policy: PlacementPolicy) -> Sequence[Choice]:
    """Splits are compared by the fastest of each, whichever of those that are about as fast the score prefers."""
    split = [choice for choice in choices if choice.candidate.split is Split.TENSOR]
    whole = [choice for choice in choices if choice.candidate.split is not Split.TENSOR]
    if not split or not whole:
        return split or whole
    return split if _top(split) >= THRESHOLDS[policy].tensor * _top(whole) else whole


def _top(choices: Sequence[Choice]) -> float:
    return max(choice.speed for choice in choices)


def _fastest(choices: Sequence[Choice]) -> Choice:
    """The best score among those that are about as fast as the fastest."""
    least = _top(choices) / ALIKE
    return min((choice for choice in choices if choice.speed > least), key=lambda choice: choice.candidate.order)


def threshold(one: Candidate, kept: Candidate, policy: PlacementPolicy) -> float:
    """By how much ``one`` must be faster than a placement that a group has."""
    if one.score.macs > kept.score.macs:
        return THRESHOLDS[policy].macs
    if one.split is Split.TENSOR and kept.split is not Split.TENSOR:
        return THRESHOLDS[policy].tensor
    return ALIKE
