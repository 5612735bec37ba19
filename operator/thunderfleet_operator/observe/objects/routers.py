"""Routers, and the pods that are routers."""

from dataclasses import dataclass

from thunderfleet_crds.names import LABEL_NAME

from thunderfleet_operator.observe.objects.metadata import Json

LABEL_COMPONENT = "app.kubernetes.io/component"
NAME, COMPONENT = "thunderfleet", "router"
"""Labels that the chart gives to routers. They count in the namespace of the release only."""


@dataclass(frozen=True, slots=True)
class Router:
    """A router that is ready."""

    node: str
    address: str


def is_router(pod: Json) -> bool:
    """Whether a pod has the labels of a router."""
    labels = pod["metadata"].get("labels") or {}
    return (labels.get(LABEL_NAME), labels.get(LABEL_COMPONENT)) == (NAME, COMPONENT)


def router_state(pod: Json | None) -> object:
    """The parts of a router's pod that clients depend on: equal for two versions of it if clients see no difference."""
    if pod is None or not is_router(pod):
        return None
    conditions = (pod.get("status") or {}).get("conditions") or []
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    gone = pod["metadata"].get("deletionTimestamp") is not None
    return ((pod.get("spec") or {}).get("nodeName"),) if ready and not gone else None
