"""The version that the Node and the metrics report."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

KUBERNETES_VERSION = "v1.36.3"
"""The Kubernetes version whose API behavior this kubelet follows. Kubernetes reads it as the kubelet's version."""


# Read once: it is the version of the code that runs, also after an upgrade that replaces the files.
@cache
def package_version() -> str:
    """The version of the installed package, such as ``0.1.0``."""
    try:
        return version("thunderfleet")
    except PackageNotFoundError:
        return "0.0.0"


def kubelet_version() -> str:
    """``v1.36.3-thunderfleet.0.1.0``: a semantic version that sorts beside Kubernetes' own."""
    return f"{KUBERNETES_VERSION}-thunderfleet.{package_version()}"
