"""NodeProfile: what one Mac is and can do, written by its own agent when something changed.

Not a heartbeat: whether a Mac is alive is its Node's Ready condition. Status only. The one part that the agent does not
write is ``quarantine`` and the condition of that name, which the operator applies with its own field manager.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import Field

from thunderfleet_crds.apimodel import ApiModel, ObjectMeta
from thunderfleet_crds.conditions import Condition
from thunderfleet_crds.fields import (
    UUID,
    Address,
    Count,
    Int64,
    LongMessage,
    Message,
    Name,
    Path,
    Port,
    Quantity,
    ReasonText,
    Time,
    Token,
    Word,
)
from thunderfleet_crds.names import LABEL_DOMAIN_PREFIX
from thunderfleet_crds.vocabulary import AddressClass, ConditionType, InterfaceKind, RDMADeviceState, ReachabilityState, SizedBy

CONDITION_TYPES: Final = (
    ConditionType.INVENTORY_COMPLETE,
    ConditionType.RDMA_READY,
    ConditionType.BRIDGE_FREE,
    ConditionType.BENCHMARKS_FRESH,
    ConditionType.QUARANTINED,
)

MAX_REACHABILITY: Final = 64
# World sizes that `thunderfleet-runner size` tries: 1 to this.
MAX_WORLD_SIZE: Final = 16
# Above this negotiated speed a cable is Thunderbolt 5.
THUNDERBOLT4_MBPS: Final = 40_000


class Hardware(ApiModel):
    """The machine."""

    model_identifier: Word | None = Field(default=None, description="Apple's model identifier, such as Mac15,14.")
    chip: Word | None = Field(default=None, description="The chip, such as Apple M3 Ultra.")
    cpu_cores: Count | None = Field(default=None, description="Number of CPU cores.")
    gpu_cores: Count | None = Field(default=None, description="Number of GPU cores.")
    memory_bytes: Int64 | None = Field(default=None, description="Unified memory in bytes.")
    gpu_memory_limit_bytes: Int64 | None = Field(
        default=None, description="The most memory in bytes that the GPU may wire; placements add up to it at most."
    )
    memory: Word | None = Field(default=None, description="Unified memory for people, such as 512Gi (a column).")


class OperatingSystem(ApiModel):
    """macOS."""

    version: Word | None = Field(default=None, description="Version of macOS, such as 26.3.")
    build: Word | None = Field(default=None, description="Build of macOS, such as 25D125.")


class Runtime(ApiModel):
    """What runners on this Mac will use."""

    mlx_version: Word | None = Field(default=None, description="Version of mlx that runners on this Mac use.")
    mlx_lm_version: Word | None = Field(default=None, description="Version of mlx-lm that runners on this Mac use.")
    backends: Annotated[tuple[Word, ...], Field(max_length=8)] = Field(
        default=(), description="Communication backends that this MLX says it can run: ring, jaccl."
    )


class Agent(ApiModel):
    """How other agents reach this Mac's agent, and know it."""

    address: Address = Field(description="IP address that the agent listens on.")
    port: Port = Field(description="Port that the agent listens on.")
    certificate_sha256: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the agent's certificate in hexadecimal; agents pin each other by it."
    )


class InterfaceAddress(ApiModel):
    """One address of an interface."""

    address: Address = Field(description="The IP address, without zone.")
    prefix_length: Annotated[int, Field(ge=0, le=128)] = Field(description="Length of the network prefix in bits.")
    class_: AddressClass = Field(description="Who can use it: Private, LinkLocal, Shared, Public or Loopback.")


class Interface(ApiModel):
    """One network interface."""

    name: Word = Field(description="Name of the interface, such as en2.")
    kind: InterfaceKind = Field(description="What it is: Thunderbolt, Ethernet, WiFi, Bridge, VPN or Other.")
    hardware_port: Token | None = Field(default=None, description="macOS' name of its port, such as Thunderbolt 2.")
    up: bool | None = Field(default=None, description="Whether it is up and has a carrier.")
    addresses: Annotated[tuple[InterfaceAddress, ...], Field(max_length=32)] = Field(default=(), description="Its addresses.")
    speed_mbps: Int64 | None = Field(default=None, description="Link speed in Mbit/s.")
    bridge: Word | None = Field(default=None, description="The bridge that it is a member of, such as bridge0.")


