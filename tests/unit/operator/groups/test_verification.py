"""``spec.verify`` and the condition Verified: what a plan takes from it, and what the status says of a group's checks."""

from dataclasses import replace
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import (
    MAX_PROVEN_LENGTHS,
    Group,
    ModelDeployment,
    ModelDeploymentSpec,
    ProvenLengths,
    VerifiedStatus,
)
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.vocabulary import GroupPhase, RankPhase, Verify
from thunderfleet_operator.decide.group.lifecycle import NextStep, Step
from thunderfleet_operator.decide.placing.model import Resolution
from thunderfleet_operator.decide.placing.request import spec_hash
from thunderfleet_operator.decide.status.deployment import build
from thunderfleet_operator.decide.status.outcome import Outcome
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.observe.objects.pods import Pod
from thunderfleet_operator.watch.cache import CONFIGMAPS, PODS

from tests.unit.operator.values import NOW, group_status, report, view
from tests.unit.operator.world import World

PASSED = {"status": "True", "reason": "Verified", "message": "every bit right"}
RUNS = {"status": "Unknown", "reason": "NotVerified", "message": "the ranks check"}
WRONG = {"status": "False", "reason": "LinkCorrupts", "message": "data arrives changed"}
OFF = {"status": "Unknown", "reason": "VerificationDisabled", "message": "spec.verify is None"}
Json = dict[str, Any]


def deployment(replicas: int = 1, **spec: Any) -> ModelDeployment:
    wanted = {"model": {"repository": "org/tiny"}, "replicas": replicas, **spec}
    return ModelDeployment.load({"metadata": {"name": "md", "namespace": "ns", "uid": "uid", "generation": 1}, "spec": wanted})


def said(told: Json | None, phase: GroupPhase = GroupPhase.READY) -> Report:
    return report(phase, RankPhase.SERVING, RankPhase.SERVING, verified=told)


def known(told: Json, epoch: int = 1) -> Group:
    return group_status(epoch=epoch, verified=VerifiedStatus.load(told))


def outcome(found: Report, status: Group | None = None, **changes: Any) -> Outcome:
    return Outcome(replace(view(status=status), **changes), NextStep(Step.KEEP), found)


def verified(*outcomes: Outcome, **spec: Any) -> tuple[str, str, str]:
    of = deployment(len(outcomes), **spec)
    status = build(of, outcomes, Resolution(True, "Found", "there"), tuple[Pod, ...](), NOW)
    found = find_condition(status.conditions, "Verified")
    assert found is not None
    return found.status, found.reason, found.message


def group(found: Report, status: Group | None = None, **changes: Any) -> str | None:
    made = outcome(found, status, **changes)
    shown = build(deployment(), [made], Resolution(True, "Found", "there"), tuple[Pod, ...](), NOW).groups[0].verified
    return shown.reason if shown is not None else None


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (PASSED, ("True", "Verified", "group 0: every bit right")),
        (RUNS, ("Unknown", "NotVerified", "group 0: the ranks check")),
        (WRONG, ("False", "LinkCorrupts", "group 0: data arrives changed")),
        (None, ("Unknown", "NotVerified", "group 0: not checked yet")),
    ],
)
def test_the_condition_is_what_rank_0_reports(told: Json | None, expected: tuple[str, str, str]) -> None:
    assert verified(outcome(said(told))) == expected


def test_the_group_that_failed_counts_first_then_the_one_that_is_not_known_to_have_passed() -> None:
    good, wrong, runs = (replace(outcome(said(told)), view=numbered(i)) for i, told in enumerate((PASSED, WRONG, RUNS)))
    assert verified(good, wrong, runs) == ("False", "LinkCorrupts", "group 1: data arrives changed")
    assert verified(good, runs) == ("Unknown", "NotVerified", "group 2: the ranks check")
    other = replace(good, view=numbered(1))
    assert verified(good, other) == ("True", "Verified", "group 0: every bit right; group 1: every bit right")


def numbered(index: int) -> GroupView:
    return replace(view(), index=index)


