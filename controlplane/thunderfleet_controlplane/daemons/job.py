"""One LaunchDaemon, and its property list. Pure."""

import plistlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thunderfleet_controlplane.daemons import keys

PREFIX = "io.thunderfleet."
OPEN_FILES = 65536
PRIVATE_UMASK = 0o077
INPUTS = "THUNDERFLEET_INPUTS"
"""A hash of the files that a daemon reads only when it starts: when one changes, so does the property list."""


class PlistError(ValueError):
    """launchd would not accept a property list, or would read it differently."""


@dataclass(frozen=True)
class Daemon:
    """A program that launchd starts when the Mac boots, and again whenever it ends."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: str = ""
    """A hash of the files that it reads only when it starts; empty if there are none."""
    exit_seconds: int = 20
    """How long launchd waits after SIGTERM before it sends SIGKILL."""
    restart_seconds: int = 10
    """Minimum interval between two starts by launchd, in seconds."""
    nice: int = 0
    """Above 0: other programs come first."""

    @property
    def label(self) -> str:
        """The label that launchd uses for the daemon."""
        return PREFIX + self.name

    def property_list(self) -> dict[str, Any]:
        """The keys of launchd.plist(5)."""
        environment = dict(self.environment) | ({INPUTS: self.inputs} if self.inputs else {})
        found: dict[str, Any] = {
            "Label": self.label,
            "ProgramArguments": list(self.arguments),
            "EnvironmentVariables": environment,
            "WorkingDirectory": "/",
            "RunAtLoad": True,
            "KeepAlive": True,
            "ThrottleInterval": self.restart_seconds,
            "ExitTimeOut": self.exit_seconds,
            # launchd limits the CPU and disk use of daemons with another process type.
            "ProcessType": "Interactive",
            "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
            "HardResourceLimits": {"NumberOfFiles": OPEN_FILES},
            "Umask": PRIVATE_UMASK,
            "StandardOutPath": str(self.log),
            "StandardErrorPath": str(self.log),
        }
        if not environment:
            del found["EnvironmentVariables"]
        if self.nice:
            found["Nice"] = self.nice
        return found

    def to_plist(self) -> bytes:
        """The property list (XML). Raises PlistError if launchd would not accept it."""
        text = plistlib.dumps(self.property_list())
        if wrong := keys.problems(text, f"{self.label}.plist"):
            raise PlistError(f"the property list of {self.label} is invalid: {'; '.join(wrong)}")
        return text
