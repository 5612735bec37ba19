"""Metrics of ModelDeployments, cables and Macs, which name the object that has a problem.

They show the objects of the cache when they are scraped, and only those of the leader, so that replicas double nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from thunderfleet_crds.conditions import Condition, find_condition
from thunderfleet_crds.modeldeployment import Group, ModelDeployment
from thunderfleet_crds.nodeprofile import NodeProfile
from thunderfleet_crds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, GroupPhase

from thunderfleet_operator.observe.nodes import Node

VALUES: Mapping[ConditionStatus, float] = {ConditionStatus.TRUE: 1.0, ConditionStatus.FALSE: 0.0, ConditionStatus.UNKNOWN: -1.0}
CONDITION = "1 if the condition is True, 0 if it is False, -1 if it is Unknown"
OF = ("namespace", "name")
MEGABIT_BYTES = 125_000


@dataclass(frozen=True)
class Objects:
    """What the metrics are made from. An object that cannot be read is None."""

    deployments: Iterable[ModelDeployment | None] = ()
    links: Iterable[ThunderboltLink | None] = ()
    profiles: Iterable[NodeProfile | None] = ()
    nodes: Iterable[Node] = ()


class ObjectMetrics(Collector):
    """A collector of prometheus-client. ``leading``: whether this replica is the leader."""

    def __init__(self, objects: Callable[[], Objects], leading: Callable[[], bool]) -> None:
        self._objects = objects
        self._leading = leading

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return self._families(Objects())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return self._families(self._objects() if self._leading() else Objects())

    def _families(self, objects: Objects) -> Iterator[GaugeMetricFamily]:
        deployments = [one for one in objects.deployments if one is not None]
        profiles = [one for one in objects.profiles if one is not None]
        yield from _deployments(deployments)
        yield from _groups(deployments)
        yield from _cables([one for one in objects.links if one is not None], _users(profiles))
        nodes = list(objects.nodes)
        yield from _macs(profiles, nodes, _reserved(deployments))
        yield from _backups(nodes)


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"thunderfleet_{name}", text, labels=labels)


def _conditions(family: GaugeMetricFamily, labels: tuple[str, ...], conditions: Iterable[Condition]) -> None:
    for condition in conditions:
        family.add_metric([*labels, condition.type, condition.reason], VALUES[condition.status])


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _deployments(deployments: Iterable[ModelDeployment]) -> Iterator[GaugeMetricFamily]:
    conditions = _family("modeldeployment_condition", f"{CONDITION}.", *OF, "type", "reason")
    wanted = _family("modeldeployment_replicas", "Groups that the ModelDeployment asks for.", *OF)
    ready = _family("modeldeployment_ready_replicas", "Groups that serve.", *OF)
    down = _family(
        "modeldeployment_not_ready_timestamp_seconds",
        "Time since which the ModelDeployment is not Ready, in seconds since the Unix epoch; absent while it is Ready, and "
        "while it should have no groups.",
        *OF,
    )
    speed = _family(
        "modeldeployment_benchmark_tokens_per_second", "Generation rate that the most recent benchmark measured.", *OF
    )
    for deployment in deployments:
        of, status = (str(deployment.metadata.namespace), deployment.metadata.name), deployment.status
        _conditions(conditions, of, status.conditions)
        wanted.add_metric(of, deployment.wanted_groups)
        ready.add_metric(of, status.ready_replicas)
        found = find_condition(status.conditions, ConditionType.READY)
        if found is not None and found.status is not ConditionStatus.TRUE and deployment.wanted_groups:
            down.add_metric(of, found.last_transition_time.timestamp())
        rate = _number(status.benchmark.decode_tokens_per_second) if status.benchmark else None
        if rate is not None:
            speed.add_metric(of, rate)
    yield from (conditions, wanted, ready, down, speed)


def _groups(deployments: Iterable[ModelDeployment]) -> Iterator[GaugeMetricFamily]:
    labels = (*OF, "group")
    state = _family("modeldeployment_group_state", "1 for the present state of the group.", *labels, "state")
    restarts = _family(
        "modeldeployment_group_restarts", "Restarts after failures that count against spec.recovery.maxRestarts.", *labels
    )
    limit = _family("modeldeployment_group_max_restarts", "spec.recovery.maxRestarts.", *labels)
    failure = _family(
        "modeldeployment_group_last_failure_timestamp_seconds",
        "Time of the last failure of the group in seconds since the Unix epoch, with its first cause: reason, Node and cable.",
        *(*labels, "reason", "node", "link"),
    )
    for deployment in deployments:
        for group in deployment.status.groups:
            of = (str(deployment.metadata.namespace), deployment.metadata.name, str(group.index))
            state.add_metric([*of, group.state], 1.0)
            restarts.add_metric(of, group.restarts)
            limit.add_metric(of, deployment.spec.recovery.max_restarts)
            _failure(failure, of, group)
    yield from (state, restarts, limit, failure)


def _failure(family: GaugeMetricFamily, of: tuple[str, ...], group: Group) -> None:
    last = group.last_failure
    if last is not None:
        family.add_metric([*of, last.reason, last.node or "", last.link or ""], last.time.timestamp())


def _users(profiles: Iterable[NodeProfile]) -> Mapping[str, set[str]]:
    """Names of the groups that use each cable."""
    found: dict[str, set[str]] = {}
    for profile in profiles:
        for use in profile.status.groups:
            for link in use.links:
                found.setdefault(link, set()).add(use.name)
    return found


def _cables(links: Iterable[ThunderboltLink], users: Mapping[str, set[str]]) -> Iterator[GaugeMetricFamily]:
    conditions = _family("thunderboltlink_condition", f"{CONDITION}.", "name", "type", "reason")
    groups = _family("thunderboltlink_groups", "Groups that use the cable.", "name")
    negotiated = _family("thunderboltlink_negotiated_bytes_per_second", "Negotiated speed, the lower of both ends.", "name")
    measured = _family(
        "thunderboltlink_measured_bytes_per_second",
        "Throughput that the most recent benchmark measured.",
        *("name", "from", "to", "transport"),
    )
    flapping = _family(
        "thunderboltlink_flapping",
        "1 if the cable connects and disconnects so often that not every change is reported.",
        "name",
    )
    for link in links:
        name, status = link.metadata.name, link.status
        _conditions(conditions, (name,), status.conditions)
        groups.add_metric([name], len(users.get(name, ())))
        speeds = [end.speed_mbps for end in status.endpoints if end.speed_mbps]
        if speeds:
            negotiated.add_metric([name], min(speeds) * MEGABIT_BYTES)
        for one in status.measurements:
            if one.throughput_mbps is not None:
                measured.add_metric([name, one.from_, one.to, one.transport], one.throughput_mbps * MEGABIT_BYTES)
        flapping.add_metric([name], float(any(end.flapping for end in status.endpoints)))
    yield from (conditions, groups, negotiated, measured, flapping)


def _reserved(deployments: Iterable[ModelDeployment]) -> Mapping[str, int]:
    """GPU memory that groups have reserved on each Mac, in bytes."""
    found: dict[str, int] = {}
    for deployment in deployments:
        for group in deployment.status.groups:
            if group.state is not GroupPhase.PENDING:
                for rank in group.ranks:
                    found[rank.node] = found.get(rank.node, 0) + (rank.memory_bytes or 0)
    return found


def _backups(nodes: Iterable[Node]) -> Iterator[GaugeMetricFamily]:
    saved = _family(
        "control_plane_backup_timestamp_seconds",
        "Time of the last `thunderfleet backup` on a Mac with a control plane, in seconds since the Unix epoch; before the "
        "first one on that Mac, when the oldest Node with a control plane was created.",
        "node",
    )
    # Other control planes have backups of their own.
    planes = [node for node in nodes if node.mac and node.ours and node.control_plane]
    # A backup on any of them is one of the cluster, so a Mac that joins must not look like a recent one.
    oldest = min((node.created for node in planes if node.created is not None), default=None)
    for node in planes:
        if (last := node.saved or oldest) is not None:
            saved.add_metric([node.name], last.timestamp())
    yield saved


def _macs(profiles: Iterable[NodeProfile], nodes: Iterable[Node], reserved: Mapping[str, int]) -> Iterator[GaugeMetricFamily]:
    conditions = _family("mac_condition", f"{CONDITION}.", "node", "type", "reason")
    ready = _family("mac_ready", "1 if the Node is Ready, else 0.", "node")
    pressure = _family(
        "mac_pressure",
        "1 while the kubelet ends pods because the Mac has this pressure, such as DiskPressure, else 0.",
        "node",
        "type",
    )
    limit = _family("mac_gpu_memory_limit_bytes", "Memory that the GPU of the Mac may use.", "node")
    used = _family("mac_gpu_memory_reserved_bytes", "GPU memory that groups have reserved on the Mac.", "node")
    groups = _family("mac_groups", "Groups that are placed on the Mac.", "node")
    panic = _family(
        "mac_last_panic_timestamp_seconds", "Time of the last kernel panic in seconds since the Unix epoch.", "node"
    )
    for node in nodes:
        if node.mac:
            ready.add_metric([node.name], float(node.ready))
            for kind, holds in node.pressures:
                pressure.add_metric([node.name, kind], float(holds))
    for profile in profiles:
        name, status = profile.metadata.name, profile.status
        _conditions(conditions, (name,), status.conditions)
        if status.hardware is not None and status.hardware.gpu_memory_limit_bytes is not None:
            limit.add_metric([name], status.hardware.gpu_memory_limit_bytes)
        used.add_metric([name], reserved.get(name, 0))
        groups.add_metric([name], len(status.groups))
        if status.last_panic is not None:
            panic.add_metric([name], status.last_panic.time.timestamp())
    yield from (conditions, ready, pressure, limit, used, groups, panic)
