"""Which cables have worked long enough since their last interruption.

A cable that was interrupted counts as steady when it has worked for 30 s. Each further interruption doubles this time, up to
half an hour. Interruptions are dropped when the cable has worked for half an hour. So a group moves less and less often while
its cable keeps failing. If there is no other placement, a cable is used one step earlier: after its first interruption at once.
A group leaves a cable at its third interruption without waiting for it to work again.

This state is only in memory: after a restart of the operator, every cable that works counts as steady. The clock is monotonic,
so that a step of the wall clock does not make a cable steady. If the state of a cable is unknown, that is neither an
interruption nor the end of one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from thunderfleet_operator.placement import Cable, Fleet, Unsteady

STEADY_SECONDS = 30.0
STEADY_LIMIT_SECONDS = 1800.0
UNRELIABLE = 3
"""Number of interruptions after which a cable is not expected to work again soon."""


class Key(NamedTuple):
    """Name of a cable, and whether the count is about RDMA or about all traffic."""

    name: str
    rdma: bool


@dataclass(frozen=True, slots=True)
class Interruptions:
    """``count`` of a cable. ``since``: when it worked again; None while it does not."""

    count: int
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Steadiness:
    """A fleet as it was last seen, and the interruptions of its cables until then. ``with_fleet`` returns the next value."""

    fleet: Fleet = field(default_factory=Fleet)
    known: tuple[tuple[Key, Interruptions], ...] = ()
    marked: Fleet = field(default_factory=Fleet)
    """The fleet, in which cables that are not steady yet are marked."""
    marks: tuple[tuple[Key, Unsteady], ...] = ()
    unreliable: frozenset[str] = frozenset()
    """Cables that were interrupted repeatedly."""
    next_seconds: float | None = None
    """Seconds until a mark changes if nothing else does."""

    def with_fleet(self, fleet: Fleet, now: float) -> "Steadiness":
        """The value after ``fleet`` has been seen at ``now`` (monotonic seconds)."""
        known = dict(self.known)
        if fleet is not self.fleet:
            known |= _seen(self.fleet, fleet, known, now)
        known = {key: past for key, past in known.items() if past.since is None or now - past.since < STEADY_LIMIT_SECONDS}
        marks = tuple((key, mark) for key, past in sorted(known.items()) if (mark := _mark(past, now)) is not None)
        unreliable = frozenset(key.name for key, past in known.items() if past.count >= UNRELIABLE)
        same = fleet is self.fleet and (marks, unreliable) == (self.marks, self.unreliable)
        marked = self.marked if same else _marked(fleet, marks, unreliable)
        left = min((left for past in known.values() for left in _left(past, now)), default=None)
        return Steadiness(fleet, tuple(sorted(known.items())), marked, marks, unreliable, left)


def needed_seconds(count: int) -> float:
    """How long a cable must work after this number of interruptions to count as steady."""
    return float(min(STEADY_SECONDS * 2 ** min(count - 1, 20), STEADY_LIMIT_SECONDS)) if count > 0 else 0.0


def _works(cable: Cable, rdma: bool) -> bool:
    return cable.connected and cable.fault is None and (not rdma or cable.rdma_problem is None)


def _fails(cable: Cable, rdma: bool) -> bool:
    return cable.fault is not None or (rdma and cable.rdma_fault is not None)


def _seen(before: Fleet, fleet: Fleet, known: dict[Key, Interruptions], now: float) -> Iterator[tuple[Key, Interruptions]]:
    """Records what has changed. A cable that has never worked does not count as interrupted."""
    if fleet.cables is before.cables:
        return
    for name, cable in fleet.cables.items():
        old = before.cables.get(name)
        for key in (Key(name, False), Key(name, True)) if cable is not old else ():
            past = known.get(key)
            if past is None:
                if old is not None and _works(old, key.rdma) and _fails(cable, key.rdma):
                    yield key, Interruptions(1)
            elif past.since is not None and _fails(cable, key.rdma):
                yield key, Interruptions(past.count + 1)
            elif past.since is None and _works(cable, key.rdma):
                yield key, replace(past, since=now)


def _mark(past: Interruptions, now: float) -> Unsteady | None:
    needed = needed_seconds(past.count)
    if past.since is None or now - past.since >= needed:
        return None
    times = "once" if past.count == 1 else f"{past.count} times"
    problem = f"it was interrupted {times} and counts as steady again when it has worked for {needed:g} s"
    return Unsteady(problem, now - past.since >= _last_resort_seconds(past.count))


def _last_resort_seconds(count: int) -> float:
    return needed_seconds(count - 1)


def _left(past: Interruptions, now: float) -> Iterator[float]:
    """Seconds until each of its marks changes."""
    if past.since is not None:
        for needed in (_last_resort_seconds(past.count), needed_seconds(past.count)):
            if past.since + needed > now:
                yield past.since + needed - now


def _marked(fleet: Fleet, marks: tuple[tuple[Key, Unsteady], ...], unreliable: frozenset[str]) -> Fleet:
    changed = {name: replace(fleet.cables[name], unreliable=True) for name in sorted(unreliable) if name in fleet.cables}
    for key, mark in marks:
        cable = changed.get(key.name) or fleet.cables.get(key.name)
        if cable is not None and _works(cable, key.rdma):
            changed[key.name] = replace(cable, rdma_unsteady=mark) if key.rdma else replace(cable, unsteady=mark)
    return fleet.changed(cables=changed.values()) if changed else fleet
