"""One start of one container, as its folder records it. Pure."""

from dataclasses import dataclass
from typing import Literal

BACKOFF_RESET_SECONDS = 600.0
"""A container that runs longer than this restarts without delay, and its back-off starts over."""

START_ERROR = "StartError"
STATUS_UNKNOWN = "ContainerStatusUnknown"
START_EXIT_CODE = 128
LOST_EXIT_CODE = 137


@dataclass(frozen=True)
class Attempt:
    """One start of one container. Times are seconds since the epoch.

    ``number`` counts from 0. ``backoff``: seconds between the end of this attempt and the earliest start of the next one.
    """

    number: int
    state: Literal["starting", "running", "exited"]
    backoff: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    stopping: bool = False
    grace_exceeded: bool = False
    container_id: str = ""
    image_id: str = ""
    image: str = ""
    """The name of its image in the pod's spec; empty if an older kubelet started it."""
    pid: int = 0
    """The main process, which leads the attempt's process group; 0 unless it runs."""
    boot: str = ""
    """The boot of the machine in which it was started; empty if that is unknown."""

    @property
    def live(self) -> bool:
        """Starting or running."""
        return self.state != "exited"

    @property
    def seconds(self) -> float:
        """How long an ended attempt ran; 0 if the clock was set back meanwhile."""
        finished = self.finished_at or 0.0
        return max(0.0, finished - (self.started_at or finished))

    @property
    def retry_at(self) -> float:
        """When the next attempt may start."""
        finished = self.finished_at or 0.0
        return finished if self.seconds > BACKOFF_RESET_SECONDS else finished + self.backoff


@dataclass(frozen=True)
class Start:
    """Start attempt ``number`` of ``container``; its record keeps ``backoff`` (seconds)."""

    container: str
    number: int
    backoff: float
