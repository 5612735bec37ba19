"""NodeProfile: what one Mac is and can do, written by its agent whenever something changes.

It is not a heartbeat: the Ready condition of the Node shows whether a Mac is alive. It has a status only. The agent writes
all of it except ``groups``, ``quarantine`` and the condition Quarantined, which the operator applies with its own field
manager.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import Field

from thunderfleet_crds.meta.apimodel import ApiModel, ObjectMeta
from thunderfleet_crds.meta.conditions import Condition
from thunderfleet_crds.meta.fields import (
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
from thunderfleet_crds.names import LABEL_DOMAIN_PREFIX, MAX_WORLD_SIZE
from thunderfleet_crds.vocabulary import AddressClass, ConditionType, InterfaceKind, RDMADeviceState, ReachabilityState, SizedBy
from thunderfleet_crds.weights.copies import ModelCopy

MAX_PORTS: Final = 16
"""Thunderbolt ports of a Mac, and the highest number of one. No Mac has more than eight."""
MAX_PEERS: Final = 8
"""Computers behind one port."""

CONDITION_TYPES: Final = (
    ConditionType.INVENTORY_COMPLETE,
    ConditionType.RDMA_READY,
    ConditionType.BRIDGE_FREE,
    ConditionType.BENCHMARKS_FRESH,
    ConditionType.CLOCK_SYNCHRONIZED,
    ConditionType.QUARANTINED,
)

MAX_REACHABILITY: Final = 64
REFUSAL: Final = (
    "Why sizes are not known: the error with which mlx-lm refuses to split the model this way, or the error that ended its dry "
    "run before it tried; unset if they are known."
)
# A cable with a higher negotiated speed is Thunderbolt 5.
THUNDERBOLT4_MBPS: Final = 40_000


class Hardware(ApiModel):
    """Hardware of the Mac."""

    model_identifier: Word | None = Field(default=None, description="Model identifier, such as Mac15,14.")
    chip: Word | None = Field(default=None, description="Name of the chip, such as Apple M3 Ultra.")
    cpu_cores: Count | None = Field(default=None, description="Number of CPU cores.")
    gpu_cores: Count | None = Field(default=None, description="Number of GPU cores.")
    memory_bytes: Int64 | None = Field(default=None, description="Unified memory in bytes.")
    gpu_memory_limit_bytes: Int64 | None = Field(
        default=None, description="Maximum memory that the GPU may use, in bytes. The placements on the Mac do not exceed it."
    )
    memory: Word | None = Field(default=None, description="Unified memory, such as 512Gi, for display.")


class OperatingSystem(ApiModel):
    """Operating system of the Mac."""

    version: Word | None = Field(default=None, description="Version of macOS, such as 26.3.")
    build: Word | None = Field(default=None, description="Build of macOS, such as 25D125.")


class Runtime(ApiModel):
    """Versions of the libraries that runner pods on the Mac use."""

    mlx_version: Word | None = Field(default=None, description="Version of mlx.")
    mlx_lm_version: Word | None = Field(default=None, description="Version of mlx-lm.")
    backends: Annotated[tuple[Word, ...], Field(max_length=8)] = Field(
        default=(), description="Communication backends that mlx supports on the Mac: ring, jaccl."
    )


class Agent(ApiModel):
    """Address and identity of the Mac's agent, for other agents."""

    address: Address = Field(description="IP address that the agent listens on.")
    port: Port = Field(description="Port that the agent listens on.")
    certificate_sha256: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the agent's TLS certificate in hexadecimal. Other agents accept only this certificate."
    )


class InterfaceAddress(ApiModel):
    """IP address of a network interface."""

    address: Address = Field(description="IP address without zone.")
    prefix_length: Annotated[int, Field(ge=0, le=128)] = Field(description="Length of the network prefix in bits.")
    class_: AddressClass = Field(
        description="Scope of the address: Private, LinkLocal, Shared (100.64.0.0/10), Public or Loopback."
    )


