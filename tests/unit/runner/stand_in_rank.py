"""A rank without a model: MLX's real ring and the real protocol, so that the supervisor is tested with a real peer.

Files in THUNDERFLEET_TEST_FOLDER make it fail: ``init-hang-R``, ``load-error-R`` (its text), ``mute-R`` (no heartbeats once
Ready), ``stuck-R`` (never joins a turn), ``slow-load-R`` (loads as long as the file exists), ``odd-token-R``; R is the rank. A
``die-once-R`` file is deleted when it takes effect.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from thunderfleet_runner import framing, protocol
from thunderfleet_runner.host import parentdeath
from thunderfleet_runner.rank.channel import Channel

parentdeath.die_with(int(os.environ[framing.PARENT_VARIABLE]))
import mlx.core as mx  # noqa: E402

FAULTS = Path(os.environ["THUNDERFLEET_TEST_FOLDER"])


class StandIn:
    """One rank: its faults, its heartbeat and its answers."""

    def __init__(self, channel: Channel, start: protocol.Start) -> None:
        self.channel = channel
        self.rank = start.rank
        self.alone = start.backend == "none"
        self.serving = threading.Event()
        self.turning = threading.Event()
        self.steps = 0
        self.waiting: list[protocol.Request] = []

    def fault(self, name: str) -> Path:
        """The file that switches a fault on."""
        return FAULTS / f"{name}-{self.rank}"

    def form(self) -> None:
        if self.fault("init-hang").exists():
            signal.pause()
        die = self.fault("die-once")
        if die.exists():
            die.unlink()
            os._exit(3)
        try:
            if self.alone:
                assert "MLX_HOSTFILE" not in os.environ
                group = mx.distributed.init()
            else:
                group = mx.distributed.init(strict=True, backend="ring")
            total = all_sum(group.rank() + 1)
        except RuntimeError as error:
            self.channel.send(protocol.Failed(stage="init", text=str(error)))
            sys.exit(1)
        self.channel.send(protocol.Formed(rank=group.rank(), size=group.size(), all_sum=total))
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self) -> None:
        while not (self.serving.is_set() and self.fault("mute").exists()):
            self.channel.send(protocol.Heartbeat(steps=self.steps, in_step=self.turning.is_set()))
            time.sleep(0.2)

    def load(self) -> None:
        if self.fault("load-error").exists():
            self.channel.send(protocol.Failed(stage="load", text=self.fault("load-error").read_text()))
            sys.exit(1)
        while self.fault("slow-load").exists():
            time.sleep(0.1)
        self.channel.send(protocol.Progress(loaded_bytes=1, total_bytes=2, layers=1), protocol.Loaded(total_bytes=2))

    def answer(self, message: protocol.ToRank) -> None:
        match message:
            case protocol.Check():
                token = all_sum(20) + self.fault("odd-token").exists()
                self.serving.set()
                self.channel.send(protocol.Ready(tokens=(1, token), vocabulary=64))
            case protocol.Generate(request=request):
                self.waiting.append(request)
            case protocol.Turn(number=number):
                self.turn()
                self.channel.send(protocol.Idle(turn=number))
            case protocol.Stop():
                all_sum(1)
                sys.exit(0)

    def turn(self) -> None:
        self.turning.set()
        while self.fault("stuck").exists():
            time.sleep(0.1)
        for request in take_turn(self.rank, self.waiting):
            for index in range(request.max_tokens):
                self.steps += 1
                self.channel.send(protocol.Token(id=request.id, token=all_sum(index), text=f"t{index} "))
            done = protocol.Done(id=request.id, finish_reason="length", prompt_tokens=1, generated_tokens=request.max_tokens)
            self.channel.send(done)
        self.turning.clear()


def all_sum(value: int) -> int:
    answer: Any = mx.distributed.all_sum(mx.array(value), stream=mx.cpu).item()
    return int(answer)


def main() -> None:
    channel = Channel.inherited(os.environ)
    channel.send(protocol.Waiting())
    start = channel.receive()
    if isinstance(start, protocol.Stop):
        return
    assert isinstance(start, protocol.Start)
    os.environ.update(start.environment)
    rank = StandIn(channel, start)
    rank.form()
    rank.load()
    while True:
        rank.answer(channel.receive())


def take_turn(rank: int, waiting: list[protocol.Request]) -> list[protocol.Request]:
    """Rank 0 shares the length of this turn's request with all ranks."""
    length = waiting[0].max_tokens if rank == 0 and waiting else 0
    shared = all_sum(length)
    if not shared:
        return []
    if rank == 0:
        return [waiting.pop(0)]
    return [protocol.Request(id="shared", prompt=protocol.Prompt.of((1,)), max_tokens=shared)]


try:
    main()
except (EOFError, OSError):
    sys.exit(1)
