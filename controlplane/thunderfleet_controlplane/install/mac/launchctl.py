"""Calls of launchctl in the system domain.

``bootout`` returns before the daemon has ended, and until then ``bootstrap`` fails with error 5, as it does for a daemon that
is loaded already. So this module ignores the exit codes of these two, and checks whether ``print`` finds the label.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, FailureKind, Output

from thunderfleet_controlplane.install.errors import InstallError

CALL_SECONDS = 30.0
LOAD_SECONDS = 30.0
GONE_SECONDS = 20.0
"""How long launchd may take beyond ExitTimeOut."""
PAUSE_SECONDS = 0.2
NOT_FOUND = 113


class Launchctl:
    """launchd's system domain."""

    def __init__(
        self,
        host: BlockingHost,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._host, self._clock, self._pause = host, clock, pause

    def _call(self, *arguments: str) -> Output | Failure:
        said = self._host.run(["launchctl", *arguments], CALL_SECONDS)
        if isinstance(said, Failure) and said.kind is not FailureKind.FAILED:
            raise InstallError(f"cannot manage LaunchDaemons: {said}")
        return said

    def describe(self, label: str) -> str | None:
        """The description of a daemon by launchd; None if it is not loaded. Raises InstallError."""
        said = self._call("print", f"system/{label}")
        if isinstance(said, Output):
            return said.text
        if said.code == NOT_FOUND:
            return None
        raise InstallError(f"cannot get the state of {label} from launchd: {said}")

    def state(self, label: str) -> str:
        """The state of a daemon in a few words."""
        text = self.describe(label)
        if text is None:
            return "not loaded"
        found = {key: value for key, value in re.findall(r"^\t(state|last exit code|runs) = (.+)$", text, re.MULTILINE)}
        return ", ".join(f"{key}: {value}" for key, value in found.items()) or "loaded"

    def load(self, label: str, plist: Path) -> None:
        """Load a daemon that is not loaded. Raises InstallError if launchd does not accept it in time."""
        if self._disabled(label):
            self._call("enable", f"system/{label}")
        deadline = self._clock() + LOAD_SECONDS
        while True:
            said = self._call("bootstrap", "system", str(plist))
            if self.describe(label) is not None:
                return
            if self._clock() > deadline:
                raise InstallError(
                    f"launchd does not load {plist} ({said if isinstance(said, Failure) else 'no error'}); "
                    f"`log show --last 5m --predicate 'process == \"launchd\"'` may show why"
                )
            self._pause(PAUSE_SECONDS)

    def unload(self, label: str, exit_seconds: float) -> bool:
        """End a daemon and wait until it is gone. Returns whether it was loaded. Raises InstallError."""
        if self.describe(label) is None:
            return False
        said = self._call("bootout", f"system/{label}")
        deadline = self._clock() + exit_seconds + GONE_SECONDS
        while self.describe(label) is not None:
            if self._clock() > deadline:
                reason = f": {said}" if isinstance(said, Failure) else ""
                waited = f"did not end within {exit_seconds + GONE_SECONDS:.0f} s{reason}"
                raise InstallError(f"{label} {waited}; run the same command again, and if this recurs, reboot this Mac")
            self._pause(PAUSE_SECONDS)
        return True

    def _disabled(self, label: str) -> bool:
        said = self._call("print-disabled", "system")
        if isinstance(said, Failure):
            return False
        # Older releases print true.
        return re.search(rf'"{re.escape(label)}" => (disabled|true)\b', said.text) is not None
