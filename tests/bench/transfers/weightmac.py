"""What runs in a Mac's namespace for the benchmarks of weights: a download with its agent, a rank with a fixed step, a load.

Usage: ``python -m tests.bench.transfers.weightmac download ROOT REPOSITORY | answer ADDRESS | step ADDRESS MILLISECONDS SECONDS
| load FILE``.
"""

import contextlib
import socket
import sys
import threading
import time
from pathlib import Path

PORT = 18090
MESSAGE_BYTES = 64 * 1024
AGENT_POLL_SECONDS = 0.1
"""As often as the agent looks when there are few files (``keeper.LEAST_POLL_SECONDS``)."""
CONNECT_SECONDS = 20.0


def download(root: str, repository: str) -> None:
    """Reads a repository into a store: the command of the pod, and the agent, which takes files over and checks them."""
    from thunderfleet_lib.modelstore.adoption import Adoption
    from thunderfleet_lib.modelstore.hashing import WrongBytes
    from thunderfleet_lib.modelstore.store import Busy, Store
    from thunderfleet_runner.hub.client import Hub
    from thunderfleet_runner.hub.download import Download

    hub = Hub(repository, "main", None)
    whole = hub.manifest(hub.commit())
    store = Store(Path(root))
    store.prepare()
    staging = store.layout.staged("download")
    staging.mkdir()
    stop = threading.Event()

    def agent() -> None:
        adoption = Adoption(store, 0)
        while not stop.wait(AGENT_POLL_SECONDS):
            for one in store.missing(whole):
                with contextlib.suppress(WrongBytes, Busy, FileNotFoundError):
                    adoption.take(repository, one, staging)

    thread = threading.Thread(target=agent)
    thread.start()
    try:
        Download(hub, whole, store, staging).run()
    finally:
        stop.set()
        thread.join()
    store.publish(whole)


def answer(address: str) -> None:
    """A rank that answers each message with one of the same size."""
    with socket.create_server((address, PORT)) as listener:
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with peer:
            while _exactly(peer):
                peer.sendall(bytes(MESSAGE_BYTES))


def step(address: str, milliseconds: float, seconds: float) -> None:
    """A rank whose steps take a fixed time and then exchange a message each way; prints the steps per second."""
    until = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            peer = socket.create_connection((address, PORT), timeout=CONNECT_SECONDS)
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with peer:
        began, steps = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            # A GPU computes; the processor waits.
            time.sleep(milliseconds / 1000)
            peer.sendall(bytes(MESSAGE_BYTES))
            if not _exactly(peer):
                raise ConnectionError("the other rank ended")
            steps += 1
        print(steps / (time.monotonic() - began))


def load(path: str) -> None:
    """Loads a file of weights with MLX; prints the seconds, without those of the import."""
    import mlx.core as mx

    began = time.monotonic()
    weights = mx.load(path)
    assert isinstance(weights, dict)
    mx.eval(weights)
    print(time.monotonic() - began)


def _exactly(peer: socket.socket) -> bool:
    """Whether a whole message arrives."""
    left = MESSAGE_BYTES
    while left:
        more = len(peer.recv(left))
        if not more:
            return False
        left -= more
    return True


def main(command: str, *words: str) -> None:
    """One command."""
    match command:
        case "download":
            download(*words)
        case "answer":
            answer(*words)
        case "step":
            step(words[0], float(words[1]), float(words[2]))
        case "load":
            load(*words)
        case _:
            raise SystemExit(f"no command {command}")


if __name__ == "__main__":
    main(*sys.argv[1:])
