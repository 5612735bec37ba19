"""The path from a ModelDeployment to the cause of its state: every step that is shown, in order, and what is left out."""

from datetime import UTC, datetime
from typing import Any

import pytest
from thunderfleet_view import facts, problems, why
from thunderfleet_view.facts import Picture
from thunderfleet_view.why import Why

from tests.support.page.fleetpage import cable, cable_name, conditions, node

Json = dict[str, Any]

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LINK = cable_name("studio-1", 1, "studio-2", 1)
MADE = "2026-03-01T11:00:00Z"


def deployment(ready: str = "True", **group: Any) -> Json:
    ranks = [{"rank": number, "node": f"studio-{number + 1}", "pod": f"chat-{number}", "state": "Serving"} for number in (0, 1)]
    found = conditions(Placed=("True", "Placed", "on 2 Macs"), Ready=(ready, "Serving" if ready == "True" else "Loading", ""))
    for one in found:
        one["lastTransitionTime"] = MADE
    return {
        "metadata": {"name": "chat", "namespace": "ml", "generation": 3},
        "spec": {},
        "status": {
            "observedGeneration": 3,
            "groups": [{"index": 0, "state": "Ready" if ready == "True" else "Loading", "ranks": ranks, **group}],
            "conditions": found,
        },
    }


def pod(rank: int, group: int = 0, namespace: str = "ml", model: str = "chat", **status: Any) -> Json:
    labels = {"thunderfleet.io/deployment": model, "thunderfleet.io/group": f"{group}", "thunderfleet.io/rank": f"{rank}"}
    metadata = {"name": f"{model}-{group}-{rank}", "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": f"studio-{rank + 1}"}, "status": {"phase": "Running", **status}}


def profile(name: str) -> Json:
    return {"metadata": {"name": name}, "status": {"groups": [{"name": "ml/chat-0", "links": [LINK]}], "conditions": []}}


OPERATOR: Json = {"metadata": {"name": "operator"}, "status": {"conditions": conditions(Ready=("True", "", ""))}}


def picture(**parts: Any) -> Picture:
    whole: Json = {
        "nodes": [node("studio-1"), node("studio-2")],
        "profiles": [profile("studio-1"), profile("studio-2")],
        "links": [cable("studio-1", 1, "studio-2", 1)],
        "pods": [pod(0), pod(1)],
        "operators": [OPERATOR],
        "now": NOW,
    }
    return Picture(**{**whole, **parts})


def lines(found: Why) -> list[str]:
    return [f"{'  ' * step.indent}{step.subject}: {step.state} {step.text}".rstrip() for step in found.steps]


def cause(found: Why) -> str:
    return f"{found.cause.subject}: {found.cause.text}" if found.cause is not None else ""


SERVING = [
    "ModelDeployment ml/chat: ok Placed True: Placed: on 2 Macs",
    "ModelDeployment ml/chat: ok Ready True: Serving",
    "  operator: ok has reported on the last change of spec",
    "  group 0: ok Ready",
    "    rank 0: ok Serving on studio-1",
    "      Node studio-1: ok Ready",
    "      Pod chat-0-0: ok Running",
    "    rank 1: ok Serving on studio-2",
    "      Node studio-2: ok Ready",
    "      Pod chat-0-1: ok Running",
    f"    ThunderboltLink {LINK}: ok connected",
]


def test_the_path_of_a_model_that_serves() -> None:
    found = why.why(picture(), deployment())
    assert lines(found) == SERVING and found.cause is None
    assert [step.since for step in found.steps[:3]] == [MADE, MADE, ""]
    values = why.as_values(found)
    assert values["cause"] is None and values["steps"][0] == {
        "subject": "ModelDeployment ml/chat", "state": "ok", "text": "Placed True: Placed: on 2 Macs", "since": MADE,
    }  # fmt: skip
    assert values["steps"][2]["since"] is None


def test_pods_of_other_models_groups_and_namespaces_are_not_on_the_path() -> None:
    others = [pod(0, namespace="other"), pod(0, model="other"), pod(0, group=1), pod(2)]
    assert lines(why.why(picture(pods=[*others, pod(0), pod(1)]), deployment())) == SERVING
    assert list(facts.pods_of(picture(pods=[*others, pod(1)]), deployment())) == [pod(0, group=1), pod(2), pod(1)]


