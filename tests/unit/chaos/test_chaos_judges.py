"""The chaos suite's judges accept what is right and reject what is wrong."""

import json
from typing import Any

import pytest

from tests.chaos import checks
from tests.chaos.clients import Outcome, Question, Reading, judge_status, judge_whole
from tests.chaos.faults import RANK, SUPERVISOR

QUESTION = Question("?", 3, (7, 8, 9))


def piece(*ids: int, finish: str | None = None) -> str:
    return json.dumps({"choices": [{"token_ids": list(ids), "finish_reason": finish}]})


def read(*events: str, cleanly: bool = True) -> Outcome:
    reading = Reading(QUESTION)
    for event in events:
        if reading.event(event):
            return Outcome.WRONG
    return reading.end(cleanly, "reset").outcome


WHOLE = (piece(7), piece(8), piece(9), piece(finish="length"), "[DONE]")
BROKEN = json.dumps({"error": {"message": "the group failed"}})


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        (WHOLE, Outcome.WHOLE),
        ((*WHOLE[:2], BROKEN), Outcome.ERROR_EVENT),
        ((BROKEN,), Outcome.ERROR_EVENT),
        (WHOLE[:3], Outcome.WRONG),
        ((), Outcome.WRONG),
        ((*WHOLE[:2], "[DONE]"), Outcome.WRONG),
        ((WHOLE[0], *WHOLE[2:]), Outcome.WRONG),
        ((piece(7), piece(9), BROKEN), Outcome.WRONG),
        ((*WHOLE, BROKEN), Outcome.WRONG),
        ((BROKEN, "[DONE]"), Outcome.WRONG),
        ((piece(7), json.dumps({"error": {}})), Outcome.WRONG),
        (("{",), Outcome.WRONG),
    ],
)
def test_a_stream_is_whole_or_says_that_it_is_not(events: tuple[str, ...], outcome: Outcome) -> None:
    assert read(*events) is outcome


def test_a_broken_stream_differs_from_one_that_ends() -> None:
    assert read(*WHOLE[:2], cleanly=False) is Outcome.CUT
    assert read(*WHOLE, cleanly=False) is Outcome.WHOLE


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"choices": [{"token_ids": [7, 8, 9], "finish_reason": "length"}]}, Outcome.WHOLE),
        ({"choices": [{"token_ids": [7, 8], "finish_reason": "length"}]}, Outcome.WRONG),
        ({"choices": [{"token_ids": [7, 8, 9]}]}, Outcome.WRONG),
        ({"choices": []}, Outcome.WRONG),
        ([], Outcome.WRONG),
    ],
)
def test_an_answer_in_one_piece(body: object, outcome: Outcome) -> None:
    assert judge_whole(json.dumps(body).encode(), QUESTION).outcome is outcome


def test_an_error_has_a_message_and_says_when_to_come_again() -> None:
    body = json.dumps({"error": {"message": "not Ready"}}).encode()
    assert judge_status(503, {"Retry-After": "5"}, body).outcome is Outcome.REFUSED
    assert judge_status(503, {}, body).outcome is Outcome.WRONG
    assert judge_status(429, {}, body).outcome is Outcome.REFUSED
    assert judge_status(500, {}, b"oops").outcome is Outcome.WRONG
    assert judge_status(500, {}, json.dumps({"error": {"message": ""}}).encode()).outcome is Outcome.WRONG


def child(kind: str, name: str, epoch: int | None = 3, ending: bool = False) -> dict[str, Any]:
    labels = {} if epoch is None else {checks.EPOCH: str(epoch)}
    metadata: dict[str, Any] = {"name": name, "labels": labels, **({"deletionTimestamp": "now"} if ending else {})}
    return {"kind": kind, "metadata": metadata}


CHILDREN = [child("Pod", "0"), child("Pod", "1"), child("ConfigMap", "g"), child("Secret", "g"), child("Service", "s", None)]


def test_objects_lost_doubled_or_of_another_epoch_are_seen() -> None:
    assert not checks.objects(CHILDREN, 3, 2)
    assert checks.objects(CHILDREN[1:], 3, 2)
    assert checks.objects(CHILDREN[:2] + CHILDREN[3:], 3, 2)
    assert checks.objects([*CHILDREN, child("Secret", "old")], 3, 2)
    assert checks.objects([*CHILDREN[:3], child("Secret", "g", 2)], 3, 2)
    assert checks.objects([*CHILDREN[:1], child("Pod", "1", ending=True), *CHILDREN[2:]], 3, 2)