def test_nothing_is_checked_where_nothing_is_wanted() -> None:
    assert verified() == ("Unknown", "ScaledToZero", "spec.replicas is 0")
    disabled = ("Unknown", "VerificationDisabled", "spec.verify is None, so nothing is checked")
    assert verified(outcome(said(OFF)), verify="None") == verified(outcome(said(None)), verify="None") == disabled


def test_what_was_known_counts_until_rank_0_says_something_else() -> None:
    silent = report(None)
    assert group(silent, known(PASSED)) == "Verified", "the operator has restarted"
    assert group(silent, known(PASSED), last_epoch=2) is None, "another placement has passed nothing yet"
    assert group(silent) is None
    assert group(said(None), known(PASSED)) is None, "a runner of an earlier version has replaced the pod"
    assert group(said(RUNS), known(PASSED)) == "NotVerified", "another attempt"


def test_a_check_that_failed_counts_until_another_one_has_ended() -> None:
    failed = known(WRONG)
    for found in (report(None), said(RUNS, GroupPhase.FORMING)):
        assert group(found, failed) == "LinkCorrupts"
        assert group(found, failed, last_epoch=2) == "LinkCorrupts", "in the next placement too"
    assert group(report(None), failed, epoch=None, pods=()) == "LinkCorrupts", "while there is no placement"
    assert group(said(PASSED), failed) == "Verified"
    assert group(said(OFF), failed) == "VerificationDisabled"


async def test_the_plan_says_what_is_wanted(world: World) -> None:
    world.deploy(verify="Quick")
    await world.round()
    plan = Plan.model_validate_json(world.cache[CONFIGMAPS].items["ns/md-0-e1"]["data"]["plan.json"])
    assert plan.verify is Verify.QUICK
    earlier = plan.model_dump(by_alias=True, mode="json")
    del earlier["verify"]
    assert Plan.model_validate(earlier).verify is Verify.FULL
    world.run_pods()
    world.say("Ready", 1, verified=PASSED)
    await world.round()
    assert world.condition("Verified")[:3] == ("True", "Verified", "group 0: every bit right")


def test_the_default_rolls_no_group_out_and_other_values_do() -> None:
    def hashed(**spec: Any) -> str:
        return spec_hash(ModelDeploymentSpec.load({"model": {"path": "/m"}, **spec}))

    assert hashed() == hashed(verify="Full")
    assert len({hashed(), hashed(verify="Quick"), hashed(verify="None")}) == 3
    with pytest.raises(ValueError, match="Quick"):
        hashed(verify="quick")


def lengths(found: Report, status: Group | None = None, **changes: Any) -> tuple[str, tuple[int, ...]] | None:
    made = outcome(found, status, **changes)
    shown = build(deployment(), [made], Resolution(True, "Found", "there"), tuple[Pod, ...](), NOW).groups[0].proven_lengths
    return (shown.digest, shown.lengths) if shown is not None else None


def test_what_a_model_has_proved_is_kept_for_as_long_as_it_is_the_same() -> None:
    told = PASSED | {"digest": "d", "lengths": [300]}
    before = group_status(proven_lengths=ProvenLengths(digest="d", lengths=(300, 2600)))
    assert lengths(said(told)) == ("d", (300,)) and lengths(said(PASSED)) is None
    assert lengths(said(told), before) == ("d", (300, 2600))
    for silent in (said(None), said(PASSED), said(PASSED | {"digest": ""})):
        assert lengths(silent, before) == ("d", (300, 2600))
        assert lengths(silent, before, last_epoch=2) == ("d", (300, 2600)), "in the next placement too"
    assert lengths(report(None), before, epoch=None, pods=()) == ("d", (300, 2600)), "while there is no placement"
    assert lengths(said(told | {"digest": "e"}), before) == ("e", (300,)), "other weights"
    many = told | {"lengths": list(range(1, 20))}
    assert lengths(said(many)) == ("d", tuple(range(1, 1 + MAX_PROVEN_LENGTHS)))


