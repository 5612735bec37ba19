"""The figures of a probe, and when new ones differ enough to publish them. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from thunderfleet_crds.vocabulary import MeasurementTransport

from thunderfleet_agent.measure.schedule.probes import Key, ProbeKind, Target

# Published at once when a figure has moved by this share, a round trip by the other.
MOVED = 0.2
TRIP_MOVED = 0.5

GIGA = 10**9

Figure = Annotated[int, Field(ge=0, le=10**18)]


class Figures(BaseModel):
    """What one probe measured; the rest is None. Part of it comes from peers, hence the bounds."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    flops: Figure | None = None
    """Floating-point operations per second."""
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
        """The figures as one human-readable line."""
        parts = [
            f"{name} {value * scale:.6g}{unit}"
            for name, value, scale, unit in (
                ("fp16", self.flops, 1 / GIGA, " GFLOPS"),
                ("memory", self.megabytes_per_second, 1, " MB/s"),
                ("received", self.received_mbps, 1, " Mb/s"),
                ("sent", self.sent_mbps, 1, " Mb/s"),
                ("round trip", self.rtt_microseconds, 1, " µs"),
                ("jitter", self.jitter_microseconds, 1, " µs"),
                ("all-sum", self.all_sum_microseconds, 1, " µs"),
            )
            if value is not None
        ]
        return ", ".join(parts) or "no figures"


class Result(BaseModel):
    """The figures of one probe, and when they were measured."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    kind: ProbeKind
    node: str = ""
    address: str = ""
    link: str = ""
    measured_at: AwareDatetime
    figures: Figures

    @property
    def key(self) -> Key:
        return Key(self.kind, Target(self.node, self.address, self.link))


def result(key: Key, figures: Figures, at: datetime) -> Result:
    """The result of the probe ``key``."""
    target = key.target
    return Result(kind=key.kind, node=target.node, address=target.address, link=target.link, measured_at=at, figures=figures)


def moved(old: Figures, new: Figures) -> bool:
    """Whether the new figures differ enough to be published at once."""
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
