"""A real Prometheus accepts the alerts and the dashboard, and every metric that they use exists.

Prometheus is the real program, with the rights of a service account. It finds its targets as the pods' annotations say or, in
a longer test, with the configuration that the real prometheus-operator generates from the chart's PodMonitors.
"""

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane.assets import MONITORING
from thunderfleet_crds.names import ANNOTATION_BACKUP
from thunderfleet_lib.csr.rules import CONTROL_PLANE_LABEL
from thunderfleet_localcluster.programs import find_programs

from tests.support import yamltext
from tests.support.line import PROMETHEUS_PORT, Deployment, Line
from tests.support.monitoring.panels import dashboards, filled, generated, queries
from tests.support.monitoring.prometheusserver import STACK_PAGES, Prometheus, promtool, scraping, started
from tests.support.waiting import until

Json = dict[str, Any]

CHART = Path(__file__).parents[3] / "charts" / "thunderfleet"
SYSTEM = "thunderfleet-system"
SCRAPE_SECONDS = 120.0
# Panels that are empty while nothing is wrong, or where a part is not in use: routers, autoscaling, powermetrics. On the fleet
# of test_panels they show something.
QUIET = {
    "Thunderfleet / Fleet: Not Ready since",
    "Thunderfleet / Fleet: Conditions that are not True",
    "Thunderfleet / Fleet: Quarantined",
    "Thunderfleet / Fleet: Thermal pressure",
    "Thunderfleet / Fleet: Last kernel panic",
    "Thunderfleet / ModelDeployment: First cause of the last failure",
    "Thunderfleet / ModelDeployment: Autoscaling",
    "Thunderfleet / ModelDeployment: Asleep",
    "Thunderfleet / Group: Failures",
    "Thunderfleet / Serving: Failed requests",
    "Thunderfleet / Serving: Requests",
    "Thunderfleet / Serving: Time to first byte",
    "Thunderfleet / Serving: Waiting and in flight",
    "Thunderfleet / Serving: Tokens",
    "Thunderfleet / Serving: Refused by limits of keys",
    "Thunderfleet / Serving: Retries",
    "Thunderfleet / Serving: Reports of demand",
    "Thunderfleet / Operator and control plane: Failures of commands",
    "Thunderfleet / Operator and control plane: Copies of weights",
    "Thunderfleet / Operator and control plane: Wrong bytes",
}

# Panels of benchmarks, which need Macs and groups without other work; here they have none.
MEASURED = {
    "Thunderfleet / Cables: Measured",
    "Thunderfleet / Cables: Measured of negotiated",
    "Thunderfleet / ModelDeployment: Benchmark",
}

# As its rules select the CPU time and memory of containers.
STACK_QUERIES = (
    'sum by (node, namespace, pod, container) (irate(container_cpu_usage_seconds_total{metrics_path="/metrics/cadvisor", '
    'image!="", namespace="thunderfleet-system", container="agent"}[1m]))',
    'container_memory_working_set_bytes{metrics_path="/metrics/cadvisor", image!="", container="agent"}',
    'container_memory_rss{metrics_path="/metrics/cadvisor", image!="", container="agent"}',
    'sum by (probe_type, result) (prober_probe_total{metrics_path="/metrics/probes", container="agent", result="successful"})',
)


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder with prometheus and promtool."""
    return find_programs(lambda event: None, MONITORING)


@pytest.fixture(scope="module")
def rules(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart's alerts as a rule file of Prometheus."""
    done = line.cluster.helm("template", "x", str(CHART), "--set", "alerts.enabled=true", "-s", "templates/alerts.yaml")
    path: Path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yamltext.dump(yamltext.load(done.stdout)["spec"]))
    return path


