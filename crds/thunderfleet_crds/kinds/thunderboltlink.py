"""ThunderboltLink: a cable, named after its two ends in order, so that each end derives the same name on its own.

Both agents apply their entry to the same object, each with its own field manager. The operator summarizes the entries into
conditions and columns, and deletes the object.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from thunderfleet_crds.kinds.nodeprofile import MAX_PORTS, THUNDERBOLT4_MBPS
from thunderfleet_crds.meta.apimodel import ApiModel, ObjectMeta
from thunderfleet_crds.meta.conditions import Condition
from thunderfleet_crds.meta.fields import Address, Int64, Name, ReasonText, Time, Token, Word
from thunderfleet_crds.vocabulary import ConditionType, MeasurementTransport, RDMADeviceState

CONDITION_TYPES: Final = (ConditionType.CONNECTED, ConditionType.SYMMETRIC, ConditionType.RDMA_USABLE)

# This length lets two names, two port numbers and the separators fit into 253 characters.
MAX_NODE_NAME_LENGTH: Final = 120


class LinkEnd(ApiModel):
    """End of a cable."""

    node: Annotated[str, Field(min_length=1, max_length=MAX_NODE_NAME_LENGTH)] = Field(
        description="Name of the Node (at most 120 characters)."
    )
    port: Annotated[int, Field(ge=0, le=MAX_PORTS)] = Field(description="Number of the Thunderbolt receptacle.")


class ThunderboltLinkSpec(ApiModel):
    """The two ends of the cable. They are immutable: a cable that is plugged in elsewhere is another ThunderboltLink."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    "rule": "self == oldSelf",
                    "message": "spec.a and spec.b are immutable: a cable plugged in elsewhere is another ThunderboltLink",
                },
                {
                    "rule": "self.a.node < self.b.node || (self.a.node == self.b.node && self.a.port < self.b.port)",
                    "message": "spec.a must sort before spec.b, by node and then by port",
                },
            ]
        }
    )

    a: LinkEnd = Field(description="The end that sorts first by node, then by port.")
    b: LinkEnd = Field(description="The other end.")


class Endpoint(ApiModel):
    """The cable as the agent of one end observes it."""

    node: Name = Field(description="Name of the Node of this end.")
    port: Annotated[int, Field(ge=0, le=MAX_PORTS)] = Field(description="Number of the Thunderbolt receptacle.")
    interface: Word | None = Field(default=None, description="Network interface of the port, such as en2.")
    rdma_device: Word | None = Field(default=None, description="RDMA device of the port, such as rdma_en2.")
    rdma_state: RDMADeviceState | None = Field(
        default=None, description="State of the RDMA device; unset if the Mac does not list it."
    )
    address: Address | None = Field(default=None, description="IP address of the interface.")
    speed_mbps: Int64 | None = Field(default=None, description="Negotiated speed in Mb/s.")
    through: Annotated[tuple[Token, ...], Field(max_length=8)] = Field(
        default=(), description="Names of the hubs and displays on the path to the other end, nearest first."
    )
    sees_peer: bool = Field(
        default=False, description="Whether this end detects the other end. A display in between can hide it."
    )
    flapping: bool | None = Field(
        default=None,
        description="Whether the cable connects and disconnects so often that the agent no longer reports each change.",
    )


class Measurement(ApiModel):
    """Benchmark of one direction of the cable. The agent of the receiver writes it."""

    from_: Name = Field(description="Name of the sending Node.")
    to: Name = Field(description="Name of the receiving Node.")
    transport: MeasurementTransport = Field(
        description="Transport of the benchmark: Socket (TCP), RDMA or Ring (the ring of mlx)."
    )
    throughput_mbps: Int64 | None = Field(default=None, description="Throughput in Mb/s.")
    rtt_microseconds: Int64 | None = Field(default=None, description="Median round-trip time in microseconds.")
    jitter_microseconds: Int64 | None = Field(
        default=None, description="Jitter in microseconds: mean absolute difference of consecutive round-trip times."
    )
    payload_bytes: Int64 | None = Field(default=None, description="Size of one message of the throughput test in bytes.")
    measured_at: Time = Field(description="Time of the measurement.")


