"""What is wrong with a ModelDeployment, a Mac or a cable, in a sentence. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionType

from thunderfleet_view import facts
from thunderfleet_view.facts import Json, Picture
from thunderfleet_view.follow import waiting_for

WITHOUT_RDMA = frozenset((Reason.RDMA_UNSUPPORTED, Reason.NO_DEVICES, Reason.BELOW_THUNDERBOLT5))
"""Reasons that are not problems: models run over TCP on such Macs and cables."""

RELIEF: Final[Mapping[str, str]] = {
    "DiskPressure": "delete models or other files from its disk",
    "MemoryPressure": "end programs that use its memory",
    "PIDPressure": "end programs that start many processes",
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
        # A kubelet that reports False says itself what is wrong.
        return text if ready.get("status") == "False" else f"{text}: check that the Mac is on and that its kubelet runs"
    if pressure := _pressure(node):
        return pressure
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


def _pressure(node: Json) -> str:
    """Why the kubelet ends pods; "" if it does not."""
    found = [(kind, one) for kind, one in facts.conditions(node).items() if kind in RELIEF and one.get("status") == "True"]
    return "; ".join(f"{kind}: {facts.plain(one.get('message') or '')}: {RELIEF[kind]}" for kind, one in found)


def cable_problem(link: Json) -> str:
    """What is wrong with a cable; "" if nothing is."""
    found = facts.conditions(link)
    connected = found.get(ConditionType.CONNECTED)
    if connected is None:
        return "the operator has not reported on it yet: if that lasts, check with `kubectl get pods -A` that it runs"
    for kind in (ConditionType.CONNECTED, ConditionType.SYMMETRIC, ConditionType.RDMA_USABLE):
        condition = found.get(kind, {})
        if condition.get("status") == "False" and condition.get("reason") not in WITHOUT_RDMA:
            return facts.said(condition)
    return facts.said(connected) if connected.get("status") == "Unknown" else ""
