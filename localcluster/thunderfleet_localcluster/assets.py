"""The programs of the control plane: found in ``KUBEBUILDER_ASSETS``, or built once from pinned Go modules into the cache."""

import os
from pathlib import Path

from thunderfleet_localcluster.errors import LocalClusterError

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")


def given() -> Path | None:
    """The folder that the user names, checked. Raises LocalClusterError when programs are missing there."""
    value = os.environ.get("KUBEBUILDER_ASSETS")
    if not value:
        return None
    folder = Path(value).absolute()
    missing = [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]
    if missing:
        raise LocalClusterError(f"KUBEBUILDER_ASSETS={value}: not there: {', '.join(missing)}", usage=True)
    return folder


def find_assets(tell: object = None) -> Path:
    """The folder with all programs."""
    folder = given()
    if folder is None:
        raise LocalClusterError("KUBEBUILDER_ASSETS is not set")
    return folder
