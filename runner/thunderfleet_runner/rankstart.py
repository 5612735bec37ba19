"""A rank's process until its group has formed: MLX is imported for that, and nothing else.

It is started before its attempt, imports MLX and waits: importing takes longer than forming, and a ring's first dial that
nobody answers yet costs a second. A group waits for its slowest rank, and the messages' models take four times as long to
import as MLX; so the first messages are written here as what they are, JSON in frames (see ``protocol``), and the rest is
imported when the group has formed. JACCL's init needs more messages and is left to ``rank``.
"""

import json
import os
import socket
import struct
import sys
import time
from typing import Any

from thunderfleet_runner import parentdeath

FD_VARIABLE = "THUNDERFLEET_RANK_FD"
PARENT_VARIABLE = "THUNDERFLEET_SUPERVISOR_PID"
DIAL_AFTER_SECONDS = 0.1
"""By how much the ring's last rank begins later than its peers. It is the one that dials before it listens; a peer that does
not listen yet would cost it MLX's own pause of a second and, each time again, twice that."""
_LENGTH = struct.Struct(">I")
_ENVIRONMENT = {
    # Weights are on the Mac's disk; a rank talks to its peers and to nobody else.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class NotFormed(RuntimeError):
    """MLX gave a group that is not the planned one."""


class Begun:
    """What a rank goes on with: its end of the socketpair, ``Start`` as it came, and MLX's group if that is a ring's."""

    def __init__(self, end: socket.socket, start: dict[str, Any], group: Any) -> None:
        self.end = end
        self.start = start
        self.group = group


def begin() -> Begun | None:
    """From the process's start until its ring has formed; None when it was told to stop instead.

    Ends the process when there is no supervisor, or when the ring cannot be formed, after saying so.
    """
    stage = "start"
    try:
        end = inherited()
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(2)
    if os.environ.get(PARENT_VARIABLE, "").isdigit():
        parentdeath.die_with(int(os.environ[PARENT_VARIABLE]))
    os.environ.update(_ENVIRONMENT)
    try:
        import mlx.core as mx

        _say(end, type="waiting")
        start = _hear(end)
        if start["type"] == "stop":
            return None
        if start["type"] != "start":
            raise ValueError(f"the first message was {start['type']}, it must be start")
        # MLX looks there in its init.
        os.environ.update(start["environment"])
        stage = "init"
        if start["backend"] != "ring":
            return Begun(end, start, None)
        if start["rank"] == start["size"] - 1:
            time.sleep(DIAL_AFTER_SECONDS)
        group = checked(mx.distributed.init(strict=True, backend="ring"), start["rank"], start["size"])
        _say(end, type="formed", rank=group.rank(), size=group.size(), all_sum=all_sum(group))
        return Begun(end, start, group)
    except (EOFError, ConnectionError) as error:
        print(f"the supervisor is gone: {error}", file=sys.stderr, flush=True)
    except BaseException as error:
        import contextlib
        import traceback

        traceback.print_exc()
        with contextlib.suppress(OSError):
            _say(end, type="failed", stage=stage, text=f"{type(error).__name__}: {error}")
    # Not sys.exit: MLX's destructors wait for peers that may be gone.
    os._exit(1)


def inherited() -> socket.socket:
    """The socket that the supervisor left in THUNDERFLEET_RANK_FD. Raises ValueError when there is none."""
    value = os.environ.get(FD_VARIABLE, "")
    if not value.isdigit():
        raise ValueError(f"{FD_VARIABLE} is {value!r}: a rank is started by its supervisor, not by hand")
    return socket.socket(fileno=int(value))


def checked(group: Any, rank: int, size: int) -> Any:
    """The group, if it is the planned one. Raises NotFormed."""
    if (group.rank(), group.size()) != (rank, size):
        raise NotFormed(f"rank {rank} of {size} was planned, MLX says rank {group.rank()} of {group.size()}")
    return group


def all_sum(group: Any) -> int:
    """The group's sum of every rank's number (from 1)."""
    import mlx.core as mx

    answer: Any = mx.distributed.all_sum(mx.array(group.rank() + 1), group=group, stream=mx.cpu).item()
    return int(answer)


def _say(end: socket.socket, **message: object) -> None:
    body = json.dumps(message).encode()
    end.sendall(_LENGTH.pack(len(body)) + body)


def _hear(end: socket.socket) -> dict[str, Any]:
    """Not a byte more than one frame: what follows is for ``protocol.Channel``."""
    (length,) = _LENGTH.unpack(_exactly(end, _LENGTH.size))
    found: dict[str, Any] = json.loads(_exactly(end, length))
    return found


def _exactly(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        if not more:
            raise EOFError("the supervisor closed the channel")
        data += more
    return data


def main() -> int:
    """``python -m thunderfleet_runner.rankstart``."""
    begun = begin()
    if begun is None:
        return 0
    from thunderfleet_runner import rank

    return rank.main(begun)


if __name__ == "__main__":
    sys.exit(main())