def test_the_path_of_a_group_that_failed_on_a_mac_that_is_off() -> None:
    off = node("studio-2")
    off["status"]["conditions"] = conditions(Ready=("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."))
    failure = {"rank": 1, "node": "studio-2", "reason": "PeerLost", "message": "no answer", "time": MADE}
    group = deployment("False", state="Backoff", message="next attempt in 4 s", lastFailure=failure, intake="cannot start")
    found = why.why(picture(nodes=[node("studio-1"), off]), group)
    assert lines(found)[1:8] == [
        "ModelDeployment ml/chat: waiting Ready False: Loading",
        "  operator: ok has reported on the last change of spec",
        "  group 0: waiting Backoff: next attempt in 4 s",
        "    intake, rank 0 on studio-1 (Pod chat-0): problem requests wait or fail, because the process that tokenizes them "
        "does not work: cannot start",
        "    last failure, rank 1 on studio-2: problem PeerLost: no answer",
        "    rank 0: ok Serving on studio-1",
        "      Node studio-1: ok Ready",
    ]
    assert cause(found) == (
        "Node studio-2: NotReady: NodeStatusUnknown: Kubelet stopped posting node status: check that the Mac is on, that its "
        "kubelet runs, and that it reaches the API server"
    )
    assert next(step for step in found.steps if step.subject.startswith("last failure")).since == MADE
    recovered = why.why(picture(), deployment(lastFailure=failure))
    assert "    last failure, rank 1 on studio-2, recovered: ok PeerLost: no answer" in lines(recovered)
    assert recovered.cause is None


def test_the_number_of_a_group_and_its_ranks_are_those_of_the_status() -> None:
    second = deployment(index=1, ranks=[{"rank": 0, "node": "studio-1", "state": "Failed", "lastError": "killed"}])
    second["status"]["conditions"][1]["status"] = "False"
    found = why.why(picture(pods=[pod(0), pod(0, group=1, phase="Failed", reason="Evicted")], links=[]), second)
    assert [line for line in lines(found) if "group 1" in line or "rank" in line or "Pod" in line] == [
        "  group 1: ok Ready",
        "    rank 0: problem Failed on studio-1: killed",
        "      Pod chat-1-0: problem Evicted",
    ]


def test_a_group_without_ranks_has_no_intake_and_is_summed_up_by_its_placement() -> None:
    waiting = deployment("False", state=None, message="", ranks=[], intake="cannot start")
    waiting["status"]["unplaceable"] = [{"group": 0, "nodes": ["studio-1", "studio-2"], "message": "too small"}] * 7
    found = why.why(picture(pods=[], links=[]), waiting)
    assert lines(found)[2:] == [
        *["  placement of group 0 on studio-1, studio-2: problem too small"] * 5,
        "  operator: ok has reported on the last change of spec",
        "  group 0: waiting Pending",
        f"    ThunderboltLink {LINK}: problem no Mac detects this cable: plug it into these ports",
    ]
    unplaced = why.why(picture(pods=[], profiles=[]), waiting)
    assert cause(unplaced) == "placement of group 0 on studio-1, studio-2: too small"


def test_a_node_that_does_not_exist_and_what_may_not_be_read() -> None:
    found = why.why(picture(nodes=[node("studio-1")]), deployment("False"))
    assert cause(found) == "Node studio-2: there is no such Node: start the Mac's kubelet, or let it join"
    for kind in ("nodes", "profiles"):
        assert not [line for line in lines(why.why(picture(unread={kind: "forbidden"}), deployment())) if "Node" in line]
    unread = why.why(picture(unread={"links": "forbidden", "operators": "not allowed"}), deployment("False"))
    assert "ThunderboltLink" not in "".join(lines(unread))
    assert [step.state.value for step in unread.steps if step.subject.startswith("operator")] == ["unknown"]


def test_an_operator_that_has_not_reported_on_the_last_change_is_the_cause_if_nothing_else_is() -> None:
    changed = deployment()
    changed["metadata"]["generation"] = 4
    found = why.why(picture(), changed)
    assert cause(found) == "operator: has not reported on the last change of spec yet"
    fresh = {"metadata": {"name": "chat", "namespace": "ml", "generation": 1}, "spec": {}}
    unread = why.why(picture(unread={}), fresh)
    assert lines(unread) == ["  operator: unknown has not reported on the last change of spec yet"]
    works = {**fresh, "status": {"observedGeneration": 1}}
    assert cause(why.why(picture(), works)) == "operator: has not reported on this ModelDeployment yet"


def test_a_cable_that_a_group_has_left_or_that_failed_is_shown_once() -> None:
    other = cable_name("studio-1", 2, "studio-2", 2)
    moved = deployment(lostPlace={"links": [other], "returning": True}, lastFailure={"reason": "LinkDown", "link": other})
    found = why.why(picture(links=[cable("studio-1", 1, "studio-2", 1), cable("studio-1", 2, "studio-2", 2)]), moved)
    assert lines(found)[-2:] == [
        f"    ThunderboltLink {LINK}: ok connected",
        f"    ThunderboltLink {other}: ok connected (the group has left it)",
    ]
    assert "    last failure, recovered: ok LinkDown" in lines(found)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({}, ""),
        ({"containerStatuses": [{"state": {"running": {}}}]}, ""),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}]}, ""),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such tag"}}}]},
            "ErrImagePull: no such tag",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 3, "reason": "Error", "message": "no model"}},
                    }
                ]
            },
            "CrashLoopBackOff; before that: exit code 3: Error: no model",
        ),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}, ""),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]}, "exit code 137"),
        (
            {"initContainerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]},
            "exit code 1: Error",
        ),
        ({"conditions": conditions(PodScheduled=("False", "Unschedulable", "no room"))}, "Unschedulable: no room"),
        ({"conditions": conditions(PodScheduled=("True", "", ""))}, ""),
        ({"phase": "Failed"}, "Failed"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "Evicted: disk"),
        ({"phase": "Succeeded", "reason": "Odd"}, ""),
    ],
)
def test_what_keeps_a_pod_from_running(status: Json, problem: str) -> None:
    assert why.pod_problem({"metadata": {"name": "p"}, "status": status}) == problem


