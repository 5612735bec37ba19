"""The loopback addresses that a cluster without namespaces needs. macOS does not have them until they are added."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from thunderfleet_localcluster.client.launch import Network, choose_network
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.file import load_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.fleet.spec import Fleet
from thunderfleet_localcluster.network.namespaces import can_bind
from thunderfleet_localcluster.network.plan import missing_aliases

ADD_SECONDS = 120
"""Includes the time to type a password."""


def missing_addresses(fleet: Fleet) -> list[str]:
    """Commands that add missing loopback addresses for a cluster. Only on macOS addresses are missing."""
    return missing_aliases(plan_layout(fleet, "loopback"), can_bind) if sys.platform == "darwin" else []


def check_addresses(fleet: Fleet) -> None:
    """Raises LocalClusterError with the commands if addresses are missing."""
    if lines := missing_addresses(fleet):
        raise LocalClusterError("loopback addresses are missing; add them with:\n" + "\n".join(lines))


def offer_addresses(
    fleet: Path | None,
    network: Network = "auto",
    ask: Callable[[str], str] | None = None,
    run: Callable[[str], int] | None = None,
) -> None:
    """Offers to add missing addresses if there is a terminal. Raises LocalClusterError at once if they stay missing.

    Call it first: building the control plane takes minutes. ``ask`` and ``run``: for tests; by default the terminal and sudo.
    """
    if choose_network(network)[0] == "namespaces":
        return
    parsed = load_fleet(fleet)
    lines = missing_addresses(parsed)
    if lines and (ask is not None or sys.stdin.isatty()) and _agreed(lines, ask or input):
        for line in lines:
            if (run or _run)(line):
                break
    check_addresses(parsed)


def _agreed(lines: Sequence[str], ask: Callable[[str], str]) -> bool:
    print("The machines of the cluster need loopback addresses, until the next reboot:", *lines, sep="\n", flush=True)
    try:
        return ask(f"Run these {len(lines)} commands now? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _run(line: str) -> int:
    try:
        return subprocess.run(shlex.split(line), timeout=ADD_SECONDS, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return 1
