"""The control plane of the oldest version of Kubernetes that the chart can be installed on."""

import shlex
from pathlib import Path

from thunderfleet_controlplane.assets import CONTROL_PLANE, find_assets
from thunderfleet_localcluster.paths import cache_folder

from tests.support.otherprojects import gomodules

VERSION = "v1.32.13"
"""With k8s.io/endpointslice v0.32.12, because some module proxies do not have the next version."""
_V = "k8s.io/component-base/version"
_FLAGS = (
    f"-s -w -X {_V}.gitVersion={VERSION} -X {_V}.gitMajor=1 -X {_V}.gitMinor=32 "
    f"-X {_V}.gitCommit=module-archive -X {_V}.gitTreeState=archive"
)
_PROGRAMS = {"kube-apiserver": 150, "kube-controller-manager": 70, "kube-scheduler": 20}
"""Seconds of a cold build on two cores."""
_WITHOUT_GATES = """#!/bin/sh
for one; do
  shift
  case "$one" in --feature-gates=*) ;; *) set -- "$@" "$one" ;; esac
done
exec {program} "$@"
"""


def folder(made: Path) -> Path:
    """Makes ``made`` a folder for KUBEBUILDER_ASSETS: these programs, built once, and the cluster's own etcd, kubectl and helm.

    Raises AssetsError.
    """
    sources = {name: f"k8s.io/kubernetes/cmd/{name}" for name in _PROGRAMS}
    old = gomodules.programs("kubernetes132", {name: (sources[name], seconds) for name, seconds in _PROGRAMS.items()}, _FLAGS)
    made.mkdir()
    own = find_assets(lambda event: None, CONTROL_PLANE, cache_folder() / CONTROL_PLANE.name)
    for program in own.iterdir():
        (made / program.name).symlink_to(old / program.name if program.name in _PROGRAMS else program)
    # A local cluster enables ExtendWebSocketsToKubelet, which this version does not know.
    server = made / "kube-apiserver"
    server.unlink()
    server.write_text(_WITHOUT_GATES.format(program=shlex.quote(str(old / server.name))))
    server.chmod(0o755)
    return made
