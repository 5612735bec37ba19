"""``helm upgrade --reuse-values``: the values are those of the former release, so it has none that is new."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import yamltext

from .conftest import documents
from .test_objects import command_line, find
from .test_values import EVERYTHING, leaves

Json = dict[str, Any]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]

OLDER = Path(__file__).parent / "older_values.yaml"
CHOSEN: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "monitoring": ("alerts.enabled=true", "podMonitors.enabled=true"),
    "routers": ("router.enabled=true", "router.port=4141", "operator.demandPort=9402", "router.linuxReplicas=2"),
    "Macs only": ("operator.runtimeClassName=macos", "operator.replicas=1"),
    "pods": ("pods.allowed=Operator",),
}


@pytest.fixture(scope="module")
def reused(chart: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as helm uses it for such an upgrade: with the default values of the former release instead of its own."""
    copied = tmp_path_factory.mktemp("reused") / "thunderfleet"
    shutil.copytree(chart, copied)
    shutil.copy(OLDER, copied / "values.yaml")
    return copied


def objects(helm: Helm, chart: Path, *values: str) -> list[Json]:
    """The objects. No text in them comes from a value that is missing."""
    done = helm("template", "thunderfleet", chart, "-n", "thunderfleet-system", *(w for one in values for w in ("--set", one)))
    assert done.returncode == 0, done.stderr
    assert "<nil>" not in done.stdout and "<no value>" not in done.stdout
    found = documents(done.stdout)
    for item in found:
        if item["kind"] in ("Deployment", "DaemonSet"):
            assert [word for word in command_line(item) if word.endswith("=")] == []
        for group in item["spec"]["groups"] if item["kind"] == "PrometheusRule" else ():
            assert [rule["expr"] for rule in group["rules"] if re.search(r"[<>=]\s*$", rule["expr"])] == []
    return found


def key(item: Json) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
def test_values_of_the_former_release_make_the_same_objects(
    helm: Helm, chart: Path, reused: Path, chosen: tuple[str, ...]
) -> None:
    """Only pods differ: they have what the former release gave them."""
    before, now = ({key(item): item for item in objects(helm, path, *chosen)} for path in (reused, chart))
    of_page = {
        ("ClusterRole", "thunderfleet-page-viewer"),
        *((kind, "thunderfleet-router-leases") for kind in ("Role", "RoleBinding")),
    }
    added = of_page if "router.enabled=true" in chosen else set()
    assert before.keys() == now.keys() - added
    kinds = {kind for (kind, name), item in before.items() if item != now[kind, name]}
    # A router without the page needs fewer rights.
    assert kinds <= {"Deployment", "DaemonSet", "Pod", *(("ClusterRole", "Role") if added else ())}


def test_an_upgrade_changes_no_selector(helm: Helm, chart: Path, reused: Path) -> None:
    """The API server refuses a change of a selector, and helm then fails half way."""
    selectors = [
        {key(item): item["spec"]["selector"] for item in objects(helm, path) if item["kind"] in ("Deployment", "DaemonSet")}
        for path in (reused, chart)
    ]
    own = {"app.kubernetes.io/instance": "thunderfleet"}
    assert (
        selectors[0]
        == selectors[1]
        == {
            ("Deployment", "thunderfleet-operator"): {"matchLabels": {**own, "app.kubernetes.io/component": "operator"}},
            ("DaemonSet", "thunderfleet-agent"): {"matchLabels": {**own, "app.kubernetes.io/component": "agent"}},
        }
    )


def test_the_command_lines_have_only_what_the_former_release_knows(helm: Helm, reused: Path) -> None:
    found = objects(helm, reused)
    agent = command_line(find(found, "DaemonSet", "thunderfleet-agent"))
    assert not [word for word in agent if word.startswith(("--model-store", "--copy-"))], (
        "nothing is fetched until it is asked for"
    )
    operator = command_line(find(found, "Deployment", "thunderfleet-operator"))
    assert not [word for word in operator if word.startswith("--hub")]


def test_routers_need_their_ports_and_the_message_says_which(helm: Helm, reused: Path) -> None:
    done = helm("template", "thunderfleet", reused, "--set", "router.enabled=true")
    assert done.returncode != 0
    assert "- router.port is not set: routers serve there; use a port such as 4141" in done.stderr
    assert "- operator.demandPort is not set: routers report requests there; use a port such as 9402" in done.stderr


@pytest.mark.soak
def test_no_value_that_is_newer_has_to_be_there(helm: Helm, chart: Path) -> None:
    """As after releases between that one and this one. Each value is left out alone, with all others set."""
    everything = yamltext.load(EVERYTHING.read_text())
    older = set(leaves(yamltext.load(OLDER.read_text())))
    newer = [path for path in leaves(yamltext.load((chart / "values.yaml").read_text())) if path not in older]
    assert "router.page.hosts" in newer and "pods" in newer and everything.keys() >= {path.split(".")[0] for path in newer}
    needed = {"router.port", "operator.demandPort"}
    for path in newer:
        done = helm("template", "thunderfleet", chart, "--values", EVERYTHING, "--set", f"{path}=null")
        if path == "hub.enabled":
            # As old as the hub itself.
            assert "at '/hub': missing property 'enabled'" in done.stderr
            continue
        if path in needed:
            assert f"{path} is not set" in done.stderr
            continue
        if path == "uris.hosts":
            # Newer than these are its own parts, which are set here.
            assert '"weights.example.com" is not in uris.hosts' in done.stderr
            continue
        assert done.returncode == 0, f"{path}: {done.stderr}"
        assert "<nil>" not in done.stdout and "<no value>" not in done.stdout, path
