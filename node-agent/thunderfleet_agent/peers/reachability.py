"""The directed facts "this Mac reaches that address": recorded from the outcomes of dials. Pure; times are arguments.

After the first failed round an address is Suspect; after STRIKES failed rounds in a row it is Unreachable. This includes
addresses that were never reached, because the planner needs the addresses that were tried without success.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from thunderfleet_crds.kinds.nodeprofile import MAX_REACHABILITY, Reachability
from thunderfleet_crds.vocabulary import ReachabilityState
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_agent.peers.dial_plan import PeerAddress

UNREACHABLE = ReachabilityState.UNREACHABLE
STRIKES = 3
# The published round trip is the median of ROUNDS rounds, replaced when it moves by half, but at most every RTT_SECONDS.
ROUNDS = 5
RTT_SECONDS = 600.0


@dataclass(frozen=True)
class DialOutcome:
    """Round trip in microseconds and the interface that the connection used, or the problem that prevented it."""

    target: PeerAddress
    rtt_microseconds: int | None = None
    interface: str | None = None
    problem: str | None = None


@dataclass
class Entry:
    """One published fact and the dials behind it."""

    fact: Reachability
    misses: int = 0
    rounds: deque[int] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    written: datetime | None = None


class ReachabilityTable:
    """The published facts by node and address."""

    def __init__(self, facts: Iterable[Reachability] = ()) -> None:
        self._entries = {(fact.node, fact.address): Entry(fact) for fact in facts}
        self._strangers: dict[tuple[str, str], int] = {}
        """Failed rounds of addresses without an entry."""

    @property
    def facts(self) -> tuple[Reachability, ...]:
        """Sorted by node and address; the unreachable ones are left out first when there are too many."""
        found = sorted((entry.fact.state is UNREACHABLE, key) for key, entry in self._entries.items())[:MAX_REACHABILITY]
        return tuple(self._entries[key].fact for key in sorted(key for _, key in found))

    def keep(self, wanted: Sequence[PeerAddress]) -> None:
        """Removes addresses that are no longer dialled."""
        keys = {target.key for target in wanted}
        self._entries = {key: entry for key, entry in self._entries.items() if key in keys}
        self._strangers = {key: misses for key, misses in self._strangers.items() if key in keys}

    def record(self, outcome: DialOutcome, now: datetime) -> None:
        """Records the outcome of one dial."""
        key = outcome.target.key
        entry = self._entries.get(key)
        if outcome.rtt_microseconds is None:
            self._miss(key, now)
            return
        self._strangers.pop(key, None)
        if entry is None or entry.fact.state is not ReachabilityState.REACHABLE or entry.fact.interface != outcome.interface:
            fact = Reachability(
                node=outcome.target.node,
                address=outcome.target.address,
                interface=outcome.interface,
                state=ReachabilityState.REACHABLE,
                since=now,
                rtt_microseconds=outcome.rtt_microseconds,
            )
            self._entries[key] = Entry(fact, rounds=deque((outcome.rtt_microseconds,), ROUNDS), written=now)
            return
        entry.misses = 0
        entry.rounds.append(outcome.rtt_microseconds)
        if len(entry.rounds) < ROUNDS or (entry.written and age_seconds(entry.written, now) < RTT_SECONDS):
            return
        old, median = entry.fact.rtt_microseconds, round(statistics.median(entry.rounds))
        if old is None or abs(median - old) * 2 > old:
            entry.fact, entry.written = entry.fact.model_copy(update={"rtt_microseconds": median}), now

    def _miss(self, key: tuple[str, str], now: datetime) -> None:
        entry = self._entries.get(key)
        misses = (self._strangers.get(key, 0) if entry is None else entry.misses) + 1
        if misses >= STRIKES:
            if entry is None or entry.fact.state is not UNREACHABLE:
                gone = Reachability(node=key[0], address=key[1], state=UNREACHABLE, since=now)
                self._entries[key] = Entry(gone, misses=misses)
                self._strangers.pop(key, None)
        elif entry is None:
            self._strangers[key] = misses
        elif entry.fact.state is not UNREACHABLE:
            entry.misses = misses
            if entry.fact.state is not ReachabilityState.SUSPECT:
                entry.fact = entry.fact.model_copy(update={"state": ReachabilityState.SUSPECT, "since": now})
