"""The messages of a session: JSON values with bounds, so that a hostile peer cannot send large ones."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from thunderfleet_crds.vocabulary import MeasurementTransport

from thunderfleet_agent.measure.schedule.probes import ProbeKind

# A gather of JACCL is a few hundred bytes; one message carries at most two parts of this size, in base64.
PART_BYTES = 48 * 1024
MAX_MESSAGE_BYTES = 160 * 1024
MAX_GATHERS = 64
MAX_TEXT = 500
# Errors are cut to this length before they are sent.
MAX_ERROR = 400
MAX_STREAMS = 16

Bounded = Annotated[int, Field(ge=0, le=2**40)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Data = Annotated[str, Field(max_length=PART_BYTES * 3)]


class Message(BaseModel):
    """Unknown fields are ignored, so that agents of two versions are compatible."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class ProbeRequest(Message):
    """The first message: which probe, and its limits."""

    kind: ProbeKind
    link: Annotated[str, Field(max_length=253)] = ""
    bytes: Bounded = 0
    seconds: Annotated[float, Field(gt=0, le=3600)] = 1.0
    streams: Annotated[int, Field(ge=1, le=MAX_STREAMS)] = 1
    transport: MeasurementTransport = MeasurementTransport.SOCKET
    device: Annotated[str, Field(max_length=64)] = ""
    host: Annotated[str, Field(max_length=80)] = ""
    node: Annotated[str, Field(max_length=253)] = ""
    """For a lease (an interactive measurement on this Mac): the node to measure."""
    interactive: bool = False
    """An interactive measurement, which preempts background probes."""


class ProbeReply(Message):
    """Accepted, with the limits that apply and where the streams connect; or refused, and why."""

    refused: Text = ""
    again: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Refused: in how many seconds a new request may be accepted."""
    bytes: Bounded = 0
    seconds: Annotated[float, Field(gt=0, le=3600)] = 1.0
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    token: Annotated[str, Field(max_length=128, pattern="^[0-9a-f]*$")] = ""
    device: Annotated[str, Field(max_length=64)] = ""
    host: Annotated[str, Field(max_length=80)] = ""


class SessionMessage(Message):
    """Every later message; the fields that are set determine its meaning."""

    next: Annotated[str, Field(max_length=16)] = ""
    mbps: Annotated[int, Field(ge=0, le=10**8)] | None = None
    rtt: Annotated[int, Field(ge=0, le=10**9)] | None = None
    jitter: Annotated[int, Field(ge=0, le=10**9)] | None = None
    gather: Annotated[int, Field(ge=1, le=MAX_GATHERS)] | None = None
    part: Data = ""
    whole: Data = ""
    error: Text = ""
