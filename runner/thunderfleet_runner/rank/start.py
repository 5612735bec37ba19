"""A rank process until its group has formed: it imports MLX and nothing else.

The process is started before its attempt, imports MLX and waits, because importing MLX takes longer than forming a group. A
group waits for its slowest rank, and pydantic takes four times as long to import as MLX; so this module writes the first
messages as plain JSON frames (see ``framing``), and the rest is imported once the group has formed. JACCL's init exchanges more
messages and is left to ``rank``.
"""

import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from thunderfleet_runner import framing
from thunderfleet_runner.host import parentdeath

LAST_RANK_DELAY_SECONDS = 0.1
"""How long the ring's last rank waits before init. It dials before it listens; a peer that does not listen yet makes MLX pause
for one second, then twice as long at each further try."""
_ENVIRONMENT = {
    # Weights are on the Mac's disk; a rank connects to its peers only.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class NotFormed(RuntimeError):
    """MLX formed a group that differs from the plan."""


@dataclass(frozen=True)
class Started:
    """Handed to the rest of the process: its end of the socketpair, ``Start`` as received, and MLX's group if it is a ring."""

    end: socket.socket
    start: dict[str, Any]
    group: Any


def start() -> Started | None:
    """Runs from the process's start until its ring has formed; returns None when it received ``Stop`` instead.

    Ends the process when there is no supervisor, or, after reporting why, when the ring cannot be formed.
    """
    stage = "start"
    try:
        end = framing.inherited(os.environ)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(2)
    if os.environ.get(framing.PARENT_VARIABLE, "").isdigit():
        parentdeath.die_with(int(os.environ[framing.PARENT_VARIABLE]))
    os.environ.update(_ENVIRONMENT)
    try:
        import mlx.core as mx

        _send(end, type="waiting")
        message: dict[str, Any] = json.loads(framing.receive_frame(end))
        if message["type"] == "stop":
            return None
        if message["type"] != "start":
            raise ValueError(f"first message is {message['type']}, must be start")
        # MLX's init reads it.
        os.environ.update(message["environment"])
        stage = "init"
        if message["backend"] != "ring":
            return Started(end, message, None)
        if message["rank"] == message["size"] - 1:
            time.sleep(LAST_RANK_DELAY_SECONDS)
        group = checked(mx.distributed.init(strict=True, backend="ring"), message["rank"], message["size"])
        _send(end, type="formed", rank=group.rank(), size=group.size(), all_sum=all_sum(group))
        return Started(end, message, group)
    except (EOFError, ConnectionError) as error:
        print(f"the supervisor is gone: {error}", file=sys.stderr, flush=True)
    except BaseException as error:
        import contextlib
        import traceback

        traceback.print_exc()
        with contextlib.suppress(OSError):
            _send(end, type="failed", stage=stage, text=f"{type(error).__name__}: {error}")
    # Not sys.exit: MLX's destructors wait for peers that may be gone.
    os._exit(1)


def checked(group: Any, rank: int, size: int) -> Any:
    """``group``, when it is the planned one. Raises NotFormed."""
    if (group.rank(), group.size()) != (rank, size):
        raise NotFormed(f"rank {rank} of {size} was planned, MLX reports rank {group.rank()} of {group.size()}")
    return group


def all_sum(group: Any) -> int:
    """The sum over all ranks of (rank + 1), computed by the group."""
    import mlx.core as mx

    answer: Any = mx.distributed.all_sum(mx.array(group.rank() + 1), group=group, stream=mx.cpu).item()
    return int(answer)


def _send(end: socket.socket, **message: object) -> None:
    end.sendall(framing.frame(json.dumps(message).encode()))