@pytest.fixture(scope="module")
def prometheus(line: Line, programs: Path, rules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    def configure(server: str, folder: Path) -> Json:
        return scraping(server, folder, rules)

    with started(line, programs, configure, tmp_path_factory.mktemp("prometheus"), PROMETHEUS_PORT) as found:
        yield found


def test_the_alert_about_requests_names_the_deployment(programs: Path, rules: Path, tmp_path: Path) -> None:
    """Once, although two jobs scrape it."""
    series = []
    for job in ("pods", "monitors"):
        for code, values in (("200", "0+60x60"), ("503", "0+30x60")):
            runner = f'job="{job}",instance="10.0.0.1:20000",namespace="team",deployment="qwen",group="0",rank="0"'
            name = f'thunderfleet_runner_requests_total{{{runner},endpoint="/v1/completions",code="{code}"}}'
            series.append({"series": name, "values": values})
    expected = {
        "exp_labels": {"severity": "warning", "namespace": "team", "deployment": "qwen", "group": "0"},
        "exp_annotations": {
            "summary": "Group 0 of ModelDeployment team/qwen returns errors",
            "description": "More than 5 % of its responses have had a status of 500 or above for 10 minutes. See kubectl "
            "-n team describe md qwen and the log of its rank 0: kubectl thunderfleet logs qwen -n team.",
        },
    }
    alert = {"alertname": "ThunderfleetRequestErrors", "eval_time": "30m", "exp_alerts": [expected]}
    test = {"interval": "1m", "input_series": series, "alert_rule_test": [alert]}
    path = tmp_path / "test.yaml"
    path.write_text(yamltext.dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    promtool(programs, "test", "rules", str(path))


def test_what_is_exported_is_as_prometheus_wants_it(line: Line, pair: Deployment, programs: Path) -> None:
    pods = [*line.items("pods", "-n", SYSTEM), *line.items("pods", "-n", pair.namespace)]
    assert len(pods) > 4
    for pod in pods:
        port = pod["metadata"]["annotations"]["prometheus.io/port"]
        answer = line.request(f"http://{pod['status']['podIP']}:{port}/metrics")
        assert answer.status == 200, pod["metadata"]["name"]
        promtool(programs, "check", "metrics", text=answer.body)


def down(prometheus: Prometheus) -> list[str]:
    """Targets that are not up, each with its error."""
    targets = prometheus.get("targets", state="active")["activeTargets"]
    return [f"{entry['scrapeUrl']}: {entry['health']} {entry['lastError']}" for entry in targets if entry["health"] != "up"]


def until_scraped(line: Line, pair: Deployment, prometheus: Prometheus) -> None:
    """Waits until all of operator, agents, kubelets and both ranks are scraped."""

    def scraped() -> bool:
        pods = [*line.items("pods", "-n", SYSTEM), *line.items("pods", "-n", pair.namespace)]
        expected = {pod["status"]["podIP"] for pod in pods}
        jobs = [entry["labels"] for entry in prometheus.get("targets", state="active")["activeTargets"]]
        return not down(prometheus) and expected <= {entry["instance"].partition(":")[0] for entry in jobs}

    until(scraped, "every target is up", SCRAPE_SECONDS, describe=lambda: "\n".join(down(prometheus)))


def until_every_panel_shows_something(pair: Deployment, prometheus: Prometheus) -> None:
    """While the deployment answers requests."""
    asked = queries()
    may_be_empty = QUIET | MEASURED
    assert may_be_empty <= set(asked.values())

    def empty() -> list[str]:
        pair.tokens("hello", 8)
        return [
            f"{title}: {expression}"
            for expression, title in asked.items()
            if not prometheus.value(expression) and title not in may_be_empty
        ]

    until(lambda: not empty(), "every panel shows something", SCRAPE_SECONDS, describe=lambda: "\n".join(empty()))


def test_every_panel_of_every_dashboard_has_something_to_show(line: Line, pair: Deployment, prometheus: Prometheus) -> None:
    until_scraped(line, pair, prometheus)
    until_every_panel_shows_something(pair, prometheus)


@pytest.mark.soak
def test_prometheus_operator_makes_a_working_configuration_of_the_monitors(
    line: Line, pair: Deployment, programs: Path, tmp_path: Path
) -> None:
    """Targets are up, panels show something, rules are evaluated, and metrics have the labels that queries use."""

    def configure(server: str, folder: Path) -> Json:
        return generated(line, server, folder, "operator", "agent", "runner")

    with started(line, programs, configure, tmp_path, PROMETHEUS_PORT + 2) as prometheus:
        until_scraped(line, pair, prometheus)
        until_every_panel_shows_something(pair, prometheus)
        health = {rule["name"]: rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]}
        assert len(health) > 20 and not [name for name, rule in health.items() if rule["health"] != "ok"]
        # The target has these labels too; the namespace of a runner's pod is that of its ModelDeployment.
        renamed = {
            (label, one["metric"][label.removeprefix("exported_")] == one["metric"][label])
            for one in prometheus.value('{__name__=~"thunderfleet_.+"}')
            for label in one["metric"]
            if label.startswith("exported_")
        }
        assert renamed <= {("exported_namespace", True)}
        paths = prometheus.value("count by (endpoint) (thunderfleet_runner_requests_total)")
        assert {one["metric"]["endpoint"] for one in paths} >= {"/v1/chat/completions"}


def test_every_variable_has_values(prometheus: Prometheus) -> None:
    asked = {
        variable["query"]
        for dashboard in dashboards()
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query" and variable["name"] != "cluster"
    }
    assert len(asked) == 3
    for query in sorted(asked):
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert found is not None, query
        expression = filled(found[1])
        # A series is gone for a moment after a scrape that took longer than its limit.
        samples = until(partial(prometheus.value, expression), f"{query} has samples", SCRAPE_SECONDS)
        assert None not in {sample["metric"].get(found[2]) for sample in samples}, query


def test_the_targets_of_the_usual_stack_are_up_and_have_its_series(line: Line, prometheus: Prometheus) -> None:
    nodes = len(line.cluster.machines)

    def missing() -> list[str]:
        up = {page: prometheus.value(f'sum(up{{job="{page}"}}) == {nodes}') for page in STACK_PAGES}
        return [page for page, found in up.items() if not found] + [one for one in STACK_QUERIES if not prometheus.value(one)]

    until(lambda: not missing(), "all targets and series are there", SCRAPE_SECONDS, describe=lambda: "\n".join(missing()))


def test_nothing_alarms_on_a_healthy_fleet(pair: Deployment, prometheus: Prometheus) -> None:
    def evaluated() -> dict[str, Json]:
        groups = prometheus.get("rules")["groups"]
        found = {rule["name"]: rule for group in groups for rule in group["rules"]}
        return found if all(rule["health"] == "ok" for rule in found.values()) else {}

    found = until(evaluated, "every rule has been evaluated", describe=lambda: str(prometheus.get("rules")))
    assert len(found) > 4
    assert [name for name, rule in found.items() if rule["state"] == "firing"] == []


@pytest.mark.soak
def test_alerts_fire_for_real_faults_and_end_with_them(line: Line, programs: Path, tmp_path: Path) -> None:
    """Without the minutes that a fault must last; promtool tests those."""
    values = ["--set", "alerts.enabled=true,alerts.groupNotReadyMinutes=1", "-s", "templates/alerts.yaml"]
    spec = yamltext.load(line.cluster.helm("template", "x", str(CHART), *values).stdout)["spec"]
    for rule in spec["groups"][0]["rules"]:
        rule.pop("for", None)
    rules = tmp_path / "rules.yaml"
    rules.write_text(yamltext.dump(spec))
    first, second, small = "studio-1", "studio-2", "mini-1"
    machines, cable = line.cluster.machines, f"{first}.tb1--{second}.tb1"
    label = f"{CONTROL_PLANE_LABEL}="

    def configure(server: str, folder: Path) -> Json:
        return scraping(server, folder, rules)

    with started(line, programs, configure, tmp_path, PROMETHEUS_PORT + 1) as prometheus, contextlib.ExitStack() as stack:

        def firing() -> set[tuple[str, str]]:
            """Name of each alert that fires, and what it names."""
            found = [one["labels"] for one in prometheus.get("alerts")["alerts"] if one["state"] == "firing"]
            about = ("name", "node", "program", "kind")
            return {(one["alertname"], next((one[key] for key in about if key in one), "")) for one in found}

        def missing(*wanted: tuple[str, str]) -> list[tuple[str, str]]:
            seen.update(firing())
            return [one for one in wanted if (f"Thunderfleet{one[0]}", one[1]) not in seen]

        seen: set[tuple[str, str]] = set()
        macs = len([machine for machine in machines.values() if machine.kind == "mac"])
        ready = f"count(thunderfleet_agent_info) == {macs} and count(thunderfleet_mac_ready) == {macs}"
        until(lambda: prometheus.value(ready), "operator and agents are scraped", SCRAPE_SECONDS)
        linux = next(machine for machine in machines.values() if machine.kind == "linux")
        linux.freeze_kubelet()
        stack.callback(linux.thaw_kubelet)
        kubelet = ("TargetDown", "kubelet")
        until(lambda: not missing(kubelet), "the alert about the target fires", 60, describe=lambda: str(firing()))
        linux.thaw_kubelet()
        huge = line.deploy("huge", nodes={"min": 9})
        stack.callback(line.forget, huge)
        # It has a place, and its pods never start.
        waiting = line.deploy("waiting", nodes={"min": 1, "max": 1})
        stack.callback(line.forget, waiting)
        line.cluster.component("kube-scheduler", "off")
        stack.callback(line.cluster.component, "kube-scheduler", "on")
        machines[small].off()
        stack.callback(machines[small].on)
        line.cluster.cable("pull", f"{first}:1")
        stack.callback(line.cluster.cable, "plug", f"{first}:1")
        line.cluster.rdma("hang", second)
        line.kubectl("label", "node", first, label)
        stack.callback(line.kubectl, "label", "node", first, f"{CONTROL_PLANE_LABEL}-")
        line.kubectl("annotate", "node", first, f"{ANNOTATION_BACKUP}=2020-01-01T00:00:00Z")
        stack.callback(line.kubectl, "annotate", "node", first, f"{ANNOTATION_BACKUP}-")
        expected = (
            ("MacNotReady", small),
            ("CableDown", cable),
            ("CableGone", cable),
            ("RDMAHung", second),
            ("BackupTooOld", ""),
            ("ModelDeploymentUnplaceable", huge.name),
            ("ModelDeploymentNotReady", waiting.name),
        )
        until(lambda: not missing(*expected), "all alerts fire", 240, describe=lambda: f"{missing(*expected)} of {firing()}")
        named = {name for name, _ in firing()}
        assert "ThunderfleetTargetDown" not in named, "the alert about the Mac that is off is the only one about its programs"
        late = ("ThunderfleetModelDeploymentNotReady", huge.name)
        assert late not in seen, "the alert about the place that is missing is the only one about this model"
        line.kubectl("scale", "deployment", "thunderfleet-operator", "-n", SYSTEM, "--replicas=0")
        stack.callback(line.kubectl, "scale", "deployment", "thunderfleet-operator", "-n", SYSTEM, "--replicas=2")
        leader = ("OperatorWithoutLeader", "")
        until(lambda: not missing(leader), "the alert about the leader fires", 60, describe=lambda: str(firing()))
        stack.close()
        machines[second].off()
        machines[second].on()
        names = {f"Thunderfleet{name}" for name, _ in (*expected, kubelet, leader)}
        until(lambda: not names & {name for name, _ in firing()}, "all alerts end", 300, describe=lambda: str(firing()))
