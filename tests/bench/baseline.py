"""The baseline: the same two ranks without Thunderfleet, started by ``mlx.launch`` with ``mlx_lm.server``."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from thunderfleet_localcluster.image import WITHOUT_COMPILER

from tests.bench import client

END_SECONDS = 10


class BaselineFailed(RuntimeError):
    """mlx.launch or a process that it started failed; the message has the end of its output."""


def free_port(count: int = 1) -> int:
    """The first of ``count`` consecutive free ports."""
    for first in range(31000, 32700, count):
        try:
            with contextlib.ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise BaselineFailed("no free ports between 31000 and 32700")


class Baseline:
    """Two ranks of mlx_lm.server over a ring on this machine's loopback, started at once; ended with the ``with`` block."""

    def __init__(self, model: Path, split: Literal["Tensor", "Pipeline"]) -> None:
        port = free_port(3)
        self.model = str(model)
        self.url = f"http://127.0.0.1:{port}/v1"
        self._log = tempfile.NamedTemporaryFile("w+", prefix="mlx-launch-", suffix=".log")  # noqa: SIM115
        server = ["-m", "mlx_lm", "server", "--model", self.model, "--host", "127.0.0.1", "--port", str(port)]
        self.began = time.time()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from mlx._distributed_utils.launch import main; main()"),
                *("--backend", "ring", "-n", "2", "--starting-port", str(port + 1), "--"),
                *(sys.executable, *server, *(["--pipeline"] if split == "Pipeline" else [])),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **WITHOUT_COMPILER, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
        )

    def __enter__(self) -> "Baseline":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.resume()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._signal(signal.SIGKILL)
        self._process.wait(END_SECONDS)
        self._log.close()

    def _signal(self, number: signal.Signals) -> None:
        # mlx.launch and its ranks share the session's process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def pause(self) -> None:
        """Freezes all processes: an idle rank of mlx_lm.server waits in a collective and uses a whole core."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def ask(self, body: dict[str, Any], seconds: float, at_once: tuple[int, int] | None = None) -> dict[str, Any]:
        """The client's answer; ``at_once``: number of clients and seed of their prompts. Raises BaselineFailed."""
        command = [sys.executable, client.__file__, self.url, str(seconds), json.dumps({**body, "model": self.model})]
        command += map(str, at_once or ())
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + client.ANSWER_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise BaselineFailed(f"mlx_lm.server did not answer within {error.timeout:g} s\n{self._tail()}") from error
        if done.returncode:
            raise BaselineFailed(f"{done.stderr.strip()}\n{self._tail()}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _tail(self) -> str:
        self._log.flush()
        return "\n".join(Path(self._log.name).read_text(errors="replace").splitlines()[-15:])
