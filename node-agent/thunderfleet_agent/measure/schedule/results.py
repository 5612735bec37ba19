"""What was measured: kept over a restart, and published only when it says something new.

Kept in the agent's state folder, since status is written at most hourly; what status says counts where the folder is gone.
Ages are monotonic seconds. Only at the start a wall clock is believed, and then a time in the future counts as long ago.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from thunderfleet_crds.fields import quantity
from thunderfleet_crds.nodeprofile import Benchmarks, ComputeBenchmark, MemoryBenchmark, NodeProfile, Reachability
from thunderfleet_crds.thunderboltlink import Measurement, ThunderboltLink
from thunderfleet_crds.vocabulary import MeasurementTransport

from thunderfleet_agent.measure.schedule.due import History, backoff
from thunderfleet_agent.measure.schedule.probes import Key, Kind, Target

log = logging.getLogger(__name__)

FILE = "measurements.json"
MAX_RESULTS = 512
# Written to status when a figure has moved by this share, a round trip by half, else at most so often.
MOVED = 0.2
TRIP_MOVED = 0.5
WRITE_SECONDS = 3600.0
# A wall clock may be so far off before a time in the future counts as wrong.
SKEW_SECONDS = 60.0

GIGA = 10**9

Figure = Annotated[int, Field(ge=0, le=10**18)]


class Figures(BaseModel):
    """What one probe found; what it does not measure is unset. Also what a peer may tell, hence the bounds."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    flops: Figure | None = None
    """Floating-point operations a second."""
    megabytes_per_second: Figure | None = None
    rtt_microseconds: Figure | None = None
    jitter_microseconds: Figure | None = None
    all_sum_microseconds: Figure | None = None
    sent_mbps: Figure | None = None
    received_mbps: Figure | None = None
    payload_bytes: Figure | None = None
    transport: MeasurementTransport | None = None
    device: Annotated[str, Field(max_length=64)] | None = None
    mlx_version: Annotated[str, Field(max_length=64)] | None = None
    os_version: Annotated[str, Field(max_length=64)] | None = None

    def words(self) -> str:
        """For people, on one line."""
        parts = [
            f"{name} {value * scale:.6g}{unit}"
            for name, value, scale, unit in (
                ("fp16", self.flops, 1 / GIGA, " GFLOPS"),
                ("memory", self.megabytes_per_second, 1, " MB/s"),
                ("received", self.received_mbps, 1, " Mbit/s"),
                ("sent", self.sent_mbps, 1, " Mbit/s"),
                ("round trip", self.rtt_microseconds, 1, " µs"),
                ("jitter", self.jitter_microseconds, 1, " µs"),
                ("all-sum", self.all_sum_microseconds, 1, " µs"),
            )
            if value is not None
        ]
        return ", ".join(parts) or "nothing"


