"""The dashboards' queries, as Grafana sends them to Prometheus, and the configuration that scrapes what they query."""

import json
import re
from pathlib import Path
from typing import Any, Final

from tests.support import yamltext
from tests.support.line import CHART, SYSTEM, Line
from tests.support.monitoring import prometheusoperator
from tests.support.monitoring.prometheusserver import access, kubelets

Json = dict[str, Any]

RELEASE: Final = "thunderfleet"
"""Pods have its name in a label that monitors select."""


def dashboards() -> list[Json]:
    """All dashboards."""
    found = [json.loads(path.read_text()) for path in sorted((CHART / "dashboards").glob("*.json"))]
    assert len(found) == 6
    return found


def filled(expression: str) -> str:
    """A query as Grafana sends it when all values of all variables are chosen."""
    return re.sub(r"\$(?:cluster|namespace|deployment|node)\b", ".*", expression.replace("$__rate_interval", "1m"))


def queries() -> dict[str, str]:
    """By query, the title of its panel, after that of its dashboard."""
    asked = {
        filled(target["expr"]): f"{dashboard['title']}: {panel['title']}"
        for dashboard in dashboards()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    assert len(asked) > 80
    return asked


def generated(line: Line, server: str, folder: Path, *monitors: str) -> Json:
    """What prometheus-operator generates from the chart's PodMonitors and alerts, and the job for kubelets.

    ``monitors``: the components that the release has, for which there is a PodMonitor each.
    """
    values = "podMonitors.enabled=true,podMonitors.labels.release=fleet,alerts.enabled=true"
    values += ",router.enabled=true" * ("router" in monitors)
    templates = ("-s", "templates/podmonitors.yaml", "-s", "templates/alerts.yaml")
    done = line.cluster.helm("template", RELEASE, str(CHART), "--namespace", SYSTEM, "--set", values, *templates)
    api = {
        "host": server,
        "authorization": {"type": "Bearer", "credentialsFile": str(folder / "token")},
        "tlsConfig": {"caFile": str(folder / "ca.crt")},
    }
    prometheus = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": {"name": "fleet", "namespace": SYSTEM},
        "spec": {
            "podMonitorSelector": {"matchLabels": {"release": "fleet"}},
            "ruleSelector": {},
            "scrapeInterval": "1s",
            "evaluationInterval": "1s",
            "apiserverConfig": api,
        },
    }
    found = prometheusoperator.configuration(prometheus, [item for item in yamltext.load_all(done.stdout) if item], folder)
    assert len(found["scrape_configs"]) == len(monitors)
    found["scrape_configs"].append(kubelets(access(server, folder)))
    return found
