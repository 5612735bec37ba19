"""Progress of long operations: one line per step with its duration; on a terminal also the running step."""

import sys
import time
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.status import Status

LINE_SECONDS = 15


class Progress:
    """Shows steps on ``stream``; without a terminal, only finished ones."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self.console = Console(file=stream or sys.stderr, quiet=quiet, highlight=False, soft_wrap=True)
        self.began = time.monotonic()
        self._status: Status | None = None
        self._said = 0.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def running(self, title: str) -> None:
        """Show the running step."""
        if self.console.is_terminal:
            if self._status is None:
                self._status = self.console.status(title)
                self._status.start()
            else:
                self._status.update(title)

    def moving(self, title: str) -> None:
        """Show the progress of the running step; without a terminal, a line every LINE_SECONDS."""
        if self.console.is_terminal:
            self.running(title)
        elif time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            self.line(title)

    def done(self, title: str, seconds: float) -> None:
        """Show a finished step."""
        self.line(f"[green]✓[/green] {title} [dim]{seconds:.1f} s[/dim]")

    def line(self, text: str) -> None:
        """Show a line (rich markup)."""
        self._stop()
        self.console.print(text)

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of the supervisor or of a build."""
        if event.get("state") == "start":
            self.running(str(event["step"]))
        elif event.get("state") == "progress":
            elapsed, expected = float(event["elapsed"]), float(event["expected"])
            left = (
                f"{elapsed:.0f} of about {expected:.0f} s" if elapsed < expected else f"{elapsed:.0f} s, longer than expected"
            )
            self.moving(f"{event['step']}: {event['program']} ({event['number']} of {event['of']}), {left}")
        elif event.get("state") == "done":
            self.done(str(event["step"]), float(event["seconds"]))
