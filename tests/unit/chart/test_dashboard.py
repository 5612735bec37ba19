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
from thunderfleet_agent.observe.sensors import Reading
from thunderfleet_dashboards import __main__ as main
from thunderfleet_kubelet.pods.queries import PodCounts
from thunderfleet_kubelet.serving.metrics import Metrics as KubeletMetrics
from thunderfleet_operator.metrics import Metrics as OperatorMetrics
from thunderfleet_operator.object_metrics import ObjectMetrics, Objects
from thunderfleet_router.http.metrics import RouterMetrics
from thunderfleet_runner.api.http.admission import Admission
from thunderfleet_runner.api.http.metrics import GatewayMetrics
from thunderfleet_runner.group.metrics import GroupMetrics

Json = dict[str, Any]
Render = Callable[..., list[Json]]

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
# Labels that Prometheus adds to every scraped sample.
TARGET_LABELS = {"instance", "le", "cluster"}
# Labels that a runner adds to all its samples.
RUNNER_LABELS = {"namespace", "deployment", "group", "rank", "node"}
METRIC = re.compile(r"\b(thunderfleet_[a-z0-9_]+)\b")
GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")
MATCHED = re.compile(r"\b([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"")


def registries() -> Iterator[CollectorRegistry]:
    yield OperatorMetrics().registry
    objects = CollectorRegistry()
    objects.register(ObjectMetrics(Objects, lambda: False))
    yield objects
    agent = AgentMetrics()
    agent.show_sensors("mac", Reading, {})
    yield agent.registry
    kubelet = KubeletMetrics("mac", "0", lambda: (0, 0))
    kubelet.text(PodCounts(pods=1, containers=1, restarts=0))
    yield kubelet.registry
    yield RouterMetrics(lambda: 0.0, lambda: 0.0, lambda: True).registry
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
def dashboards(chart: Path) -> list[Json]:
    return [json.loads(path.read_text()) for path in sorted((chart / "dashboards").glob("*.json"))]


def panels(dashboards: list[Json]) -> list[Json]:
    return [panel for dashboard in dashboards for panel in dashboard["panels"] if panel["type"] != "row"]


def wrong(expression: str, known: dict[str, set[str]]) -> list[str]:
    """Unknown metric names and labels in an expression."""
    names = set(METRIC.findall(expression))
    problems = [f"no program exports {name}" for name in sorted(names - set(known))]
    # A runner puts these on what every program exports, too.
    runner = any(name.startswith("thunderfleet_runner_") for name in names) or 'program="runner"' in expression
    of_runner = RUNNER_LABELS if runner else set()
    labels = TARGET_LABELS.union(of_runner, *(known.get(name, set()) for name in names))
    used = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",") if label.strip()}
    used |= set(MATCHED.findall(expression))
    problems += [f"no metric in it has the label {label}" for label in sorted(used - labels)]
    return problems if names else [*problems, "it names no metric of ours"]


def test_the_check_finds_what_is_wrong(known: dict[str, set[str]]) -> None:
    assert wrong("sum(thunderfleet_operator_groups)", known) == []
    assert wrong("sum(thunderfleet_operator_reconciles)", known) == ["no program exports thunderfleet_operator_reconciles"]
    free = "min by (rank) (thunderfleet_process_free_descriptors{})"
    assert wrong(free.format('{program="runner"}'), known) == []
    assert wrong(free.format('{program="agent"}'), known) == ["no metric in it has the label rank"]
    assert wrong('sum by (colour) (thunderfleet_operator_groups{shape="x"})', known) == [
        "no metric in it has the label colour",
        "no metric in it has the label shape",
    ]
    assert wrong("up", known) == ["it names no metric of ours"]


def test_the_dashboards_are_those_of_the_code(dashboards: list[Json]) -> None:
    assert main.PAGES and {f"{page.uid}.json" for page in main.PAGES} == main.texts().keys()
    assert main.texts() == {path.name: path.read_text() for path in main.FOLDER.glob("*.json")}, "run make docs"


def test_the_dashboards_ask_for_what_is_exported(dashboards: list[Json], known: dict[str, set[str]]) -> None:
    problems = {
        f"{panel['title']}: {target['expr']}": found
        for panel in panels(dashboards)
        for target in panel["targets"]
        if (found := wrong(target["expr"], known))
    }
    assert problems == {}


def counted_twice(expression: str) -> list[str]:
    """Metrics in an expression that a second job for the same program would change."""
    once = re.compile(
        r"\bmax(?: by \(([^)]*)\) )?\((?:(?:rate|increase)\()?(thunderfleet_[a-z0-9_]+)\{[^}]*\}(?:\[[^\]]*\]\))?\)"
    )
    counted = [found[2] for found in once.finditer(expression) if "job" not in re.split(r"[, ]+", found[1] or "")]
    rest = once.sub(lambda found: "" if found[2] in counted else found[0], expression)
    return METRIC.findall(rest)


