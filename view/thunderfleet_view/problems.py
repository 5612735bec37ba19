"""What is wrong with a ModelDeployment, a Mac or a cable, as a sentence. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from thunderfleet_crds.names import CONDITION_DESCRIPTORS, LABEL_DEPLOYMENT
from thunderfleet_crds.reasons import WITHOUT_RDMA
from thunderfleet_crds.vocabulary import ConditionType

from thunderfleet_view import facts
from thunderfleet_view.facts import Json, Picture
from thunderfleet_view.follow import waiting_for
from thunderfleet_view.renewals import silent_kubelets

CHECK: Final = "check that the {} is on, that its kubelet runs, and that it reaches the API server"
AGENT_FAILS: Final = "the agent does not work"
OVERDUE_SECONDS: Final = 10.0
"""How long a pod may take to end beyond its grace period."""
RELIEF: Final[Mapping[str, str]] = {
    "DiskPressure": "delete models or other files from its disk",
    "MemoryPressure": "stop programs that use its memory",
    "PIDPressure": "stop programs that start many processes",
}
"""Conditions of Nodes under which the kubelet ends pods and starts none, and what helps."""


def macs(picture: Picture) -> Sequence[tuple[Json, Json | None]]:
    """Nodes that are Macs, each with its NodeProfile."""
    profiles = {facts.name(profile): profile for profile in picture.profiles}
    return [(node, profiles.get(facts.name(node))) for node in picture.nodes if not facts.is_linux(node)]


def deployment_problem(deployment: Json) -> str:
    """Why a ModelDeployment does not serve as it should; "" if it does."""
    ready, degraded = (facts.conditions(deployment).get(kind) for kind in (ConditionType.READY, ConditionType.DEGRADED))
    if ready is None or ready.get("status") != "True":
        return facts.plain(waiting_for({"metadata": deployment["metadata"], "status": facts.status(deployment)}))
    return facts.said(degraded) if degraded is not None and degraded.get("status") == "True" else ""


def mac_problem(node: Json, profile: Json | None) -> str:
    """What is wrong with a Mac; "" if nothing is."""
    ready = facts.conditions(node).get("Ready", {})
    if ready.get("status") != "True":
        text = f"NotReady: {facts.said(ready).rstrip('.') or 'the kubelet has not reported yet'}"
        # If the kubelet reports False, its message has the cause.
        return text if ready.get("status") == "False" else f"{text}: {CHECK.format('Mac')}"
    if pressure := _pressure(node):
        return pressure
    starved = facts.conditions(node).get(CONDITION_DESCRIPTORS, {})
    if starved.get("status") == "True":
        return facts.said(starved)
    if profile is None:
        return "no agent reports on this Mac: check with `kubectl get pods -A -o wide` that one runs there"
    found = facts.conditions(profile)
    quarantined = found.get(ConditionType.QUARANTINED, {})
    if quarantined.get("status") == "True":
        return facts.said(quarantined)
    for kind in (ConditionType.INVENTORY_COMPLETE, ConditionType.BRIDGE_FREE, ConditionType.CLOCK_SYNCHRONIZED):
        if found.get(kind, {}).get("status") == "False":
            return facts.said(found[kind])
    if (node.get("spec") or {}).get("unschedulable"):
        return f"cordoned: `kubectl uncordon {facts.name(node)}` allows new pods"
    return ""


def problem_of_mac(node: Json, profile: Json | None, silent: Mapping[str, str]) -> str:
    """What is wrong with a Mac, its kubelet or its agent; "" if nothing is. ``silent``: see ``silent_macs``."""
    found = mac_problem(node, profile)
    if found and not found.startswith("cordoned"):
        return found
    return silent.get(facts.name(node)) or found


def silent_macs(picture: Picture) -> Mapping[str, str]:
    """By Node, what is wrong with its kubelet or agent although the Node is Ready."""
    agents = {
        facts.plain((pod.get("spec") or {}).get("nodeName") or ""): (
            f"{AGENT_FAILS} (Pod {facts.name(pod)}): "
            f"`kubectl describe pod -n {facts.plain(pod['metadata'].get('namespace') or '')} {facts.name(pod)}` shows why"
        )
        for pod in picture.agents
        if _stuck(pod)
    }
    others = {facts.name(node) for node in picture.nodes if facts.is_linux(node)}
    kubelets = {
        name: (
            f"the kubelet has not renewed its Lease for {seconds:.0f} s: {CHECK.format('machine' if name in others else 'Mac')}"
        )
        for name, seconds in silent_kubelets(picture.kubelets, picture.leases.values()).items()
    }
    return {**agents, **kubelets}


def silent_machines(picture: Picture) -> Mapping[str, str]:
    """What is wrong with other machines than Macs that run the operator, although their Nodes are Ready."""
    used = {facts.plain((pod.get("spec") or {}).get("nodeName") or "") for pod in picture.operators}
    silent = silent_macs(picture)
    return {
        f"Node {name}": f"{silent[name]}; a replica of the operator is on this machine"
        for node in picture.nodes
        if facts.is_linux(node) and (name := facts.name(node)) in used and name in silent and facts.holds(node, "Ready")
    }


def leftovers(picture: Picture) -> Mapping[str, Sequence[Json]]:
    """Remaining pods of deleted ModelDeployments, by ``namespace/name`` of the ModelDeployment."""
    there = {(one["metadata"].get("namespace"), one["metadata"]["name"]) for one in picture.deployments}
    found: dict[str, list[Json]] = {}
    for pod in picture.pods:
        namespace, deployment = pod["metadata"].get("namespace"), facts.labels(pod).get(LABEL_DEPLOYMENT)
        if deployment and (namespace, deployment) not in there:
            found.setdefault(f"{facts.plain(namespace)}/{facts.plain(deployment)}", []).append(pod)
    return found


def leftover_problem(pods: Sequence[Json], picture: Picture, *, overdue: bool) -> str:
    """Which pods of a deleted ModelDeployment remain, and what is wrong with their Macs; "" if none remain.

    ``overdue``: only those that should have ended by now.
    """
    late = [pod for pod in pods if not overdue or _overdue(pod, picture)]
    silent, profiles = silent_macs(picture), {facts.name(profile): profile for profile in picture.profiles}
    nodes = {facts.name(node): node for node in picture.nodes}
    places = dict.fromkeys(facts.plain((pod.get("spec") or {}).get("nodeName") or "no Node") for pod in late)
    text = ", ".join(f"Pod {facts.name(pod)} on {(pod.get('spec') or {}).get('nodeName') or 'no Node'}" for pod in late)
    causes = [
        f"{name}: {said}"
        for name in places
        if name in nodes and (said := problem_of_mac(nodes[name], profiles.get(name), silent))
    ]
    return "; ".join((f"deleted, but not ended: {facts.plain(text)}", *causes)) if late else ""


def _overdue(pod: Json, picture: Picture) -> bool:
    """Whether a pod should have ended by now, by the deadline that the API server wrote."""
    until = facts.parsed_time(pod["metadata"].get("deletionTimestamp"))
    return until is not None and picture.now is not None and (picture.now - until).total_seconds() > OVERDUE_SECONDS


def _stuck(pod: Json) -> bool:
    """Whether a pod is not ready although its container has started before, so not because it is new."""
    started = [one for one in facts.status(pod).get("containerStatuses") or () if one.get("started") or one.get("restartCount")]
    return bool(started) and not facts.holds(pod, "Ready") and not pod["metadata"].get("deletionTimestamp")


def _pressure(node: Json) -> str:
    """Why the kubelet ends pods; "" if it does not."""
    found = [(kind, one) for kind, one in facts.conditions(node).items() if kind in RELIEF and one.get("status") == "True"]
    return "; ".join(f"{kind}: {facts.plain(one.get('message') or '')}: {RELIEF[kind]}" for kind, one in found)


def cable_problem(link: Json) -> str:
    """What is wrong with a cable; "" if nothing is."""
    found = facts.conditions(link)
    connected = found.get(ConditionType.CONNECTED)
    if connected is None:
        return "the operator has not reported on it yet: if that persists, check with `kubectl get pods -A` that it runs"
    for kind in (ConditionType.CONNECTED, ConditionType.SYMMETRIC, ConditionType.RDMA_USABLE):
        condition = found.get(kind, {})
        if condition.get("status") == "False" and condition.get("reason") not in WITHOUT_RDMA:
            return facts.said(condition)
    return facts.said(connected) if connected.get("status") == "Unknown" else ""
