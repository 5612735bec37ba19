"""The values with which `thunderfleet init` installs the chart. Helm is a recording; its arguments are real."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install import init


@pytest.mark.parametrize(("status", "sets"), [("exit 1", True), ("""echo '{"version": 3}'""", False)])
def test_values_are_set_only_when_the_chart_is_not_installed_yet(tmp_path: Path, status: str, sets: bool) -> None:
    layout = HostLayout("0.2.0", *(tmp_path / name for name in ("opt", "data", "logs", "daemons")))
    helm = layout.control_plane_programs / "helm"
    helm.parent.mkdir(parents=True)
    helm.write_text(f'#!/bin/sh\ncase $1 in status) {status} ;; *) echo "$@" > "{tmp_path}/said" ;; esac\n')
    helm.chmod(0o755)
    mac: Any = SimpleNamespace(layout=layout, step=lambda name, text: None)
    init._install_chart(mac, tmp_path / "chart")
    said = (tmp_path / "said").read_text()
    assert "upgrade --install thunderfleet" in said and "--reset-then-reuse-values" in said
    assert ("--set operator.replicas=1 --set operator.runtimeClassName=macos" in said) is sets