class Interface(ApiModel):
    """Network interface of the Mac."""

    name: Word = Field(description="Name of the interface, such as en2.")
    kind: InterfaceKind = Field(description="Kind of the interface: Thunderbolt, Ethernet, WiFi, Bridge, VPN or Other.")
    hardware_port: Token | None = Field(default=None, description="Name of the hardware port in macOS, such as Thunderbolt 2.")
    up: bool | None = Field(default=None, description="Whether the interface is up and has a carrier.")
    addresses: Annotated[tuple[InterfaceAddress, ...], Field(max_length=32)] = Field(
        default=(), description="IP addresses of the interface."
    )
    speed_mbps: Int64 | None = Field(default=None, description="Link speed in Mb/s.")
    bridge: Word | None = Field(default=None, description="Bridge that the interface is a member of, such as bridge0.")


class Network(ApiModel):
    """Network of the Mac."""

    interfaces: Annotated[tuple[Interface, ...], Field(max_length=64)] = Field(
        default=(), description="Network interfaces, by name.", json_schema_extra={"x-list-keys": ["name"]}
    )


class ThunderboltPeer(ApiModel):
    """Computer connected to a Thunderbolt port, directly or through a hub or display."""

    domain_uuid: UUID = Field(
        description="Domain UUID of the peer's port at the time of observation. It changes, for example when the peer reboots."
    )
    name: Token | None = Field(default=None, description="Name that the peer reports.")
    speed_mbps: Int64 | None = Field(default=None, description="Negotiated speed of the link to the peer in Mb/s.")
    through: Annotated[tuple[Token, ...], Field(max_length=8)] = Field(
        default=(), description="Names of the hubs and displays on the path to the peer, nearest first."
    )


class ThunderboltPort(ApiModel):
    """Thunderbolt port of the Mac."""

    receptacle: Annotated[int, Field(ge=0, le=MAX_PORTS)] = Field(
        description="Number of the receptacle, as macOS numbers them."
    )
    switch_uid: Word | None = Field(default=None, description="UID of the port's Thunderbolt switch, which is stable.")
    interface: Word | None = Field(default=None, description="Network interface of the port, such as en2.")
    rdma_device: Word | None = Field(default=None, description="RDMA device of the port, such as rdma_en2.")
    connected: bool = Field(default=False, description="Whether a cable or device is plugged in.")
    speed_mbps: Int64 | None = Field(default=None, description="Negotiated speed in Mb/s; unset if nothing is plugged in.")
    domain_uuid: UUID | None = Field(
        default=None, description="Domain UUID of the port. It changes, for example when the Mac reboots."
    )
    peers: Annotated[tuple[ThunderboltPeer, ...], Field(max_length=MAX_PEERS)] = Field(
        default=(),
        description="Computers connected to the port, by domain UUID.",
        json_schema_extra={"x-list-keys": ["domainUUID"]},
    )


class Thunderbolt(ApiModel):
    """Thunderbolt ports of the Mac."""

    ports: Annotated[tuple[ThunderboltPort, ...], Field(max_length=MAX_PORTS)] = Field(
        default=(), description="Thunderbolt ports, by receptacle.", json_schema_extra={"x-list-keys": ["receptacle"]}
    )
    links: Count = Field(default=0, description="Number of connections to other computers, for display.")


class RDMADevice(ApiModel):
    """RDMA device of the Mac."""

    name: Word = Field(description="Name of the device, such as rdma_en2.")
    interface: Word | None = Field(default=None, description="Network interface of the device, such as en2.")
    state: RDMADeviceState = Field(description="State of the device's port. Only Active devices can be used.")
    gid: Word | None = Field(default=None, description="IPv4-mapped GID of the device; unset if it has none.")


class RDMA(ApiModel):
    """RDMA over Thunderbolt."""

    enabled: bool | None = Field(
        default=None, description="Whether RDMA is enabled (with `rdma_ctl enable` in macOS Recovery); unset if unknown."
    )
    state: ReasonText | None = Field(
        default=None, description="Reason of the condition RDMAReady, such as Ready or RDMADisabled, for display."
    )
    devices: Annotated[tuple[RDMADevice, ...], Field(max_length=16)] = Field(
        default=(), description="RDMA devices, by name.", json_schema_extra={"x-list-keys": ["name"]}
    )