class Network(ApiModel):
    """The network interfaces."""

    interfaces: Annotated[tuple[Interface, ...], Field(max_length=64)] = Field(
        default=(), description="Network interfaces, by name.", json_schema_extra={"x-list-keys": ["name"]}
    )


class ThunderboltPeer(ApiModel):
    """Another computer seen through a port; several where a hub is in between."""

    domain_uuid: UUID = Field(
        description="Domain UUID of the peer's port (not stable: it joins two ends seen at the same moment only)."
    )
    name: Token | None = Field(default=None, description="What the peer calls itself.")
    speed_mbps: Int64 | None = Field(default=None, description="Negotiated speed towards the peer in Mbit/s.")
    through: Annotated[tuple[Token, ...], Field(max_length=8)] = Field(
        default=(), description="Hubs and displays passed on the way, nearest first."
    )


class ThunderboltPort(ApiModel):
    """One Thunderbolt receptacle."""

    receptacle: Annotated[int, Field(ge=0, le=64)] = Field(description="Number of the receptacle, as macOS counts.")
    switch_uid: Word | None = Field(default=None, description="UID of the port's switch (stable).")
    interface: Word | None = Field(default=None, description="Network interface of this port, such as en2.")
    rdma_device: Word | None = Field(default=None, description="RDMA device of this port, such as rdma_en2.")
    connected: bool = Field(default=False, description="Whether something is plugged in.")
    speed_mbps: Int64 | None = Field(default=None, description="Negotiated speed in Mbit/s; unset when nothing is plugged in.")
    domain_uuid: UUID | None = Field(default=None, description="Domain UUID of this port (not stable).")
    peers: Annotated[tuple[ThunderboltPeer, ...], Field(max_length=8)] = Field(
        default=(),
        description="Computers seen through this port, by the domain UUID of their end.",
        json_schema_extra={"x-list-keys": ["domainUUID"]},
    )


class Thunderbolt(ApiModel):
    """The Thunderbolt ports."""

    ports: Annotated[tuple[ThunderboltPort, ...], Field(max_length=16)] = Field(
        default=(), description="Thunderbolt ports, by receptacle.", json_schema_extra={"x-list-keys": ["receptacle"]}
    )
    links: Count = Field(default=0, description="Number of cables to other computers that this Mac sees (a column).")


class RDMADevice(ApiModel):
    """One RDMA device."""

    name: Word = Field(description="Name of the device, such as rdma_en2.")
    interface: Word | None = Field(default=None, description="Network interface that it belongs to, such as en2.")
    state: RDMADeviceState = Field(description="State of its port: only Active can be used.")
    gid: Word | None = Field(default=None, description="Its IPv4-mapped GID; unset when it has none.")


class RDMA(ApiModel):
    """RDMA over Thunderbolt."""

    enabled: bool | None = Field(default=None, description="Whether RDMA is switched on (in Recovery); unset: unknown.")
    state: ReasonText | None = Field(
        default=None, description="The reason of the condition RDMAReady, such as Ready or RDMADisabled (a column)."
    )
    devices: Annotated[tuple[RDMADevice, ...], Field(max_length=16)] = Field(
        default=(), description="RDMA devices, by name.", json_schema_extra={"x-list-keys": ["name"]}
    )


class Reachability(ApiModel):
    """One address of another node that this Mac dialled."""

    node: Name = Field(description="The node that answered, proven by its agent's certificate.")
    address: Address = Field(description="The address that was dialled.")
    interface: Word | None = Field(default=None, description="This Mac's interface that the connection went out by.")
    state: ReachabilityState = Field(description="Reachable, or Suspect after a failed round.")
    since: Time = Field(description="Since when the state holds.")
    rtt_microseconds: Int64 | None = Field(default=None, description="Round trip in microseconds.")
    jitter_microseconds: Int64 | None = Field(
        default=None, description="Jitter in microseconds: mean absolute difference of neighbouring round trips."
    )
    sent_mbps: Int64 | None = Field(default=None, description="Throughput towards that address in Mbit/s, as timed there.")
    received_mbps: Int64 | None = Field(default=None, description="Throughput from that address in Mbit/s, as timed here.")
    measured_at: Time | None = Field(default=None, description="When round trip, jitter and throughput were measured.")


