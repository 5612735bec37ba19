"""The fault suite's file of results, its totals, and the judges of clients and writes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import judge, looks, plan, report
from tests.chaos.clients import Outcome, Result
from tests.chaos.plan import Action, Blow, Fault, Stage, Step, Target
from tests.chaos.report import Record, Results


def step(action: Action, target: Target, rank: int = 1, stage: Stage = Stage.STREAMS) -> Step:
    return Step(stage, (Blow(Fault(action, target), rank),), 5)


def record(episode: int = 0, **more: Any) -> Record:
    (first,) = plan.first(7, 3)[:1]
    return Record(7, episode, 0, first.macs, str(first.shape), first.steps[0], **more)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    assert results.read() == []
    one = record(injected=True, recovered=True, seconds=1.5, clients=Counter(whole=3), violations=["lost"], writes=0.5)
    results.append([one])
    results.append([record(1)])
    assert results.read() == [one, record(1)]


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"seed": 1}', "[]"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "results"
    file.write_text(json.dumps(record().as_json()) + "\n" + text + "\n")
    with pytest.raises(ValueError, match="line 2 is no result of a fault"):
        Results(file).read()


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path / "results")
    results.append([record()])
    size = results.path.stat().st_size
    monkeypatch.setattr(report, "FILE_LIMIT", size)
    with pytest.raises(ValueError, match="start a new file"):
        results.append([record(1)])
    assert results.path.stat().st_size == size
    assert len(results.read()) == 1


def test_totals_add_up() -> None:
    records = [
        record(injected=True, recovered=True, seconds=2.0, clients=Counter({"whole": 9, "broke off": 1}), writes=0.5),
        record(1, injected=True, violations=["lost"], writes=1.5),
        record(2),
    ]
    found = report.totals(records)
    assert (found["planned"], found["injected"], found["recovered"], found["violations"]) == (3, 2, 1, 1)
    assert (found["wholePercent"], found["writes"], found["worstSeconds"]) == (90.0, 1.0, 2.0)
    assert "VIOLATION at seed 7, episode 1" in report.table(records)
    assert "90.0 % whole" in report.table(records)


def violations(outcome: Outcome, of: Step) -> list[str]:
    found = record()
    judge.answers([Result(outcome, "why")], of, found)
    return found.violations


BESIDE, UPDATE = step(Action.KILL, Target.ETCD), step(Action.UPDATE, Target.AGENT)
RANK, GATEWAY = step(Action.KILL, Target.RANK), step(Action.KILL, Target.SUPERVISOR, 0)


@pytest.mark.parametrize(
    ("outcome", "of", "wrong"),
    [
        (Outcome.WHOLE, RANK, False),
        (Outcome.WRONG, GATEWAY, True),
        (Outcome.ERROR_EVENT, RANK, False),
        (Outcome.ERROR_EVENT, BESIDE, True),
        (Outcome.ERROR_EVENT, step(Action.KILL, Target.ETCD, stage=Stage.DRAINING), False),
        (Outcome.CUT, RANK, True),
        (Outcome.CUT, GATEWAY, False),
        (Outcome.CUT, step(Action.LOSE, Target.CABLE), False),
        (Outcome.REFUSED, RANK, False),
    ],
)
def test_what_a_client_may_get(outcome: Outcome, of: Step, wrong: bool) -> None:
    assert bool(violations(outcome, of)) == wrong


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.UNREACHABLE, Outcome.CUT, Outcome.ERROR_EVENT])
def test_no_client_may_notice_an_update(outcome: Outcome) -> None:
    found = record()
    judge.update([Result(Outcome.WHOLE), Result(outcome, "why")], RANK, found)
    assert not found.violations
    judge.update([Result(Outcome.WHOLE), Result(outcome, "why")], UPDATE, found)
    assert found.violations == [f"a client noticed the update: {outcome.value}: why"]


def test_clients_of_an_untouched_group_get_whole_answers_only() -> None:
    found = record()
    judge.untouched([Result(Outcome.WHOLE), Result(Outcome.REFUSED, "503")], found)
    assert found.violations == ["a client of the untouched group: refused with an error status: 503"]


def test_a_group_on_the_mac_that_is_hit_is_touched() -> None:
    cut = step(Action.CUT, Target.MAC)
    assert judge.touched(cut, ["a", "b"], "b")
    assert not judge.touched(cut, ["a", "b"], "a")
    assert not judge.touched(step(Action.KILL, Target.KUBELET), ["a", "b"], "b")


def event(second: float, user: str = "system:node:mac-1", verb: str = "patch", resource: str = "pods") -> dict[str, Any]:
    return {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"resource": resource, "name": "a"},
        "requestReceivedTimestamp": f"2026-01-01T00:00:{second:09.6f}Z",
    }


AGENT = "system:serviceaccount:thunderfleet-system:thunderfleet-agent"


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ([], [0] * 30),
        ([event(1.5), event(1.6), event(2.6), event(3.6)], [2, 1, 1] + [0] * 27),
        ([event(0), event(0.1), event(0.2), event(39)], [3] + [0] * 38 + [1]),
        ([event(1, "system:admin"), event(1, verb="get"), event(1, resource="leases")], [0] * 30),
        ([{**event(second), "user": {}} for second in range(5)] + [event(second) for second in range(5)], [1] * 5 + [0] * 25),
        ([event(second, AGENT) for second in range(40)], [1] * 40),
    ],
)
def test_writes_of_our_programs_are_counted_per_second(events: list[dict[str, Any]], counts: list[int]) -> None:
    assert looks.per_second(events) == counts


def test_the_most_frequent_writes_are_named() -> None:
    events = [event(1), event(2), event(3, AGENT, "create", "nodeprofiles"), event(4, "system:admin"), event(5, verb="get")]
    agent = AGENT.removeprefix("system:")
    assert looks.most_frequent(events) == f"2 x node:mac-1 patch pods, 1 x {agent} create nodeprofiles"


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([0] * 30, []),
        ([8] * 10 + [0] * 20, []),
        ([1] * 20 + [9] * 19, []),
        ([2] * 16 + [0] * 14, ["2.0 writes per second at the median"]),
        ([3] * 60, ["3.0 writes per second at the median"]),
        ([4] * 60, ["4.0 writes per second at the median", "240 writes in 60 s"]),
        ([179] + [0] * 29, []),
        ([180] + [0] * 29, ["180 writes in 30 s"]),
    ],
)
def test_a_rate_of_writes_that_lasts_or_too_many_at_once_are_found(counts: list[int], found: list[str]) -> None:
    assert judge.busy(counts) == found
