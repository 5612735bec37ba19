"""The results of this Mac's probes: kept across restarts, and published when they change (as what: ``published``).

They are kept in the state folder, because status is written at most hourly; without that folder, status is the source. Ages are
in monotonic seconds. The wall clock is used only at the start, and a time in the future counts as long ago.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError
from thunderfleet_crds.kinds.nodeprofile import Benchmarks, NodeProfile, Reachability
from thunderfleet_crds.kinds.thunderboltlink import Measurement, ThunderboltLink
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_agent.measure import published
from thunderfleet_agent.measure.schedule.due import History, backoff
from thunderfleet_agent.measure.schedule.figures import Figures, Result, moved, result
from thunderfleet_agent.measure.schedule.freshness import ProbeFailure
from thunderfleet_agent.measure.schedule.probes import Key, Probe

log = logging.getLogger(__name__)

FILE = "measurements.json"
MAX_RESULTS = 512
# Unchanged figures are published at most this often.
WRITE_SECONDS = 3600.0


@dataclass
class Ledger:
    """All results of one Mac, and the history that decides when each probe runs again."""

    node: str
    folder: Path | None = None
    results: dict[Key, Result] = field(default_factory=dict)
    published: dict[Key, Result] = field(default_factory=dict)
    history: dict[Key, History] = field(default_factory=dict)
    failures: dict[Key, ProbeFailure] = field(default_factory=dict)

    def load(self, profile: NodeProfile | None, links: Iterable[ThunderboltLink], wall: datetime, now: float) -> None:
        """Reads status and state folder; the newer result of a probe counts."""
        stored = [*published.in_profile(profile), *published.in_links(self.node, links)]
        for each in stored:
            self.published[each.key] = each
        for each in [*stored, *self._load_file()]:
            measured = now - age_seconds(each.measured_at, wall)
            known = self.history.get(each.key)
            if known is None or known.measured is None or measured > known.measured:
                self.results[each.key] = each
                self.history[each.key] = History(measured=measured)

    def record(self, key: Key, figures: Figures, wall: datetime, now: float) -> bool:
        """Records a result. Returns whether it should be published now."""
        if len(self.results) >= MAX_RESULTS and key not in self.results:
            oldest = min(self.results, key=lambda each: self.history[each].measured or -math.inf)
            self.forget(oldest)
        new = self.results[key] = result(key, figures, wall.replace(microsecond=0))
        self.history[key] = History(measured=now)
        self.failures.pop(key, None)
        self._save_file()
        old = self.published.get(key)
        aged = old is None or abs((wall - old.measured_at).total_seconds()) >= WRITE_SECONDS
        if old is None or aged or moved(old.figures, figures):
            self.published[key] = new
            return True
        return False

    def fail(self, probe: Probe, why: str, wall: datetime, now: float) -> float:
        """Records a failure. Returns the delay before the next attempt in seconds."""
        key = probe.key
        known = self.history.get(key, History())
        self.history[key] = replace(known, failures=known.failures + 1, failed=now)
        wait = backoff(self.node, probe, known.failures + 1)
        self.failures[key] = ProbeFailure(why, datetime.fromtimestamp(wall.timestamp() + wait, UTC))
        return wait

    def postpone(self, key: Key, until: float) -> None:
        """Keeps the probe from running before ``until``, because the peer is busy."""
        self.history[key] = replace(self.history.get(key, History()), not_before=until)

    def forget(self, key: Key) -> None:
        """Removes all records of a probe."""
        for kept in (self.results, self.published, self.history, self.failures):
            kept.pop(key, None)

    def benchmarks(self) -> Benchmarks | None:
        """GPU compute and memory bandwidth, for the NodeProfile."""
        return published.benchmarks(self.published)

    def with_figures(self, facts: Iterable[Reachability]) -> tuple[Reachability, ...]:
        """The facts with the figures measured at the same address; those of cables are published in links."""
        return published.with_figures(self.published, facts)

    def measurements(self, link: str) -> tuple[Measurement, ...]:
        """Throughput received over a link: the newest result of each transport."""
        return published.measurements(self.published, self.node, link)

    def _load_file(self) -> list[Result]:
        if self.folder is None:
            return []
        try:
            stored = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
            return [Result.model_validate(each) for each in stored[:MAX_RESULTS]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, ValidationError, RecursionError) as error:
            log.warning("cannot read earlier measurements from %s (%s); all benchmarks will run again", self.folder, error)
            return []

    def _save_file(self) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self.folder / f".{FILE}.new"
            kept = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in self.results.values()]
            fresh.write_text(json.dumps(kept), encoding="utf-8")
            fresh.replace(self.folder / FILE)
        except OSError as error:
            log.warning("cannot save measurements in %s: %s; they will be lost on a restart", self.folder, error)