class Reachability(ApiModel):
    """Address of another Node to which the Mac's agent has tried to connect."""

    node: Name = Field(
        description="Name of the Node. An address that has answered is verified: the agent there has the certificate in the "
        "NodeProfile of this Node."
    )
    address: Address = Field(description="IP address of the other Node.")
    interface: Word | None = Field(default=None, description="Network interface of this Mac that the connection uses.")
    state: ReachabilityState = Field(
        description="Reachable, Suspect after a failed attempt, or Unreachable after three. Placements do not use "
        "unreachable addresses."
    )
    since: Time = Field(description="Time of the last change of state.")
    rtt_microseconds: Int64 | None = Field(default=None, description="Round-trip time in microseconds.")
    jitter_microseconds: Int64 | None = Field(
        default=None, description="Jitter in microseconds: mean absolute difference of consecutive round-trip times."
    )
    sent_mbps: Int64 | None = Field(default=None, description="Throughput to the address in Mb/s, measured by the receiver.")
    received_mbps: Int64 | None = Field(
        default=None, description="Throughput from the address in Mb/s, measured by the receiver."
    )
    measured_at: Time | None = Field(
        default=None, description="Time of the measurement of round-trip time, jitter and throughput."
    )


class ComputeBenchmark(ApiModel):
    """Benchmark of the GPU's arithmetic."""

    fp16_gigaflops: Int64 = Field(description="Rate of a square fp16 matrix multiplication in GFLOPS.")
    measured_at: Time = Field(description="Time of the measurement.")
    mlx_version: Word | None = Field(default=None, description="Version of mlx.")
    os_version: Word | None = Field(default=None, description="Version of the operating system.")


class MemoryBenchmark(ApiModel):
    """Benchmark of the GPU's memory bandwidth."""

    megabytes_per_second: Int64 = Field(description="Bandwidth of a sum over a large array in MB/s.")
    measured_at: Time = Field(description="Time of the measurement.")
    mlx_version: Word | None = Field(default=None, description="Version of mlx.")
    os_version: Word | None = Field(default=None, description="Version of the operating system.")


class Benchmarks(ApiModel):
    """GPU benchmarks of the Mac."""

    compute: ComputeBenchmark | None = Field(default=None, description="Benchmark of matrix multiplication.")
    memory: MemoryBenchmark | None = Field(default=None, description="Benchmark of memory bandwidth.")
    tflops: Quantity | None = Field(default=None, description="fp16 rate in TFLOPS, for display.")
    gigabytes_per_second: Quantity | None = Field(default=None, description="Memory bandwidth in GB/s, for display.")


class TensorSize(ApiModel):
    """Size of the model with tensor parallelism over a number of ranks, as mlx-lm's ``shard()`` splits it."""

    world_size: Annotated[int, Field(ge=1, le=MAX_WORLD_SIZE)] = Field(description="Number of ranks.")
    tensor_bytes_per_rank: Annotated[tuple[Int64, ...], Field(max_length=MAX_WORLD_SIZE)] = Field(
        default=(),
        description="Weights of each rank in bytes, by rank; empty if refusal gives the reason why they are not known.",
    )
    refusal: Message | None = Field(default=None, description=REFUSAL)


class PipelineSize(ApiModel):
    """Size of the model with pipeline parallelism."""

    layer_bytes: Annotated[tuple[Int64, ...], Field(max_length=512)] = Field(
        default=(), description="Weights of each layer in bytes, by layer."
    )
    shared_bytes: Int64 = Field(default=0, description="Weights that every rank holds (embeddings, head) in bytes.")
    refusal: Message | None = Field(default=None, description=REFUSAL)


