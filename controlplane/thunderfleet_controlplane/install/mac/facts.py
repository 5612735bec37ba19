"""The input of preflight, read from this Mac."""

import contextlib
import os
import plistlib
import re
import shutil
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, Output
from thunderfleet_lib.host.interfaces import inet_addresses, route_interface
from thunderfleet_lib.host.privilege import distrust

from thunderfleet_controlplane.assets import FREE_BYTES
from thunderfleet_controlplane.balancer.servers import ApiServer, api_server
from thunderfleet_controlplane.daemons.job import PREFIX
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import API_PORT, KUBELET, label, ports
from thunderfleet_controlplane.install.mac.files import read_json
from thunderfleet_controlplane.install.mac.launchctl import Launchctl
from thunderfleet_controlplane.install.mac.preflight import NODE_NAME, Facts

COMMAND_SECONDS = 10.0
PROBE_SECONDS = 1.0
THUNDERBOLT_BRIDGE = "bridge0"
COPY_BYTES = 1 << 30
"""Space that a copy of Python with all packages needs, rounded up."""


def read_facts(host: BlockingHost, launchctl: Launchctl, layout: HostLayout, daemons: Sequence[str]) -> Facts:
    """Facts of this machine. ``daemons``: daemons whose ports must be free, or in use by these daemons."""
    root, has_launchctl = os.geteuid() == 0, host.find("launchctl") is not None
    busy: dict[int, str] = {}
    # Other users than root cannot see which process has a port, and get only the message about root.
    for daemon in daemons if root and has_launchctl else ():
        if launchctl.describe(label(daemon)) is None:
            busy |= {port: daemon for port in ports(daemon) if port_in_use(port)}
    joined = read_json(layout.kubelet_state)
    version, prefix = installed(layout) or ("", None)
    return Facts(
        root,
        macos_version(host),
        has_launchctl,
        addresses(host),
        busy,
        _free_bytes(layout.data),
        _needed_bytes(layout, builds="etcd" in daemons, joined=bool(joined)),
        read_json(layout.state),
        joined,
        layout.former.exists(),
        layout.joining.exists(),
        changeable([*folders(layout), *_existing(layout)]) if root else (),
        layout.version,
        version,
        prefix,
    )


def installed(layout: HostLayout) -> tuple[str | None, Path] | None:
    """The version of the kubelet that is installed, if it is known, and the folder of its Python; None without a kubelet."""
    try:
        spec = plistlib.loads(layout.plist(label(KUBELET)).read_bytes())
        prefix = Path(spec["ProgramArguments"][0]).parents[1]
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return version_in(prefix), prefix


def version_in(prefix: Path) -> str | None:
    """The version of thunderfleet in a Python environment."""
    found = [path.name for path in prefix.glob("lib/python3.*/site-packages/thunderfleet-*.dist-info")]
    match = re.fullmatch(r"thunderfleet-(.+)\.dist-info", found[0]) if len(found) == 1 else None
    return match[1] if match else None


def _needed_bytes(layout: HostLayout, *, builds: bool, joined: bool) -> int:
    """Space that an installation needs. What is installed already needs none, so that it can be repaired on a full disk."""
    if builds and not (layout.control_plane_programs / "etcd").exists():
        return FREE_BYTES
    return 0 if joined else COPY_BYTES


def folders(layout: HostLayout) -> list[Path]:
    """The folders that an installation writes into."""
    return [layout.programs_root, layout.data, layout.logs, layout.daemons]


def _existing(layout: HostLayout) -> list[Path]:
    """Existing files in these folders that would be used."""
    inner = [layout.programs_root, layout.data, layout.logs, layout.control_plane, layout.pki.folder]
    found = [path for folder in inner if folder.is_dir() for path in sorted(folder.iterdir())]
    return [*found, *sorted(layout.daemons.glob(f"{PREFIX}*"))]


def changeable(paths: Iterable[Path]) -> tuple[str, ...]:
    """Files that other users than root can change, each with its fix, without duplicates."""
    return tuple(dict.fromkeys(reason for path in paths if (reason := distrust([path])) is not None))


def macos_version(host: BlockingHost) -> str | None:
    """The version of macOS; empty if it is unknown, None if this is not a Mac."""
    if host.find("sw_vers") is None:
        return None
    said = host.run(["sw_vers"], COMMAND_SECONDS)
    match = re.search(r"^ProductVersion:\s*(\S+)", said.text, re.MULTILINE)
    return match[1] if match else ""


def addresses(host: BlockingHost) -> tuple[str, ...]:
    """Every IP address of this machine."""
    said = host.run(["ifconfig"], COMMAND_SECONDS)
    found = re.findall(r"^\s+inet6? ([0-9a-fA-F.:]+)(?:%\S+)? ", said.text, re.MULTILINE)
    return tuple(dict.fromkeys(found))


def default_address(host: BlockingHost) -> str | None:
    """The first address of the interface with the default route, else of the Thunderbolt Bridge.

    A Mac whose only network is a cable has no default route.
    """
    route = host.run(["route", "-n", "get", "default"], COMMAND_SECONDS)
    interface = (None if isinstance(route, Failure) else route_interface(route.text)) or THUNDERBOLT_BRIDGE
    shown = host.run(["ifconfig", interface], COMMAND_SECONDS)
    found = inet_addresses(shown.text) if isinstance(shown, Output) else None
    return found[0] if found else None


def own_server(layout: HostLayout) -> ApiServer | None:
    """The API server of this Mac at its address; None if this Mac has no control plane, or for others than root."""
    return api_server(read_json(layout.state).get("address"), API_PORT)


def host_name() -> str:
    """The host name as a Node name: in lower case, without the domain of Bonjour."""
    return socket.gethostname().lower().removesuffix(".local")


def other_names() -> tuple[str, ...]:
    """DNS names of this Mac: its host name, and its name in Bonjour."""
    return tuple(name for name in (socket.gethostname().lower(), f"{host_name()}.local") if NODE_NAME.fullmatch(name))


def port_in_use(port: int) -> bool:
    """Whether a program of this machine listens on a TCP port."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        # On macOS, binding succeeds beside a program that listens on another address.
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.settimeout(PROBE_SECONDS)
            probe.connect((address, port))
            return True
    try:
        with socket.create_server(("", port)):
            return False
    except OSError:
        return True


def _free_bytes(folder: Path) -> int | None:
    place = next((one for one in (folder, *folder.parents) if one.is_dir()), None)
    return shutil.disk_usage(place).free if place else None
