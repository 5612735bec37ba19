"""``thunderfleet-agent measure-child``: one measurement with MLX in a process of its own.

Writes JSON lines to stdout: ``{"progress": …}`` now and then, and at the end ``{"result": …}`` or ``{"error": …}``. The process
ends when its stdin or its lifeline ends (the agent has exited), at its time limit, and on SIGTERM between two runs. A clean end
frees wired memory; macOS may keep that of a process that was killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from thunderfleet_agent.measure.worker import gpu
from thunderfleet_agent.measure.worker.guard import guard
from thunderfleet_agent.measure.worker.pipe import Pipe

# The import of MLX takes a second, ten on a busy machine. It has a separate limit.
START_SECONDS = 20.0
# The guard waits this much longer than the child, for the child's last message.
GUARD_SECONDS = 1.0
MAX_ERROR = 500


def main(order: dict[str, Any]) -> NoReturn:
    """Carries out one order and exits with 0 (a result) or 1.

    ``what`` is gpu, memory or pair, ``seconds`` the limit, ``warmUpSeconds`` that of the warm-up, ``folder`` a folder
    for temporary files, which the caller removes. ``lifeline``: the descriptor of a pipe whose other end only the caller has.
    """
    seconds = float(order["seconds"])
    guard(START_SECONDS + seconds + GUARD_SECONDS, str(order["folder"]), int(order["lifeline"]))
    pipe = Pipe()
    pipe.limit(START_SECONDS + seconds)
    code = 1
    try:
        import mlx.core  # noqa: F401 -- within its own limit

        pipe.limit(seconds)
        pipe.send({"result": _measure(order, pipe)})
        code = 0
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        pipe.send({"error": words[:MAX_ERROR]})
    sys.stdout.flush()
    # Not sys.exit: the finalizing interpreter would wait for the thread that reads stdin.
    os._exit(code)


def local_measurements() -> dict[str, Callable[[float, gpu.Progress], dict[str, Any]]]:
    """By the kind of probe, the measurement of this Mac alone: from the seconds of its warm-up to the fields of ``Figures``."""
    return {"gpu": gpu.compute, "memory": gpu.memory}


def _measure(order: dict[str, Any], pipe: Pipe) -> dict[str, Any]:
    from thunderfleet_agent.measure.worker import pair

    if order["what"] == "pair":
        return pair.measure(order, pipe)
    probes = local_measurements()
    if order["what"] not in probes:
        raise ValueError(f"unknown measurement {order['what']!r}; known: pair, {', '.join(probes)}")
    return probes[order["what"]](float(order["warmUpSeconds"]), pipe.progress)
