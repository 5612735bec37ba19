"""Whether components of the control plane and the operator work, as Leases, Nodes and the operator's pods show. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from thunderfleet_crds.names import CONDITION_CONTROL_PLANE

from thunderfleet_view import facts
from thunderfleet_view.facts import Json, Picture, parsed_time
from thunderfleet_view.renewals import STALE_SECONDS, ahead, behind, noted

SCHEDULER: Final = "kube-scheduler"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
OPERATOR: Final = "operator"
LEASE: Final = "thunderfleet-operator"
"""The Lease of the operator's replicas."""
API_SERVER: Final = "API server"
ETCD: Final = "etcd"
SLOW_SECONDS: Final = 1.0
"""A part of the control plane is slow if the quickest of a few small requests takes longer."""
RECENT_SECONDS: Final = 60.0
"""For how long a container of the operator that has ended is reported."""

ADVICE: Final[Mapping[str, str]] = {
    SCHEDULER: "start it; until then pods are not scheduled",
    CONTROLLER_MANAGER: (
        "start it; until then Macs that are off stay Ready, and pods of agents and the operator are not replaced"
    ),
    OPERATOR: "check its pods with `kubectl get pods -A -l app.kubernetes.io/component=operator`",
    API_SERVER: "check the load of its machine, and that of the disk of etcd",
    ETCD: "check that its disk is fast and has room, and the load of its machine",
}
WAY: Final = "way to the API server"
CLOCK: Final = "clock of the operator"
RESTART: Final = "restart of the operator"
WORKS: Final = frozenset((RESTART, API_SERVER, ETCD))
"""Subjects of components that work, but have just restarted or may only be busy."""
HARMLESS: Final = frozenset((CLOCK, *WORKS))
"""Subjects of problems that explain no state of a ModelDeployment by themselves."""


NONE: Final = (
    "`kubectl describe deployment -A -l app.kubernetes.io/component=operator` shows whether it is scaled to 0 or its pods "
    "are refused; if there is none, install the chart"
)
"""What to do if the operator has no pods. A list of its pods would only be empty."""


def slow_part(ping: float) -> str:
    """Which part of a slow control plane is slow. ``ping``: duration in seconds of a request that does not use etcd."""
    return API_SERVER if ping > SLOW_SECONDS else ETCD


def operator_problem(operators: Sequence[Json] | None) -> str:
    """Which of the operator's pods do not work; "" if all do, or if they could not be read (None)."""
    if operators is None:
        return ""
    present = [pod for pod in operators if not pod["metadata"].get("deletionTimestamp")]
    unready = [pod for pod in present if not facts.holds(pod, "Ready")]
    if not present:
        return f"no pod of the operator exists: {NONE}"
    if len(unready) == len(present):
        return f"no pod of the operator is ready: {ADVICE[OPERATOR]}"
    return "; ".join(map(_unready, unready))


def _unready(pod: Json) -> str:
    return f"{_pod(pod)} is not ready; another replica works: {_describe(pod)} shows why"


def _pod(pod: Json) -> str:
    return f"Pod {facts.name(pod)} on {facts.plain((pod.get('spec') or {}).get('nodeName') or 'no Node')}"


def _describe(pod: Json) -> str:
    return f"`kubectl describe pod -n {facts.plain(pod['metadata'].get('namespace') or '')} {facts.name(pod)}`"


def _operator_clock(picture: Picture) -> str:
    """The error of the clock of the operator's leader, as a sentence; "" if the clock is right or its error unknown."""
    lease = picture.leases.get(OPERATOR, {})
    seconds = ahead(lease)
    if not seconds:
        return ""
    holder = str((lease.get("spec") or {}).get("holderIdentity") or "").rpartition("_")[0]
    where = next((_pod(pod) for pod in picture.operators if facts.name(pod) == holder), "the operator")
    direction = "ahead of" if seconds > 0 else "behind"
    return (
        f"the clock of {where} is {abs(seconds):,.0f} s {direction} the API server's: set the clock of that machine, on a Mac "
        "with `sudo sntp -sS time.apple.com`"
    )


def _operator_restarts(picture: Picture) -> str:
    """Which of the operator's containers have restarted recently."""
    found = (_restarted(pod, picture.now) for pod in picture.operators)
    return "; ".join(text for text in found if text)


def _restarted(pod: Json, now: datetime | None) -> str:
    for one in facts.status(pod).get("containerStatuses") or ():
        ended = (one.get("lastState") or {}).get("terminated") or {}
        when = parsed_time(ended.get("finishedAt"))
        if now is None or when is None or (seconds := (now - when).total_seconds()) > RECENT_SECONDS:
            continue
        return (
            f"{_pod(pod)} ended {max(0, seconds):.0f} s ago (exit code {ended.get('exitCode')}) and was started again; "
            f"{_describe(pod)} shows why"
        )
    return ""


def unreached(picture: Picture) -> str:
    """Why only this program seems to reach the API server; "" if others reach it too, or if that is not known.

    While no Lease is renewed, Leases cannot be compared with each other, so they are compared with the API server's time.
    """
    times = [time for lease in (*picture.leases.values(), *picture.kubelets.values()) if (time := noted(lease)) is not None]
    if picture.now is None or not picture.kubelets or not times:
        return ""
    seconds = (picture.now - max(times)).total_seconds()
    if seconds <= STALE_SECONDS:
        return ""
    return (
        f"the API server answers here, but no kubelet and no other program has renewed its Lease for {seconds:.0f} s: either "
        "the API server has just come back, or no machine reaches it: check the network between the machines and the API server"
    )


def problems(picture: Picture) -> Mapping[str, str]:
    """What is wrong with each component that does not work, and what to do."""
    said = "" if "operators" in picture.unread else operator_problem(picture.operators)
    return {**beside_pods(picture), **({OPERATOR: said} if said else {})}


def beside_pods(picture: Picture) -> Mapping[str, str]:
    """Same as ``problems``, without the state of the operator's pods.

    Nodes with a control plane report its faults; the only instance of a component renews no Lease.
    """
    text = "has not renewed its Lease for {:.0f} s, so it does not run or does not reach the API server: {}"
    silent = behind(picture.leases, picture.kubelets.values())
    found = {component: text.format(seconds, ADVICE[component]) for component, seconds in silent.items()}
    for subject, said in (
        (WAY, unreached(picture)),
        (CLOCK, _operator_clock(picture)),
        (RESTART, _operator_restarts(picture)),
    ):
        if said:
            found[subject] = said
    for part, seconds in picture.slow.items():
        found[part] = f"the {part} answers slowly: a small request took {seconds:.1f} s: {ADVICE[part]}"
    for node in picture.nodes:
        condition = facts.conditions(node).get(CONDITION_CONTROL_PLANE, {})
        if condition.get("status") == "False":
            found[f"control plane on {facts.name(node)}"] = facts.plain(condition.get("message") or "")
    return found
