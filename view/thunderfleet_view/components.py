"""Whether components of the control plane work, as their Leases show. Pure."""

from collections.abc import Mapping
from typing import Final

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
    SCHEDULER: "start it; pods get no Node meanwhile",
    CONTROLLER_MANAGER: "start it; Macs that go off stay Ready meanwhile, and pods of agents and the operator are not replaced",
    OPERATOR: "check its pods with `kubectl get pods -A -l app.kubernetes.io/component=operator`",
}


def problems(leases: Mapping[str, Json]) -> Mapping[str, str]:
    """What is wrong with each component that does not work, and what to do."""
    text = "has not renewed its Lease for {:.0f} s, so it does not run or does not reach the API server: {}"
    return {component: text.format(seconds, ADVICE[component]) for component, seconds in behind(leases).items()}
