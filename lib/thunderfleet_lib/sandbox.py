"""Where a container finds what its pod mounts.

A pod on a Mac is a native process, so a volume mounted at ``/etc/x`` cannot appear at the machine's own ``/etc/x``. Like a
Windows HostProcess pod it appears under ``$CONTAINER_SANDBOX_MOUNT_POINT/etc/x``. Programs that also run by hand, or in a
container of the usual kind, see the variable unset and the path as it stands.
"""

import os
from pathlib import Path

MOUNT_POINT_VARIABLE = "CONTAINER_SANDBOX_MOUNT_POINT"
SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def mounted(path: str) -> Path:
    """The place on this machine of a pod's absolute mount path ``path``."""
    root = os.environ.get(MOUNT_POINT_VARIABLE)
    return Path(root) / path.lstrip("/") if root else Path(path)
