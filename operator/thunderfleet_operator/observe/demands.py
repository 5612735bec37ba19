"""The reports of all routers about their requests, combined for each ModelDeployment."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from thunderfleet_crds.exchange.routing import DEMAND_SECONDS, Demand, DemandReport

from thunderfleet_operator.observe.load import Asked

FORGET_SECONDS = 3 * DEMAND_SECONDS
"""The report of a router that has been silent for this long no longer counts."""
MAX_ROUTERS = 1024
MAX_REMEMBERED = 10_000
"""ModelDeployments whose last request is kept."""

Key = tuple[str, str, str]
"""Namespace, name and UID of a ModelDeployment."""


@dataclass(frozen=True, slots=True)
class _Report:
    at: float
    demands: Mapping[Key, Demand]


def _key(demand: Demand) -> Key:
    return demand.namespace, demand.deployment, demand.uid


@dataclass(frozen=True, slots=True)
class Demands:
    """The last report of each router, by its name. Times are monotonic seconds."""

    reports: Mapping[str, _Report] = field(default_factory=dict)
    last: Mapping[Key, float] = field(default_factory=dict)
    """When the last known request came."""
    wakes: Mapping[Key, float] = field(default_factory=dict)
    """When the last request came that may wake the ModelDeployment."""

    def with_report(self, report: DemandReport, now: float) -> "Demands":
        """The value after a report, which replaces the one that the same router sent before."""
        fresh = {name: known for name, known in self.reports.items() if now - known.at < FORGET_SECONDS}
        if report.router not in fresh and len(fresh) >= MAX_ROUTERS:
            return replace(self, reports=fresh)
        fresh[report.router] = _Report(now, {_key(demand): demand for demand in report.demands})
        last, wakes = dict(self.last), dict(self.wakes)
        for demand in report.demands:
            key, at = _key(demand), now - demand.idle_seconds
            last[key] = max(last.get(key, at), at)
            if demand.wake:
                wakes[key] = now
        return Demands(fresh, _newest(last), _newest(wakes))

    def asked(self, key: Key, now: float) -> Asked:
        """What all routers together report of one ModelDeployment."""
        reports = [
            known.demands[key] for known in self.reports.values() if now - known.at < FORGET_SECONDS and key in known.demands
        ]
        wake, last = self.wakes.get(key), self.last.get(key)
        return Asked(
            waiting=sum(demand.waiting for demand in reports),
            wake_seconds=now - wake if wake is not None else None,
            idle_seconds=now - last if last is not None else None,
        )


def _newest(times: dict[Key, float]) -> dict[Key, float]:
    if len(times) <= MAX_REMEMBERED:
        return times
    return dict(sorted(times.items(), key=lambda item: item[1])[-MAX_REMEMBERED:])