class ComputeBenchmark(ApiModel):
    """A measurement of the GPU's arithmetic."""

    fp16_gigaflops: Int64 = Field(description="Throughput of a square fp16 matrix product in GFLOPS.")
    measured_at: Time = Field(description="When it was measured.")
    mlx_version: Word | None = Field(default=None, description="Version of mlx that measured.")
    os_version: Word | None = Field(default=None, description="Version of the operating system at that time.")


class MemoryBenchmark(ApiModel):
    """A measurement of the GPU's memory bandwidth."""

    megabytes_per_second: Int64 = Field(description="Bandwidth of a streaming sum in MB/s.")
    measured_at: Time = Field(description="When it was measured.")
    mlx_version: Word | None = Field(default=None, description="Version of mlx that measured.")
    os_version: Word | None = Field(default=None, description="Version of the operating system at that time.")


class Benchmarks(ApiModel):
    """What the GPU does."""

    compute: ComputeBenchmark | None = Field(default=None, description="Arithmetic throughput.")
    memory: MemoryBenchmark | None = Field(default=None, description="Memory bandwidth.")
    tflops: Quantity | None = Field(default=None, description="fp16 throughput in TFLOPS for people (a column).")
    gigabytes_per_second: Quantity | None = Field(default=None, description="Memory bandwidth in GB/s for people (a column).")


class TensorSize(ApiModel):
    """What tensor parallelism over one world size needs, or why it cannot be: mlx-lm's own ``shard()`` said so."""

    world_size: Annotated[int, Field(ge=1, le=MAX_WORLD_SIZE)] = Field(description="Number of ranks.")
    tensor_bytes_per_rank: Annotated[tuple[Int64, ...], Field(max_length=MAX_WORLD_SIZE)] = Field(
        default=(), description="Bytes of weights of each rank, in the order of ranks; empty when refused."
    )
    refusal: Message | None = Field(default=None, description="Why mlx-lm cannot split the model so, in its own words.")


class PipelineSize(ApiModel):
    """What pipeline parallelism needs."""

    layer_bytes: Annotated[tuple[Int64, ...], Field(max_length=512)] = Field(
        default=(), description="Bytes of weights of each layer, first layer first."
    )
    shared_bytes: Int64 = Field(default=0, description="Bytes of weights that every rank holds (embeddings, head).")
    refusal: Message | None = Field(default=None, description="Why mlx-lm cannot split the model so, in its own words.")


class KVLayer(ApiModel):
    """What one layer's cache needs for one sequence."""

    fixed_bytes: Int64 = Field(default=0, description="Bytes whatever the length of the sequence.")
    bytes_per_token: Int64 = Field(default=0, description="Bytes for each token.")
    window_tokens: Count | None = Field(
        default=None, description="Tokens that are kept at most (a sliding window); unset: all."
    )
    tensor_split: bool = Field(default=False, description="Whether tensor parallelism divides this cache among the ranks.")


class Model(ApiModel):
    """A model on this Mac's disk, with the facts that placement needs (from ``thunderfleet-runner size``)."""

    path: Path = Field(description="Absolute path of the folder.")
    repository: Name | None = Field(default=None, description="The hub's repository that it came from, if known.")
    revision: Token | None = Field(default=None, description="The revision (commit) of the repository.")
    bytes: Int64 = Field(default=0, description="Bytes on disk.")
    complete: bool = Field(default=False, description="Whether every tensor that its headers name is there.")
    problem: Message | None = Field(default=None, description="What is missing or cannot be read.")
    architecture: Token | None = Field(default=None, description="mlx-lm's model type, such as qwen2.")
    quantized: bool | None = Field(default=None, description="Whether weights are quantised.")
    bits: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="Bits of a quantised weight; unset when not quantised."
    )
    layers: Count | None = Field(default=None, description="Number of layers.")
    context_length_tokens: Int64 | None = Field(default=None, description="Longest sequence in tokens.")
    prefill_workspace_bytes: Int64 | None = Field(
        default=None, description="Peak workspace of one full prefill step at the start of a sequence."
    )
    prefill_workspace_bytes_per_token: Int64 | None = Field(
        default=None, description="What each token of context before a prefill step adds to its workspace."
    )
    sizes: Annotated[tuple[TensorSize, ...], Field(max_length=MAX_WORLD_SIZE)] = Field(
        default=(),
        description="What tensor parallelism needs, by world size; world size 1 is the whole model.",
        json_schema_extra={"x-list-keys": ["worldSize"]},
    )
    pipeline: PipelineSize | None = Field(default=None, description="What pipeline parallelism needs.")
    kv: Annotated[tuple[KVLayer, ...], Field(max_length=512)] = Field(
        default=(), description="What each layer's key-value cache needs, first layer first."
    )
    sized_by: SizedBy | None = Field(
        default=None, description="MLX: mlx-lm's dry run said so; Files: only the headers of the files did."
    )

    def size(self, world_size: int) -> TensorSize | None:
        """What is known of tensor parallelism over so many ranks."""
        return next((size for size in self.sizes if size.world_size == world_size), None)


