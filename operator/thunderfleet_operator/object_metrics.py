"""Metrics of ModelDeployments, cables and Macs, which name the object that has a problem.

They are computed from the cache at each scrape, and only by the leader, so that replicas export no duplicates. A large fleet
has tens of thousands of samples, so the lines of an object that has not changed since the last scrape are kept.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.meta.conditions import Condition, find_condition
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, GroupPhase

from thunderfleet_operator.observe.objects.nodes import Node

PREFIX = "thunderfleet_"
VALUES: Mapping[ConditionStatus, float] = {ConditionStatus.TRUE: 1.0, ConditionStatus.FALSE: 0.0, ConditionStatus.UNKNOWN: -1.0}
CONDITION = "1 if the condition is True, 0 if it is False, -1 if it is Unknown"
OF = ("namespace", "name")
OF_GROUP = (*OF, "group")
MEGABIT_BYTES = 125_000


class _Family(NamedTuple):
    """A gauge's description and the names of its labels."""

    text: str
    labels: tuple[str, ...]


FAMILIES: Mapping[str, _Family] = {
    "modeldeployment_condition": _Family(f"{CONDITION}.", (*OF, "type", "reason")),
    "modeldeployment_replicas": _Family("Groups that the ModelDeployment requires.", OF),
    "modeldeployment_ready_replicas": _Family("Groups that serve.", OF),
    "modeldeployment_not_ready_timestamp_seconds": _Family(
        "Time at which the ModelDeployment stopped being Ready, in seconds since the Unix epoch; absent while it is Ready, and "
        "while it should have no groups.",
        OF,
    ),
    "modeldeployment_benchmark_tokens_per_second": _Family("Generation rate that the most recent benchmark measured.", OF),
    "modeldeployment_autoscaling_min_replicas": _Family("spec.autoscaling.minReplicas; absent without autoscaling.", OF),
    "modeldeployment_autoscaling_max_replicas": _Family("spec.autoscaling.maxReplicas; absent without autoscaling.", OF),
    "modeldeployment_autoscaling_needed_replicas": _Family(
        "Groups that the requests in progress need now, whatever the limits are; absent without autoscaling, while the model "
        "sleeps, and while a group does not report its requests.",
        OF,
    ),
    "modeldeployment_autoscaling_last_scale_timestamp_seconds": _Family(
        "Time at which autoscaling last changed the number of groups, in seconds since the Unix epoch.", OF
    ),
    "modeldeployment_group_state": _Family("1 for the current state of the group.", (*OF_GROUP, "state")),
    "modeldeployment_group_restarts": _Family(
        "Restarts after failures that count against spec.recovery.maxRestarts.", OF_GROUP
    ),
    "modeldeployment_group_max_restarts": _Family("spec.recovery.maxRestarts.", OF_GROUP),
    "modeldeployment_group_last_failure_timestamp_seconds": _Family(
        "Time of the last failure of the group in seconds since the Unix epoch, with its first cause: reason, Node and cable.",
        (*OF_GROUP, "reason", "node", "link"),
    ),
    "thunderboltlink_condition": _Family(f"{CONDITION}.", ("name", "type", "reason")),
    "thunderboltlink_groups": _Family("Groups that use the cable.", ("name",)),
    "thunderboltlink_negotiated_bytes_per_second": _Family("Negotiated speed, the lower of both ends.", ("name",)),
    "thunderboltlink_measured_bytes_per_second": _Family(
        "Throughput that the most recent benchmark measured.", ("name", "from", "to", "transport")
    ),
    "thunderboltlink_flapping": _Family(
        "1 if the cable connects and disconnects so often that not every change is reported.", ("name",)
    ),
    "mac_condition": _Family(f"{CONDITION}.", ("node", "type", "reason")),
    "mac_ready": _Family("1 if the Node is Ready, else 0.", ("node",)),
    "mac_pressure": _Family(
        "1 while a condition of the Node reports that a resource runs out, such as DiskPressure, else 0.",
        ("node", "type"),
    ),
    "mac_gpu_memory_limit_bytes": _Family("Memory that the GPU of the Mac may use.", ("node",)),
    "mac_gpu_memory_reserved_bytes": _Family("GPU memory that groups have reserved on the Mac.", ("node",)),
    "mac_groups": _Family("Groups that are placed on the Mac.", ("node",)),
    "mac_last_panic_timestamp_seconds": _Family("Time of the last kernel panic in seconds since the Unix epoch.", ("node",)),
    "control_plane_backup_timestamp_seconds": _Family(
        "Time of the last `thunderfleet backup` on a Mac with a control plane, in seconds since the Unix epoch; before the "
        "first one on that Mac, when the oldest Node with a control plane was created.",
        ("node",),
    ),
}
"""All families, without ``PREFIX``, in the order of the page."""


