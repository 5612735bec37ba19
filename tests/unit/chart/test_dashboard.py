"""Dashboard and alerts ask only for metrics, and labels, that the programs export: a renamed metric fails here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from thunderfleet_agent.metrics import Metrics as AgentMetrics
from thunderfleet_kubelet.pods.queries import PodCounts
from thunderfleet_kubelet.serving.metrics import Metrics as KubeletMetrics
from thunderfleet_operator.metrics import Metrics as OperatorMetrics
from thunderfleet_operator.object_metrics import ObjectMetrics, Objects
from thunderfleet_runner.api.http.admission import Admission
from thunderfleet_runner.api.http.metrics import GatewayMetrics
from thunderfleet_runner.group.metrics import GroupMetrics

Json = dict[str, Any]
Render = Callable[..., list[Json]]

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
# Labels that Prometheus adds to every scraped sample.
TARGET_LABELS = {"instance", "le"}
# Labels that the PodMonitor of runners adds.
POD_LABELS = {"namespace", "pod", "thunderfleet_io_deployment"}
METRIC = re.compile(r"\b(thunderfleet_[a-z0-9_]+)\b")
GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")
MATCHED = re.compile(r"\b([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"")


def registries() -> Iterator[CollectorRegistry]:
    yield OperatorMetrics().registry
    objects = CollectorRegistry()
    objects.register(ObjectMetrics(Objects, lambda: False))
    yield objects
    yield AgentMetrics().registry
    kubelet = KubeletMetrics("mac", "0", lambda: (0, 0))
    kubelet.text(PodCounts(pods=1, containers=1, restarts=0))
    yield kubelet.registry
    runner = CollectorRegistry()
    GroupMetrics(runner, lambda: {0: 0.0})
    admission = Admission(budget=1, slots=1, queue=1)
    GatewayMetrics(runner, lambda: admission)
    yield runner


def exported() -> dict[str, set[str]]:
    """Names of samples that the programs export, and the labels of each."""
    found: dict[str, set[str]] = {}
    for registry in registries():
        for collector in list(registry._collector_to_names):
            declared = set(getattr(collector, "_labelnames", ()))
            for family in collector.collect():
                labels = declared.union(getattr(family, "_labelnames", ()), *(sample.labels for sample in family.samples))
                for suffix in SUFFIXES.get(family.type, ("",)):
                    found[family.name + suffix] = labels
    return found


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    return exported()


@pytest.fixture(scope="module")
def dashboard(chart: Path) -> Json:
    loaded: Json = json.loads((chart / "dashboards" / "thunderfleet.json").read_text())
    return loaded


def panels(dashboard: Json) -> list[Json]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def wrong(expression: str, known: dict[str, set[str]]) -> list[str]:
    """Unknown metric names and labels in an expression."""
    names = set(METRIC.findall(expression)) - POD_LABELS
    problems = [f"no program exports {name}" for name in sorted(names - set(known))]
    by_pod = POD_LABELS if any(name.startswith("thunderfleet_runner_") for name in names) else set()
    labels = TARGET_LABELS.union(by_pod, *(known.get(name, set()) for name in names))
    used = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",") if label.strip()}
    used |= set(MATCHED.findall(expression))
    problems += [f"no metric in it has the label {label}" for label in sorted(used - labels)]
    return problems if names else [*problems, "it names no metric of ours"]


def test_the_check_finds_what_is_wrong(known: dict[str, set[str]]) -> None:
    assert wrong("sum(thunderfleet_operator_groups)", known) == []
    assert wrong("sum(thunderfleet_operator_reconciles)", known) == ["no program exports thunderfleet_operator_reconciles"]
    assert wrong('sum by (colour) (thunderfleet_operator_groups{shape="x"})', known) == [
        "no metric in it has the label colour",
        "no metric in it has the label shape",
    ]
    assert wrong("up", known) == ["it names no metric of ours"]


def test_the_dashboard_asks_for_what_is_exported(dashboard: Json, known: dict[str, set[str]]) -> None:
    problems = {
        f"{panel['title']}: {target['expr']}": found
        for panel in panels(dashboard)
        for target in panel["targets"]
        if (found := wrong(target["expr"], known))
    }
    assert problems == {}


def test_legends_name_labels_that_the_expression_keeps(dashboard: Json) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            grouped = re.findall(r"\bby\s*\(([^)]*)\)", target["expr"])
            kept = {label.strip() for group in grouped for label in group.split(",")}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, target


def test_every_program_is_on_the_dashboard(dashboard: Json) -> None:
    text = json.dumps(dashboard)
    for program in ("operator", "agent", "kubelet", "runner"):
        assert f"thunderfleet_{program}_" in text


def test_panels_use_the_chosen_data_source_and_do_not_overlap(dashboard: Json) -> None:
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    for panel in panels(dashboard):
        assert panel["description"]
        for owner in (panel, *panel["targets"]):
            assert owner["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_the_config_map_carries_the_dashboard_unchanged(render: Render, dashboard: Json) -> None:
    (config,) = (item for item in render() if item["kind"] == "ConfigMap")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["thunderfleet.json"]) == dashboard


def test_alerts_ask_for_what_is_exported(render: Render, known: dict[str, set[str]]) -> None:
    (rule,) = (item for item in render("--set", "alerts.enabled=true") if item["kind"] == "PrometheusRule")
    alerts = rule["spec"]["groups"][0]["rules"]
    assert len({alert["alert"] for alert in alerts}) == len(alerts) > 4
    problems = {alert["alert"]: found for alert in alerts if (found := wrong(alert["expr"], known))}
    assert problems == {}
