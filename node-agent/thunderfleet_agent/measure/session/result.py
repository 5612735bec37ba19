"""What a session found, and the errors that end one."""

from __future__ import annotations

from dataclasses import dataclass

from thunderfleet_agent.measure.schedule.figures import Figures


class ProbeRefused(Exception):
    """A Mac refuses a probe. ``retry_seconds``: when it may accept one; None: the probe counts as failed."""

    def __init__(self, why: str, retry_seconds: float | None = None) -> None:
        super().__init__(why)
        self.retry_seconds = retry_seconds


class SessionFailed(Exception):
    """The peer violated the protocol, failed, or disconnected."""


@dataclass(frozen=True)
class SessionResult:
    """The figures of a session, and how many bytes it moved both ways."""

    figures: Figures
    bytes: int = 0
