"""The values with which the chart is installed, and that follow the number of control planes.

Helm is a recording; its arguments are real.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.steps import chart


@pytest.mark.parametrize(("status", "sets"), [("exit 1", True), ("""echo '{"version": 3}'""", False)])
def test_values_are_set_only_when_the_chart_is_not_installed_yet(tmp_path: Path, status: str, sets: bool) -> None:
    layout = HostLayout("0.2.0", *(tmp_path / name for name in ("opt", "data", "logs", "daemons")))
    helm = layout.control_plane_programs / "helm"
    helm.parent.mkdir(parents=True)
    helm.write_text(f'#!/bin/sh\ncase $1 in status) {status} ;; *) echo "$@" > "{tmp_path}/said" ;; esac\n')
    helm.chmod(0o755)
    mac: Any = SimpleNamespace(layout=layout, step=lambda name, text: None)
    chart.install(mac, tmp_path / "chart")
    said = (tmp_path / "said").read_text()
    assert said.startswith("upgrade thunderfleet ") and "--reset-then-reuse-values --install" in said
    assert ("--set operator.replicas=1 --set operator.runtimeClassName=macos" in said) is sets


class Cluster:
    """A Mac with a control plane, whose helm has these values."""

    def __init__(self, folder: Path, values: str, fails: bool = False) -> None:
        self.layout = HostLayout("0.2.0", *(folder / name for name in ("opt", "data", "logs", "daemons")))
        self.said = folder / "said"
        self.told: list[str] = []
        helm = self.layout.control_plane_programs / "helm"
        helm.parent.mkdir(parents=True)
        end = "echo 'Error: another operation is in progress' >&2; exit 1" if fails else ""
        helm.write_text(f'#!/bin/sh\ncase $1 in get) {values} ;; *) echo "$@" > "{self.said}"; {end} ;; esac\n')
        helm.chmod(0o755)

    def step(self, name: str, text: str) -> None:
        self.told.append(text)

    def follow(self, before: int, now: int) -> str:
        """The arguments of helm when there are now so many control planes."""
        mac: Any = self
        self.said.unlink(missing_ok=True)
        chart.follow_control_planes(mac, Path("/chart"), before, now)
        return self.said.read_text() if self.said.exists() else ""


def values(replicas: object, runtime: str = "macos") -> str:
    return f"""echo '{{"operator": {{"replicas": {replicas}, "runtimeClassName": "{runtime}"}}}}'"""


@pytest.mark.parametrize(
    ("has", "planes", "sets"),
    [
        (values(1), (1, 2), "operator.replicas=2"),
        (values(2), (2, 1), "operator.replicas=1"),
        # Nothing to do, or a choice of somebody else.
        (values(2), (1, 2), ""),
        (values(1), (2, 1), ""),
        (values(1), (2, 3), ""),
        (values(1), (3, 2), ""),
        (values(3), (2, 1), ""),
        (values(2), (3, 2), ""),
        (values(1, "other"), (1, 2), ""),
        ("echo '{}'", (1, 2), ""),
        ("echo null", (1, 2), ""),
        ("echo '[]'", (1, 2), ""),
        ("exit 1", (1, 2), ""),
    ],
)
def test_replicas_of_the_operator_follow_the_control_planes(
    tmp_path: Path, has: str, planes: tuple[int, int], sets: str
) -> None:
    said = Cluster(tmp_path, has).follow(*planes)
    assert (f"--reset-then-reuse-values --set {sets}" in said) if sets else said == ""


def test_a_helm_that_fails_ends_nothing_and_the_command_is_named(tmp_path: Path) -> None:
    mac = Cluster(tmp_path, values(1), fails=True)
    assert mac.follow(1, 2)
    assert "helm upgrade thunderfleet /chart -n thunderfleet-system" in mac.told[-1]
    assert "--set operator.replicas=2" in mac.told[-1]
