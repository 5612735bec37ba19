"""Memory that stays wired after a rank was killed, and a limit on such kills.

Killing a rank that has loaded its shard can leave the shard's memory wired until the Mac is rebooted. So wired memory is read
before a rank starts and, after a kill, until it is released; no rank starts on the Mac until then. Only macOS behaves like
this, and wired memory is only read there.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass

from thunderfleet_runner.faults import Fault
from thunderfleet_runner.host import memory

BACK_SECONDS = 30.0
"""How long the memory of a killed rank may take to be released."""
KILLS = 2
KILLS_SECONDS = 3600.0
"""After KILLS kills of a loaded rank within KILLS_SECONDS, the group waits."""
SLACK_BYTES = 512 << 20
"""Allowance for memory that other programs wire."""
_GIB = 1 << 30

Reader = Callable[[], int | None]
"""Returns the bytes wired on this Mac; None when unknown."""


class MemoryState(Enum):
    """Whether a killed rank's memory is released."""

    FREE = "free"
    WAIT = "wait"
    """Not released yet, and within the time limit."""
    STRANDED = "stranded"


@dataclass(frozen=True)
class Ledger:
    """Kills on this Mac. Times are seconds of one monotonic clock."""

    before: int | None = None
    """Bytes wired before the rank was started."""
    killed_at: float | None = None
    """When a loaded rank was killed whose memory is not known to be released."""
    kills: tuple[float, ...] = ()

    def started(self, wired: int | None) -> "Ledger":
        """A rank starts; ``wired`` bytes are wired now."""
        return replace(self, before=wired)

    def killed(self, now: float) -> "Ledger":
        """A loaded rank was ended by a signal."""
        recent = tuple(at for at in self.kills if now - at < KILLS_SECONDS)
        return replace(self, killed_at=now, kills=(*recent, now))

    def state(self, now: float, wired: int | None, reserved: int) -> MemoryState:
        """Whether the killed rank's memory is released; ``reserved`` bytes were the rank's, of which an eighth may remain."""
        if self.killed_at is None or self.before is None or wired is None:
            return MemoryState.FREE
        if wired <= self.before + max(SLACK_BYTES, reserved // 8):
            return MemoryState.FREE
        return MemoryState.WAIT if now - self.killed_at < BACK_SECONDS else MemoryState.STRANDED

    def settled(self) -> "Ledger":
        """The memory is released."""
        return replace(self, killed_at=None)

    def hold_seconds(self, now: float) -> float:
        """Seconds for which no rank may start because of the kills; 0 when one may."""
        recent = [at for at in self.kills if now - at < KILLS_SECONDS]
        return recent[-KILLS] + KILLS_SECONDS - now if len(recent) >= KILLS else 0.0


def stranded(node: str, before: int, wired: int) -> Fault:
    """The memory of a killed rank was not released in time."""
    text = (
        f"{(wired - before) / _GIB:.1f} GiB on {node} are still wired {BACK_SECONDS:g} s after a rank was killed there "
        f"({before / _GIB:.1f} GiB were wired before it started): reboot {node} to release them"
    )
    return Fault(FaultClass.REBOOT, Reason.MEMORY_STRANDED, text)


def held(node: str, seconds: float) -> Fault:
    """Too many kills: no rank starts for ``seconds``."""
    text = (
        f"a loaded rank was killed {KILLS} times within an hour on {node}, which can leave its memory wired, so this pod "
        f"starts no rank for {max(1, round(seconds / 60))} min, or until the operator replaces it after "
        "spec.recovery.backoffLimitSeconds. Find the cause in the earlier failures (`kubectl describe md NAME`)"
    )
    return Fault(FaultClass.CONFIGURE, Reason.KILLED_TOO_OFTEN, text)


def reader() -> Reader | None:
    """How wired memory is read on this system; None where a kill leaves none wired."""
    return memory.wired_bytes if sys.platform == "darwin" else None
