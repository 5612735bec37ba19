"""What a killed rank leaves behind: wired memory that is not given back, and a limit to how often that is risked.

A hard kill of a rank that has loaded its shard can leave the shard's memory wired until the Mac is rebooted. So memory is read
before a rank is started and, after a kill, until it is back; nothing is started on the Mac meanwhile. Only macOS has this, and
only there it is read.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import FaultClass
from thunderfleet_lib.hostcmd import Output

from thunderfleet_runner.faults import Fault
from thunderfleet_runner.host.commands import HOST

BACK_SECONDS = 30.0
"""How long after a kill its memory may take to come back."""
KILLS = 2
KILLS_SECONDS = 3600.0
"""So many kills of a loaded rank within so long, and the group waits."""
SLACK_BYTES = 512 << 20
"""Other programs wire memory too."""
_GIB = 1 << 30

Reader = Callable[[], int | None]
"""Bytes that are wired on this Mac now; None when it does not say."""


class MemoryState(Enum):
    """Whether a killed rank's memory is released."""

    FREE = "free"
    WAIT = "wait"
    """Not back yet, and there is time."""
    STRANDED = "stranded"


@dataclass(frozen=True)
class Ledger:
    """What is known of kills on this Mac. Times are seconds of one clock that only goes forward."""

    before: int | None = None
    """Bytes wired before the rank was started."""
    killed_at: float | None = None
    """When a loaded rank was killed whose memory is not known to be back."""
    kills: tuple[float, ...] = ()

    def started(self, wired: int | None) -> "Ledger":
        return replace(self, before=wired)

    def killed(self, now: float) -> "Ledger":
        """A loaded rank was ended by a signal."""
        recent = tuple(at for at in self.kills if now - at < KILLS_SECONDS)
        return replace(self, killed_at=now, kills=(*recent, now))

    def state(self, now: float, wired: int | None, reserved: int) -> MemoryState:
        """Whether the killed rank's memory is back. ``reserved`` bytes were the rank's; a part of it counts as all."""
        if self.killed_at is None or self.before is None or wired is None:
            return MemoryState.FREE
        if wired <= self.before + max(SLACK_BYTES, reserved // 8):
            return MemoryState.FREE
        return MemoryState.WAIT if now - self.killed_at < BACK_SECONDS else MemoryState.STRANDED

    def settled(self) -> "Ledger":
        """The memory is back."""
        return replace(self, killed_at=None)

    def hold_seconds(self, now: float) -> float:
        """How long nothing may be started because of the kills; 0 when it may."""
        recent = [at for at in self.kills if now - at < KILLS_SECONDS]
        return recent[-KILLS] + KILLS_SECONDS - now if len(recent) >= KILLS else 0.0


def stranded(node: str, before: int, wired: int) -> Fault:
    text = (
        f"{(wired - before) / _GIB:.1f} GiB on {node} are still wired {BACK_SECONDS:g} s after a rank was killed there "
        f"({before / _GIB:.1f} GiB were before it started): only a reboot of {node} gives them back"
    )
    return Fault(FaultClass.REBOOT, Reason.MEMORY_STRANDED, text)


def held(node: str, seconds: float) -> Fault:
    text = (
        f"a loaded rank was killed {KILLS} times within an hour on {node}, which can strand its memory: nothing is started "
        f"there for {max(1, round(seconds / 60))} min; look at the failures before it, or delete the pod to go on now"
    )
    return Fault(FaultClass.CONFIGURE, Reason.KILLED_TOO_OFTEN, text)


def reader() -> Reader | None:
    """How wired memory is read here; None where a kill strands nothing."""
    return wired_bytes if sys.platform == "darwin" else None


def wired_bytes() -> int | None:
    """Wired memory as ``vm_stat`` says it."""
    outcome = HOST.run(("vm_stat",), 5.0)
    return parse_wired(outcome.text) if isinstance(outcome, Output) else None


def parse_wired(text: str) -> int | None:
    """``Pages wired down`` of ``vm_stat``, in bytes."""
    size = 16384
    for line in text.splitlines():
        if "page size of" in line:
            size = int(line.split("page size of", 1)[1].split()[0])
        name, _, value = line.partition(":")
        if name == "Pages wired down":
            return int(value.strip().rstrip(".")) * size
    return None
