"""Where a container finds the volumes of its pod.

A pod on a Mac is a native process, so a volume mounted at ``/etc/x`` cannot appear at ``/etc/x`` of the machine. As with
Windows HostProcess pods it appears at ``$CONTAINER_SANDBOX_MOUNT_POINT/etc/x``. Elsewhere the variable is unset, and
paths are used as they are.
"""

import os
from pathlib import Path

MOUNT_POINT_VARIABLE = "CONTAINER_SANDBOX_MOUNT_POINT"
SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def mounted(path: str) -> Path:
    """The path on this machine of the absolute mount path ``path``."""
    root = os.environ.get(MOUNT_POINT_VARIABLE)
    return Path(root) / path.lstrip("/") if root else Path(path)
