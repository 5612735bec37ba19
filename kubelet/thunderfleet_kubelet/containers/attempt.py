"""One start of one container, as its folder records it."""

from dataclasses import dataclass
from typing import Literal

BACKOFF_RESET_SECONDS = 600.0
"""A container that ran this long starts its back-off anew."""

START_ERROR = "StartError"
STATUS_UNKNOWN = "ContainerStatusUnknown"
LOST_EXIT_CODE = 137


@dataclass(frozen=True)
class Attempt:
    """One start of one container, as its folder tells it. ``number`` counts from 0; ``backoff`` is how long after the end of
    this attempt (seconds) the next one may start at the earliest.
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

    @property
    def live(self) -> bool:
        return self.state != "exited"

    @property
    def retry_at(self) -> float:
        """When the next attempt may start."""
        finished = self.finished_at or 0.0
        if finished - (self.started_at or finished) > BACKOFF_RESET_SECONDS:
            return finished
        return finished + self.backoff


@dataclass(frozen=True)
class Start:
    """Start attempt ``number`` of ``container``; its record keeps ``backoff``."""

    container: str
    number: int
    backoff: float
