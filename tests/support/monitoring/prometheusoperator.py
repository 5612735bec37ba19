"""prometheus-operator: the kinds that it defines, and the configuration that it generates, from its Go module."""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support import yamltext
from tests.support.otherprojects import gomodules

MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
"""Of the module's files, as in a go.sum."""
KINDS = ("podmonitors", "prometheusrules")
BUILD_SECONDS = 300
"""How long a build takes on two cores."""
GENERATE_SECONDS = 60
RULES = "/etc/prometheus/rules"
"""Where its Prometheus has the rules."""

Json = dict[str, Any]


def definitions() -> list[Json]:
    """The CustomResourceDefinitions of the kinds that the chart has objects of."""
    folder = gomodules.files(MODULE, SUM) / "example" / "prometheus-operator-crd"
    return [yamltext.load((folder / f"monitoring.coreos.com_{kind}.yaml").read_text(encoding="utf-8")) for kind in KINDS]


def configuration(prometheus: Json, objects: Iterable[Json], folder: Path) -> Json:
    """The configuration with which prometheus-operator would run ``prometheus``. Its rules are written into ``folder``.

    ``objects``: PodMonitors and PrometheusRules. Fails if prometheus-operator rejects one.
    """
    done = subprocess.run(
        [str(gomodules.program("scrapeconfig", "scrapeconfig", seconds=BUILD_SECONDS)), str(folder)],
        input=yamltext.dump_all([prometheus, *objects]),
        capture_output=True,
        text=True,
        timeout=GENERATE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = (folder / "prometheus.yaml").read_text()
    # The config-reloader beside Prometheus fills these in.
    for name, value in (("SHARD", "0"), ("POD_NAME", "prometheus-fleet-0")):
        text = text.replace(f"$({name})", value)
    assert "$(" not in text, text
    found: Json = yamltext.load(text)
    # The pods of Prometheus have a volume there.
    assert found["rule_files"] == [f"{RULES}/rules/*.yaml"], found["rule_files"]
    found["rule_files"] = [str(folder / "rules.yaml")]
    return found
