"""A rank without a model: MLX's real ring and the real protocol, so that the supervisor is tried against what it meets.

What it does wrong is told by files in THUNDERFLEET_TEST_FOLDER: ``init-hang-R``, ``load-error-R`` (its text), ``mute-R``
(no heartbeats once Ready), ``stuck-R`` (never joins a turn), ``slow-load-R`` (loads as long as it is there), ``odd-token-R``; R
is the rank. A ``die-once-R`` file is used up.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from thunderfleet_runner import framing, protocol
from thunderfleet_runner.host import parentdeath
from thunderfleet_runner.rank.channel import Channel

parentdeath.die_with(int(os.environ[framing.PARENT_VARIABLE]))
import mlx.core as mx  # noqa: E402

FAULTS = Path(os.environ["THUNDERFLEET_TEST_FOLDER"])


def main() -> None:
    channel = Channel.inherited(os.environ)
    channel.send(protocol.Waiting())
    start = channel.receive()
    if isinstance(start, protocol.Stop):
        return
    os.environ.update(start.environment)
    assert isinstance(start, protocol.Start)

    def told(name: str) -> Path:
        return FAULTS / f"{name}-{start.rank}"

    if told("init-hang").exists():
        signal.pause()
    die = told("die-once")
    if die.exists():
        die.unlink()
        os._exit(3)
    try:
        if start.backend == "none":
            assert "MLX_HOSTFILE" not in os.environ
            group = mx.distributed.init()
        else:
            group = mx.distributed.init(strict=True, backend="ring")
        total = mx.distributed.all_sum(mx.array(group.rank() + 1), stream=mx.cpu).item()
    except RuntimeError as error:
        channel.send(protocol.Failed(stage="init", text=str(error)))
        sys.exit(1)
    channel.send(protocol.Formed(rank=group.rank(), size=group.size(), all_sum=total))
    serving = threading.Event()
    steps = [0]
    turning = threading.Event()

    def beat() -> None:
        while not (serving.is_set() and told("mute").exists()):
            channel.send(protocol.Heartbeat(steps=steps[0], in_step=turning.is_set()))
            time.sleep(0.2)

    threading.Thread(target=beat, daemon=True).start()
    if told("load-error").exists():
        channel.send(protocol.Failed(stage="load", text=told("load-error").read_text()))
        sys.exit(1)
    while told("slow-load").exists():
        time.sleep(0.1)
    channel.send(protocol.Progress(loaded_bytes=1, total_bytes=2, layers=1), protocol.Loaded(total_bytes=2))
    waiting: list[protocol.Request] = []
    while True:
        message = channel.receive()
        match message:
            case protocol.Check():
                token = mx.distributed.all_sum(mx.array(20), stream=mx.cpu).item() + told("odd-token").exists()
                serving.set()
                channel.send(protocol.Ready(tokens=(1, int(token)), vocabulary=64))
            case protocol.Prepare(request=request):
                channel.send(protocol.Prepared(id=request.id, prompt_tokens=len(request.prompt.split())))
            case protocol.Generate(request=request):
                waiting.append(request)
            case protocol.Turn(number=number):
                turning.set()
                while told("stuck").exists():
                    time.sleep(0.1)
                for request in take_turn(start.rank, waiting):
                    for index in range(request.max_tokens):
                        steps[0] += 1
                        token = mx.distributed.all_sum(mx.array(index), stream=mx.cpu).item()
                        channel.send(protocol.Token(id=request.id, token=int(token), text=f"t{index} "))
                    channel.send(
                        protocol.Done(
                            id=request.id, finish_reason="length", prompt_tokens=1, generated_tokens=request.max_tokens
                        )
                    )
                turning.clear()
                channel.send(protocol.Idle(turn=number))
            case protocol.Stop():
                mx.eval(mx.distributed.all_sum(mx.array(1), stream=mx.cpu))
                sys.exit(0)


def take_turn(rank: int, waiting: list[protocol.Request]) -> list[protocol.Request]:
    """All ranks learn from rank 0 how long the one request of this turn is."""
    length = waiting[0].max_tokens if rank == 0 and waiting else 0
    shared = int(mx.distributed.all_sum(mx.array(length), stream=mx.cpu).item())
    if not shared:
        return []
    if rank == 0:
        return [waiting.pop(0)]
    return [protocol.Request(id="shared", kind="tokens", max_tokens=shared)]


try:
    main()
except (EOFError, OSError):
    sys.exit(1)
