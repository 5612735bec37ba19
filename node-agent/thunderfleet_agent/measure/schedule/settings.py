"""Which probes run, how often, and their limits: the chart value ``agent.measure``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from thunderfleet_crds.vocabulary import MeasurementTransport

Every = Annotated[int, Field(ge=10, le=30 * 86400)]
Bytes = Annotated[int, Field(ge=2**20, le=2**36)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Device(_Part):
    """A probe of this Mac by itself, at most ``seconds`` long."""

    enabled: bool = True
    every_seconds: Every = 3600
    seconds: Annotated[int, Field(ge=2, le=600)] = 20


class Sockets(_Part):
    """Round trip and throughput between two addresses.

    Each way ends after ``bytes`` (over a cable ``cable_bytes``) or ``seconds``, whichever comes first.
    """

    enabled: bool = True
    every_seconds: Every = 300
    bytes: Bytes = 32 * 2**20
    cable_bytes: Bytes = 256 * 2**20
    seconds: Annotated[int, Field(ge=1, le=60)] = 1
    streams: Annotated[int, Field(ge=1, le=16)] = 4


class Rdma(_Part):
    """A group of two ranks over one cable: at most ``bytes`` each way, and ``seconds`` in all."""

    enabled: bool = True
    every_seconds: Every = 6 * 3600
    bytes: Bytes = 256 * 2**20
    seconds: Annotated[int, Field(ge=10, le=600)] = 60
    transport: MeasurementTransport = MeasurementTransport.RDMA

    @model_validator(mode="after")
    def _is_group_transport(self) -> Rdma:
        if self.transport is MeasurementTransport.SOCKET:
            raise ValueError("must be RDMA or Ring; agent.measure.sockets configures the benchmarks over sockets")
        return self


class MeasureSettings(_Part):
    """The chart value ``agent.measure``.

    ``spread_seconds``: the first probes of Macs that boot together are spread over this window. ``bytes_per_minute``: the
    budget of one Mac over shared networks, both ways together.
    """

    enabled: bool = True
    spread_seconds: Annotated[int, Field(ge=0, le=3600)] = 30
    bytes_per_minute: Bytes = 2**29
    gpu: Device = Device()
    memory: Device = Device()
    sockets: Sockets = Sockets()
    rdma: Rdma = Rdma()


def parse(text: str) -> MeasureSettings:
    """Reads JSON. Raises ValueError, which names the field and what is allowed."""
    try:
        return MeasureSettings.model_validate_json(text or "{}")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where or 'agent.measure'}: {first['msg']}") from None
