"""A rank that imports nothing but sockets: it meets its neighbours as MLX's ring does, and says that it has formed.

Eight ranks that import MLX at once keep two cores busy for longer than a group takes to form; what is measured with this one is
what the supervisors take.
"""

import json
import os
import socket
import struct
import time
from typing import Any


def main() -> None:
    end = socket.socket(fileno=int(os.environ["THUNDERFLEET_RANK_FD"]))

    def say(**message: object) -> None:
        body = json.dumps(message).encode()
        end.sendall(struct.pack(">I", len(body)) + body)

    def hear() -> dict[str, Any]:
        (length,) = struct.unpack(">I", end.recv(4, socket.MSG_WAITALL))
        found: dict[str, Any] = json.loads(end.recv(length, socket.MSG_WAITALL))
        return found

    say(type="waiting")
    start = hear()
    if start["type"] == "stop":
        return
    os.environ.update(start["environment"])
    rank = int(os.environ["MLX_RANK"])
    with open(os.environ["MLX_HOSTFILE"], encoding="utf-8") as file:
        hosts = [(host.rpartition(":")[0], int(host.rpartition(":")[2])) for (host,) in json.load(file)]
    size = len(hosts)
    listener = socket.create_server(hosts[rank])
    following, kept = (rank + 1) % size, []
    # As MLX: the last one dials first, the others accept first.
    for step in ("dial", "accept") if following < rank else ("accept", "dial"):
        kept.append(listener.accept()[0] if step == "accept" else dial(hosts[following]))
    say(type="formed", rank=rank, size=size, all_sum=size * (size + 1) // 2)
    while end.recv(1):
        pass


def dial(address: tuple[str, int]) -> socket.socket:
    while True:
        try:
            return socket.create_connection(address, 30)
        except ConnectionRefusedError:
            time.sleep(0.01)


main()
