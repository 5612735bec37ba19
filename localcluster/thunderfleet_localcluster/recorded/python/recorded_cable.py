"""The wire of a recorded JACCL group: a process beside each rank that carries the ring's bytes over the cable.

JACCL's queue pairs have no connection: when the peer fails, nothing arrives and no error is reported. A TCP ring would notice.
So each rank's MLX connects to this process only, which keeps MLX's sockets open when the peer fails. It is a process of its own
because MLX's init holds the interpreter lock.

    recorded_cable.py ADDRESS MLX-PORT [flip|lose|swap|repeat AFTER-BYTES]

It listens on ADDRESS (the cable to the left neighbor) and on loopback (for MLX's connection to the right), prints both ports,
reads ``IP PORT`` of the right neighbor from stdin, and ends when stdin ends. After so many bytes of each stream that comes
in from the left neighbor, it changes one bit, loses what follows, swaps two parts, or sends an earlier part again.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from typing import NamedTuple

SWAPPED_BYTES = 1024
REPEATED_BYTES = 4096
PIECE_BYTES = 1 << 16
_held: list[socket.socket] = []


class Harm(NamedTuple):
    """A fault of a stream after a number of bytes.

    ``flip`` changes a bit, ``lose`` loses what follows, ``swap`` swaps the next two parts, ``repeat`` sends the part before
    once more instead of the next one.
    """

    kind: str
    after: int

    def apply(self, data: bytes, copied: int) -> bytes:
        """``data`` (at offset ``copied`` of the stream) with the fault applied."""
        here = self.after - copied
        if self.kind == "swap":
            return self._swapped(data, here, SWAPPED_BYTES)
        if self.kind == "repeat":
            return self._repeated(data, here, REPEATED_BYTES)
        if here >= len(data) or (here < 0 and self.kind == "flip"):
            return data
        if self.kind == "lose":
            return data[: max(here, 0)]
        return data[:here] + bytes([data[here] ^ 1]) + data[here + 1 :]

    @staticmethod
    def _swapped(data: bytes, here: int, size: int) -> bytes:
        # In the first piece of the stream that has both parts.
        here = max(here, 0) if here > -PIECE_BYTES else len(data)
        if here + 2 * size > len(data):
            return data
        return data[:here] + data[here + size : here + 2 * size] + data[here : here + size] + data[here + 2 * size :]

    @staticmethod
    def _repeated(data: bytes, here: int, size: int) -> bytes:
        here = max(here, size) if here > -PIECE_BYTES else len(data)
        if here + size > len(data):
            return data
        return data[:here] + data[here - size : here] + data[here + size :]


def pump(source: socket.socket, sink: socket.socket, harm: Harm | None = None) -> None:
    """Copy until either end is closed; close neither."""
    copied = 0
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE_BYTES):
            sink.sendall(harm.apply(data, copied) if harm is not None else data)
            copied += len(data)


def connect(address: tuple[str, int]) -> socket.socket:
    """Connect, with retries: the other side may not listen yet."""
    while True:
        try:
            made = socket.create_connection(address, timeout=5)
        except OSError:
            time.sleep(0.01)
            continue
        made.settimeout(None)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


def join(listener: socket.socket, far: tuple[str, int], harm: Harm | None = None) -> None:
    """For each accepted connection, connect to ``far`` and copy both ways; ``harm`` is done to what the accepted one sends."""
    while True:
        near, _ = listener.accept()
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        other = connect(far)
        _held.extend((near, other))
        threading.Thread(target=pump, args=(near, other, harm), daemon=True).start()
        threading.Thread(target=pump, args=(other, near), daemon=True).start()


def main() -> None:
    address, mlx_port = sys.argv[1], int(sys.argv[2])
    harm = Harm(sys.argv[3], int(sys.argv[4])) if len(sys.argv) > 3 else None
    cable = socket.create_server((address, 0))
    inner = socket.create_server(("127.0.0.1", 0))
    print(cable.getsockname()[1], inner.getsockname()[1], flush=True)
    threading.Thread(target=join, args=(cable, ("127.0.0.1", mlx_port), harm), daemon=True).start()
    for line in sys.stdin:
        ip, port = line.split()
        threading.Thread(target=join, args=(inner, (ip, int(port))), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
