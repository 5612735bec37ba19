"""The plan of one group, which the operator decides and the supervisors of all ranks carry out.

It is the key ``plan.json`` of an immutable ConfigMap that is mounted into every pod of the group. It is part of the API, since
the operator writes it and the runner reads it, and neither imports the other.
"""

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from thunderfleet_crds.names import MAX_RANKS
from thunderfleet_crds.vocabulary import Backend, PlacedSplit, Split, Verify, WiredLimit

PLAN_BYTES = 256 * 1024
"""Maximum size of a plan. The largest plan that the operator makes is smaller."""
GROUP_TLS_NAME = "group.thunderfleet.io"
"""DNS name in the group's certificate, which both sides of every connection within a group present and verify."""

# Termination of a group, in seconds after SIGTERM, which all supervisors get at the same time. Each limit leaves time for the
# next step: requests finish, the ranks leave together, the supervisors kill the others, the kubelet kills the supervisors.
DRAIN_SECONDS = 22.0
"""How long running requests may continue. The ranks leave when the last one has finished."""
LEAVE_SECONDS = 25.0
"""How long a terminating supervisor waits for rank 0 to end the group; then it ends its rank on its own and exits."""
POD_GRACE_SECONDS = 40
"""The pods' ``terminationGracePeriodSeconds``."""

Port = Annotated[int, Field(ge=1, le=65535)]


