"""The wire of a recorded JACCL group: a process beside each rank that carries the ring's bytes over the cable.

JACCL's queue pairs have no connection: when the peer dies, nothing arrives and no error is reported. A TCP ring would notice.
So each rank's MLX connects to this process only, which keeps MLX's sockets open when the peer dies. It is a process of its own
because MLX's init holds the interpreter lock.

    recorded_cable.py ADDRESS MLX-PORT

It listens on ADDRESS (the cable to the left neighbor) and on loopback (for MLX's connection to the right), prints both ports,
reads ``IP PORT`` of the right neighbor from stdin, and ends when stdin ends.
"""

import contextlib
import os
import socket
import sys
import threading
import time

_held: list[socket.socket] = []


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until either end is closed; close neither."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)


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


def join(listener: socket.socket, far: tuple[str, int]) -> None:
    """For each accepted connection, connect to ``far`` and copy both ways."""
    while True:
        near, _ = listener.accept()
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        other = connect(far)
        _held.extend((near, other))
        for ends in ((near, other), (other, near)):
            threading.Thread(target=pump, args=ends, daemon=True).start()


def main() -> None:
    address, mlx_port = sys.argv[1], int(sys.argv[2])
    cable = socket.create_server((address, 0))
    inner = socket.create_server(("127.0.0.1", 0))
    print(cable.getsockname()[1], inner.getsockname()[1], flush=True)
    threading.Thread(target=join, args=(cable, ("127.0.0.1", mlx_port)), daemon=True).start()
    for line in sys.stdin:
        ip, port = line.split()
        threading.Thread(target=join, args=(inner, (ip, int(port))), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
