"""Which probe runs now, and when to look again: a pure function of what is known.

State decides, not timers: what is missing or stale, may run now, has not just failed, and fits into the bytes of this minute.
All times are monotonic seconds, so a wall clock that jumps changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from thunderfleet_agent.measure.schedule.probes import Key, Probe

WINDOW_SECONDS = 60.0
BACKOFF_SECONDS = 30.0
BACKOFF_LIMIT_SECONDS = 3600.0
# A result is renewed somewhere in the last tenth of its time to live, so that Macs do not fall into step.
EARLY = 0.1
# Older than this many times to live is called stale: being a little late is no news.
STALE = 2.0


@dataclass(frozen=True)
class History:
    """What is known of one probe. ``measured``: when the result that we have was taken (None: there is none); ``failures`` in
    a row since, the last one at ``failed``; ``not_before``: when a busy peer may be asked again.
    """

    measured: float | None = None
    failures: int = 0
    failed: float = -math.inf
    not_before: float = -math.inf


@dataclass(frozen=True)
class Plan:
    """What runs now (None: nothing), else when to look again unless something changes (infinite: not before that)."""

    probe: Probe | None
    wake: float = math.inf


@functools.lru_cache(4096)
def fraction(*words: object) -> float:
    """A number in [0, 1) that is always the same for the same words."""
    digest = hashlib.sha256("\0".join(str(word) for word in words).encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def backoff(node: str, key: Key, failures: int) -> float:
    """Seconds after that many failures in a row: doubled each time, up to a limit, less up to a quarter of jitter."""
    if failures <= 0:
        return 0.0
    whole = min(BACKOFF_SECONDS * 2.0 ** min(failures - 1, 32), BACKOFF_LIMIT_SECONDS)
    return whole * (1 - 0.25 * fraction(node, key, failures))


def when(probe: Probe, history: History, node: str, started: float, spread: float) -> float:
    """From when on the probe is due."""
    if history.measured is None:
        first = started + spread * fraction(node)
    else:
        first = history.measured + probe.ttl * (1 - EARLY * fraction(node, probe.key))
    return max(first, history.failed + backoff(node, probe.key, history.failures), history.not_before)


def room(spent: Iterable[tuple[float, int]], budget: int, wanted: int, now: float) -> float:
    """From when on so many bytes fit into the budget of any minute: ``now`` or later. More than a whole budget waits for a
    minute without any.
    """
    recent = sorted((at, count) for at, count in spent if at > now - WINDOW_SECONDS)
    left = sum(count for _, count in recent)
    if left + wanted <= budget or left == 0:
        return now
    for at, count in recent:
        left -= count
        if left + wanted <= budget or left <= 0:
            return at + WINDOW_SECONDS
    return now


def due(
    probes: Sequence[Probe],
    results: Mapping[Key, History],
    closed: Mapping[Key, str],
    spent: Sequence[tuple[float, int]],
    budget: int,
    *,
    node: str,
    started: float,
    spread: float,
    now: float,
) -> Plan:
    """The probe that has been due for longest and may run. ``closed``: why a probe may not run now (nobody wakes for it: what
    opens it does). Of those that are due since the same moment each Mac has an order of its own: else a fleet that boots would
    ask the first by name, all at once.
    """
    wake = math.inf
    order = sorted(
        (
            (when(probe, results.get(probe.key, History()), node, started, spread), fraction(node, probe.key), probe)
            for probe in {probe.key: probe for probe in probes}.values()
            if probe.key not in closed
        ),
        key=lambda entry: entry[:2],
    )
    for at, _, probe in order:
        if at > now:
            return Plan(None, min(wake, at))
        # Whoever has waited for longest is not overtaken by those that need fewer bytes.
        fits = room(spent, budget, probe.shared_bytes, now) if probe.shared_bytes else now
        if fits <= now and (not probe.shared_bytes or wake == math.inf):
            return Plan(probe, now)
        wake = min(wake, fits) if fits > now else wake
    return Plan(None, wake)


def stale(probe: Probe, history: History, now: float) -> bool:
    """Whether there is no result, or one that is much too old."""
    return history.measured is None or now - history.measured > STALE * probe.ttl
