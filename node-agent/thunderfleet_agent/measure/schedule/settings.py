"""Which probes run, how often, bounded by what: the chart's ``agent.measure`` as one value."""

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
    """A probe of this Mac's GPU alone; at most ``seconds`` long."""

    enabled: bool = True
    every_seconds: Every = 3600
    seconds: Annotated[int, Field(ge=2, le=600)] = 20


class Sockets(_Part):
    """Echoes and throughput between two addresses. ``bytes`` each way over a shared network, ``cable_bytes`` over a cable;
    ``seconds`` each way at most, whichever comes first.
    """

    enabled: bool = True
    every_seconds: Every = 300
    bytes: Bytes = 32 * 2**20
    cable_bytes: Bytes = 256 * 2**20
    seconds: Annotated[int, Field(ge=1, le=60)] = 1
    streams: Annotated[int, Field(ge=1, le=16)] = 4


class Rdma(_Part):
    """A two-rank group over one cable; ``bytes`` each way at most, ``seconds`` for everything."""

    enabled: bool = True
    every_seconds: Every = 6 * 3600
    bytes: Bytes = 256 * 2**20
    seconds: Annotated[int, Field(ge=10, le=600)] = 60
    transport: MeasurementTransport = MeasurementTransport.RDMA

    @model_validator(mode="after")
    def _by_mlx(self) -> Rdma:
        if self.transport is MeasurementTransport.SOCKET:
            raise ValueError("transport is RDMA or Ring; sockets are a probe of their own")
        return self


class Settings(_Part):
    """Everything of ``agent.measure``. ``spread_seconds``: Macs that boot together begin somewhere in this window;
    ``bytes_per_minute``: over shared networks, to and from one Mac.
    """

    enabled: bool = True
    spread_seconds: Annotated[int, Field(ge=0, le=3600)] = 30
    bytes_per_minute: Bytes = 2**29
    gpu: Device = Device()
    memory: Device = Device()
    sockets: Sockets = Sockets()
    rdma: Rdma = Rdma()


def parse(text: str) -> Settings:
    """The settings in a JSON text. Raises ValueError with a sentence that names the field and what is allowed."""
    try:
        return Settings.model_validate_json(text or "{}")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where or 'the settings'}: {first['msg']}") from None
