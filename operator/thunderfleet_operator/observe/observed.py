"""Everything that one round observes: read from the index once, immutable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modelcache import Download, ModelCache
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink

from thunderfleet_operator.observe.fleet.usage import Taken, Usage
from thunderfleet_operator.observe.fleet.weights import Need, Weights
from thunderfleet_operator.observe.load import NO_SIGNALS, Candidate, Signals
from thunderfleet_operator.observe.objects.fetchpods import FetchPod
from thunderfleet_operator.observe.objects.metadata import Json, PlacementKey
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.observe.objects.routers import Router
from thunderfleet_operator.placement import Fleet


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether a serving group would get a better placement, as computed at one time for one fleet.

    ``avoids``: cables that were left out because they corrupted data.
    """

    fleet: Fleet
    avoids: frozenset[str]
    epoch: int
    time: datetime
    text: str | None

    def holds(self, fleet: Fleet, avoids: frozenset[str]) -> bool:
        """Whether nothing has changed that it was computed from."""
        return self.fleet is fleet and self.avoids == avoids


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A Service that carries the operator's label."""

    uid: str
    hash: str
    """Hash of the manifest that it was made from."""
    owner: str | None
    """UID of the ModelDeployment that controls it."""
    orphan: bool
    """Whether that ModelDeployment is gone, so that the garbage collector is about to delete the Service."""
    spec: Json = field(default_factory=dict)
    """The spec that it has now."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One ModelDeployment: the input of ``decide.deployment.decide``."""

    deployment: ModelDeployment
    now: datetime
    groups: Mapping[int, GroupView]
    """Every group of the spec, or that has objects left, by index."""
    reports: Mapping[int, Report]
    """By group, the last report of rank 0 of its newest placement."""
    draining_seconds: Mapping[int, float]
    """By group, for how long it has been draining; 0 if it is not."""
    settling_seconds: Mapping[int, float]
    """By group, for how long its first placement has waited for reports about a cable."""
    advice: Mapping[int, Advice]
    """Advice of an earlier round, by group."""
    nodes: Mapping[str, Node]
    """Nodes that are not being deleted."""
    profiles: Mapping[str, NodeProfile | None]
    fleet: Fleet
    """All Macs and cables. Each Mac that can fetch the model counts as if it had it, once its files are known."""
    base: Fleet
    """The fleet without the models that can be fetched."""
    weights: Weights
    cache_name_taken: bool
    """Whether another ModelCache has the ModelDeployment's name."""
    usage: Usage
    taken: Taken
    """The sums of ``usage``, which ``fleet`` takes into account."""
    corrections: Mapping[str, float]
    """Corrections of predicted rates, by chip, from the benchmarks of all ModelDeployments."""
    service: ServiceView | None
    """The Service of its name that carries the operator's label."""
    steady_seconds: float | None
    """Seconds until a cable of ``fleet`` counts as steady."""
    loopback: bool
    """Whether any Node's address is in 127.0.0.0/8."""
    signals: Signals = NO_SIGNALS
    """What is known about its requests."""
    routers: tuple[Router, ...] = ()
    """Routers that are ready."""
    endpoint_slices: Mapping[str, Json] = field(default_factory=dict)
    """The operator's EndpointSlices, by ``namespace/name``."""
    candidates: tuple[Candidate, ...] = ()
    """ModelDeployments that could make room for it."""


@dataclass(frozen=True, slots=True)
class MacPlacement:
    """A placement that names a Mac in its plan or has a pod there."""

    key: PlacementKey
    plan: Plan | None
    """None if its ConfigMap has been deleted."""
    running: bool
    """Whether a pod of it on this Mac has not ended."""
    newest_epoch: int
    """The newest epoch of its group."""
    deployment: ModelDeployment | None

    @property
    def group(self) -> str:
        """``namespace/name-index``."""
        namespace, name, index, _ = self.key
        return f"{namespace}/{name}-{index}"

    @property
    def epoch(self) -> int:
        """The placement's number."""
        return self.key[3]


@dataclass(frozen=True, slots=True)
class ObservedMac:
    """One Mac: the input of ``decide.mac_usage.decide``."""

    profile: NodeProfile
    boot_id: str | None
    now: datetime
    placements: tuple[MacPlacement, ...]
    links: tuple[ThunderboltLink, ...]
    """The cables of this Mac."""
    profiles: Mapping[str, NodeProfile | None]

    @property
    def name(self) -> str:
        """The Mac's name."""
        return self.profile.metadata.name


@dataclass(frozen=True, slots=True)
class ObservedCache:
    """One ModelCache: the input of ``decide.weights.cache.decide``."""

    cache: ModelCache
    pods: Sequence[FetchPod]
    nodes: Mapping[str, Node]
    profiles: Mapping[str, NodeProfile | None]
    needed: Mapping[str, Need]
    """What each Mac needs of the model, because a plan with this model names the Mac."""
    now: datetime
    free_memory: Mapping[str, int] = field(default_factory=dict)
    """Memory that new pods may request, by Mac; a Mac without an entry has not reported it."""
    not_allowed: Download | None = None
    """Why the chart's values forbid Macs to read the model."""


@dataclass(frozen=True, slots=True)
class ObservedLink:
    """One cable: the input of ``decide.link.decide``."""

    link: ThunderboltLink
    now: datetime
    nodes: Mapping[str, Node]
    profiles: Mapping[str, NodeProfile | None]
    first_led: datetime | None = None
    """Since when the cluster has had an operator; None if that is not known."""