def test_a_pod_that_ends_says_since_when() -> None:
    ending = pod(0)
    ending["metadata"]["deletionTimestamp"] = MADE
    new = pod(1)
    del new["status"]["phase"]
    said = [step.text for step in why.why(picture(pods=[ending, new]), deployment()).steps if step.subject.startswith("Pod")]
    assert said == [f"terminating since {MADE}", "not started"]


@pytest.mark.parametrize(
    ("seconds", "age"),
    [
        (-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_799, "47h"), (172_800, "2d"),
        (864_000, "10d"),
    ],
)  # fmt: skip
def test_ages_change_their_unit_where_those_of_kubectl_do(seconds: int, age: str) -> None:
    then = datetime.fromtimestamp(NOW.timestamp() - seconds, UTC)
    assert facts.ago(then.isoformat(), NOW) == age
    assert facts.ago(then.replace(tzinfo=None).isoformat(), NOW) == age, "a time without a zone is UTC"


@pytest.mark.parametrize("text", [None, "", "yesterday", 5])
def test_what_is_no_time_has_no_age(text: object) -> None:
    assert facts.ago(text, NOW) == "" and facts.parsed_time(text) is None


@pytest.mark.parametrize(
    ("ready", "degraded", "problem"),
    [
        (("True", "Serving", ""), ("False", "Healthy", ""), ""),
        (("True", "Serving", ""), None, ""),
        (("True", "Serving", ""), ("True", "Restarting", "group 1 is down"), "Restarting: group 1 is down"),
        (("True", "Serving", ""), ("Unknown", "Odd", "x"), ""),
        (("False", "Loading", "loading"), ("False", "Healthy", ""), "Ready: loading"),
        (("False", "Loading", "loading"), ("True", "Restarting", "x"), "Ready: loading"),
    ],
)
def test_the_problem_of_a_deployment(ready: tuple[str, str, str], degraded: tuple[str, str, str] | None, problem: str) -> None:
    true = {kind: ("True", kind, "") for kind in ("ModelResolved", "Placed", "Bootstrapped")}
    found = conditions(**true, Ready=ready, **({} if degraded is None else {"Degraded": degraded}))
    assert problems.deployment_problem({"metadata": {"name": "chat"}, "status": {"conditions": found}}) == problem


@pytest.mark.parametrize(
    ("container", "ready", "deleted", "named"),
    [
        ({"started": True}, "False", False, True),
        ({"started": False, "restartCount": 2}, "False", False, True),
        ({"started": False, "restartCount": 0}, "False", False, False),
        ({"started": True}, "True", False, False),
        ({"started": True}, "False", True, False),
    ],
)
def test_an_agent_is_named_when_it_has_started_and_does_not_work(
    container: Json, ready: str, deleted: bool, named: bool
) -> None:
    agent: Json = {
        "metadata": {"name": "agent-x", "namespace": "system", **({"deletionTimestamp": MADE} if deleted else {})},
        "spec": {"nodeName": "studio-2"},
        "status": {"containerStatuses": [container], "conditions": conditions(Ready=(ready, "", ""))},
    }
    said = "the agent does not work (Pod agent-x): `kubectl describe pod -n system agent-x` shows why"
    assert problems.silent_macs(Picture(agents=[agent])) == ({"studio-2": said} if named else {})


def test_pods_that_remain_are_named_from_the_moment_they_are_overdue() -> None:
    def remaining(seconds: float) -> Picture:
        until = datetime.fromtimestamp(NOW.timestamp() - seconds, UTC).isoformat()
        one = pod(0)
        one["metadata"]["deletionTimestamp"] = until
        return picture(pods=[one], deployments=[])

    (overdue,) = problems.leftovers(remaining(0)).values()
    assert problems.leftover_problem(overdue, remaining(0), overdue=False) == why.left(remaining(0), "chat") != ""
    assert why.left(remaining(0), "ml/chat") == why.left(remaining(0), "chat")
    assert why.left(remaining(0), "other") == ""
    for seconds, named in ((problems.OVERDUE_SECONDS, False), (problems.OVERDUE_SECONDS + 1, True)):
        (pods,) = problems.leftovers(remaining(seconds)).values()
        assert bool(problems.leftover_problem(pods, remaining(seconds), overdue=True)) == named
