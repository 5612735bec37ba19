"""``thunderfleet-agent measure-child``: one measurement with MLX in a process of its own, which leaves nothing behind.

Says JSON lines on stdout: ``{"progress": …}`` now and then, and at last ``{"result": …}`` or ``{"error": …}``. It ends when its
input ends (its agent is gone), at its time limit whatever its agent does, and on SIGTERM between two runs, freeing what it
holds (macOS may keep the wired memory of a process that was killed). What sits in a collective is killed; and since MLX holds
the interpreter in some of its calls (a ring's init for half a minute), a process beside it without MLX sees to the first two.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import select
import signal
import sys
import threading
from typing import Any, NoReturn

START_SECONDS = 20.0
LAST_WORDS_SECONDS = 0.5
GUARD_SECONDS = 1.0
"""After its own limit, for its last words."""


class Ended(Exception):
    """Told to end."""


def guard(seconds: float) -> None:
    """Leaves a process behind that kills this one's process group when whoever writes to its stdin is gone, or so many seconds
    after; it ends with this process. To be called before there is any thread. Raises OSError.
    """
    # Whoever started it: the group is its own and what it starts.
    os.setpgid(0, 0)
    here, ours = os.pipe()
    if os.fork() != 0:
        # Ours to the end: the kernel closes it then. A program that MLX starts (a compiler) does not inherit it.
        os.close(here)
        return
    try:
        os.close(ours)
        os.close(1)
        os.close(2)
        poll = select.poll()
        # Without POLLIN: what the agent says is not the guard's.
        poll.register(0, 0)
        poll.register(here, 0)
        over = [fd for fd, _ in poll.poll(seconds * 1000)]
        if here not in over:
            os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(0)


class Pipe:
    """Talks with the agent: lines out, lines in (a gather's answers)."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.stopped = False
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._read, daemon=True).start()

    def begin(self, seconds: float) -> None:
        """The time limit runs from now on."""
        limit = threading.Timer(seconds, self._out_of_time, (seconds,))
        limit.daemon = True
        limit.start()

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def _out_of_time(self, seconds: float) -> None:
        # Not itself: an agent that is frozen reads nothing, and whoever tells it something waits for ever.
        telling = threading.Thread(target=self.say, args=({"error": f"was not done within {seconds:g} s"},), daemon=True)
        telling.start()
        telling.join(LAST_WORDS_SECONDS)
        os._exit(1)

    def _read(self) -> None:
        for line in sys.stdin:
            with contextlib.suppress(ValueError):
                self._answers.put(json.loads(line))
        os._exit(1)

    def say(self, message: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            print(json.dumps(message), flush=True)

    def told(self, rate: float, steady: bool) -> None:
        """Progress; and where a SIGTERM ends it. Raises Ended."""
        if self.stopped:
            raise Ended("was told to end")
        self.say({"progress": round(rate, 3), "steady": steady})

    def exchange(self, rank: int, size: int) -> Any:
        """What MLX takes as ``all_gather_factory``: gathers through the agents, who know each other and the deadline."""
        number = 0

        def gather(part: bytes, length: int) -> bytes:
            nonlocal number
            number += 1
            self.say({"gather": number, "part": base64.b64encode(part).decode()})
            answer = self._answers.get()
            whole = base64.b64decode(str(answer.get("whole", "")))
            if answer.get("gather") != number or len(whole) != size * length:
                raise RuntimeError(f"gather {number} of rank {rank} should give {size * length} bytes, it gave {len(whole)}")
            return whole

        return gather


def main(order: dict[str, Any]) -> NoReturn:
    """Carries out one order: ``what`` is gpu, memory or pair; ``seconds`` its limit. Exits with 0 (a result) or 1."""
    guard(START_SECONDS + float(order["seconds"]) + GUARD_SECONDS)
    pipe = Pipe()
    # Importing MLX takes a second, on a busy machine ten: that is not the measurement's time, and has a limit of its own.
    pipe.begin(START_SECONDS + float(order["seconds"]))
    code = 1
    try:
        import mlx.core  # noqa: F401

        pipe.begin(float(order["seconds"]))
        if order["what"] == "pair":
            from thunderfleet_agent.measure.worker.pair import measure

            found = measure(order, pipe)
        else:
            from thunderfleet_agent.measure.worker import gpu

            # A quarter of the time at most to warm up.
            found = (gpu.compute if order["what"] == "gpu" else gpu.memory)(float(order["seconds"]) / 4, pipe.told)
        pipe.say({"result": found})
        code = 0
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        pipe.say({"error": words[:500]})
    sys.stdout.flush()
    # Not sys.exit: the reader sits in a read of stdin, which a finalising interpreter waits for.
    os._exit(code)
