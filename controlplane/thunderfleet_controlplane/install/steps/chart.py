"""The chart that `thunderfleet init` installs: its release, and values that depend on the number of control planes."""

import contextlib
import json
from pathlib import Path
from typing import Any, Final

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, Output

from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.machine import Mac
from thunderfleet_controlplane.install.steps import cluster

SECONDS: Final = 180.0
NAME: Final = "thunderfleet"
ALONE, SEVERAL = 1, 2
"""Replicas of the operator with one control plane and with several. A replica on one more Mac would help only if two are lost
at once, and with three control planes the API would be lost too."""
FIRST_VALUES: Final = (f"operator.replicas={ALONE}", "operator.runtimeClassName=macos")
"""Values of the first installation, when one Mac is the only Node that can run the operator."""


def install(mac: Mac, chart: Path) -> None:
    """Install or upgrade the chart. Raises InstallError."""
    mac.step("chart", f"installing the chart into {cluster.SYSTEM_NAMESPACE}")
    # Keeps values that users have set since.
    values = () if release(mac.layout) else FIRST_VALUES
    said = _upgrade(mac.layout, chart, "--install", *(word for value in values for word in ("--set", value)))
    if isinstance(said, Failure):
        raise InstallError(f"the chart cannot be installed: {said}")


def release(layout: HostLayout) -> str:
    """The revision of the chart's release; empty if the chart is not installed."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(int(_read(layout, "status")["version"]))
    return ""


def replicas(control_planes: int) -> int:
    """The number of operator replicas for a number of control planes."""
    return ALONE if control_planes == 1 else SEVERAL


def follow_control_planes(mac: Mac, chart: Path, before: int, now: int) -> None:
    """Give the operator two replicas once a second Mac has a control plane, and one when only one is left.

    ``before``, ``now``: numbers of control planes. Changes the replicas only if their number is the one that this function or
    ``install`` set for ``before``; a number that a user has set stays. Nothing depends on this, so a failure is reported but
    raises no error.
    """
    former, wanted = replicas(before), replicas(now)
    if former == wanted:
        return
    value = f"operator.replicas={wanted}"
    try:
        operator = _read(mac.layout, "get", "values")["operator"]
        if operator.get("replicas") != former or operator.get("runtimeClassName") != "macos":
            return
    except (ValueError, KeyError, TypeError, AttributeError):
        # No release, or a release with other values.
        return
    mac.step("chart", f"setting {value}")
    said = _upgrade(mac.layout, chart, "--set", value)
    if isinstance(said, Failure):
        command = f"helm upgrade {NAME} {chart} -n {cluster.SYSTEM_NAMESPACE} --reset-then-reuse-values --set {value}"
        mac.step("chart", f"{value} is not set: {said}; run `{command}`")


def _upgrade(layout: HostLayout, chart: Path, *options: str) -> Output | Failure:
    return _helm(layout, "upgrade", NAME, str(chart), "--reset-then-reuse-values", *options)


def _read(layout: HostLayout, *words: str) -> Any:
    """Helm's data of the release. Raises ValueError if there is none."""
    return json.loads(_helm(layout, *words, NAME, "-o", "json").text)


def _helm(layout: HostLayout, *words: str) -> Output | Failure:
    program = next(iter(sorted(layout.programs_root.glob("control-plane-*/helm"))), layout.control_plane_programs / "helm")
    options = ("--namespace", cluster.SYSTEM_NAMESPACE, "--kubeconfig", str(layout.local_kubeconfig))
    return BlockingHost().run([str(program), *words, *options], SECONDS)
