"""Starts, replaces and ends LaunchDaemons.

The order makes an interruption safe: an old daemon ends before its property list is replaced. So if the property list on disk
is the requested one and is loaded, the daemon runs with it.
"""

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_lib.host.trees import tail

from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.files import remove, write
from thunderfleet_controlplane.install.mac.launchctl import Launchctl

PLIST_MODE = 0o644


def put_daemon(launchctl: Launchctl, path: Path, label: str, text: bytes, exit_seconds: float) -> datetime | None:
    """Run the daemon with the property list ``text``. Raises InstallError.

    Returns None if it runs already. Otherwise a time after the end of an earlier process of it, and before the new one.
    """
    if _content(path) == text and launchctl.describe(label) is not None:
        return None
    launchctl.unload(label, exit_seconds)
    began = datetime.now(UTC)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, text, PLIST_MODE)
    except OSError as error:
        raise InstallError(f"cannot write {path}: {error}") from error
    launchctl.load(label, path)
    return began


def remove_daemon(launchctl: Launchctl, path: Path, label: str, exit_seconds: float) -> bool:
    """End a daemon and remove its property list. Returns whether there was one. Raises InstallError."""
    loaded = launchctl.unload(label, exit_seconds)
    return remove(path) or loaded


def why_not(launchctl: Launchctl, layout: HostLayout, name: str, label: str) -> str:
    """The state of a daemon, with the last lines of its log."""
    log = layout.log(name)
    return f"{label}: {launchctl.state(label)}; the last lines of {log}:\n{tail(log)}"


def _content(path: Path) -> bytes | None:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return None
