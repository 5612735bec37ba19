"""A rank without a model: MLX's real ring and the real frames, so that the supervisor is tested with a real peer.

Files in THUNDERFLEET_TEST_FOLDER make it fail: ``init-hang-R``, ``load-error-R`` (its text), ``mute-R`` (no heartbeats once
Ready), ``never-beats-R`` (none at all), ``stuck-R`` (never joins a turn), ``slow-load-R`` (loads as long as the file exists),
``odd-token-R``; R is the rank. A ``die-once-R`` file is deleted when it takes effect.

Tests start hundreds of these: it writes plain JSON, because the messages' classes take five times as long to import as MLX. The
supervisor refuses what is no message.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from thunderfleet_runner import framing
from thunderfleet_runner.host import parentdeath
from thunderfleet_runner.rank.start import LAST_RANK_DELAY_SECONDS

parentdeath.die_with(int(os.environ[framing.PARENT_VARIABLE]))
import mlx.core as mx  # noqa: E402

FAULTS = Path(os.environ["THUNDERFLEET_TEST_FOLDER"])

Message = dict[str, Any]


class Channel:
    """Messages as JSON; several threads send."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, kind: str, **fields: object) -> None:
        with self._sending:
            self._end.sendall(framing.frame(json.dumps({"type": kind, **fields}).encode()))

    def receive(self) -> Message:
        message: Message = json.loads(framing.receive_frame(self._end))
        return message


class StandIn:
    """One rank: its faults, its heartbeat and its answers."""

    def __init__(self, channel: Channel, start: Message) -> None:
        self.channel = channel
        self.rank: int = start["rank"]
        self.last = self.rank == start["size"] - 1
        self.alone = start["backend"] == "none"
        self.serving = threading.Event()
        self.turning = threading.Event()
        self.steps = 0
        self.waiting: list[Message] = []

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
                if self.last:
                    time.sleep(LAST_RANK_DELAY_SECONDS)
                group = mx.distributed.init(strict=True, backend="ring")
            total = all_sum(group.rank() + 1)
        except RuntimeError as error:
            self.channel.send("failed", stage="init", text=str(error))
            sys.exit(1)
        self.channel.send("formed", rank=group.rank(), size=group.size(), all_sum=total)
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self) -> None:
        if self.fault("never-beats").exists():
            return
        while not (self.serving.is_set() and self.fault("mute").exists()):
            self.channel.send("heartbeat", steps=self.steps, in_step=self.turning.is_set())
            time.sleep(0.2)

    def load(self) -> None:
        if self.fault("load-error").exists():
            self.channel.send("failed", stage="load", text=self.fault("load-error").read_text())
            sys.exit(1)
        while self.fault("slow-load").exists():
            time.sleep(0.1)
        self.channel.send("progress", loaded_bytes=1, total_bytes=2, layers=1)
        self.channel.send("loaded", total_bytes=2)

    def answer(self, message: Message) -> None:
        match message["type"]:
            case "check":
                token = all_sum(20) + self.fault("odd-token").exists()
                self.serving.set()
                self.channel.send("ready", tokens=(1, token), vocabulary=64)
            case "generate":
                self.waiting.append(message["request"])
            case "turn":
                self.turn()
                self.channel.send("idle", turn=message["number"])
            case "stop":
                all_sum(1)
                sys.exit(0)

    def turn(self) -> None:
        self.turning.set()
        while self.fault("stuck").exists():
            time.sleep(0.1)
        for name, length in take_turn(self.rank, self.waiting):
            for index in range(length):
                self.steps += 1
                self.channel.send("token", id=name, token=all_sum(index), text=f"t{index} ")
            self.channel.send("done", id=name, finish_reason="length", prompt_tokens=1, generated_tokens=length)
        self.turning.clear()


def all_sum(value: int) -> int:
    answer: Any = mx.distributed.all_sum(mx.array(value), stream=mx.cpu).item()
    return int(answer)


def main() -> None:
    channel = Channel(framing.inherited(os.environ))
    channel.send("waiting")
    start = channel.receive()
    if start["type"] == "stop":
        return
    os.environ.update(start["environment"])
    rank = StandIn(channel, start)
    rank.form()
    rank.load()
    while True:
        rank.answer(channel.receive())


def take_turn(rank: int, waiting: list[Message]) -> list[tuple[str, int]]:
    """The id and the length of this turn's request, if there is one: rank 0 shares its length with all ranks."""
    length = waiting[0]["max_tokens"] if rank == 0 and waiting else 0
    shared = all_sum(length)
    if not shared:
        return []
    return [(waiting.pop(0)["id"] if rank == 0 else "shared", shared)]


try:
    main()
except (EOFError, OSError):
    sys.exit(1)