class KVLayer(ApiModel):
    """Key-value cache of one layer for one sequence."""

    fixed_bytes: Int64 = Field(default=0, description="Size in bytes that does not depend on the length of the sequence.")
    bytes_per_token: Int64 = Field(default=0, description="Additional size per token in bytes.")
    window_tokens: Count | None = Field(
        default=None,
        description="Maximum number of tokens in the cache, if the layer uses a sliding window; unset if it keeps all tokens.",
    )
    tensor_split: bool = Field(default=False, description="Whether tensor parallelism divides the cache among the ranks.")


class Model(ApiModel):
    """Model on the Mac's disk, with the sizes that placement needs."""

    path: Path = Field(description="Absolute path of the model's folder.")
    repository: Name | None = Field(default=None, description="Repository on the Hugging Face Hub, if known.")
    revision: Token | None = Field(default=None, description="Commit of the repository, if known.")
    bytes: Int64 = Field(default=0, description="Size on disk in bytes.")
    complete: bool = Field(default=False, description="Whether all files and tensors of the model are present.")
    problem: Message | None = Field(default=None, description="Description of what is missing or cannot be read.")
    unsupported: Message | None = Field(
        default=None, description="Why the installed mlx-lm cannot run the model, if that is known. No group is placed with it."
    )
    architecture: Token | None = Field(default=None, description="Model type in mlx-lm, such as qwen2.")
    quantized: bool | None = Field(default=None, description="Whether the weights are quantized.")
    bits: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="Bits per quantized weight; unset if the weights are not quantized."
    )
    layers: Count | None = Field(default=None, description="Number of layers.")
    context_length_tokens: Int64 | None = Field(default=None, description="Maximum length of a sequence in tokens.")
    active_bytes: Int64 | None = Field(
        default=None,
        description="Size of the weights that are read to generate one token, in bytes. Experts that the token does not use "
        "and the embedding table are not counted.",
    )
    experts: Count | None = Field(default=None, description="Number of experts of each layer; unset for dense models.")
    prefill_workspace_bytes: Int64 | None = Field(
        default=None,
        description="Peak working memory in bytes of one full prefill step (which reads 2,048 tokens of a prompt) at the start "
        "of a sequence.",
    )
    prefill_workspace_bytes_per_token: Int64 | None = Field(
        default=None, description="Additional working memory in bytes of a prefill step for each token of preceding context."
    )
    sizes: Annotated[tuple[TensorSize, ...], Field(max_length=MAX_WORLD_SIZE)] = Field(
        default=(),
        description="Sizes with tensor parallelism, by number of ranks; worldSize 1 is the whole model.",
        json_schema_extra={"x-list-keys": ["worldSize"]},
    )
    pipeline: PipelineSize | None = Field(default=None, description="Sizes with pipeline parallelism.")
    kv: Annotated[tuple[KVLayer, ...], Field(max_length=512)] = Field(default=(), description="Key-value caches, by layer.")
    sized_by: SizedBy | None = Field(
        default=None, description="Source of the sizes: MLX (a dry run of mlx-lm) or Files (the headers of the files only)."
    )

    def size(self, world_size: int) -> TensorSize | None:
        """The sizes with tensor parallelism over that many ranks, or None."""
        return next((size for size in self.sizes if size.world_size == world_size), None)


class ModelStore(ApiModel):
    """The folder in which the agent keeps models that it has fetched."""

    folder: Path = Field(description="Absolute path of the folder, a Hugging Face cache.")
    free_bytes: Int64 = Field(default=0, description="Free space for models in bytes, rounded down.")
    problem: Message | None = Field(default=None, description="Why the folder cannot be used.")


class Quarantine(ApiModel):
    """Excludes the Mac from placements until it reboots. Only the operator writes it."""

    boot_id: Token = Field(
        description="Boot ID of the Node when the quarantine began. The quarantine ends when the boot ID changes."
    )
    since: Time = Field(description="Time at which the quarantine began.")
    reason: ReasonText = Field(description="Machine-readable reason in CamelCase.")
    evidence: LongMessage = Field(
        default="", description="The failure that led to the quarantine, and the group that reported it."
    )


