"""Whether this node takes a pod. Pure.

The scheduler is not the only one that binds pods, so the kubelet checks again. A pod that does not fit fails: its controller
makes another one. A pod that cannot run as a native process waits: if it failed, a DaemonSet would recreate it forever.
"""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from thunderfleet_crds.names import CAPABILITY_FIRST
from thunderfleet_lib.quantity import parse_quantity

from thunderfleet_kubelet.containers.inputs import volume_content
from thunderfleet_kubelet.pods.decide import podspec
from thunderfleet_kubelet.pods.decide.observed import Problem
from thunderfleet_kubelet.pods.decide.podspec import all_containers, has_ended, init_containers, is_sidecar, main_containers

Json = dict[str, Any]

Rejection = tuple[str, str]
"""Reason and message of a pod that the node fails."""

NICE_OF_FIRST = -15
"""The nice value of processes that come before other programs. The kubelet has the same until it has taken over its pods."""


def cannot_run(pod: Json, images: Mapping[str, object], mac: bool) -> Problem | None:
    """Why the pod waits until it or the kubelet's configuration changes; None when it can run."""
    missing = [item["image"] for item in all_containers(pod) if item.get("image") not in images]
    if mac and not asks_for_mac(pod):
        # The chart's admission policy checks only pods that select Macs, so no other pod may run, however it was bound.
        what = f"image {missing[0]!r} does not run as a native process on this Mac, and " if missing else ""
        return Problem(
            "NotRunnableOnMac",
            f"{what}the pod does not select kubernetes.io/os=darwin; set runtimeClassName: macos to run it on Macs, or keep it "
            "off Macs with nodeSelector kubernetes.io/os: linux",
        )
    unsupported = volume_content.unsupported(pod)
    if unsupported:
        return Problem(
            "NotRunnableOnMac" if mac else "CreateContainerConfigError",
            f"unsupported volumes: {', '.join(unsupported)}; this node supports {', '.join(volume_content.SUPPORTED)}",
        )
    if not pod["spec"].get("hostNetwork"):
        return Problem("HostNetworkRequired", "pods on this node use the host network; set spec.hostNetwork: true")
    return None


def asks_for_mac(pod: Json) -> bool:
    """Whether the pod selects Macs: by RuntimeClass, node selector or required node affinity.

    The match condition ``asks-for-a-mac`` of the admission policy thunderfleet-mac-pods is the same rule in CEL.
    """
    spec = pod["spec"]
    if (spec.get("nodeSelector") or {}).get("kubernetes.io/os") == "darwin" or spec.get("runtimeClassName") == "macos":
        return True
    return any(
        term.get("key") == "kubernetes.io/os" and term.get("operator") == "In" and "darwin" in (term.get("values") or [])
        for selector in _required_terms(pod)
        for term in selector.get("matchExpressions") or []
    )


def nice_of(pod: Json, container: Json) -> int:
    """The nice value of a container's processes: below 0 with the capability SYS_NICE, else 0. Only for pods that select Macs.

    The API server never changes this field of a pod, and the admission policy thunderfleet-mac-pods, which has the same rule in
    CEL, refuses the capability for pods of others than the operator.
    """
    capabilities = (container.get("securityContext") or {}).get("capabilities") or {}
    first = CAPABILITY_FIRST in (capabilities.get("add") or []) and asks_for_mac(pod)
    return NICE_OF_FIRST if first else 0


def _required_terms(pod: Json) -> list[Json]:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return list((affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or [])


def requests(pod: Json) -> dict[str, Fraction]:
    """The resources that the pod requests, by name.

    The larger of main containers and sidecars together, and each init container beside the sidecars before it; plus overhead.
    """
    total: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in init_containers(pod):
        asked = _of(container)
        if is_sidecar(container):
            total = _add(total, asked)
            peak = _max(peak, total)
        else:
            peak = _max(peak, _add(total, asked))
    for container in main_containers(pod):
        total = _add(total, _of(container))
    overhead = {name: parse_quantity(str(value)) for name, value in (pod["spec"].get("overhead") or {}).items()}
    return _add(_max(peak, total), overhead)


def _of(container: Json) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(str(value)) for name, value in merged.items()}


