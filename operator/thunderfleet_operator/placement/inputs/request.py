"""The planner's question: one group of one ModelDeployment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunderfleet_crds.vocabulary import PlacementPolicy, RequestedSplit, RequestedTransport, Split, Transport


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a request."""

    prompt: int = 512
    generated: int = 128


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration as in a pod.

    ``key`` None with ``exists`` tolerates every taint; ``effect`` None matches every effect.
    """

    key: str | None = None
    exists: bool = False
    value: str = ""
    effect: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What the KV cache of a rank must hold, and the headroom added to everything that the rank reserves."""

    context_tokens: int = 32768
    concurrent_requests: int = 4
    cached_tokens: int = 65536
    headroom_percent: int = 10


@dataclass(frozen=True, slots=True)
class Request:
    """One group of one ModelDeployment. Exactly one of ``path`` and ``repository`` is set."""

    path: str | None = None
    repository: str | None = None
    uri: str | None = None
    """URI of the model, which Macs keep under the name ``repository``."""
    revision: str = "main"
    min_nodes: int = 1
    max_nodes: int | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    split: RequestedSplit = Split.AUTO
    transport: RequestedTransport = Transport.AUTO
    memory: MemoryRequest = MemoryRequest()
    lengths: Lengths = Lengths()
    """Lengths of the request whose speed is predicted."""
    corrections: Mapping[str, float] = field(default_factory=dict)
    """Factors by which predicted generation rates are multiplied, by chip; the factor under an empty name is for all other
    chips."""
    policy: PlacementPolicy | None = None
    """How predicted speed decides; None: it does not decide."""
    current: tuple[str, ...] = ()
    """The Macs that hold the group now, by rank. They are kept if the group still fits."""
    avoid: Mapping[str, str] = field(default_factory=dict)
    """Macs that must not take a rank of this group, each with the reason as the end of a sentence that begins with its name."""
    no_ring_ports: Mapping[str, str] = field(default_factory=dict)
    """Macs without free ring ports, each with the reason. They are in no TCP ring, and not rank 0 over JACCL."""
    steady_cables: bool = True
    """Whether cables that are not steady yet are left out; otherwise those that may be used as a last resort are used."""
    ring_without_relay: bool = False
    """Whether ring traffic may cross a LAN directly instead of through the supervisors' encrypted relay."""

    @property
    def model(self) -> str:
        """The model's name in messages."""
        return self.uri or self.path or self.repository or ""
