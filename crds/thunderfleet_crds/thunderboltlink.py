"""ThunderboltLink: one cable, named after its two ends in order, so that either end derives the same name alone.

Both agents apply into the same object, each its own entry with its own field manager; the operator summarises the two
(conditions and columns) and is the only one that deletes.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from thunderfleet_crds.apimodel import ApiModel, ObjectMeta
from thunderfleet_crds.conditions import Condition
from thunderfleet_crds.fields import Address, Int64, Name, ReasonText, Time, Token, Word
from thunderfleet_crds.nodeprofile import THUNDERBOLT4_MBPS
from thunderfleet_crds.vocabulary import ConditionType, MeasurementTransport, RDMADeviceState

CONDITION_TYPES: Final = (ConditionType.CONNECTED, ConditionType.SYMMETRIC, ConditionType.RDMA_USABLE)

# Two of these, two port numbers and what joins them are a name of at most 253 characters.
MAX_NODE_NAME_LENGTH: Final = 120


class LinkEnd(ApiModel):
    """One end of a cable."""

    node: Annotated[str, Field(min_length=1, max_length=MAX_NODE_NAME_LENGTH)] = Field(
        description="Name of the Mac's Node (at most 120 characters)."
    )
    port: Annotated[int, Field(ge=0, le=64)] = Field(description="Number of the Mac's receptacle.")


class ThunderboltLinkSpec(ApiModel):
    """Which two ends; immutable, a replugged cable is another link."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "self == oldSelf",
                    "message": "spec.a and spec.b are immutable: a cable plugged elsewhere is another ThunderboltLink",
                },
                {
                    "rule": "self.a.node < self.b.node || (self.a.node == self.b.node && self.a.port < self.b.port)",
                    "message": "spec.a sorts before spec.b, by node and then by port",
                },
            ]
        }
    )

    a: LinkEnd = Field(description="The end that sorts first by node, then port.")
    b: LinkEnd = Field(description="The other end.")


class Endpoint(ApiModel):
    """What one end's agent sees of the cable."""

    node: Name = Field(description="The end that says this.")
    port: Annotated[int, Field(ge=0, le=64)] = Field(description="Number of its receptacle.")
    interface: Word | None = Field(default=None, description="Network interface of that port, such as en2.")
    rdma_device: Word | None = Field(default=None, description="RDMA device of that port, such as rdma_en2.")
    rdma_state: RDMADeviceState | None = Field(default=None, description="State of that RDMA device.")
    address: Address | None = Field(default=None, description="IP address on that interface.")
    speed_mbps: Int64 | None = Field(default=None, description="Negotiated speed in Mbit/s, as this end sees it.")
    through: Annotated[tuple[Token, ...], Field(max_length=8)] = Field(
        default=(), description="Hubs and displays passed on the way, nearest first."
    )
    sees_peer: bool = Field(default=False, description="Whether this end sees the other; a display in between can hide it.")
    flapping: bool | None = Field(
        default=None, description="Whether the cable comes and goes so often that this end no longer follows it."
    )


class Measurement(ApiModel):
    """One direction, measured; written by the receiver, where the bytes arrive."""

    from_: Name = Field(description="The node that sent.")
    to: Name = Field(description="The node that received, and timed.")
    transport: MeasurementTransport = Field(description="What carried it: Socket, RDMA or Ring.")
    throughput_mbps: Int64 | None = Field(default=None, description="Throughput in Mbit/s.")
    rtt_microseconds: Int64 | None = Field(default=None, description="Round trip in microseconds, the median.")
    jitter_microseconds: Int64 | None = Field(
        default=None, description="Jitter in microseconds: mean absolute difference of neighbouring round trips."
    )
    payload_bytes: Int64 | None = Field(default=None, description="Bytes of one message of the throughput test.")
    measured_at: Time = Field(description="When it was measured.")


class ThunderboltLinkStatus(ApiModel):
    """What both ends see, and what it comes to."""

    endpoints: Annotated[tuple[Endpoint, ...], Field(max_length=2)] = Field(
        default=(), description="What each end sees, by node.", json_schema_extra={"x-list-keys": ["node"]}
    )
    measurements: Annotated[tuple[Measurement, ...], Field(max_length=12)] = Field(
        default=(),
        description="What was measured, by direction and transport.",
        json_schema_extra={"x-list-keys": ["from", "to", "transport"]},
    )
    speed: Word | None = Field(default=None, description="Negotiated speed for people, such as 80G (a column).")
    generation: Word | None = Field(default=None, description="TB5 above 40 Gb/s, else TB4 (a column).")
    rdma: ReasonText | None = Field(default=None, description="The reason of the condition RDMAUsable (a column).")
    gbps: Word | None = Field(default=None, description="Measured throughput in Gbit/s from a to b / from b to a (a column).")
    rtt: Word | None = Field(default=None, description="Measured round trip for people, such as 36us (a column).")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Connected, Symmetric, RDMAUsable; summarised by the operator.",
        json_schema_extra={"x-list-keys": ["type"]},
    )


class ThunderboltLink(ApiModel):
    """One Thunderbolt cable between two Macs."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    # Not `+ string(port)`: the API server takes that for unbounded and refuses the rule for its cost.
                    "rule": "self.metadata.name == '%s.tb%d--%s.tb%d'.format("
                    "[self.spec.a.node, self.spec.a.port, self.spec.b.node, self.spec.b.port])",
                    "message": "a link is named after its ends: <a.node>.tb<a.port>--<b.node>.tb<b.port>",
                }
            ]
        }
    )

    api_version: Literal["thunderfleet.io/v1alpha1"] = "thunderfleet.io/v1alpha1"
    kind: Literal["ThunderboltLink"] = "ThunderboltLink"
    metadata: ObjectMeta
    spec: ThunderboltLinkSpec = Field(description="Which two ends the cable joins.")
    status: ThunderboltLinkStatus = Field(default=ThunderboltLinkStatus(), description="What its ends see and measured.")


def ordered(one: LinkEnd, other: LinkEnd) -> ThunderboltLinkSpec:
    """The spec of the cable between two ends, whichever is given first. Raises ``ValueError`` for one end given twice."""
    a, b = sorted((one, other), key=lambda end: (end.node, end.port))
    if a == b:
        raise ValueError(f"a cable has two different ends, not {a.node}.tb{a.port} twice")
    return ThunderboltLinkSpec(a=a, b=b)


def link_name(spec: ThunderboltLinkSpec) -> str:
    """The link's name: ``<node>.tb<port>--<node>.tb<port>``, ends in order."""
    return f"{spec.a.node}.tb{spec.a.port}--{spec.b.node}.tb{spec.b.port}"


def generation(speed_mbps: int) -> str:
    """What a cable with this negotiated speed is called: TB5 above 40 Gb/s, else TB4 (which TB3 and USB4 are equal to)."""
    return "TB5" if speed_mbps > THUNDERBOLT4_MBPS else "TB4"