def test_a_program_that_is_scraped_twice_counts_once(dashboards: list[Json]) -> None:
    assert counted_twice('sum by (a) (max by (a, rank) (rate(thunderfleet_x_total{a="1"}[5m])))') == []
    assert counted_twice('sum by (a) (rate(thunderfleet_x_total{a="1"}[5m]))') == ["thunderfleet_x_total"]
    assert counted_twice('max(thunderfleet_x{a="1"})') == []
    assert counted_twice('max by (a, job) (thunderfleet_x{a="1"})') == ["thunderfleet_x"]
    doubled = {
        f"{panel['title']}: {target['expr']}": found
        for panel in panels(dashboards)
        for target in panel["targets"]
        if (found := counted_twice(target["expr"]))
    }
    assert doubled == {}


def test_legends_name_labels_that_the_expression_keeps(dashboards: list[Json]) -> None:
    for panel in panels(dashboards):
        for target in panel["targets"]:
            grouped = re.findall(r"\bby\s*\(([^)]*)\)", target["expr"])
            kept = {label.strip() for group in grouped for label in group.split(",")}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, target


def test_everything_exported_but_details_is_on_a_dashboard(dashboards: list[Json]) -> None:
    text = json.dumps(dashboards)
    for program in ("operator", "agent", "kubelet", "runner", "router", "mac", "modeldeployment", "thunderboltlink"):
        assert f"thunderfleet_{program}_" in text


def test_panels_use_the_chosen_data_source_and_do_not_overlap(dashboards: list[Json]) -> None:
    for dashboard in dashboards:
        names = [variable["name"] for variable in dashboard["templating"]["list"]]
        assert names[:2] == ["datasource", "cluster"]
        used = set(re.findall(r"\$(cluster|namespace|deployment|node)\b", json.dumps(dashboard["panels"])))
        assert used == set(names[1:]), dashboard["title"]
        assert dashboard["links"][0]["tags"] == dashboard["tags"] == ["thunderfleet"]
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            at = {"x": 0, "y": 0, **panel["gridPos"]}
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not taken & cells, (dashboard["title"], panel["title"])
            assert at["x"] + at["w"] <= 24
            taken |= cells
    for panel in panels(dashboards):
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        for owner in (panel, *panel["targets"]):
            assert owner["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_only_fields_of_grafanas_schema_are_where_the_sdk_writes_others(dashboards: list[Json]) -> None:
    """The test of the whole schema needs npm."""
    variables = [one for page in dashboards for one in page["templating"]["list"]]
    links = [link for panel in panels(dashboards) for link in panel["fieldConfig"]["defaults"].get("links", ())]
    assert not [one for one in variables if one.keys() & {"auto", "auto_min", "auto_count"}]
    assert links and all(link.keys() == {"title", "url", "targetBlank"} for link in links)


def test_links_lead_to_dashboards_and_their_variables(dashboards: list[Json]) -> None:
    variables = {page["uid"]: {one["name"] for one in page["templating"]["list"]} for page in dashboards}
    links = [link["url"] for panel in panels(dashboards) for link in panel["fieldConfig"]["defaults"].get("links", ())]
    assert links
    for url in links:
        found = re.match(r"/d/([\w-]+)\?var-(\w+)=", url)
        assert found is not None and found[2] in variables[found[1]], url


def test_the_config_map_carries_the_dashboards_unchanged(render: Render, dashboards: list[Json]) -> None:
    (config,) = (item for item in render() if item["kind"] == "ConfigMap")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert [json.loads(config["data"][name]) for name in sorted(config["data"])] == dashboards
    assert sum(map(len, config["data"].values())) < 900_000


# Labels that prometheus-operator gives to the targets of a PodMonitor.
MONITOR_LABELS = {"namespace", "pod", "container", "endpoint", "job"}


@pytest.mark.parametrize("component", ["operator", "agent", "runner", "router"])
def test_a_monitor_hides_no_label_of_a_metric(render: Render, known: dict[str, set[str]], component: str) -> None:
    """Prometheus renames a sample's label to exported_… if the target has one of that name; then queries find another value."""
    objects = render("--set", "podMonitors.enabled=true,router.enabled=true")
    (monitor,) = (
        item for item in objects if item["kind"] == "PodMonitor" and item["metadata"]["name"] == f"thunderfleet-{component}"
    )
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    relabelings = endpoint.get("relabelings", ())
    dropped = {one["regex"] for one in relabelings if one.get("action") == "labeldrop"}
    of_objects = ("mac_", "modeldeployment_", "thunderboltlink_", "control_plane_") if component == "operator" else ()
    prefixes = tuple(f"thunderfleet_{name}" for name in (f"{component}_", *of_objects))
    used = {label for name, labels in known.items() if name.startswith(prefixes) for label in labels}
    assert used
    assert endpoint.get("honorLabels") or not used & MONITOR_LABELS - dropped


def test_alerts_ask_for_what_is_exported(render: Render, known: dict[str, set[str]]) -> None:
    (rule,) = (item for item in render("--set", "alerts.enabled=true") if item["kind"] == "PrometheusRule")
    alerts = rule["spec"]["groups"][0]["rules"]
    assert len({alert["alert"] for alert in alerts}) == len(alerts) > 4
    problems = {alert["alert"]: found for alert in alerts if (found := wrong(alert["expr"], known))}
    assert problems == {}
