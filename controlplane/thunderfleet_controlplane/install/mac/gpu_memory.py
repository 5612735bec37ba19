"""The limit of memory that the GPU of this Mac may wire, now and after each restart.

``sysctl`` sets it until the next restart. Whether macOS reads ``/etc/sysctl.conf`` when it starts depends on its version, so a
LaunchDaemon sets it again.
"""

import plistlib
from typing import Final

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure

from thunderfleet_controlplane.daemons import keys
from thunderfleet_controlplane.daemons.job import PREFIX
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.daemons import put_daemon, remove_daemon
from thunderfleet_controlplane.install.mac.launchctl import Launchctl

LABEL: Final = f"{PREFIX}gpu-memory"
NAME: Final = "iogpu.wired_limit_mb"
SECONDS: Final = 10.0


def property_list(megabytes: int) -> bytes:
    """The LaunchDaemon: it runs once when the Mac starts, and when it is loaded."""
    text = plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": ["/usr/bin/env", "sysctl", f"{NAME}={megabytes}"],
            "RunAtLoad": True,
        }
    )
    if wrong := keys.problems(text, f"{LABEL}.plist"):
        raise InstallError(f"the property list of {LABEL} is invalid: {'; '.join(wrong)}")
    return text


def is_kept(layout: HostLayout) -> bool:
    """Whether a limit is set again after each restart."""
    return layout.plist(LABEL).is_file()


def keep(host: BlockingHost, layout: HostLayout, megabytes: int) -> None:
    """Set the limit, now and after each restart. Raises InstallError."""
    # A value that macOS refuses now would be refused after each restart too.
    _set(host, megabytes)
    put_daemon(Launchctl(host), layout.plist(LABEL), LABEL, property_list(megabytes), SECONDS)


def forget(host: BlockingHost, layout: HostLayout) -> bool:
    """Use the default of macOS again. Returns whether a limit was kept. Raises InstallError."""
    if not is_kept(layout):
        return False
    remove_daemon(Launchctl(host), layout.plist(LABEL), LABEL, SECONDS)
    use_default(host)
    return True


def use_default(host: BlockingHost) -> None:
    """Use the default of macOS until another limit is set. Raises InstallError."""
    _set(host, 0)


def _set(host: BlockingHost, megabytes: int) -> None:
    said = host.run(["sysctl", f"{NAME}={megabytes}"], SECONDS)
    if isinstance(said, Failure):
        raise InstallError(f"the limit of GPU memory cannot be set: {said}")
