"""The results of this Mac's probes: kept across restarts, and published when they change.

They are kept in the state folder, because status is written at most hourly; without that folder, status is the source. Ages are
in monotonic seconds. The wall clock is used only at the start, and a time in the future counts as long ago.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError
from thunderfleet_crds.fields import quantity
from thunderfleet_crds.nodeprofile import Benchmarks, ComputeBenchmark, MemoryBenchmark, NodeProfile, Reachability
from thunderfleet_crds.thunderboltlink import Measurement, ThunderboltLink
from thunderfleet_crds.vocabulary import MeasurementTransport
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_agent.measure.schedule.due import History, backoff
from thunderfleet_agent.measure.schedule.figures import GIGA, Figures, Result, moved, result
from thunderfleet_agent.measure.schedule.freshness import ProbeFailure
from thunderfleet_agent.measure.schedule.probes import Key, Probe, ProbeKind, Target

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
        stored = [*_results_in_profile(profile), *_results_in_links(self.node, links)]
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
        compute, memory = (self.published.get(Key(kind)) for kind in (ProbeKind.GPU, ProbeKind.MEMORY))
        flops = compute.figures.flops if compute else None
        speed = memory.figures.megabytes_per_second if memory else None
        if flops is None and speed is None:
            return None
        # Every value is derived from the ones in status, so that a restart does not change it.
        gigaflops = None if flops is None else max(1, round(flops / GIGA))
        return Benchmarks(
            compute=ComputeBenchmark(
                fp16_gigaflops=gigaflops,
                measured_at=compute.measured_at,
                mlx_version=compute.figures.mlx_version,
                os_version=compute.figures.os_version,
            )
            if compute and gigaflops is not None
            else None,
            memory=MemoryBenchmark(
                megabytes_per_second=speed,
                measured_at=memory.measured_at,
                mlx_version=memory.figures.mlx_version,
                os_version=memory.figures.os_version,
            )
            if memory and speed is not None
            else None,
            tflops=_readable(gigaflops / 1000) if gigaflops is not None else None,
            gigabytes_per_second=_readable(speed / 1000) if speed is not None else None,
        )

    def with_figures(self, facts: Iterable[Reachability]) -> tuple[Reachability, ...]:
        """The facts with the figures measured at the same address; those of cables are published in links."""
        filled = []
        for fact in facts:
            known = self.published.get(Key(ProbeKind.SOCKET, Target(fact.node, fact.address)))
            figures = known.figures if known else Figures()
            filled.append(
                fact.model_copy(
                    update={
                        "rtt_microseconds": fact.rtt_microseconds
                        if figures.rtt_microseconds is None
                        else figures.rtt_microseconds,
                        "jitter_microseconds": figures.jitter_microseconds,
                        "sent_mbps": figures.sent_mbps,
                        "received_mbps": figures.received_mbps,
                        "measured_at": known.measured_at if known else None,
                    }
                )
            )
        return tuple(filled)

    def measurements(self, link: str) -> tuple[Measurement, ...]:
        """Throughput received over a link: the newest result of each transport."""
        found: dict[MeasurementTransport, Measurement] = {}
        for each in sorted(self.published.values(), key=lambda each: each.measured_at):
            if each.link != link or each.figures.transport is None:
                continue
            found[each.figures.transport] = Measurement(
                from_=each.node,
                to=self.node,
                transport=each.figures.transport,
                throughput_mbps=each.figures.received_mbps,
                rtt_microseconds=each.figures.rtt_microseconds,
                jitter_microseconds=each.figures.jitter_microseconds,
                payload_bytes=each.figures.payload_bytes,
                measured_at=each.measured_at,
            )
        return tuple(found[transport] for transport in sorted(found))

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


def _readable(value: float) -> str:
    """At least two significant digits."""
    return quantity(value, 1 if value >= 10 else 2 if value >= 0.1 else 3)


def _results_in_profile(profile: NodeProfile | None) -> list[Result]:
    if profile is None:
        return []
    found = []
    benchmarks = profile.status.benchmarks
    if benchmarks and (compute := benchmarks.compute):
        figures = Figures(flops=compute.fp16_gigaflops * GIGA, mlx_version=compute.mlx_version, os_version=compute.os_version)
        found.append(result(Key(ProbeKind.GPU), figures, compute.measured_at))
    if benchmarks and (memory := benchmarks.memory):
        figures = Figures(
            megabytes_per_second=memory.megabytes_per_second, mlx_version=memory.mlx_version, os_version=memory.os_version
        )
        found.append(result(Key(ProbeKind.MEMORY), figures, memory.measured_at))
    for fact in profile.status.reachability:
        if fact.measured_at is not None:
            figures = Figures(
                rtt_microseconds=fact.rtt_microseconds,
                jitter_microseconds=fact.jitter_microseconds,
                sent_mbps=fact.sent_mbps,
                received_mbps=fact.received_mbps,
                transport=MeasurementTransport.SOCKET,
            )
            found.append(result(Key(ProbeKind.SOCKET, Target(fact.node, fact.address)), figures, fact.measured_at))
    return found


def _results_in_links(node: str, links: Iterable[ThunderboltLink]) -> list[Result]:
    """This Mac's measurements over its cables. The address is the one in the other end's status."""
    found = []
    for link in links:
        addresses: Mapping[str, str | None] = {end.node: end.address for end in link.status.endpoints}
        for each in link.status.measurements:
            if each.to != node:
                continue
            by_socket = each.transport is MeasurementTransport.SOCKET
            address = (addresses.get(each.from_) or "") if by_socket else ""
            figures = Figures(
                received_mbps=each.throughput_mbps,
                rtt_microseconds=each.rtt_microseconds,
                jitter_microseconds=each.jitter_microseconds,
                payload_bytes=each.payload_bytes,
                transport=each.transport,
            )
            key = Key(ProbeKind.SOCKET if by_socket else ProbeKind.RDMA, Target(each.from_, address, link.metadata.name))
            found.append(result(key, figures, each.measured_at))
    return found
