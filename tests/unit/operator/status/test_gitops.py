"""What Flux and Argo CD make of our conditions: by kstatus and by Argo CD's Lua interpreter themselves."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane.assets import Bundle, find_go
from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.kinds.modeldeployment import Failure
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import CopyPhase, FaultClass
from thunderfleet_operator.decide.group.lifecycle import NextStep, Step
from thunderfleet_operator.decide.status.outcome import Blocked, Outcome
from thunderfleet_operator.decide.weights.cache import decide
from thunderfleet_operator.observe.objects.fetchpods import Task

from tests.support import yamltext
from tests.unit.operator.status.test_progress import LOADS, SERVES, UNPLACED, after, deployment
from tests.unit.operator.values import NOW, report, view
from tests.unit.operator.weights.test_weights import GIB, RESOLVED, cache, observed, profile
from tests.unit.operator.weights.test_weights import NOW as NOW_OF_CACHES
from tests.unit.operator.weights.test_weights import pod as cache_pod

ROOT = Path(__file__).parents[4]
BUILD_SECONDS = 600
Json = dict[str, Any]


@dataclass(frozen=True)
class Tool(Bundle):
    """The program that asks both, which only tests use."""

    @property
    def module(self) -> Path:
        return ROOT / "tests" / "clients" / "gitops"


TOOL = Tool("gitops", {"gitops": (".", 60)}, "-s -w", given=False)


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gitops")
    go, env = find_go(TOOL, folder / "cache", lambda event: None)
    command = [go, "build", "-trimpath", "-o", str(folder / "gitops"), "."]
    done = subprocess.run(command, cwd=TOOL.module, env=env, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "gitops"


def asked(tool: Path, folder: Path, kind: str, items: Sequence[Json]) -> list[tuple[str, str]]:
    """What Flux and Argo CD say of each object."""
    data = yamltext.load((ROOT / "examples/gitops/argocd-health.yaml").read_text())["data"]
    script = folder / f"{kind}.lua"
    script.write_text(data[f"resource.customizations.health.thunderfleet.io_{kind}"])
    lines = "\n".join(json.dumps({"apiVersion": "thunderfleet.io/v1alpha1", "kind": kind, **item}) for item in items)
    done = subprocess.run([str(tool), str(script)], input=lines, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [(one["flux"], one["argo"]) for one in answers]


def states() -> dict[str, tuple[Json, tuple[str, str]]]:
    """ModelDeployments in all their states, and what is expected of each."""
    failure = Failure(class_=FaultClass.RETRY, reason="PodGone", message="gone", time=NOW)
    gave_up = Outcome(view(), NextStep(Step.GIVE_UP, failure), report(None))
    refused = Outcome(UNPLACED.view, UNPLACED.next, report(None), blocked=Blocked(Reason.POD_REFUSED, "quota"))
    unplaced = after(None, [UNPLACED])
    late = NOW + timedelta(seconds=600)
    found = {
        "loads": (after(None, [LOADS]), ("InProgress", "Progressing")),
        "serves": (after(None, [SERVES]), ("Current", "Healthy")),
        "rolls": (
            after(None, [Outcome(view(), NextStep(Step.KEEP), SERVES.report, outdated=True)]),
            ("InProgress", "Progressing"),
        ),
        "gave up": (after(None, [gave_up]), ("Failed", "Degraded")),
        "refused": (after(None, [refused]), ("Failed", "Degraded")),
        "unplaced": (unplaced, ("InProgress", "Progressing")),
        "unplaced for long": (after(unplaced, [UNPLACED], now=late), ("Failed", "Degraded")),
        "stops": (after(None, [], spec={"suspend": True}, ending=1), ("InProgress", "Progressing")),
        # kstatus knows only Ready here; examples/gitops/flux.yaml says more.
        "suspended": (after(None, [], spec={"suspend": True}), ("InProgress", "Suspended")),
        "asleep": (after(None, [], spec={"autoscaling": {"minReplicas": 0}, "replicas": 0}), ("InProgress", "Healthy")),
        "older spec": (after(None, [SERVES], generation=2), ("InProgress", "Progressing")),
    }
    made = deployment().metadata.dump()
    items = {name: ({"metadata": made, "status": status.dump()}, expected) for name, (status, expected) in found.items()}
    new = {"metadata": made, "status": {"observedGeneration": 0}}
    return {**items, "new": (new, ("InProgress", "Progressing"))}


def caches() -> dict[str, tuple[Json, tuple[str, str]]]:
    """ModelCaches in their states."""
    whole = {"a": profile("a", copy=CopyPhase.COMPLETE, done=8 * GIB)}
    refused, failed = (
        observed(
            cache({"resolved_from": "o/n@main"}),
            [cache_pod(Task.RESOLVE, message=FetchResult(why, "message").text, phase="Failed")],
        )
        for why in (Reason.REPOSITORY_NOT_FOUND, Reason.HUB_UNREACHABLE)
    )
    once = decide(failed).status
    assert once.download is not None
    lasting = cache({**once.__dict__, "download": once.download.model_copy(update={"attempts": 6})})
    later = replace(observed(lasting), now=NOW_OF_CACHES + timedelta(seconds=600))
    found = {
        "resolves": (decide(observed(cache())), ("InProgress", "Progressing")),
        "fetches": (decide(observed(cache(RESOLVED), needed=("a",))), ("InProgress", "Progressing")),
        "is there": (decide(observed(cache(RESOLVED), needed=("a",), there=whole)), ("Current", "Healthy")),
        "needed by nothing": (decide(observed(cache(RESOLVED, copies=0))), ("Current", "Healthy")),
        "does not exist": (decide(refused), ("Failed", "Degraded")),
        "hub is down": (decide(failed), ("InProgress", "Progressing")),
        "hub stays down": (decide(later), ("Failed", "Degraded")),
    }
    made = cache().metadata.dump()
    items = {name: ({"metadata": made, "status": one.status.dump()}, expected) for name, (one, expected) in found.items()}
    return {**items, "new": ({"metadata": made, "status": {"observedGeneration": 0}}, ("InProgress", "Progressing"))}


def conditions(item: Json) -> dict[str, str]:
    return {one["type"]: one["status"] for one in item["status"].get("conditions", [])}


@pytest.mark.parametrize("name", [name for name in caches() if name != "new"])
def test_a_model_cache_works_or_waits_for_a_person_or_neither(name: str) -> None:
    item, (expected, _) = caches()[name]
    found = conditions(item)
    words = {"InProgress": ("True", "False"), "Failed": ("False", "True"), "Current": ("False", "False")}
    assert (found["Reconciling"], found["Stalled"]) == words[expected]


@pytest.mark.soak
def test_flux_and_argo_cd_read_a_model_cache(tool: Path, tmp_path: Path) -> None:
    expected = caches()
    found = asked(tool, tmp_path, "ModelCache", [item for item, _ in expected.values()])
    assert dict(zip(expected, found, strict=True)) == {name: words for name, (_, words) in expected.items()}


@pytest.mark.soak
def test_flux_and_argo_cd_read_a_model_deployment(tool: Path, tmp_path: Path) -> None:
    expected = states()
    found = asked(tool, tmp_path, "ModelDeployment", [item for item, _ in expected.values()])
    assert dict(zip(expected, found, strict=True)) == {name: words for name, (_, words) in expected.items()}


def test_the_example_for_argo_cd_has_a_script_for_each_kind() -> None:
    data = yamltext.load((ROOT / "examples/gitops/argocd-health.yaml").read_text())["data"]
    assert set(data) == {f"resource.customizations.health.thunderfleet.io_{kind}" for kind in ("ModelDeployment", "ModelCache")}
    expressions = yamltext.load((ROOT / "examples/gitops/flux.yaml").read_text())["spec"]["healthCheckExprs"]
    assert [one["kind"] for one in expressions] == ["ModelDeployment"]
