"""The planner's answers, and whether they are still valid.

The fleet can change while a question is being answered. So a placement is checked against the current fleet before it is used.
If there is no placement, the explanation is shown until there is a newer answer.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass

from thunderfleet_operator.placement import Answer, Placement, Question, Unplaceable, WhatIsBetter, WherePlaced, confirm

LASTING_SECONDS = 60.0
"""A placement that was planned on another fleet longer ago is planned again: a better one may exist by now."""


@dataclass(frozen=True, slots=True)
class _Where:
    question: WherePlaced
    answer: Placement | Unplaceable
    at: float
    final: bool

    def answers(self, question: WherePlaced) -> bool:
        """Whether this is the answer to exactly this question."""
        return self.question.requests == question.requests and not question.fleet.difference(self.question.fleet)


class KnownAnswers:
    """Of one ModelDeployment, by group. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._where: dict[int, _Where] = {}
        self._better: dict[int, str | None] = {}

    def put(self, group: int, question: Question, answer: Answer, *, final: bool = True) -> None:
        """Stores an answer. ``final`` False: the question must be repeated."""
        if isinstance(question, WhatIsBetter):
            self._better[group] = answer if isinstance(answer, str) else None
        elif isinstance(answer, Placement | Unplaceable):
            self._where[group] = _Where(question, answer, self._clock(), final)

    def where(self, group: int, question: WherePlaced) -> Placement | Unplaceable | None:
        """The answer for a group; None if it has not arrived, or is no longer valid."""
        own = self._where.get(group)
        if own is not None and isinstance(own.answer, Placement) and own.answers(question):
            return own.answer
        if own is not None and isinstance(own.answer, Placement) and own.question.same_request(question):
            recent = self._clock() - own.at < LASTING_SECONDS
            return _confirmed(question, own.answer) if recent or not question.fleet.difference(own.question.fleet) else None
        # Groups of one deployment have the same question as long as none of them is placed.
        for known in self._where.values():
            if isinstance(known.answer, Unplaceable) and known.final and known.answers(question):
                return known.answer
        return None

    def where_before(self, group: int, question: WherePlaced) -> Unplaceable | None:
        """Why the group had no placement when the same request was last answered."""
        known = self._where.get(group)
        if known is None or not isinstance(known.answer, Unplaceable) or not known.question.same_request(question):
            return None
        return known.answer

    def take_better(self) -> dict[int, str | None]:
        """The answers to ``WhatIsBetter`` since the last call, by group."""
        found, self._better = self._better, {}
        return found

    def keep(self, groups: Set[int]) -> None:
        """Drops the answers for all groups except these."""
        self._where = {group: known for group, known in self._where.items() if group in groups}


def _confirmed(question: WherePlaced, planned: Placement) -> Placement | None:
    for request in question.requests:
        found = confirm(question.fleet, request, planned)
        if found is not None:
            return found
    return None
