"""The plan of one group: what the operator decided and every rank's supervisor carries out.

It travels as the one key ``plan.json`` of an immutable ConfigMap, mounted into every pod of the group. The operator writes
it, the runner reads it, neither imports the other: so it stands here, beside the API.
"""

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from thunderfleet_crds.vocabulary import Backend, PlacedSplit, Split

PLAN_KEY = "plan.json"
PLAN_FOLDER = "/etc/thunderfleet/plan"
"""Mount path of the plan's ConfigMap in a runner pod."""
KEYS_FOLDER = "/etc/thunderfleet/keys"
"""Mount path of the group's Secret in a runner pod: ``tls.crt`` and ``tls.key`` (PEM)."""
API_KEY_FOLDER = "/etc/thunderfleet/api-key"
"""Mount path of the Secret that ``spec.server.apiKeySecret`` names; every value in it is an accepted key."""
MODEL_FOLDER = "/model"
"""Mount path of the model's folder (a hostPath) in a runner pod."""
GROUP_TLS_NAME = "group.thunderfleet.io"
"""The DNS name in the group's certificate; both sides of every connection of a group present and demand this one."""

# How a group ends, in seconds after SIGTERM, which every rank's supervisor gets at once. Each limit leaves room for what comes
# after it: requests run to their end, the ranks leave together, the supervisors end what is left, the kubelet ends the rest.
DRAIN_SECONDS = 22.0
"""How long requests that run may go on. When the last one ends sooner, the ranks leave sooner."""
LEAVE_SECONDS = 25.0
"""How long a supervisor that was told to end waits for its group's word; then it ends its rank by itself and goes."""
POD_GRACE_SECONDS = 40
"""The pods' ``terminationGracePeriodSeconds``."""

Port = Annotated[int, Field(ge=1, le=65535)]


class _Value(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


def loopback_of(address: str) -> str:
    """Where the programs of one Mac meet: loopback. A recorded Mac whose own address is of loopback keeps that one."""
    return address if ip_address(address).is_loopback else "127.0.0.1"


class RelayPlan(_Value):
    """A hop of the ring that the two ranks' supervisors carry over their mutual TLS, since no Thunderbolt cable does: it is
    the hop into the rank that this stands at, from the rank before it.
    """

    address: str
    """Where the supervisor that opens the connection dials the other's control port: an address that has been seen to work."""
    backwards: bool = False
    """Whether the rank that is dialled opens the connection, because it alone can dial the other's Mac."""


class RankPlan(_Value):
    """One rank: where it runs, what it holds, where it listens."""

    rank: Annotated[int, Field(ge=0)]
    node: str
    pod: str
    address: str
    """The Mac's own address: gateway and control listen on it."""
    control_port: Port
    gateway_port: Port
    ring_address: str | None = None
    """The address that this rank listens on for the ring: the cable's, on Thunderbolt; loopback, where the hop is relayed."""
    ring_ports: tuple[Port, ...] = ()
    """A block outside the ephemeral range; each attempt takes the next that can be bound. JACCL needs one only for rank 0,
    and only where MLX does its own exchange."""
    relay: RelayPlan | None = None
    """How the hop from the rank before this one is carried; null when that rank dials ``ring_address`` itself."""
    devices: tuple[str | None, ...] = ()
    """JACCL: the RDMA device that faces each rank; null for itself and, in a ring, for all but the neighbours."""
    coordinator: str | None = None
    """The address at which this rank has reached rank 0; null for rank 0 itself. Asked when ``address`` does not answer."""
    layers: tuple[int, int] | None = None
    """Pipeline: first layer (included) and last (excluded). The last layers belong to rank 0."""
    memory_bytes: Annotated[int, Field(ge=0)]
    """What is reserved on this Mac for the rank."""


class MemoryPlan(_Value):
    """What the gateway admits by; tokens, from ``spec.memory``."""

    context_tokens: Annotated[int, Field(ge=1)]
    concurrent_requests: Annotated[int, Field(ge=1)]
    cached_tokens: Annotated[int, Field(ge=0)]


class BootstrapPlan(_Value):
    attempts: Annotated[int, Field(ge=1)] = 8
    attempt_timeout_seconds: Annotated[int, Field(ge=1)] = 60


class BenchmarkPlan(_Value):
    prompt_tokens: Annotated[int, Field(ge=1)] = 512
    generation_tokens: Annotated[int, Field(ge=1)] = 128
    every_seconds: Annotated[int, Field(ge=0)] = 86400


class Plan(_Value):
    """One placement of one group. ``uid`` is the ModelDeployment's; (uid, index, epoch) names the placement for good."""

    version: Literal[1] = 1
    namespace: str
    deployment: str
    uid: str
    index: Annotated[int, Field(ge=0)]
    epoch: Annotated[int, Field(ge=1)]
    model: str
    """The name that clients use and ``/v1/models`` lists."""
    model_path: str
    """The model's folder on every Mac of the group, as its NodeProfile names it."""
    backend: Backend
    jaccl_ring: bool = False
    """JACCL: a ring of neighbours, also when every pair has a cable. Without a cable for every pair it is a ring anyway."""
    split: PlacedSplit
    ranks: Annotated[tuple[RankPlan, ...], Field(min_length=1)]
    memory: MemoryPlan
    bootstrap: BootstrapPlan = BootstrapPlan()
    benchmark: BenchmarkPlan = BenchmarkPlan()

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def group(self) -> str:
        """``namespace/name-index``: how messages call the group."""
        return f"{self.namespace}/{self.deployment}-{self.index}"

    def relay_ends(self, rank: int) -> tuple[int, int]:
        """Of the relayed hop into ``rank``: the rank whose supervisor opens the connection, and the one that it dials."""
        before, relay = (rank - 1) % self.world_size, self.ranks[rank].relay
        return (rank, before) if relay is not None and relay.backwards else (before, rank)

    def relay_addresses(self, rank: int) -> tuple[str, ...]:
        """Where others dial the supervisor of ``rank`` for relayed hops."""
        relays = ((entry.relay, self.relay_ends(entry.rank)[1]) for entry in self.ranks)
        return tuple(dict.fromkeys(relay.address for relay, dialled in relays if relay is not None and dialled == rank))

    def control_addresses(self, rank: int) -> tuple[str, ...]:
        """Where the control port of ``rank`` listens: on the Mac's own address first, then on those that others are told of."""
        coordinators = [entry.coordinator for entry in self.ranks if entry.coordinator] if rank == 0 else []
        return tuple(dict.fromkeys((self.ranks[rank].address, *self.relay_addresses(rank), *coordinators)))

    @model_validator(mode="after")
    def _consistent(self) -> "Plan":
        if [entry.rank for entry in self.ranks] != list(range(len(self.ranks))):
            raise ValueError("ranks must be listed in order, from 0, without a gap")
        if (self.backend is Backend.NONE) != (len(self.ranks) == 1):
            raise ValueError("backend none goes with exactly one rank")
        if self.backend is Backend.RING and any(not r.ring_address or not r.ring_ports for r in self.ranks):
            raise ValueError("every rank of a ring needs ringAddress and ringPorts")
        if self.backend is not Backend.RING and any(r.relay for r in self.ranks):
            raise ValueError("only hops of a ring are relayed")
        if self.backend is Backend.JACCL and any(len(r.devices) != len(self.ranks) for r in self.ranks):
            raise ValueError("every rank of a JACCL group needs one device entry a rank")
        if self.split is Split.PIPELINE and any(r.layers is None for r in self.ranks):
            raise ValueError("every rank of a pipeline needs its layers")
        return self
