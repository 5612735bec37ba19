"""Whether components of the control plane work, as their Leases, Nodes and the operator's pods show. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from thunderfleet_crds.names import CONDITION_CONTROL_PLANE

from thunderfleet_view import facts
from thunderfleet_view.facts import Json, parsed_time

SCHEDULER: Final = "kube-scheduler"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
OPERATOR: Final = "operator"
LEASE: Final = "thunderfleet-operator"
"""The Lease of the operator's replicas."""
STALE_SECONDS: Final = 25.0
"""A component that has been behind the others for longer does not work. Each renews its Lease every few seconds."""


def behind(leases: Mapping[str, Json]) -> Mapping[str, float]:
    """By component, for how many seconds it has not renewed its Lease while another one has renewed its own.

    Only those that are stale. Compared with each other, because the clock of this machine may differ.
    """
    renewed = {
        component: when.timestamp()
        for component, lease in leases.items()
        if (when := parsed_time((lease.get("spec") or {}).get("renewTime"))) is not None
    }
    newest = max(renewed.values(), default=0.0)
    return {component: newest - when for component, when in renewed.items() if newest - when > STALE_SECONDS}


ADVICE: Final[Mapping[str, str]] = {
    SCHEDULER: "start it; until then pods are not scheduled",
    CONTROLLER_MANAGER: (
        "start it; until then Macs that are off stay Ready, and pods of agents and the operator are not replaced"
    ),
    OPERATOR: "check its pods with `kubectl get pods -A -l app.kubernetes.io/component=operator`",
}


def operator_problem(operators: Sequence[Json] | None) -> str:
    """Which of the operator's pods do not work; "" if all do, or if they could not be read (None)."""
    if operators is None:
        return ""
    present = [pod for pod in operators if not pod["metadata"].get("deletionTimestamp")]
    unready = [pod for pod in present if not facts.holds(pod, "Ready")]
    if len(unready) == len(present):
        return f"no pod of the operator is ready: {ADVICE[OPERATOR]}"
    return "; ".join(map(_unready, unready))


def _unready(pod: Json) -> str:
    name, namespace = facts.name(pod), facts.plain(pod["metadata"].get("namespace") or "")
    node = facts.plain((pod.get("spec") or {}).get("nodeName") or "no Node")
    return f"Pod {name} on {node} is not ready; another replica works: `kubectl describe pod -n {namespace} {name}` says why"


def problems(
    leases: Mapping[str, Json], operators: Sequence[Json] | None = None, nodes: Iterable[Json] = ()
) -> Mapping[str, str]:
    """What is wrong with each component that does not work, and what to do.

    ``operators``: the operator's pods; None if they could not be read. ``nodes``: those with a control plane say themselves
    what does not work there; a component that is alone renews no Lease.
    """
    text = "has not renewed its Lease for {:.0f} s, so it does not run or does not reach the API server: {}"
    found = {component: text.format(seconds, ADVICE[component]) for component, seconds in behind(leases).items()}
    if said := operator_problem(operators):
        found[OPERATOR] = said
    for node in nodes:
        condition = facts.conditions(node).get(CONDITION_CONTROL_PLANE, {})
        if condition.get("status") == "False":
            found[f"control plane on {facts.name(node)}"] = facts.plain(condition.get("message") or "")
    return found