class Quarantine(ApiModel):
    """Why placements avoid this Mac; written by the operator, and gone with the next boot."""

    boot_id: Token = Field(description="Boot ID of the Node when it happened; another one ends the quarantine.")
    since: Time = Field(description="Since when.")
    reason: ReasonText = Field(description="Why, as one word.")
    evidence: LongMessage = Field(default="", description="The failure's own text, and which group saw it.")


class GroupUse(ApiModel):
    """A group that has this Mac; written by the operator before the group's pods, so that nothing is measured beside them."""

    name: Name = Field(description="The group: <namespace>/<deployment>-<index>.")
    epoch: Count = Field(description="The placement epoch.")
    nodes: Annotated[tuple[Name, ...], Field(max_length=64)] = Field(
        default=(), description="The group's Macs, rank 0 first: agents of one group dial each other."
    )
    links: Annotated[tuple[Name, ...], Field(max_length=64)] = Field(
        default=(), description="The cables of this Mac that the group uses; nothing measures them meanwhile."
    )


class NodeProfileStatus(ApiModel):
    """What was observed; every part may be missing while it has not been."""

    hardware: Hardware | None = Field(default=None, description="The machine.")
    os: OperatingSystem | None = Field(default=None, description="The operating system.")
    runtime: Runtime | None = Field(default=None, description="What runners on this Mac will use.")
    agent: Agent | None = Field(default=None, description="How this Mac's agent is reached and known.")
    network: Network | None = Field(default=None, description="Network interfaces.")
    thunderbolt: Thunderbolt | None = Field(default=None, description="Thunderbolt ports and what is seen there.")
    rdma: RDMA | None = Field(default=None, description="RDMA over Thunderbolt.")
    reachability: Annotated[tuple[Reachability, ...], Field(max_length=MAX_REACHABILITY)] = Field(
        default=(),
        description="Which addresses of which nodes this Mac could dial.",
        json_schema_extra={"x-list-keys": ["node", "address"]},
    )
    benchmarks: Benchmarks | None = Field(default=None, description="What the GPU does.")
    models: Annotated[tuple[Model, ...], Field(max_length=64)] = Field(
        default=(), description="Models on this Mac's disk, by path.", json_schema_extra={"x-list-keys": ["path"]}
    )
    groups: Annotated[tuple[GroupUse, ...], Field(max_length=64)] = Field(
        default=(),
        description="Groups that have this Mac, as the operator placed them.",
        json_schema_extra={"x-list-keys": ["name"]},
    )
    quarantine: Quarantine | None = Field(default=None, description="Why placements avoid this Mac, if they do.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="InventoryComplete, RDMAReady, BridgeFree, BenchmarksFresh, Quarantined.",
        json_schema_extra={"x-list-keys": ["type"]},
    )


class NodeProfile(ApiModel):
    """What one Mac is and can do; named after its Node and owned by it."""

    api_version: Literal["thunderfleet.io/v1alpha1"] = "thunderfleet.io/v1alpha1"
    kind: Literal["NodeProfile"] = "NodeProfile"
    metadata: ObjectMeta
    status: NodeProfileStatus = Field(default=NodeProfileStatus(), description="What this Mac's agent observed and measured.")


def domain_labels(domain_uuids: Iterable[str]) -> dict[str, str]:
    """The labels by which the peers of these ports find this profile with one selective list."""
    return {f"{LABEL_DOMAIN_PREFIX}{uuid.lower()}": "" for uuid in sorted(domain_uuids) if uuid}