class _Sample(NamedTuple):
    """``labels``: the values of the family's labels."""

    family: str
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True)
class Objects:
    """What the metrics are made from. An object that cannot be read is None. Objects are replaced, never modified."""

    deployments: Iterable[ModelDeployment | None] = ()
    links: Iterable[ThunderboltLink | None] = ()
    profiles: Iterable[NodeProfile | None] = ()
    nodes: Iterable[Node] = ()
    needed: Mapping[str, int] = field(default_factory=dict)
    """How many groups the requests in progress of a ModelDeployment (``namespace/name``) need, as far as it is known."""


class _Source(NamedTuple):
    """A source of samples. The samples are the same for the same object and equal ``others``."""

    key: tuple[str, ...]
    of: object
    others: object
    """What its samples depend on in addition to the object."""
    samples: Callable[[], Iterator[_Sample]]


class ObjectMetrics(Collector):
    """A collector of prometheus-client. ``leading``: whether this replica is the leader."""

    def __init__(self, objects: Callable[[], Objects], leading: Callable[[], bool]) -> None:
        self._objects = objects
        self._leading = leading
        self._kept: dict[tuple[str, ...], tuple[_Source, Mapping[str, str]]] = {}
        """By key, the sources of the last page and their lines by family."""

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return self._families(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return self._families(self._sources())

    def page(self) -> bytes:
        """All of it in the text format of Prometheus, as prometheus-client writes what ``collect`` returns."""
        known, kept = self._kept, dict[tuple[str, ...], tuple[_Source, Mapping[str, str]]]()
        found: dict[str, list[str]] = {
            name: [f"# HELP {PREFIX}{name} {family.text}\n# TYPE {PREFIX}{name} gauge\n"] for name, family in FAMILIES.items()
        }
        for source in self._sources():
            entry = known.get(source.key)
            if entry is None or entry[0].of is not source.of or entry[0].others != source.others:
                entry = source, _lines(source.samples())
            kept[source.key] = entry
            for name, lines in entry[1].items():
                found[name].append(lines)
        self._kept = kept
        return "".join(line for lines in found.values() for line in lines).encode()

    def _sources(self) -> Iterator[_Source]:
        return _sources(self._objects()) if self._leading() else iter(())

    def _families(self, sources: Iterable[_Source]) -> Iterator[GaugeMetricFamily]:
        found = {name: GaugeMetricFamily(PREFIX + name, of.text, labels=of.labels) for name, of in FAMILIES.items()}
        for source in sources:
            for sample in source.samples():
                found[sample.family].add_metric(sample.labels, sample.value)
        yield from found.values()


def _lines(samples: Iterable[_Sample]) -> Mapping[str, str]:
    """By family, the lines of these samples."""
    found: dict[str, str] = {}
    for family, values, value in samples:
        labels = ",".join(
            f'{name}="{_escaped(text)}"' for name, text in sorted(zip(FAMILIES[family].labels, values, strict=True))
        )
        number: str = floatToGoString(value)  # type: ignore[no-untyped-call]
        found[family] = f"{found.get(family, '')}{PREFIX}{family}{{{labels}}} {number}\n"
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _sources(objects: Objects) -> Iterator[_Source]:
    deployments = [one for one in objects.deployments if one is not None]
    profiles = [one for one in objects.profiles if one is not None]
    nodes, users, reserved = list(objects.nodes), _users(profiles), _reserved(deployments)
    oldest = _oldest(nodes)
    for deployment in deployments:
        key = ("deployment", str(deployment.metadata.namespace), deployment.metadata.name)
        needed = objects.needed.get("/".join(key[1:]))
        yield _Source(key, deployment, needed, partial(_deployment, deployment, needed))
    for link in objects.links:
        if link is not None:
            count = len(users.get(link.metadata.name, ()))
            yield _Source(("link", link.metadata.name), link, count, partial(_cable, link, count))
    for node in nodes:
        yield _Source(("node", node.name), node, oldest, partial(_node, node, oldest))
    for profile in profiles:
        size = reserved.get(profile.metadata.name, 0)
        yield _Source(("profile", profile.metadata.name), profile, size, partial(_mac, profile, size))


def _conditions(family: str, labels: tuple[str, ...], conditions: Iterable[Condition]) -> Iterator[_Sample]:
    for condition in conditions:
        yield _Sample(family, (*labels, condition.type, condition.reason), VALUES[condition.status])


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _autoscaling(deployment: ModelDeployment, needed: int | None) -> Iterator[_Sample]:
    of, spec, status = (str(deployment.metadata.namespace), deployment.metadata.name), deployment.spec, deployment.status
    if spec.autoscaling is None:
        return
    yield _Sample("modeldeployment_autoscaling_min_replicas", of, spec.autoscaling.min_replicas)
    yield _Sample("modeldeployment_autoscaling_max_replicas", of, spec.autoscaling.max_replicas)
    if needed is not None:
        yield _Sample("modeldeployment_autoscaling_needed_replicas", of, needed)
    if status.autoscaling is not None and (changed := status.autoscaling.last_scale_time) is not None:
        yield _Sample("modeldeployment_autoscaling_last_scale_timestamp_seconds", of, changed.timestamp())


def _deployment(deployment: ModelDeployment, needed: int | None) -> Iterator[_Sample]:
    of, status = (str(deployment.metadata.namespace), deployment.metadata.name), deployment.status
    yield from _conditions("modeldeployment_condition", of, status.conditions)
    yield _Sample("modeldeployment_replicas", of, deployment.wanted_groups)
    yield _Sample("modeldeployment_ready_replicas", of, status.ready_replicas)
    found = find_condition(status.conditions, ConditionType.READY)
    if found is not None and found.status is not ConditionStatus.TRUE and deployment.wanted_groups:
        yield _Sample("modeldeployment_not_ready_timestamp_seconds", of, found.last_transition_time.timestamp())
    rate = _number(status.benchmark.decode_tokens_per_second) if status.benchmark else None
    if rate is not None:
        yield _Sample("modeldeployment_benchmark_tokens_per_second", of, rate)
    yield from _autoscaling(deployment, needed)
    for group in status.groups:
        its = (*of, str(group.index))
        yield _Sample("modeldeployment_group_state", (*its, group.state), 1.0)
        yield _Sample("modeldeployment_group_restarts", its, group.restarts)
        yield _Sample("modeldeployment_group_max_restarts", its, deployment.spec.recovery.max_restarts)
        if (last := group.last_failure) is not None:
            labels = (*its, last.reason, last.node or "", last.link or "")
            yield _Sample("modeldeployment_group_last_failure_timestamp_seconds", labels, last.time.timestamp())


def _users(profiles: Iterable[NodeProfile]) -> Mapping[str, set[str]]:
    """Names of the groups that use each cable."""
    found: dict[str, set[str]] = {}
    for profile in profiles:
        for use in profile.status.groups:
            for link in use.links:
                found.setdefault(link, set()).add(use.name)
    return found


def _cable(link: ThunderboltLink, users: int) -> Iterator[_Sample]:
    name, status = link.metadata.name, link.status
    yield from _conditions("thunderboltlink_condition", (name,), status.conditions)
    yield _Sample("thunderboltlink_groups", (name,), users)
    speeds = [end.speed_mbps for end in status.endpoints if end.speed_mbps]
    if speeds:
        yield _Sample("thunderboltlink_negotiated_bytes_per_second", (name,), min(speeds) * MEGABIT_BYTES)
    for one in status.measurements:
        if one.throughput_mbps is not None:
            labels = (name, one.from_, one.to, one.transport)
            yield _Sample("thunderboltlink_measured_bytes_per_second", labels, one.throughput_mbps * MEGABIT_BYTES)
    yield _Sample("thunderboltlink_flapping", (name,), float(any(end.flapping for end in status.endpoints)))


def _reserved(deployments: Iterable[ModelDeployment]) -> Mapping[str, int]:
    """GPU memory that groups have reserved on each Mac, in bytes."""
    found: dict[str, int] = {}
    for deployment in deployments:
        for group in deployment.status.groups:
            if group.state is not GroupPhase.PENDING:
                for rank in group.ranks:
                    found[rank.node] = found.get(rank.node, 0) + (rank.memory_bytes or 0)
    return found


def _is_plane(node: Node) -> bool:
    """Whether it is a control plane of Thunderfleet. Others have backups of their own."""
    return bool(node.mac and node.ours and node.control_plane)


def _oldest(nodes: Iterable[Node]) -> datetime | None:
    """When the oldest Node with a control plane was created.

    A backup of any of them is a backup of the cluster, so a Mac that joins must not count as a recent backup.
    """
    return min((node.created for node in nodes if _is_plane(node) and node.created is not None), default=None)


def _node(node: Node, oldest: datetime | None) -> Iterator[_Sample]:
    if node.mac:
        yield _Sample("mac_ready", (node.name,), float(node.ready))
        for kind, holds in node.pressures:
            yield _Sample("mac_pressure", (node.name, kind), float(holds))
    if _is_plane(node) and (last := node.saved or oldest) is not None:
        yield _Sample("control_plane_backup_timestamp_seconds", (node.name,), last.timestamp())


def _mac(profile: NodeProfile, reserved: int) -> Iterator[_Sample]:
    of, status = (profile.metadata.name,), profile.status
    yield from _conditions("mac_condition", of, status.conditions)
    if status.hardware is not None and status.hardware.gpu_memory_limit_bytes is not None:
        yield _Sample("mac_gpu_memory_limit_bytes", of, status.hardware.gpu_memory_limit_bytes)
    yield _Sample("mac_gpu_memory_reserved_bytes", of, reserved)
    yield _Sample("mac_groups", of, len(status.groups))
    if status.last_panic is not None:
        yield _Sample("mac_last_panic_timestamp_seconds", of, status.last_panic.time.timestamp())