class GroupUse(ApiModel):
    """Group that is placed on the Mac. The operator writes the entry before it creates pods, so that benchmarks stop first."""

    name: Name = Field(description="Name of the group: <namespace>/<deployment>-<index>.")
    epoch: Count = Field(description="Number of the group's placement (epoch), which increases with every new placement.")
    model_path: Path | None = Field(
        default=None, description="Path of the model that the group serves, which is kept on the Mac."
    )
    nodes: Annotated[tuple[Name, ...], Field(max_length=64)] = Field(
        default=(), description="Names of the group's Nodes, by rank."
    )
    links: Annotated[tuple[Name, ...], Field(max_length=64)] = Field(
        default=(),
        description="Names of this Mac's ThunderboltLinks that the group uses. They are not benchmarked while the group "
        "exists.",
    )


class Panic(ApiModel):
    """The last kernel panic of the Mac."""

    time: Time = Field(description="Time of the panic report.")
    message: LongMessage = Field(default="", description="What the kernel reported, and a known remedy if there is one.")


class NodeProfileStatus(ApiModel):
    """The observed state. Parts that have not been observed yet are unset."""

    hardware: Hardware | None = Field(default=None, description="Hardware of the Mac.")
    os: OperatingSystem | None = Field(default=None, description="Operating system of the Mac.")
    runtime: Runtime | None = Field(default=None, description="Versions of the libraries that runner pods on the Mac use.")
    agent: Agent | None = Field(default=None, description="Address and identity of the Mac's agent.")
    network: Network | None = Field(default=None, description="Network of the Mac.")
    thunderbolt: Thunderbolt | None = Field(default=None, description="Thunderbolt ports of the Mac and their peers.")
    rdma: RDMA | None = Field(default=None, description="RDMA over Thunderbolt.")
    reachability: Annotated[tuple[Reachability, ...], Field(max_length=MAX_REACHABILITY)] = Field(
        default=(),
        description="Addresses of other Nodes, and whether the Mac can connect to them.",
        json_schema_extra={"x-list-keys": ["node", "address"]},
    )
    benchmarks: Benchmarks | None = Field(default=None, description="GPU benchmarks of the Mac.")
    models: Annotated[tuple[Model, ...], Field(max_length=64)] = Field(
        default=(), description="Models on the Mac's disk, by path.", json_schema_extra={"x-list-keys": ["path"]}
    )
    store: ModelStore | None = Field(default=None, description="Model store of the Mac; unset if it has none.")
    copies: Annotated[tuple[ModelCopy, ...], Field(max_length=64)] = Field(
        default=(),
        description="Models of the Mac's model store, complete or not.",
        json_schema_extra={"x-list-keys": ["manifest"]},
    )
    groups: Annotated[tuple[GroupUse, ...], Field(max_length=64)] = Field(
        default=(),
        description="Groups that are placed on the Mac.",
        json_schema_extra={"x-list-keys": ["name"]},
    )
    quarantine: Quarantine | None = Field(
        default=None,
        description="Set while the Mac is quarantined: no group is placed on it, because of a fault that only a reboot clears.",
    )
    last_panic: Panic | None = Field(
        default=None, description="Most recent kernel panic of the Mac for which macOS has a report. Unset if there is none."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions: InventoryComplete, RDMAReady, BridgeFree, BenchmarksFresh, ClockSynchronized and Quarantined.",
        json_schema_extra={"x-list-keys": ["type"]},
    )


class NodeProfile(ApiModel):
    """NodeProfile describes one Mac: its hardware, network, cables and models. It has the name of its Node, which owns it."""

    api_version: Literal["thunderfleet.io/v1alpha1"] = "thunderfleet.io/v1alpha1"
    kind: Literal["NodeProfile"] = "NodeProfile"
    metadata: ObjectMeta
    status: NodeProfileStatus = Field(default=NodeProfileStatus(), description="Observed state of the Mac.")


def domain_labels(domain_uuids: Iterable[str]) -> dict[str, str]:
    """Labels of a profile, by which the peers of these ports find it with one list."""
    return {f"{LABEL_DOMAIN_PREFIX}{uuid.lower()}": "" for uuid in sorted(domain_uuids) if uuid}
