"""The command line of the router."""

import json
import re
from pathlib import Path

import pytest
import yaml
from thunderfleet_crds.names import LABEL_NAME
from thunderfleet_operator.observe.objects import routers
from thunderfleet_router import cli
from thunderfleet_router.http.metrics import RouterMetrics

KUBECONFIG = {
    "apiVersion": "v1", "kind": "Config", "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}  # fmt: skip


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', '{"a": "no-namespace"}', '{"a": "a/b/c"}'])
def test_aliases_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "aliases.json"
    file.write_text(text)
    assert cli.main(["serve", "--aliases", str(file)]) == 2
    assert cli.main(["serve", "--aliases", str(tmp_path / "missing")]) == 2


def test_aliases_lead_to_model_deployments(tmp_path: Path) -> None:
    file = tmp_path / "aliases.json"
    file.write_text('{"gpt-4o": "default/qwen"}')
    assert cli.aliases_of(file) == {"gpt-4o": "default/qwen"}
    assert cli.aliases_of(None) == {}


def test_a_router_without_its_certificate_does_not_start(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    assert cli.main(["serve", "--kubeconfig", str(kubeconfig), "--tls", str(tmp_path)]) == 1


def test_the_example_of_an_inference_pool_is_that_of_routers() -> None:
    """Labels and port are those of the chart, and the options of the picker name a gauge of routers."""
    root = Path(__file__).parents[3]
    pool = yaml.safe_load((root / "examples" / "inferencepool.yaml").read_text())
    assert pool["spec"]["targetPorts"] == [{"number": cli.PORT}]
    assert pool["spec"]["selector"]["matchLabels"] == {
        LABEL_NAME: routers.NAME,
        routers.LABEL_COMPONENT: routers.COMPONENT,
    }
    (named,) = re.findall(r"--total-queued-requests-metric=(\S+)", (root / "docs" / "endpoint.md").read_text())
    kinds = {family.name: family.type for family in RouterMetrics(lambda: 0, lambda: 0, lambda: True).registry.collect()}
    assert kinds[named] == "gauge"
