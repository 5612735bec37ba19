"""Questions to the planner as values, so that another process can answer them.

A decision does not wait for the planner: it returns the questions that have no answer yet, and is made again when they are
answered.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport

from thunderfleet_operator.placement.inputs.fleet import Fleet
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.planner import MAX_STEPS, better, plan
from thunderfleet_operator.placement.result import Placement, Unplaceable
from thunderfleet_operator.placement.search.hop_graphs import Known


@dataclass(frozen=True, slots=True)
class WherePlaced:
    """Where one group goes."""

    fleet: Fleet
    requests: tuple[Request, ...]
    """Requests in the order of preference. The answer is the first placement found or, if there is none, the reason of the last
    request."""
    runners_up: int = 0
    """How many placements with worse scores to report."""

    def same_request(self, other: "WherePlaced") -> bool:
        """Whether both request the same, apart from what the fleet lacks at the moment."""
        return _wanted(self.requests[-1]) == _wanted(other.requests[-1])


@dataclass(frozen=True, slots=True)
class WhatIsBetter:
    """Whether a group that stays where it is (``request.current``) would be placed better elsewhere."""

    fleet: Fleet
    request: Request
    running: PlacedTransport | None
    links: tuple[str, ...] = ()
    """Its current cables by hop, empty for a hop over a LAN; no entries if they are not known."""
    split: PlacedSplit | None = None


Question = WherePlaced | WhatIsBetter
Answer = Placement | Unplaceable | str | None
"""The answer to ``WhatIsBetter`` is a text, or None for "nothing"."""


class Answers(Protocol):
    """The answers about one ModelDeployment that have arrived."""

    def where(self, group: int, question: WherePlaced) -> Placement | Unplaceable | None:
        """The answer for a group; None if it has not arrived yet."""
        ...

    def where_before(self, group: int, question: WherePlaced) -> Unplaceable | None:
        """Why the group had no placement in the last answer to the same question, on an earlier fleet."""
        ...


def _wanted(request: Request) -> Request:
    return replace(request, avoid={}, no_ring_ports={}, steady_cables=True, corrections={})


def answer(question: Question, known: Known | None = None) -> Answer:
    """Answers at once. Takes up to seconds for a large fleet. ``known``: what earlier answers have looked at."""
    if isinstance(question, WhatIsBetter):
        if known is not None:
            known.begin()
        return better(question.fleet, question.request, question.running, question.links, question.split, known)
    return where(question, known)


def where(question: WherePlaced, known: Known | None = None) -> Placement | Unplaceable:
    """Where the group goes, or why it goes nowhere. ``known``: as in ``answer``."""
    *before, last = question.requests
    # All requests together take the steps of one.
    steps, more = MAX_STEPS // len(question.requests), question.runners_up
    known = Known() if known is None else known
    known.begin()
    for request in before:
        found = plan(question.fleet, request, runners_up=more, max_steps=steps, explained=False, known=known)
        if isinstance(found, Placement):
            return found
    return plan(question.fleet, last, runners_up=more, max_steps=steps, known=known)