def _add(one: Mapping[str, Fraction], other: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {name: one.get(name, Fraction(0)) + other.get(name, Fraction(0)) for name in {*one, *other}}


def _max(one: Mapping[str, Fraction], other: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {name: max(one.get(name, Fraction(0)), other.get(name, Fraction(0))) for name in {*one, *other}}


def host_ports(pod: Json) -> set[tuple[str, int]]:
    """(protocol, port) that the pod occupies on its node; with host networking, every container port."""
    found = set()
    for container in all_containers(pod):
        for port in container.get("ports") or []:
            number = port.get("hostPort") or (port.get("containerPort") if pod["spec"].get("hostNetwork") else None)
            if number:
                found.add((str(port.get("protocol") or "TCP"), int(number)))
    return found


def _matches(requirement: Json, values: Mapping[str, str]) -> bool:
    """Whether one node selector requirement holds."""
    value, wanted = values.get(str(requirement["key"])), [str(item) for item in requirement.get("values") or []]
    match requirement.get("operator"):
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            # The API server checks the number of values and not whether they are integers.
            return len(wanted) == 1 and _is_beyond(operator, _integer(value), _integer(wanted[0]))
    return False


def _is_beyond(operator: str, value: int | None, bound: int | None) -> bool:
    if value is None or bound is None:
        return False
    return value > bound if operator == "Gt" else value < bound


def _integer(value: str | None) -> int | None:
    return int(value) if value is not None and re.fullmatch(r"-?\d{1,19}", value) else None


def selects(pod: Json, node_name: str, labels: Mapping[str, str]) -> bool:
    """Whether the pod's node selector and required node affinity hold for this node."""
    selector: Mapping[str, str] = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    terms = _required_terms(pod)
    return not terms or any(
        all(_matches(term, labels) for term in selector.get("matchExpressions") or [])
        and all(_matches(term, {"metadata.name": node_name}) for term in selector.get("matchFields") or [])
        and bool(selector.get("matchExpressions") or selector.get("matchFields"))
        for selector in terms
    )


def _untolerated(pod: Json, taints: Iterable[Json]) -> Json | None:
    """The first taint NoExecute that the pod does not tolerate. The others are for the scheduler only."""
    known = pod["spec"].get("tolerations") or []
    return next(
        (one for one in taints if one.get("effect") == "NoExecute" and not any(_tolerates(each, one) for each in known)), None
    )


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")) or toleration.get("key") not in (None, "", taint["key"]):
        return False
    if toleration.get("operator") == "Exists":
        return True
    equal = (toleration.get("value") or "") == (taint.get("value") or "")
    return toleration.get("operator") in (None, "", "Equal") and equal


BY_NODE = ("NodeAffinity", "PodOSNotSupported", "TaintToleration")
"""Reasons that depend on the labels and taints of the Node."""


def reject(
    pod: Json,
    others: Iterable[Json],
    node_name: str,
    labels: Mapping[str, str],
    allocatable: Mapping[str, str],
    *,
    taints: Iterable[Json] = (),
    switches_users: bool = False,
    disk_pressure: bool = False,
    shutting_down: bool = False,
) -> Rejection | None:
    """Why the node fails the pod; None when it fits. ``others``: the pods that the node has accepted.

    ``labels`` and ``taints``: of the Node. ``switches_users``: containers run as the users that their specs name.
    ``disk_pressure``: the node's disk is too full. ``shutting_down``: the machine shuts down.
    """
    if shutting_down:
        return "NodeShutdown", "Pod was rejected as the node is shutting down."
    if disk_pressure and not podspec.is_critical(pod):
        return "Evicted", "Pod was rejected: The node had condition: [DiskPressure]. "
    active = [other for other in others if not has_ended(other)]
    system = (pod["spec"].get("os") or {}).get("name")
    if system and system != labels.get("kubernetes.io/os", system):
        return "PodOSNotSupported", f"Failed to admit pod as the OS field, {system}, doesn't match node OS"
    if not selects(pod, node_name, labels):
        return "NodeAffinity", f"Pod was rejected: node {node_name} does not match the pod's node selector or affinity"
    taint = _untolerated(pod, taints)
    if taint is not None:
        name = f"{taint['key']}{'=' if taint.get('value') else ''}{taint.get('value') or ''}:NoExecute"
        return "TaintToleration", f"Pod was rejected: node {node_name} has the taint {name}, which the pod does not tolerate"
    limit = allocatable.get("pods")
    if limit is not None and len(active) + 1 > parse_quantity(limit):
        return "OutOfpods", f"Pod was rejected: node {node_name} already runs {len(active)} pods (maximum {limit})"
    return (
        _out_of_resources(pod, active, node_name, allocatable)
        or _port_conflict(pod, active, node_name)
        or (_user_conflict(pod, active) if switches_users else None)
    )


def _out_of_resources(pod: Json, active: list[Json], node_name: str, allocatable: Mapping[str, str]) -> Rejection | None:
    used: dict[str, Fraction] = {}
    for other in active:
        used = _add(used, requests(other))
    for name, wanted in sorted(requests(pod).items()):
        # A node that does not report one of the standard resources does not limit it.
        unlimited = name in ("cpu", "memory", "ephemeral-storage") and name not in allocatable
        free = parse_quantity(str(allocatable.get(name, "0"))) - used.get(name, Fraction(0))
        if wanted > 0 and wanted > free and not unlimited:
            return f"OutOf{name}", (
                f"Pod was rejected: node {node_name} does not have enough {name}: requested {_show(wanted)}, "
                f"used {_show(used.get(name, Fraction(0)))}, allocatable {allocatable.get(name, 0)}"
            )
    return None


def _port_conflict(pod: Json, active: list[Json], node_name: str) -> Rejection | None:
    ports = host_ports(pod)
    for other in active:
        shared = ports & host_ports(other)
        if shared:
            protocol, number = min(shared)
            namespace = other["metadata"]["namespace"]
            # The author of this pod may not be allowed to see pods of other namespaces.
            same = namespace == pod["metadata"]["namespace"]
            owner = f"pod {namespace}/{other['metadata']['name']}" if same else "a pod of another namespace"
            return "NodePorts", f"Pod was rejected: {protocol} port {number} of node {node_name} is in use by {owner}"
    return None


def _user_conflict(pod: Json, active: list[Json]) -> Rejection | None:
    """Two namespaces must not share a user: its processes can read each other's memory and environment."""
    users = podspec.named_users(pod)
    for other in active:
        shared = users & podspec.named_users(other)
        if shared and other["metadata"]["namespace"] != pod["metadata"]["namespace"]:
            # Another namespace's pod is not named: the author of this pod may not be allowed to see it.
            return "UserInUse", (
                f"Pod was rejected: a pod of another namespace on this node runs as user {min(shared)}; "
                "leave out runAsUser, so that the pod gets a user of its own"
            )
    return None


def _show(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):g}"
