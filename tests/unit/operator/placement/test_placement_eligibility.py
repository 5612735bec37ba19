"""Which Macs may take a rank, and the sentence about each that may not."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from thunderfleet_crds.vocabulary import Transport
from thunderfleet_operator.observe.objects.nodes import taints
from thunderfleet_operator.placement.cohorts import cohorts
from thunderfleet_operator.placement.eligibility import ineligible_reason, tolerates, untolerated, wanted_model
from thunderfleet_operator.placement.explain.changed import fixed
from thunderfleet_operator.placement.inputs.fleet import Mac, Taint
from thunderfleet_operator.placement.inputs.model import ModelFacts
from thunderfleet_operator.placement.inputs.request import Request, Toleration

MODEL = ModelFacts("/m", "org/m", "abc", problem="", complete=True, sized=True)
MAC = Mac("a", "10.0.0.1", 100, models=(MODEL,), labels={"zone": "x"})
REQUEST = Request(repository="org/m")


def test_a_mac_that_may() -> None:
    assert ineligible_reason(MAC, REQUEST) is None
    assert ineligible_reason(MAC, Request(path="/m")) is None
    assert ineligible_reason(MAC, replace(REQUEST, selector={"zone": "x"})) is None
    second = replace(MODEL, path="/n", complete=False)
    assert ineligible_reason(replace(MAC, models=(second, MODEL)), REQUEST) is None


def unsized(path: str, problem: str) -> ModelFacts:
    return replace(MODEL, path=path, sized=False, problem=problem)


@pytest.mark.parametrize(
    ("mac", "request_", "reason"),
    [
        (MAC, replace(REQUEST, avoid={"a": "is avoided"}), "is avoided"),
        (replace(MAC, ready=False), REQUEST, "is not Ready: switch it on, or check its kubelet"),
        (replace(MAC, schedulable=False), REQUEST, "is cordoned (kubectl uncordon a)"),
        (replace(MAC, quarantine="why"), REQUEST, "is quarantined until it reboots: why"),
        (
            MAC,
            replace(REQUEST, selector={"zone": "y", "rack": "1"}),
            "does not have the label rack=1 and zone=y required by spec.nodes.selector",
        ),
        (
            replace(MAC, taints=(Taint("k", "v"),)),
            REQUEST,
            "has the taint k=v:NoSchedule, which spec.nodes.tolerations does not tolerate",
        ),
        (
            replace(MAC, taints=(Taint("k", effect="NoExecute"),)),
            REQUEST,
            "has the taint k:NoExecute, which spec.nodes.tolerations does not tolerate",
        ),
        (replace(MAC, address=""), REQUEST, "has no InternalIP address"),
        (replace(MAC, profiled=False), REQUEST, "has no NodeProfile yet; check that the agent runs there"),
        (
            replace(MAC, models=()),
            REQUEST,
            "does not have org/m on disk; copy it to org/m below a folder of agent.modelFolders",
        ),
        (
            MAC,
            replace(REQUEST, revision="def"),
            "has commit abc of org/m, not def, which spec.model.revision requires",
        ),
        (
            replace(MAC, models=(replace(MODEL, path="/n", revision="ab"), MODEL)),
            replace(REQUEST, revision="def"),
            "has commit ab and abc of org/m, not def, which spec.model.revision requires",
        ),
        (
            replace(MAC, models=(replace(MODEL, repository="org/other"),)),
            replace(REQUEST, revision="def"),
            "does not have org/m on disk; copy it to org/m below a folder of agent.modelFolders",
        ),
        (
            MAC,
            Request(path="/n", repository="org/m", revision="def"),
            "does not have /n on disk; copy it there",
        ),
        (
            replace(MAC, models=(replace(MODEL, unsupported="mlx-lm 1 does not support this model: why"),)),
            REQUEST,
            "cannot run the model at /m (install an image with a newer mlx-lm, or choose another model): "
            "mlx-lm 1 does not support this model: why",
        ),
        (
            replace(MAC, models=(replace(MODEL, complete=False, problem="x is missing"),)),
            REQUEST,
            "has an incomplete copy of the model at /m (copy it again): x is missing",
        ),
        (
            replace(MAC, models=(replace(MODEL, complete=False),)),
            REQUEST,
            "has an incomplete copy of the model at /m (copy it again): files are missing",
        ),
        (
            replace(MAC, max_pods=110, full=True),
            REQUEST,
            "runs 110 pods, as many as its kubelet allows: delete pods there, or raise its maxPods",
        ),
        (
            replace(MAC, models=(unsized("/m", "one"), unsized("/n", "two"))),
            REQUEST,
            "has not determined how much memory /m needs (its agent tries again every 5 minutes): one",
        ),
        (
            replace(MAC, models=(unsized("/m", ""),)),
            REQUEST,
            "computes how much memory /m needs; if this persists for more than a few minutes, see the log of its agent",
        ),
    ],
)
def test_a_mac_that_may_not(mac: Mac, request_: Request, reason: str) -> None:
    assert ineligible_reason(mac, request_) == reason


def others(value: object) -> list[Any]:
    """Values of a field of a Mac that differ from ``value``."""
    match value:
        case bool():
            return [not value]
        case int():
            return [0, value + 10**15]
        case str() | None:
            return [None, "", "x"]
        case Mapping():
            return [{}]
        case tuple():
            return [(), (Taint("key", "value", "NoSchedule"),)]
        case _:
            return []


def test_a_mended_mac_may_take_a_rank() -> None:
    asked = replace(REQUEST, selector={"zone": "x"})
    (cohort,) = cohorts({"a": MAC}, asked)
    kept_away = set()
    for field in fields(Mac):
        for value in others(getattr(MAC, field.name)):
            if field.name == "models" and value:
                continue
            mac = replace(MAC, **{field.name: value})
            if ineligible_reason(mac, asked) is not None:
                kept_away.add(field.name)
                made = fixed(mac, asked, cohort, Transport.NONE)
                assert ineligible_reason(made, asked) is None, f"add {field.name} to placement.eligibility.mended"
    assert kept_away >= {"address", "ready", "schedulable", "labels", "taints", "profiled", "models", "quarantine", "full"}


@pytest.mark.parametrize(
    ("wanted", "on_disk", "found"),
    [("", "abc", True), ("main", "abc", True), ("abc", "abc", True), ("abc", None, True), ("abc", "abd", False)],
)
def test_revisions(wanted: str, on_disk: str | None, found: bool) -> None:
    mac = replace(MAC, models=(replace(MODEL, revision=on_disk),))
    assert bool(wanted_model(mac, replace(REQUEST, revision=wanted))) == found


@pytest.mark.parametrize(
    ("toleration", "taint", "matches"),
    [
        (Toleration(exists=True), Taint("k", "v"), True),
        (Toleration(), Taint("k", "v"), False),
        (Toleration("k", exists=True), Taint("k", "v"), True),
        (Toleration("k", exists=True), Taint("l", "v"), False),
        (Toleration("k", value="v"), Taint("k", "v"), True),
        (Toleration("k", value="w"), Taint("k", "v"), False),
        (Toleration("k", value="v", effect="NoExecute"), Taint("k", "v"), False),
        (Toleration("k", value="v", effect="NoSchedule"), Taint("k", "v"), True),
    ],
)
def test_tolerations(toleration: Toleration, taint: Taint, matches: bool) -> None:
    assert tolerates(toleration, taint) == matches


def test_a_taint_that_only_prefers_keeps_nobody_away() -> None:
    soft, hard, last = Taint("s", effect="PreferNoSchedule"), Taint("h", effect="NoExecute"), Taint("l")
    assert untolerated([soft], []) == ()
    assert next(iter(untolerated([soft, hard, last], []))) == hard
    assert next(iter(untolerated([soft, hard, last], [Toleration("h", exists=True)]))) == last


def test_taints_of_a_node_without_those_that_its_state_says_better() -> None:
    given = [
        {"key": "dedicated", "value": "research", "effect": "NoSchedule"},
        {"key": "gpu", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"},
    ]
    assert taints({"spec": {"taints": given}}) == (
        Taint("dedicated", "research", "NoSchedule"),
        Taint("gpu", "", "NoExecute"),
        Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule"),
        Taint("node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute"),
    )
    assert taints({"spec": {}}) == taints({}) == ()
