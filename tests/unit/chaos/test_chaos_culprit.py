"""The fault suite's judge of names: a text names the culprit of a fault, or it does not."""

import pytest
from thunderfleet_crds.vocabulary import ConditionType

from tests.chaos import culprit, plan
from tests.chaos.culprit import Channel, Look, Names
from tests.chaos.person import impatient
from tests.chaos.plan import Action, Fault, Target


@pytest.mark.parametrize("fault", plan.FAULTS, ids=str)
def test_every_fault_but_an_update_has_a_culprit(fault: Fault) -> None:
    found = culprit.culprit(fault, "mac-1", "mac-2", 0)
    assert (found is None) == (fault.action is Action.UPDATE)
    assert found is None or not found.named("something is wrong")


@pytest.mark.parametrize(
    ("action", "target", "text", "named"),
    [
        (Action.LOSE, Target.MAC, "Node mac-1: NotReady", True),
        (Action.LOSE, Target.MAC, "Node mac-10: NotReady", False),
        (Action.CUT, Target.CABLE, "ThunderboltLink mac-1.tb1--mac-2.tb3: Unplugged", True),
        (Action.CUT, Target.CABLE, "ThunderboltLink mac-2.tb1--mac-1.tb3: Unplugged", True),
        (Action.CUT, Target.CABLE, "ThunderboltLink mac-1.tb1--mac-3.tb1: Unplugged", False),
        (Action.CUT, Target.CABLE, "group 0: rank 1 on mac-2 lost mac-1", False),
        (Action.KILL, Target.RANK, "last failure, rank 3 on mac-1: RankDied", True),
        (Action.KILL, Target.RANK, "last failure, rank 2 on mac-1: RankDied", False),
        (Action.KILL, Target.RANK, "Pod chaos-0-3-ab: exit code 137", True),
        (Action.FILL, Target.MAC, "Node mac-1: the disk is full", True),
        (Action.FILL, Target.MAC, "Node mac-1: NotReady", False),
        (Action.FILL, Target.ETCD, "etcd does not answer", True),
        (Action.BACK, Target.OPERATOR, "the clock of the operator was set", True),
        (Action.BACK, Target.MAC, "the clock of the operator was set", False),
        (Action.CUT, Target.API_SERVER, "the API server does not answer", True),
        (Action.KILL, Target.CONTROLLER_MANAGER, "kube-controller-manager does not run", True),
        (Action.STARVE, Target.AGENT, "mac-1: no agent reports on this Mac", True),
    ],
)
def test_a_text_names_what_was_hit(action: Action, target: Target, text: str, named: bool) -> None:
    found = culprit.culprit(Fault(action, target), "mac-1", "mac-2", 3, "chaos-0-3-ab")
    assert found is not None
    assert found.named(text) is named


def look(after: float, channel: Channel = Channel.WHY, *texts: str) -> Look:
    return Look(after, {channel: texts})


def test_the_first_look_that_names_it_counts() -> None:
    found = culprit.culprit(Fault(Action.KILL, Target.ETCD), "mac-1", "mac-2", 0)
    assert found is not None
    looks = [
        look(1),
        look(2, Channel.ALERT, "the Mac is off"),
        look(3, Channel.ALERT, "etcd is off"),
        look(4, Channel.ALERT, "etcd"),
    ]
    assert culprit.names([found], looks, noticed=False) == [Names("kill etcd", True, {"alert": 3})]


def test_what_nobody_can_see_has_no_symptom() -> None:
    found = culprit.culprit(Fault(Action.KILL, Target.AGENT), "mac-1", "mac-2", 0)
    assert found is not None
    looks = [look(1), look(2, Channel.AFTERWARDS, "last failure, recovered: an older one")]
    assert culprit.names([found], looks, noticed=False) == [Names("kill agent", False)]
    assert culprit.names([found], looks, noticed=True) == [Names("kill agent", True)]


def test_looks_are_read_as_they_were_written() -> None:
    found = Look(1.5, {Channel.WHY: ("a", "b"), Channel.ALERT: ()})
    assert Look.read(found.as_json()) == found


def test_the_table_counts_by_fault_and_channel() -> None:
    found = culprit.table([Names("kill etcd", True, {"why": 1, "alert": 2}), Names("kill etcd", False, {"why": 3})])
    assert found.splitlines()[1].split() == ["kill", "etcd", "2", "1", "2", "0", "0", "0", "1", "0"]


def test_rules_without_patience_ask_for_the_same_otherwise() -> None:
    name = "thunderfleet_modeldeployment_not_ready_timestamp_seconds"
    ready = f"time() - max by (namespace, name) ({name}) > 600"
    quarantined = f'max by (node) (thunderfleet_mac_condition{{type="{ConditionType.QUARANTINED}"}}) == 1'
    rules = {"groups": [{"rules": [{"expr": ready, "for": "1m"}, {"expr": quarantined, "for": "1m"}]}]}
    assert impatient(rules)["groups"][0]["rules"] == [
        {"expr": ready.replace("600", "15")},
        {"expr": quarantined},
    ]
