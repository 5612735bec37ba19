"""``why``: the path from a ModelDeployment to the first cause of its state. Pure.

Steps lead from the deployment through the operator, groups, ranks, Nodes and pods to cables. The cause is the step nearest to
the hardware that has a problem. For example, if a Mac is off, the cause is the Mac and not its pods.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from thunderfleet_crds.names import LABEL_GROUP, LABEL_RANK
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, GroupPhase

from thunderfleet_view import components, facts
from thunderfleet_view.components import HARMLESS, OPERATOR, SCHEDULER, WAY, WORKS
from thunderfleet_view.facts import Json, Picture
from thunderfleet_view.follow import without_scheduler_noise
from thunderfleet_view.health import FAILED, Health, of_condition
from thunderfleet_view.problems import AGENT_FAILS, cable_problem, leftover_problem, leftovers, problem_of_mac, silent_macs

CONDITIONS = (
    ConditionType.MODEL_RESOLVED,
    ConditionType.PLACED,
    ConditionType.BOOTSTRAPPED,
    ConditionType.VERIFIED,
    ConditionType.READY,
    ConditionType.DEGRADED,
)
MAX_UNPLACEABLE = 5
HEALTHY_WAITS = frozenset(("ContainerCreating", "PodInitializing"))


class Depth(IntEnum):
    """How near to the hardware a step is; the deepest problem is the cause."""

    CONDITION = 0
    PLACEMENT = 1
    GROUP = 2
    POD = 3
    FAILURE = 4
    CABLE = 5
    MAC = 6
    OPERATOR = 7


class State(StrEnum):
    """The state that a step shows."""

    OK = "ok"
    PROBLEM = "problem"
    WAITING = "waiting"
    """Work in progress, or a consequence of another step."""
    UNKNOWN = "unknown"
    NOTE = "note"
    """Worth knowing, but without effect on the model."""


@dataclass(frozen=True)
class Step:
    """An object on the path. ``indent``: 0 for the deployment."""

    indent: int
    subject: str
    state: State
    text: str
    depth: Depth
    since: str = ""


@dataclass(frozen=True)
class Why:
    """The path, and the step that is the cause; None if the deployment serves as it should."""

    steps: Sequence[Step]
    cause: Step | None


def why(picture: Picture, deployment: Json) -> Why:
    """Explains the state of a deployment in the picture."""
    steps = [*_deployment(deployment), *_way(picture), *_operator(picture, deployment), *_control_plane(picture, deployment)]
    silent = silent_macs(picture)
    for group in facts.groups(deployment):
        steps += _group(picture, deployment, group, silent)
    found = facts.conditions(deployment)
    serves = found.get(ConditionType.READY, {}).get("status") == ConditionStatus.TRUE
    degraded = found.get(ConditionType.DEGRADED, {}).get("status") == ConditionStatus.TRUE
    current = facts.status(deployment).get("observedGeneration") == deployment["metadata"].get("generation")
    if serves and not degraded and current:
        return Why(steps, None)
    problems = [step for step in steps if step.state in (State.PROBLEM, State.WAITING)]
    unknown = [step for step in steps if step.state is State.UNKNOWN]
    unheard = Step(0, "operator", State.UNKNOWN, "has not reported on this ModelDeployment yet", Depth.OPERATOR)
    return Why(steps, max(problems or unknown or [unheard], key=_weight))


def left(picture: Picture, name: str) -> str:
    """Remaining pods of a deleted ModelDeployment (its name, or ``namespace/name``), and their Macs; "" if none remain."""
    for full_name, pods in leftovers(picture).items():
        if name in (full_name, full_name.partition("/")[2]):
            return leftover_problem(pods, picture, overdue=False)
    return ""


def _weight(step: Step) -> tuple[bool, Depth, bool]:
    """A fault comes before work in progress. Conditions only summarize deeper steps."""
    fault = step.state is not State.WAITING
    return (fault and step.depth > Depth.CONDITION, step.depth, fault)


def as_values(found: Why) -> dict[str, Any]:
    """Steps and cause."""

    def value(step: Step) -> dict[str, Any]:
        return {"subject": step.subject, "state": step.state.value, "text": step.text, "since": step.since or None}

    return {"steps": [value(step) for step in found.steps], "cause": value(found.cause) if found.cause else None}


def _deployment(deployment: Json) -> Iterator[Step]:
    subject = f"ModelDeployment {facts.full_name(deployment)}"
    found = facts.conditions(deployment)
    for kind in CONDITIONS:
        condition = found.get(kind)
        if condition is None:
            continue
        status, state = condition.get("status"), _state(condition)
        if kind is ConditionType.DEGRADED and state is not State.PROBLEM:
            continue
        text = f"{kind} {status}: {without_scheduler_noise(facts.said(condition))}"
        # This step names the missing model and where; steps that follow from it list the Macs one by one.
        depth = Depth.PLACEMENT if kind is ConditionType.MODEL_RESOLVED else Depth.CONDITION
        yield Step(0, subject, state, text, depth, facts.plain(condition.get("lastTransitionTime") or ""))
    for one in (facts.status(deployment).get("unplaceable") or ())[:MAX_UNPLACEABLE]:
        nodes = ", ".join(facts.plain(node) for node in one.get("nodes") or ())
        subject = f"placement of group {one.get('group', 0)}" + (f" on {nodes}" if nodes else "")
        yield Step(1, subject, State.PROBLEM, facts.plain(one.get("message") or ""), Depth.PLACEMENT)


def _state(condition: Json) -> State:
    if condition.get("status") == ConditionStatus.UNKNOWN:
        return State.UNKNOWN
    health = of_condition(condition)
    return State.OK if health is Health.GOOD else State.PROBLEM if health is Health.BAD else State.WAITING


def _operator(picture: Picture, deployment: Json) -> Iterator[Step]:
    observed = facts.status(deployment).get("observedGeneration")
    current = observed == deployment["metadata"].get("generation")
    problem = components.operator_problem(picture.operators)
    if "operators" in picture.unread:
        yield Step(1, OPERATOR, State.UNKNOWN, picture.unread["operators"], Depth.OPERATOR)
        return
    if not facts.operators_ready(picture):
        yield Step(1, OPERATOR, State.PROBLEM, problem, Depth.OPERATOR)
        return
    if problem:
        # Another replica works, so this one causes no failure.
        yield Step(1, OPERATOR, State.NOTE, problem, Depth.CONDITION)
    if not current:
        yield Step(1, "operator", State.UNKNOWN, "has not reported on the last change of spec yet", Depth.OPERATOR)
    else:
        yield Step(1, "operator", State.OK, "has reported on the last change of spec", Depth.OPERATOR)


def _way(picture: Picture) -> Iterator[Step]:
    """A step for an API server that no machine reaches: the operator and all Nodes then appear to have ended."""
    if said := components.unreached(picture):
        yield Step(1, WAY, State.PROBLEM, said, Depth.OPERATOR)


def _control_plane(picture: Picture, deployment: Json) -> Iterator[Step]:
    """Components of Kubernetes that do not work. Each one is the cause only for objects that wait for it."""
    waits = any(not (pod.get("spec") or {}).get("nodeName") for pod in facts.pods_of(picture, deployment))
    # The controller manager starts no pod of a model, so any problem of the model itself is more relevant.
    for component, text in components.beside_pods(picture).items():
        if component == WAY:
            continue
        scheduler = SCHEDULER in (component, text.partition(" ")[0])
        first = component == OPERATOR or (scheduler and waits)
        depth = Depth.OPERATOR if first else Depth.CONDITION if component in HARMLESS else Depth.PLACEMENT
        yield Step(1, component, State.NOTE if component in WORKS else State.PROBLEM, text, depth)


def _group(picture: Picture, deployment: Json, group: Json, silent: Mapping[str, str]) -> Iterator[Step]:
    number, state = group.get("index", 0), facts.plain(group.get("state") or GroupPhase.PENDING)
    serves = state == GroupPhase.READY
    # The group has recovered from the failure, and moves to a better placement.
    returning = bool((group.get("lostPlace") or {}).get("returning"))
    message = without_scheduler_noise(facts.plain(group.get("message") or ""))
    text = f"{state}: {message}".removesuffix(": ")
    # Without a placement, the message only repeats why there is none.
    depth = Depth.GROUP if group.get("ranks") else Depth.CONDITION
    # Another step has the reason why a group has no placement.
    waits = State.PROBLEM if state in FAILED else State.WAITING
    yield Step(1, f"group {number}", State.OK if serves else waits, text, depth)
    yield from _intake(group)
    failure = group.get("lastFailure")
    if failure:
        over = serves or returning
        where = " on ".join(
            word
            for word in (
                f"rank {failure['rank']}" if failure.get("rank") is not None else "",
                facts.plain(failure.get("node") or ""),
            )
            if word
        )
        text = ": ".join(
            part for part in (facts.plain(failure.get("reason") or ""), facts.plain(failure.get("message") or "")) if part
        )
        subject = f"last failure{f', {where}' if where else ''}"
        # A failure from which a group has recovered is no problem, but explains a recent interruption.
        state_of = State.OK if over else State.PROBLEM
        yield Step(
            2,
            f"{subject}{', recovered' if over else ''}",
            state_of,
            text,
            Depth.FAILURE,
            facts.plain(failure.get("time") or ""),
        )
    for rank in group.get("ranks") or ():
        yield from _rank(picture, deployment, group, rank, silent)
    yield from _cables(picture, deployment, group, serves)


def _intake(group: Json) -> Iterator[Step]:
    """A step for the process of rank 0 that tokenizes requests, if it does not work."""
    said, ranks = facts.plain(group.get("intake") or ""), group.get("ranks") or ()
    if said and ranks:
        first = ranks[0]
        where = f"rank 0 on {facts.plain(first.get('node') or '')} (Pod {facts.plain(first.get('pod') or '')})"
        text = f"requests wait or fail, because the process that tokenizes them does not work: {said}"
        yield Step(2, f"intake, {where}", State.PROBLEM, text, Depth.POD)


def _rank(picture: Picture, deployment: Json, group: Json, rank: Json, silent: Mapping[str, str]) -> Iterator[Step]:
    number, node_name = rank.get("rank", 0), facts.plain(rank.get("node") or "")
    state = facts.plain(rank.get("state") or "")
    error = facts.plain(rank.get("lastError") or "")
    bad = state == "Failed"
    text = f"{state} on {node_name}" + (f": {error}" if error else "")
    yield Step(2, f"rank {number}", State.PROBLEM if bad else State.OK, text, Depth.GROUP)
    yield from _mac(picture, node_name, silent)
    for pod in facts.pods_of(picture, deployment):
        labels = facts.labels(pod)
        if labels.get(LABEL_GROUP) == str(group.get("index", 0)) and labels.get(LABEL_RANK) == str(number):
            problem = pod_problem(pod)
            yield Step(3, f"Pod {facts.name(pod)}", State.PROBLEM if problem else State.OK, problem or _phase(pod), Depth.POD)


def _mac(picture: Picture, name: str, silent: Mapping[str, str]) -> Iterator[Step]:
    if "nodes" in picture.unread or "profiles" in picture.unread:
        return
    node = next((one for one in picture.nodes if facts.name(one) == name), None)
    if node is None:
        yield Step(
            3, f"Node {name}", State.PROBLEM, "there is no such Node: start the Mac's kubelet, or let it join", Depth.MAC
        )
        return
    profile = next((one for one in picture.profiles if facts.name(one) == name), None)
    problem = problem_of_mac(node, profile, silent)
    # A cordoned Mac keeps its pods.
    bad = bool(problem) and not problem.startswith("cordoned")
    # Groups start and serve without an agent and with a wrong clock, so any other problem is more relevant.
    depth = Depth.CONDITION if problem.startswith((Reason.CLOCK_WRONG, AGENT_FAILS)) else Depth.MAC
    yield Step(3, f"Node {name}", State.PROBLEM if bad else State.OK, problem or "Ready", depth)


def _cables(picture: Picture, deployment: Json, group: Json, serves: bool) -> Iterator[Step]:
    if "links" in picture.unread:
        return
    lost = (group.get("lostPlace") or {}).get("links") or ()
    failed = (group.get("lastFailure") or {}).get("link")
    used = facts.links_of(picture, facts.group_name(deployment, group))
    names = dict.fromkeys((*used, *map(facts.plain, lost), *((facts.plain(failed),) if failed else ())))
    links = {facts.name(link): link for link in picture.links}
    for name in names:
        link = links.get(name)
        problem = cable_problem(link) if link is not None else "no Mac detects this cable: plug it into these ports"
        note = "" if name in used else " (the group has left it)"
        # RDMA that is off does not affect a group that serves over TCP.
        harmless = serves and link is not None and facts.holds(link, ConditionType.CONNECTED)
        state = State.OK if not problem else State.NOTE if harmless else State.PROBLEM
        yield Step(2, f"ThunderboltLink {name}", state, f"{problem or 'connected'}{note}", Depth.CABLE)


def pod_problem(pod: Json) -> str:
    """What keeps a pod from running; "" if nothing does."""
    status = facts.status(pod)
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = one.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason") not in HEALTHY_WAITS:
            last = (one.get("lastState") or {}).get("terminated")
            return _sentence(waiting) + (f"; before that: {_ended(last)}" if last else "")
        if ended and ended.get("exitCode"):
            return _ended(ended)
    scheduled = facts.conditions(pod).get("PodScheduled", {})
    if scheduled.get("status") == ConditionStatus.FALSE:
        return facts.said(scheduled)
    if status.get("phase") == "Failed":
        return _sentence(status) or "Failed"
    return ""


def _phase(pod: Json) -> str:
    deleted = pod["metadata"].get("deletionTimestamp")
    return (
        f"terminating since {facts.plain(deleted)}" if deleted else facts.plain(facts.status(pod).get("phase") or "not started")
    )


def _ended(state: Json) -> str:
    return f"exit code {state.get('exitCode')}" + (f": {text}" if (text := _sentence(state)) else "")


def _sentence(state: Json) -> str:
    return ": ".join(facts.plain(state[key]) for key in ("reason", "message") if state.get(key))
