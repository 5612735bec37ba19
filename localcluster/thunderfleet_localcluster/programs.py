"""The programs of the control plane and of monitoring, from this machine's cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from thunderfleet_controlplane.assets import CONTROL_PLANE, AssetsError, Bundle, find_assets

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.paths import cache_folder


def find_programs(tell: Callable[[dict[str, Any]], None], bundle: Bundle = CONTROL_PLANE) -> Path:
    """The folder with the programs of ``bundle``, which are built if necessary. Raises LocalClusterError."""
    try:
        return find_assets(tell, bundle, cache_folder() / bundle.name)
    except AssetsError as error:
        raise LocalClusterError(str(error), usage=error.usage) from error