def grouped(found: Report, status: Group | None = None) -> Group:
    made = outcome(found, status)
    return build(deployment(), [made], Resolution(True, "Found", "there"), tuple[Pod, ...](), NOW).groups[0]


def test_hashed_copies_and_recorded_answers_are_kept() -> None:
    def copy(node: str, digest: str = "d") -> dict[str, str]:
        return {"node": node, "signature": "s", "digest": digest}

    answer = {"key": "k", "tokens": [5, 6], "costs": [10, 20], "margins": [900, 30]}
    told = PASSED | {"weights": [copy("a"), copy("b")], "recorded": answer}
    first = grouped(said(told))
    assert [one.node for one in first.weights] == ["a", "b"]
    assert [(one.key, one.tokens, one.costs, one.margins) for one in first.recorded_answers] == [
        ("k", (5, 6), (10, 20), (900, 30))
    ]
    for silent in (said(None), said(PASSED)):
        assert grouped(silent, first).weights == first.weights
        assert grouped(silent, first).recorded_answers == first.recorded_answers
    later = grouped(said(PASSED | {"weights": [copy("a", "e")], "recorded": answer | {"tokens": [7, 8]}}), first)
    assert [(one.node, one.digest) for one in later.weights] == [("b", "d"), ("a", "e")], "a new copy replaces the old one"
    assert later.recorded_answers == first.recorded_answers, "the first answer stays"
    for number in range(9):
        later = grouped(said(PASSED | {"recorded": answer | {"key": f"k{number}"}}), later)
    assert [one.key for one in later.recorded_answers] == ["k5", "k6", "k7", "k8"]
    for bad in (
        answer | {"key": "n", "tokens": [-1, 2]},
        answer | {"key": "n", "tokens": [1] * 65},
        answer | {"key": "n" * 200},
    ):
        assert grouped(said(PASSED | {"recorded": bad}), first).recorded_answers == first.recorded_answers


async def test_a_group_that_answers_wrong_stays_as_it_is_and_keeps_what_is_grouped(world: World) -> None:
    world.deploy()
    await world.serve()
    answer = {"key": "k", "tokens": [5], "costs": [10], "margins": [900]}
    copies = [{"node": "mac-that-has-left", "signature": "s", "digest": "w"}]
    told = PASSED | {"digest": "d", "lengths": [300], "recorded": answer, "weights": copies}
    world.say("Ready", 1, verified=told)
    await world.round()
    here = world.md.status.groups[0].ranks[0].node
    told["weights"] = [*copies, {"node": here, "signature": "s", "digest": "w"}]
    world.say("Ready", 1, verified=told)
    await world.round()
    wrong = {"fault": "Bug", "reason": "OutputWrong", "message": "number 3 is wrong", "at": world.now}
    world.say("GaveUp", 1, verified=told | {"status": "False", "reason": "OutputWrong"}, failure=wrong)
    for _ in range(3):
        world.later(600)
        await world.round()
    found = world.md.status.groups[0]
    assert (found.epoch, found.state, found.restarts) == (1, GroupPhase.GAVE_UP, 0)
    assert found.message == "number 3 is wrong; to try again, delete the pods of the group"
    assert world.condition("Ready")[:2] == ("False", "GaveUp") and world.condition("Verified")[:2] == ("False", "OutputWrong")
    world.restarted()
    await world.round()
    assert world.md.status.groups[0].state is GroupPhase.GAVE_UP, "an operator that has restarted knows it too"
    for name in world.pods():
        world.remove(PODS, f"ns/{name}")
    world.later(5)
    await world.round()
    plan = Plan.model_validate_json(world.cache[CONFIGMAPS].items["ns/md-0-e2"]["data"]["plan.json"])
    assert plan.proven_lengths is not None
    assert (plan.proven_lengths.digest, plan.proven_lengths.lengths) == ("d", (300,))
    assert [one.key for one in plan.recorded_answers] == ["k"]
    assert [(one.node, one.digest) for one in plan.known_weights] == [(here, "w")], "of its own Macs only"