class _Value(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


def group_name(deployment: str, index: int, epoch: int) -> str:
    """The name of a placement: that of its plan's ConfigMap. The names of its Secret and its pods begin with it.

    It includes the epoch, because the pod on a Mac that does not answer stays and keeps its name.
    """
    return f"{deployment}-{index}-e{epoch}"


def loopback_of(address: str) -> str:
    """The loopback address on a Mac. A recorded Mac whose own address is a loopback address uses that one."""
    return address if ip_address(address).is_loopback else "127.0.0.1"


class RelayPlan(_Value):
    """A hop of the ring without a Thunderbolt cable, which the supervisors of both ranks relay over mutual TLS.

    It is the hop from the preceding rank to the rank that has this entry.
    """

    address: str
    """Address at which the supervisor that opens the connection reaches the control port of the other one."""
    backwards: bool = False
    """Whether the receiving rank opens the connection, because only it can reach the Mac of the other one."""


class RankPlan(_Value):
    """One rank: its Node, its part of the model, and its addresses and ports."""

    rank: Annotated[int, Field(ge=0)]
    node: str
    pod: str
    address: str
    """IP address of the Mac, on which gateway and control port listen."""
    control_port: Port
    gateway_port: Port
    ring_address: str | None = None
    """Address on which the rank listens for the ring: that of the cable, or loopback if the hop is relayed."""
    ring_ports: tuple[Port, ...] = ()
    """A block of ports outside the ephemeral range; each attempt uses the next free one. With JACCL only rank 0 needs one, and
    only if MLX exchanges the connection data itself."""
    relay: RelayPlan | None = None
    """How the hop from the preceding rank is relayed; null if that rank connects to ``ring_address`` itself."""
    devices: tuple[str | None, ...] = ()
    """JACCL: by rank, the RDMA device of the cable to it; null for itself and, in a ring, for all but the neighbors."""
    coordinator: str | None = None
    """Address at which this rank can reach rank 0 if rank 0's ``address`` does not answer; null for rank 0 itself."""
    layers: tuple[int, int] | None = None
    """Pipeline: first layer (inclusive) and last layer (exclusive). Rank 0 has the last layers of the model."""
    memory_bytes: Annotated[int, Field(ge=0)]
    """GPU memory reserved for the rank."""


class MemoryPlan(_Value):
    """Limits of the gateway in tokens, from ``spec.memory``."""

    context_tokens: Annotated[int, Field(ge=1)]
    concurrent_requests: Annotated[int, Field(ge=1)]
    cached_tokens: Annotated[int, Field(ge=0)]


class BootstrapPlan(_Value):
    """How the ranks form the group, from ``spec.bootstrap``."""

    attempts: Annotated[int, Field(ge=1)] = 8
    attempt_timeout_seconds: Annotated[int, Field(ge=1)] = 60


class BenchmarkPlan(_Value):
    """The benchmark of the serving group, from ``spec.benchmark``."""

    prompt_tokens: Annotated[int, Field(ge=1)] = 512
    generation_tokens: Annotated[int, Field(ge=1)] = 128
    every_seconds: Annotated[int, Field(ge=0)] = 86400


class RuntimePlan(_Value):
    """Settings of MLX, from ``spec.runtime``."""

    environment: dict[str, str] = {}
    """Variables of all ranks."""
    wired_limit: WiredLimit = WiredLimit.AUTO


class RouterPlan(_Value):
    """How the gateway of rank 0 recognizes routers; see ``routing``."""

    key_id: str
    """The routing key from which the credential is derived."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the credential, in hexadecimal digits."""


class ProvenLengths(_Value):
    """Results of earlier checks of groups with the same weights, from the status."""

    digest: str
    """Of the model's files."""
    lengths: tuple[int, ...]
    """Lengths in tokens of passages that were continued correctly."""


class KnownWeights(_Value):
    """A copy of the model whose weights were hashed before."""

    node: str
    signature: str
    """Signature of the files: see ``status.groups[].weights``."""
    digest: str
    """SHA-256 of the values of the weights."""


class RecordedAnswer(_Value):
    """An earlier answer to the test prompt; see ``status.groups[].recordedAnswers``."""

    key: str
    tokens: tuple[int, ...]
    costs: tuple[int, ...]
    margins: tuple[int, ...]
    """``costs`` and ``margins`` are in thousandths."""


class Plan(_Value):
    """One placement of one group. ``uid`` is that of the ModelDeployment; (uid, index, epoch) identifies the placement."""

    version: Literal[1] = 1
    namespace: str
    deployment: str
    uid: str
    index: Annotated[int, Field(ge=0)]
    epoch: Annotated[int, Field(ge=1)]
    model: str
    """Name of the model in the API, as ``/v1/models`` lists it."""
    model_path: str
    """Path of the model's folder on every Mac of the group."""
    backend: Backend
    jaccl_ring: bool = False
    """JACCL: use a ring even if all pairs have a cable. Without a cable for every pair it is always a ring."""
    split: PlacedSplit
    ranks: Annotated[tuple[RankPlan, ...], Field(min_length=1, max_length=MAX_RANKS)]
    links: tuple[str, ...] = ()
    """Names of the ThunderboltLinks that the ranks use, by hop, empty for a hop over a LAN: in a ring, hop i leads from rank i
    to the next; in a JACCL mesh there is one for each pair: (0, 1), (0, 2), …, (1, 2), … The runner does not read them."""
    memory: MemoryPlan
    bootstrap: BootstrapPlan = BootstrapPlan()
    benchmark: BenchmarkPlan = BenchmarkPlan()
    runtime: RuntimePlan = RuntimePlan()
    verify: Verify = Verify.FULL
    """What the group checks, from ``spec.verify``."""
    router: RouterPlan | None = None
    """Null from an operator without a routing key. Routers then have no credential for the group."""
    proven_lengths: ProvenLengths | None = None
    known_weights: tuple[KnownWeights, ...] = ()
    recorded_answers: tuple[RecordedAnswer, ...] = ()

    @property
    def name(self) -> str:
        """The name of its ConfigMap."""
        return group_name(self.deployment, self.index, self.epoch)

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def group(self) -> str:
        """``namespace/name-index``, the name of the group in messages."""
        return f"{self.namespace}/{self.deployment}-{self.index}"

    def relay_ends(self, rank: int) -> tuple[int, int]:
        """For the relayed hop to ``rank``: the rank that opens the connection, and the rank that it connects to."""
        before, relay = (rank - 1) % self.world_size, self.ranks[rank].relay
        return (rank, before) if relay is not None and relay.backwards else (before, rank)

    def relay_addresses(self, rank: int) -> tuple[str, ...]:
        """Addresses at which other supervisors connect to that of ``rank`` for relayed hops."""
        relays = ((entry.relay, self.relay_ends(entry.rank)[1]) for entry in self.ranks)
        return tuple(dict.fromkeys(relay.address for relay, dialled in relays if relay is not None and dialled == rank))

    def control_addresses(self, rank: int) -> tuple[str, ...]:
        """Addresses on which the control port of ``rank`` listens: that of the Mac first, then those of the plan."""
        coordinators = [entry.coordinator for entry in self.ranks if entry.coordinator] if rank == 0 else []
        return tuple(dict.fromkeys((self.ranks[rank].address, *self.relay_addresses(rank), *coordinators)))

    @model_validator(mode="after")
    def _consistent(self) -> "Plan":
        if [entry.rank for entry in self.ranks] != list(range(len(self.ranks))):
            raise ValueError("ranks must be listed in order, starting at 0, without gaps")
        if (self.backend is Backend.NONE) != (len(self.ranks) == 1):
            raise ValueError("backend none requires exactly one rank, every other backend more than one")
        if self.backend is Backend.RING and any(not r.ring_address or not r.ring_ports for r in self.ranks):
            raise ValueError("every rank of a ring needs ringAddress and ringPorts")
        if self.backend is not Backend.RING and any(r.relay for r in self.ranks):
            raise ValueError("only hops of a ring can be relayed")
        if self.backend is Backend.JACCL and any(len(r.devices) != len(self.ranks) for r in self.ranks):
            raise ValueError("every rank of a JACCL group needs one device entry per rank")
        if self.split is Split.PIPELINE and any(r.layers is None for r in self.ranks):
            raise ValueError("every rank of a pipeline needs its layers")
        return self
