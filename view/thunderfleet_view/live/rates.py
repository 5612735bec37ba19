"""Live rates of cables, from two readings of the counters of an agent. Pure.

Each end of a cable counts both directions, so the agent of one end is enough.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

TIME: Final = "thunderfleet_agent_sensors_read_timestamp_seconds"
"""Metric with the time at which an agent read its counters (seconds since 1970). Requests may be more frequent."""
RECEIVED: Final = "thunderfleet_thunderboltlink_received_bytes_total"
SENT: Final = "thunderfleet_thunderboltlink_sent_bytes_total"
LEAST: Final = 20_000
"""Bits per second below which a cable counts as quiet: agents greet each other over every cable."""
MOST: Final = 1 << 40
MAX_SECONDS: Final = 300.0
"""Maximum time between two readings. A longer time means that the clock was changed."""


@dataclass(frozen=True)
class Reading:
    """The counters of one Mac. ``counts``: bytes that it has received and sent over each cable since its start."""

    at: float
    counts: Mapping[str, tuple[float, float]]


def wanted(line: str) -> bool:
    """Whether this module needs a line of an agent's metrics."""
    return line.startswith((TIME, RECEIVED, SENT))


def parse(lines: Iterable[str]) -> Reading | None:
    """The counters in lines of the Prometheus text format; None if they are not those of an agent."""
    at: float | None = None
    counts: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families("".join(f"{line}\n" for line in lines)):
            for sample in family.samples:
                if sample.name == TIME:
                    at = sample.value
                elif sample.name in (RECEIVED, SENT):
                    counts.setdefault(sample.labels["name"], [0.0, 0.0])[sample.name == SENT] = sample.value
    except (KeyError, ValueError):
        return None
    return None if at is None else Reading(at, {name: (one[0], one[1]) for name, one in counts.items()})


def rates(old: Reading, new: Reading) -> dict[str, tuple[int, int]]:
    """Bits per second that a Mac has received and sent over each cable between two readings."""
    seconds = new.at - old.at
    if not 0 < seconds <= MAX_SECONDS:
        return {}
    found = {}
    for name, now in new.counts.items():
        before = old.counts.get(name)
        # A counter becomes smaller only if its Mac was restarted.
        if before is not None and all(one <= other < MOST * MOST for one, other in zip(before, now, strict=True)):
            found[name] = (_rate(now[0] - before[0], seconds), _rate(now[1] - before[1], seconds))
    return found


def _rate(count: float, seconds: float) -> int:
    """Rounded to two digits, so that smaller changes are not sent to browsers."""
    rate = int(min(8 * count / seconds, MOST))
    if rate < LEAST:
        return 0
    unit = int(10 ** (len(str(rate)) - 2))
    return rate // unit * unit


def enough(cables: Iterable[tuple[str, str]]) -> set[str]:
    """A small set of Macs that has an end of each of these cables. ``cables``: the two Macs of each."""
    left = [ends for ends in cables if ends[0] != ends[1]]
    counts: dict[str, int] = {}
    for ends in left:
        for mac in ends:
            counts[mac] = counts.get(mac, 0) + 1
    found = set[str]()
    # Macs with the most cables first, so that few Macs cover all cables.
    for mac in sorted(counts, key=lambda one: (-counts[one], one)):
        if any(mac in ends for ends in left):
            found.add(mac)
            left = [ends for ends in left if mac not in ends]
    return found
