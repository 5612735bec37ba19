"""The installation on this Mac: the Python that runs the kubelet, the balancer, and a kubeconfig that root may use."""

import os
import plistlib
from pathlib import Path
from xml.parsers.expat import ExpatError

from thunderfleet_controlplane.balancer.look import Look, look
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import BALANCER, BALANCER_PORT, KUBELET, label
from thunderfleet_controlplane.install.mac.facts import own_server
from thunderfleet_lib.host import yamltext
from thunderfleet_localcluster.image import version


def layout() -> HostLayout:
    """Where `thunderfleet init` and `join` install."""
    return HostLayout(version())


def kubelets_python(where: HostLayout) -> str | None:
    """The Python program of the kubelet's LaunchDaemon, which also runs agents and runners.

    None if there is no such daemon.
    """
    try:
        program = plistlib.loads(where.plist(label(KUBELET)).read_bytes())["ProgramArguments"][0]
    except (OSError, ValueError, ExpatError, LookupError, TypeError):
        return None
    python = Path(os.path.realpath(Path(str(program)).parent / "python3"))
    return str(python) if python.is_file() else None


def manages_ports(where: HostLayout) -> bool:
    """Whether this Mac has a kubelet that keeps Thunderbolt ports out of bridges."""
    try:
        config = yamltext.load(where.kubelet_config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    named = config.get("thunderboltPorts") if isinstance(config, dict) else None
    return where.plist(label(KUBELET)).is_file() and named != "Unmanaged"


async def balanced(where: HostLayout) -> Look | None:
    """The API servers in the list of this Mac's balancer, and whether they accept connections; None without a balancer."""
    if not where.plist(label(BALANCER)).is_file():
        return None
    return await look(where.api_servers, BALANCER_PORT, own_server(where))


def own_kubeconfig(where: HostLayout) -> Path | None:
    """The kubeconfig that `thunderfleet init` wrote for this Mac; None on other Macs."""
    return where.local_kubeconfig if where.local_kubeconfig.is_file() else None
