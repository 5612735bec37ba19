"""Which probe runs now, and when to check again. Pure.

A probe is due when its result is missing or old, nothing blocks it, it has not just failed, and its bytes fit into the budget
of the minute. All times are monotonic seconds, so a wall clock that jumps changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from thunderfleet_lib.backoff import Backoff

from thunderfleet_agent.measure.schedule.probes import Key, Probe

WINDOW_SECONDS = 60.0
BACKOFF = Backoff(30.0, 3600.0, jitter=0.25)
# A result is renewed at a point in the last tenth of its validity, different for every Mac, so that they do not synchronize.
EARLY = 0.1
# A result is stale after this many times its validity; a little late is normal.
STALE = 2.0


@dataclass(frozen=True)
class History:
    """What happened to one probe.

    ``measured``: when its result was measured, None if it has none; ``failures``: in a row since then, the last one at
    ``failed``; ``not_before``: when the request to a busy peer may be repeated.
    """

    measured: float | None = None
    failures: int = 0
    failed: float = -math.inf
    not_before: float = -math.inf


@dataclass(frozen=True)
class Plan:
    """The probe to run now; without one, ``wake`` is when to check again unless something changes."""

    probe: Probe | None
    wake: float = math.inf


@functools.lru_cache(4096)
def fraction(*words: object) -> float:
    """A number in [0, 1) that depends only on the words."""
    digest = hashlib.sha256("\0".join(str(word) for word in words).encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def backoff(node: str, probe: Probe, failures: int) -> float:
    """Seconds to wait after that many failures in a row: doubled each time up to a limit, minus up to a quarter of jitter.

    Never longer than the validity of a result: a probe that fails costs no more than one that succeeds.
    """
    limited = replace(BACKOFF, first=min(BACKOFF.first, probe.ttl), limit=min(BACKOFF.limit, probe.ttl))
    return limited.jittered(failures, lambda: fraction(node, probe.key, failures))


def when(probe: Probe, history: History, node: str, started: float, spread: float) -> float:
    """When the probe is due."""
    if history.measured is None:
        first = started + spread * fraction(node)
    else:
        first = history.measured + probe.ttl * (1 - EARLY * fraction(node, probe.key))
    return max(first, history.failed + backoff(node, probe, history.failures), history.not_before)


def room(spent: Iterable[tuple[float, int]], budget: int, wanted: int, now: float) -> float:
    """When ``wanted`` (the requested) bytes fit into the budget of a minute: ``now`` or later.

    A probe that needs more than the budget waits for a minute without any other bytes.
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
    blocked: Mapping[Key, str],
    spent: Sequence[tuple[float, int]],
    budget: int,
    *,
    node: str,
    started: float,
    spread: float,
    now: float,
) -> Plan:
    """The probe that has been due for the longest time and is not blocked.

    A blocked probe does not set ``wake``: the event that unblocks it does. Probes that are due since the same moment are
    ordered differently on each Mac; otherwise a fleet that boots would dial the first Mac by name all at once.
    """
    wake = math.inf
    order = sorted(
        (
            (when(probe, results.get(probe.key, History()), node, started, spread), fraction(node, probe.key), probe)
            for probe in {probe.key: probe for probe in probes}.values()
            if probe.key not in blocked
        ),
        key=lambda entry: entry[:2],
    )
    for at, _, probe in order:
        if at > now:
            return Plan(None, min(wake, at))
        # A probe that waits for its budget is not overtaken by one that needs fewer bytes.
        fits = room(spent, budget, probe.shared_bytes, now) if probe.shared_bytes else now
        if fits <= now and (not probe.shared_bytes or wake == math.inf):
            return Plan(probe, now)
        wake = min(wake, fits) if fits > now else wake
    return Plan(None, wake)


def stale(probe: Probe, history: History, now: float) -> bool:
    """Whether there is no result, or one older than STALE times its validity."""
    return history.measured is None or now - history.measured > STALE * probe.ttl