def test_processes_lost_doubled_or_orphaned_are_seen() -> None:
    right = [f"{mac}: {pid} S python {word}" for mac in "ab" for pid, word in enumerate((RANK, SUPERVISOR))]
    assert not checks.processes(right, ["a", "b"])
    assert not checks.processes([*right, f"a: 9 S {checks.CABLE}"], ["a", "b"])
    assert checks.processes(right[1:], ["a", "b"])
    assert checks.processes([*right, f"a: 9 S {RANK}"], ["a", "b"])
    assert checks.processes([*right, f"c: 9 S {RANK}"], ["a", "b"])
    assert checks.processes([*right, "c: 9 S a shim"], ["a", "b"])
    assert checks.processes(right, ["a", "b", "c"])


def test_orphaned_processes_are_found() -> None:
    pods = [{"metadata": {"uid": "u"}, "spec": {"nodeName": "a"}}, {"metadata": {"uid": "v"}, "spec": {"nodeName": "b"}}]
    assert not checks.accounts({"a": checks.Census(1, ("u",), ())}, pods)
    assert checks.accounts({"a": checks.Census(1, ("v",), ())}, pods)
    assert checks.accounts({"a": checks.Census(1, ("u", "u"), ())}, pods)
    assert checks.accounts({"a": checks.Census(2, ("u",), ())}, pods)
    assert checks.accounts({"a": checks.Census(0, ("u",), ())}, pods)
    assert checks.accounts({"a": checks.Census(1, ("u",), ("9 python -m thunderfleet_runner.rank",))}, pods)
    assert not checks.accounts({"a": checks.Census(1, ("u",), (), ("u",))}, pods)
    assert checks.accounts({"a": checks.Census(1, ("u",), (), ("v",))}, pods)
    assert checks.accounts({"a": checks.Census(1, ("u",), (), ("u",), {"/tmp": 9})}, pods)


def test_objects_of_no_deployment_are_found() -> None:
    stray = {"kind": "Secret", "metadata": {"namespace": "old", "name": "keys"}}
    assert not checks.strays([stray], {"old", "new"})
    assert checks.strays([stray], {"new"}) == ["Secret old/keys belongs to no deployment"]


def test_what_an_untouched_group_has_restarted_is_seen() -> None:
    look = {"epoch": 1, "containers": {"u": [("c", 0)]}}
    assert not checks.disturbed(look, dict(look))
    assert checks.disturbed(look, {**look, "epoch": 2})
    assert checks.disturbed(look, {**look, "containers": {"u": [("d", 1)]}})


def test_ports_that_are_open_or_closed_wrongly_are_seen() -> None:
    plan = {"ranks": [{"node": "a", "gatewayPort": 20000, "controlPort": 20001}]}
    right = {("a", 20000), ("a", 20001), ("a", 10250)}
    assert not checks.ports(right, plan)
    assert checks.ports({*right, ("a", 21000)}, plan)
    assert checks.ports({*right, ("b", 20000)}, plan)
    assert checks.ports({("a", 20000)}, plan)


def test_a_status_explains_when_it_says_what_to_do() -> None:
    def status(message: str, state: str = "True") -> dict[str, Any]:
        return {"conditions": [{"type": "Degraded", "status": state, "reason": "Failed", "message": message}]}

    assert checks.explains(status("group 0: rank 1 on mac-2 ended; the next placement is in 5 s"))
    assert not checks.explains(status(""))
    assert not checks.explains(status("something failed"))
    assert not checks.explains(status("the next placement is in 5 s", "False"))
    assert not checks.explains({})


def test_a_group_that_only_takes_its_time_does_not_say_that_something_is_lost() -> None:
    forming = {"type": "Bootstrapped", "status": "False", "reason": "NotFormed", "message": "waiting for rank 1 (mac-2)"}
    assert checks.explains({"conditions": [forming]})
    assert not checks.explains({"conditions": [forming]}, checks.TROUBLE)
    assert checks.explains({"conditions": [{**forming, "type": "Placed"}]}, checks.TROUBLE)
