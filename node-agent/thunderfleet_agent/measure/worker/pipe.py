"""The child's messages to its agent: JSON lines out, JSON lines in."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import signal
import sys
import threading
from typing import Any

LAST_WORDS_SECONDS = 0.5


class Terminated(Exception):
    """SIGTERM has arrived."""


class Pipe:
    """Reads stdin in a thread; ends the process when stdin ends."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.stopped = False
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._read, daemon=True).start()

    def limit(self, seconds: float) -> None:
        """Ends the process ``seconds`` from now."""
        timer = threading.Timer(seconds, self._out_of_time, (seconds,))
        timer.daemon = True
        timer.start()

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def _out_of_time(self, seconds: float) -> None:
        # In a thread: the write blocks forever if the agent is frozen and reads nothing.
        message = {"error": f"did not finish within {seconds:g} s"}
        sending = threading.Thread(target=self.send, args=(message,), daemon=True)
        sending.start()
        sending.join(LAST_WORDS_SECONDS)
        os._exit(1)

    def _read(self) -> None:
        for line in sys.stdin:
            with contextlib.suppress(ValueError):
                self._answers.put(json.loads(line))
        os._exit(1)

    def send(self, message: dict[str, Any]) -> None:
        """Writes one line."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            print(json.dumps(message), flush=True)

    def progress(self, rate: float, steady: bool) -> None:
        """Reports the rate of one run. Raises Terminated after SIGTERM."""
        if self.stopped:
            raise Terminated("terminated")
        self.send({"progress": round(rate, 3), "steady": steady})

    def exchange(self, rank: int, size: int) -> Any:
        """The ``all_gather_factory`` that MLX takes: gathers go through the agents, which have the deadline."""
        number = 0

        def gather(part: bytes, length: int) -> bytes:
            nonlocal number
            number += 1
            self.send({"gather": number, "part": base64.b64encode(part).decode()})
            answer = self._answers.get()
            whole = base64.b64decode(str(answer.get("whole", "")))
            if answer.get("gather") != number or len(whole) != size * length:
                raise RuntimeError(f"all-gather {number} of rank {rank} gave {len(whole)} bytes, expected {size * length}")
            return whole

        return gather