class Result(BaseModel):
    """One result, and when it was taken."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    kind: Kind
    node: str = ""
    address: str = ""
    link: str = ""
    measured_at: AwareDatetime
    figures: Figures

    @property
    def key(self) -> Key:
        return Key(self.kind, Target(self.node, self.address, self.link))


def result(key: Key, figures: Figures, at: datetime) -> Result:
    target = key.target
    return Result(kind=key.kind, node=target.node, address=target.address, link=target.link, measured_at=at, figures=figures)


def moved(old: Figures, new: Figures) -> bool:
    """Whether the new figures differ so much that status should say so before its time."""
    for name, share in (
        ("flops", MOVED),
        ("megabytes_per_second", MOVED),
        ("sent_mbps", MOVED),
        ("received_mbps", MOVED),
        ("rtt_microseconds", TRIP_MOVED),
    ):
        before, now = getattr(old, name), getattr(new, name)
        if (before is None) != (now is None) or (before is not None and abs(now - before) > share * max(before, 1)):
            return True
    return (old.transport, old.mlx_version, old.os_version) != (new.transport, new.mlx_version, new.os_version)


@dataclass(frozen=True)
class Trouble:
    """Why a probe has failed, and when it is tried again (by the wall clock, for people)."""

    why: str
    again: datetime


@dataclass
class Ledger:
    """All results of one Mac. ``changed`` becomes True when status should be written."""

    node: str
    folder: Path | None = None
    results: dict[Key, Result] = field(default_factory=dict)
    published: dict[Key, Result] = field(default_factory=dict)
    history: dict[Key, History] = field(default_factory=dict)
    troubles: dict[Key, Trouble] = field(default_factory=dict)

    def load(self, profile: NodeProfile | None, links: Iterable[ThunderboltLink], wall: datetime, now: float) -> None:
        """Starts from what status and state folder say; the newer of two counts."""
        said = [*_of_profile(profile), *_of_links(self.node, links)]
        for each in said:
            self.published[each.key] = each
        for each in [*said, *self._kept()]:
            age = (wall - each.measured_at).total_seconds()
            if age < -SKEW_SECONDS:
                age = math.inf
            measured = now - max(0.0, age)
            known = self.history.get(each.key)
            if known is None or known.measured is None or measured > known.measured:
                self.results[each.key] = each
                self.history[each.key] = History(measured=measured)

    def record(self, key: Key, figures: Figures, wall: datetime, now: float) -> bool:
        """A probe has gone well; whether status should say so."""
        if len(self.results) >= MAX_RESULTS and key not in self.results:
            oldest = min(self.results, key=lambda each: self.history[each].measured or -math.inf)
            self.forget(oldest)
        new = self.results[key] = result(key, figures, wall.replace(microsecond=0))
        self.history[key] = History(measured=now)
        self.troubles.pop(key, None)
        self._keep()
        old = self.published.get(key)
        aged = old is None or abs((wall - old.measured_at).total_seconds()) >= WRITE_SECONDS
        if old is None or aged or moved(old.figures, figures):
            self.published[key] = new
            return True
        return False

    def fail(self, key: Key, why: str, wall: datetime, now: float) -> float:
        """A probe has failed; in how many seconds it is tried again."""
        known = self.history.get(key, History())
        self.history[key] = replace(known, failures=known.failures + 1, failed=now)
        wait = backoff(self.node, key, known.failures + 1)
        self.troubles[key] = Trouble(why, datetime.fromtimestamp(wall.timestamp() + wait, UTC))
        return wait

    def later(self, key: Key, at: float) -> None:
        """A busy peer is asked again at ``at``."""
        self.history[key] = replace(self.history.get(key, History()), not_before=at)

    def forget(self, key: Key) -> None:
        for kept in (self.results, self.published, self.history, self.troubles):
            kept.pop(key, None)

    # --- what status says ---

    def benchmarks(self) -> Benchmarks | None:
        compute, memory = (self.published.get(Key(kind)) for kind in (Kind.GPU, Kind.MEMORY))
        flops = compute.figures.flops if compute else None
        speed = memory.figures.megabytes_per_second if memory else None
        if flops is None and speed is None:
            return None
        # Everything shown follows from what is written, or a restart would change it; and no rate is shown as none.
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

    def beside(self, facts: Iterable[Reachability]) -> tuple[Reachability, ...]:
        """The facts with what was measured at the same address; Thunderbolt's own goes to the links."""
        filled = []
        for fact in facts:
            known = self.published.get(Key(Kind.SOCKET, Target(fact.node, fact.address)))
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
        """What arrived here over that cable, one entry a transport (the newest)."""
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

    # --- the state folder ---

    def _kept(self) -> list[Result]:
        if self.folder is None:
            return []
        try:
            said = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
            return [Result.model_validate(each) for each in said[:MAX_RESULTS]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, ValidationError, RecursionError) as error:
            log.warning("what was measured before cannot be read from %s (%s); it is measured anew", self.folder, error)
            return []

    def _keep(self) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self.folder / f".{FILE}.new"
            kept = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in self.results.values()]
            fresh.write_text(json.dumps(kept), encoding="utf-8")
            fresh.replace(self.folder / FILE)
        except OSError as error:
            log.warning("what was measured cannot be kept in %s: %s", self.folder, error)


def _readable(value: float) -> str:
    """At least two digits that mean something."""
    return quantity(value, 1 if value >= 10 else 2 if value >= 0.1 else 3)


def _of_profile(profile: NodeProfile | None) -> list[Result]:
    if profile is None:
        return []
    found = []
    benchmarks = profile.status.benchmarks
    if benchmarks and (compute := benchmarks.compute):
        figures = Figures(flops=compute.fp16_gigaflops * GIGA, mlx_version=compute.mlx_version, os_version=compute.os_version)
        found.append(result(Key(Kind.GPU), figures, compute.measured_at))
    if benchmarks and (memory := benchmarks.memory):
        figures = Figures(
            megabytes_per_second=memory.megabytes_per_second, mlx_version=memory.mlx_version, os_version=memory.os_version
        )
        found.append(result(Key(Kind.MEMORY), figures, memory.measured_at))
    for fact in profile.status.reachability:
        if fact.measured_at is not None:
            figures = Figures(
                rtt_microseconds=fact.rtt_microseconds,
                jitter_microseconds=fact.jitter_microseconds,
                sent_mbps=fact.sent_mbps,
                received_mbps=fact.received_mbps,
                transport=MeasurementTransport.SOCKET,
            )
            found.append(result(Key(Kind.SOCKET, Target(fact.node, fact.address)), figures, fact.measured_at))
    return found


def _of_links(node: str, links: Iterable[ThunderboltLink]) -> list[Result]:
    """What this Mac has measured over its cables. The address is the one that the other end shows."""
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
            key = Key(Kind.SOCKET if by_socket else Kind.RDMA, Target(each.from_, address, link.metadata.name))
            found.append(result(key, figures, each.measured_at))
    return found
