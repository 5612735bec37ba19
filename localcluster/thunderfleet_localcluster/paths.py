"""Locations on this machine: the cache, which all clusters share and which can be recreated, and one state folder per cluster.

Root uses the system's folders, because root's home is unreadable for the unprivileged user that containers run as.
"""

import os
import re
from pathlib import Path

from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError

DEFAULT_NAME = "thunderfleet"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def checked_name(name: str) -> str:
    """Return ``name`` if it is a valid cluster name. Raises LocalClusterError."""
    if not _NAME.fullmatch(name):
        raise LocalClusterError(
            f"invalid cluster name {name!r}: use 1 to 40 lower-case letters, digits and '-'; "
            "begin and end with a letter or digit",
            usage=True,
        )
    return name


def cache_folder() -> Path:
    """The folder for programs and images, which can be recreated."""
    if given := os.environ.get("THUNDERFLEET_CACHE"):
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/thunderfleet")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thunderfleet"


def state_folder() -> Path:
    """The default parent of the clusters' folders."""
    if os.geteuid() == 0:
        return Path("/var/lib/thunderfleet")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "thunderfleet"


def cluster_folder(name: str, directory: Path | None = None) -> ClusterFolder:
    """The folder of the cluster ``name``: ``directory`` if given, else the default. Raises LocalClusterError."""
    return ClusterFolder((directory or state_folder() / checked_name(name)).absolute())


def users_kubeconfig() -> Path | None:
    """The kubeconfig that kubectl would use: $KUBECONFIG, or ~/.kube/config if it exists."""
    if named := os.environ.get("KUBECONFIG"):
        return Path(named)
    usual = Path.home() / ".kube" / "config"
    return usual if usual.is_file() else None
