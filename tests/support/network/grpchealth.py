"""A real gRPC server with the standard health service, in a process of its own.

``python -m tests.support.network.grpchealth [KIND]`` prints its port. ``SERVICE=STATUS`` lines on its standard input set the
status of a service, and it repeats each line then.
KIND: ``plain`` has the services "" and "sick"; ``slow`` never answers; ``other`` has no health service.
"""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START_SECONDS = 60.0


class Server:
    """The server and its port."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.port = int(self._line())

    def set(self, service: str, status: str) -> None:
        """Sets the status of a service, such as ``NOT_SERVING``; returns once it holds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{service}={status}\n")
        self._process.stdin.flush()
        assert self._line() == f"{service}={status}"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextlib.contextmanager
def serving(kind: str = "plain") -> Iterator[Server]:
    """A server that runs in this block. Its library must not be in a process that forks, such as that of the tests."""
    command = [sys.executable, "-m", "tests.support.network.grpchealth", kind]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


def _main(kind: str) -> None:
    import grpc
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc

    class Slow(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
        def Check(self, request: Any, context: Any) -> Any:
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait()

    server = grpc.server(ThreadPoolExecutor(4))
    servicer = Slow() if kind == "slow" else health.HealthServicer()
    if kind != "other":
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if kind == "plain":
        servicer.set("sick", health_pb2.HealthCheckResponse.NOT_SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    for line in sys.stdin:
        service, _, status = line.strip().partition("=")
        servicer.set(service, health_pb2.HealthCheckResponse.ServingStatus.Value(status))
        print(line.strip(), flush=True)
    server.stop(None).wait()


if __name__ == "__main__":
    _main(sys.argv[1] if len(sys.argv) > 1 else "plain")