class ThunderboltLinkStatus(ApiModel):
    """The observed state. The agents of both ends and the operator write it."""

    endpoints: Annotated[tuple[Endpoint, ...], Field(max_length=2)] = Field(
        default=(), description="The cable as each end observes it, by Node.", json_schema_extra={"x-list-keys": ["node"]}
    )
    measurements: Annotated[tuple[Measurement, ...], Field(max_length=12)] = Field(
        default=(),
        description="Benchmarks of the cable, by direction and transport.",
        json_schema_extra={"x-list-keys": ["from", "to", "transport"]},
    )
    speed: Word | None = Field(default=None, description="Negotiated speed, such as 80G, for display.")
    generation: Word | None = Field(
        default=None,
        description="Generation of Thunderbolt: TB5 if the negotiated speed is above 40 Gb/s, otherwise TB4, for display.",
    )
    rdma: ReasonText | None = Field(default=None, description="Reason of the condition RDMAUsable, for display.")
    gbps: Word | None = Field(
        default=None, description="Measured throughput from a to b and from b to a in Gb/s, such as 38.4/37.9, for display."
    )
    rtt: Word | None = Field(default=None, description="Measured round-trip time, such as 36us, for display.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions: Connected, Symmetric and RDMAUsable.",
        json_schema_extra={"x-list-keys": ["type"]},
    )


SUMMARY_FIELDS: Final = tuple(
    field.serialization_alias or name
    for name, field in ThunderboltLinkStatus.model_fields.items()
    if name not in ("endpoints", "measurements", "conditions")
)
"""Fields of the status, as in the API, that the operator derives from the others for display. The chart's
``templates/admission.yaml`` lists them too, so that no agent writes them."""


class ThunderboltLink(ApiModel):
    """ThunderboltLink describes a Thunderbolt cable between two Macs. Agents create it; the operator deletes it."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-rules": [
                {
                    # `+ string(port)` is not used: the API server considers it unbounded and refuses the rule because of its
                    # cost.
                    "rule": "self.metadata.name == '%s.tb%d--%s.tb%d'.format("
                    "[self.spec.a.node, self.spec.a.port, self.spec.b.node, self.spec.b.port])",
                    "message": "metadata.name must be <a.node>.tb<a.port>--<b.node>.tb<b.port>, with the values of spec",
                }
            ]
        }
    )

    api_version: Literal["thunderfleet.io/v1alpha1"] = "thunderfleet.io/v1alpha1"
    kind: Literal["ThunderboltLink"] = "ThunderboltLink"
    metadata: ObjectMeta
    spec: ThunderboltLinkSpec = Field(description="The two ends of the cable.")
    status: ThunderboltLinkStatus = Field(default=ThunderboltLinkStatus(), description="Observed state of the cable.")


def ordered(one: LinkEnd, other: LinkEnd) -> ThunderboltLinkSpec:
    """The spec of the cable between two ends, in any order. Raises ``ValueError`` for two equal ends."""
    a, b = sorted((one, other), key=lambda end: (end.node, end.port))
    if a == b:
        raise ValueError(f"a cable needs two different ends, not {a.node}.tb{a.port} twice")
    return ThunderboltLinkSpec(a=a, b=b)


def link_name(spec: ThunderboltLinkSpec) -> str:
    """Name of the link: ``<node>.tb<port>--<node>.tb<port>``, with the ends in order."""
    return f"{spec.a.node}.tb{spec.a.port}--{spec.b.node}.tb{spec.b.port}"


def generation(speed_mbps: int) -> str:
    """Generation of a cable with this negotiated speed: TB5 above 40 Gb/s, otherwise TB4 (as fast as TB3 and USB4)."""
    return "TB5" if speed_mbps > THUNDERBOLT4_MBPS else "TB4"
