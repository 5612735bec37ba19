"""Whether this node takes a pod: asked again here, because the scheduler is not the only one who can bind a pod.

Three answers: take it; fail it (it was bound to a node on which it does not fit: another one must be made elsewhere); or let it
wait (it cannot run as a native process; marked Failed, a DaemonSet would make it anew for ever).
"""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from thunderfleet_lib.quantity import parse_quantity

from thunderfleet_kubelet.containers import volumes
from thunderfleet_kubelet.pods.lifecycle import TERMINAL_PHASES, Problem, init_containers, is_sidecar, main_containers

Json = dict[str, Any]


def cannot_run(pod: Json, images: Mapping[str, object], mac: bool) -> Problem | None:
    """Why the pod waits on this node for as long as it and the node's settings are as they are; None when it can run."""
    unknown = volumes.unknown_kinds(pod)
    missing = [item["image"] for item in init_containers(pod) + main_containers(pod) if item.get("image") not in images]
    if mac and missing and not asks_for_mac(pod):
        return Problem(
            "NotRunnableOnMac",
            f"image {missing[0]!r} is not one that runs as a native process on this Mac, and the pod does not ask for "
            "kubernetes.io/os=darwin: keep it off Macs with a nodeSelector of kubernetes.io/os: linux",
        )
    if unknown:
        return Problem(
            "NotRunnableOnMac" if mac else "CreateContainerConfigError",
            f"volume {', '.join(unknown)} is of a kind that this node cannot mount; it can: {', '.join(volumes.KNOWN)}",
        )
    if not pod["spec"].get("hostNetwork"):
        return Problem(
            "HostNetworkRequired",
            "pods on this node share its network, and a pod must say so: set spec.hostNetwork: true",
        )
    return None


def asks_for_mac(pod: Json) -> bool:
    """Whether somebody meant this pod for Macs (its node selector or required affinity says darwin)."""
    spec = pod["spec"]
    if (spec.get("nodeSelector") or {}).get("kubernetes.io/os") == "darwin" or spec.get("runtimeClassName") == "macos":
        return True
    return any(
        term.get("key") == "kubernetes.io/os" and term.get("operator") == "In" and "darwin" in (term.get("values") or [])
        for selector in _required_terms(pod)
        for term in selector.get("matchExpressions") or []
    )


def _required_terms(pod: Json) -> list[Json]:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return list((affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or [])


def requests(pod: Json) -> dict[str, Fraction]:
    """What the pod asks for: its containers and sidecars together, or its largest init container, and its overhead."""
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
    """(protocol, port) that the pod takes of its node: with host networking every port that it names."""
    found = set()
    for container in init_containers(pod) + main_containers(pod):
        for port in container.get("ports") or []:
            number = port.get("hostPort") or (port.get("containerPort") if pod["spec"].get("hostNetwork") else None)
            if number:
                found.add((str(port.get("protocol") or "TCP"), int(number)))
    return found


def _matches(term: Json, values: Mapping[str, str]) -> bool:
    value, wanted = values.get(str(term["key"])), [str(item) for item in term.get("values") or []]
    operator = term.get("operator")
    if operator == "In":
        return value in wanted
    if operator == "NotIn":
        return value not in wanted
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator in ("Gt", "Lt") and value is not None and re.fullmatch(r"-?\d+", value) and wanted:
        return int(value) > int(wanted[0]) if operator == "Gt" else int(value) < int(wanted[0])
    return False


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


def reject(
    pod: Json, others: Iterable[Json], node_name: str, labels: Mapping[str, str], allocatable: Mapping[str, str]
) -> tuple[str, str] | None:
    """(reason, sentence) why the pod fails here, beside the ``others`` that this node has taken; None when it fits."""
    active = [other for other in others if (other.get("status") or {}).get("phase") not in TERMINAL_PHASES]
    if not selects(pod, node_name, labels):
        return "NodeAffinity", f"Pod was rejected: node {node_name} does not match its node selector or affinity"
    limit = allocatable.get("pods")
    if limit is not None and len(active) + 1 > parse_quantity(limit):
        return "OutOfpods", f"Pod was rejected: node {node_name} runs {len(active)} of at most {limit} pods"
    taken: dict[str, Fraction] = {}
    for other in active:
        taken = _add(taken, requests(other))
    for name, wanted in sorted(requests(pod).items()):
        if wanted <= 0:
            continue
        capacity = parse_quantity(str(allocatable.get(name, "0")))
        if (name in allocatable or name not in ("cpu", "memory", "ephemeral-storage")) and (
            taken.get(name, Fraction(0)) + wanted > capacity
        ):
            message = (
                f"Pod was rejected: node {node_name} has not enough {name}: requested {_show(wanted)}, "
                f"used {_show(taken.get(name, Fraction(0)))}, allocatable {_show(capacity)}"
            )
            return f"OutOf{name}", message
    ports = host_ports(pod)
    for other in active:
        clash = ports & host_ports(other)
        if clash:
            protocol, number = min(clash)
            whose = f"{other['metadata']['namespace']}/{other['metadata']['name']}"
            return "NodePorts", f"Pod was rejected: {protocol} port {number} of node {node_name} is taken by pod {whose}"
    return None


def _show(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):g}"
