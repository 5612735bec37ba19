"""Progress of the start as JSON lines on standard output, for ``thunderfleet local up``."""

import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator

log = logging.getLogger(__name__)


class Report:
    """Writes events until the reader goes away."""

    def __init__(self) -> None:
        self.open = True

    def write(self, **event: object) -> None:
        """Write one event."""
        if self.open:
            try:
                os.write(1, json.dumps(event).encode() + b"\n")
            except OSError:
                self.open = False

    def close(self) -> None:
        """Write nothing more; standard output becomes /dev/null, so that the reader gets end of file."""
        self.open = False
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.close(null)

    @contextlib.asynccontextmanager
    async def step(self, title: str) -> AsyncIterator[None]:
        """One step: reports its start, and its duration unless it fails."""
        began = time.monotonic()
        self.write(step=title, state="start")
        yield
        seconds = time.monotonic() - began
        log.info("%s: %.1f s", title, seconds)
        self.write(step=title, state="done", seconds=round(seconds, 2))
