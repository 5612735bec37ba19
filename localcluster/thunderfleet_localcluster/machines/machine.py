"""One machine of a running cluster: its first process (launchd) and its kubelet."""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_lib.host.trees import tail

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.layout import MachineLayout, Mode
from thunderfleet_localcluster.machines import descendants, launchd
from thunderfleet_localcluster.machines.children import Child, Children

log = logging.getLogger(__name__)

BIRTH_SECONDS = 20
ORDER_SECONDS = 10


@dataclass(frozen=True)
class Ran:
    """Result of a command in a machine."""

    code: int
    stdout: str
    stderr: str


class MachineProcess:
    """A machine. Its launchd takes orders as JSON lines and reports events in the same way."""

    def __init__(self, layout: MachineLayout, mode: Mode, children: Children, log_file: Path, bin_folder: Path | None) -> None:
        self.layout = layout
        self.mode = mode
        self.children = children
        self.log_file = log_file
        self.bin_folder = bin_folder
        self.first: Child | None = None
        self.kubelet_pid: int | None = None
        self.kubelet_end = ""
        self.change_network: Callable[[Sequence[str]], Awaitable[Ran]] | None = None
        """Executes a command on the Mac that changes its network settings."""
        self._changing: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._runs: dict[int, asyncio.Future[Ran]] = {}
        self._changed = asyncio.Condition()
        self._refusal = ""
        self._reader: asyncio.Task[None] | None = None
        self._input: asyncio.StreamWriter | None = None

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def on(self) -> bool:
        return self.first is not None and self.first.running

    @property
    def pid(self) -> int:
        """ID of the first process, in the supervisor's PID namespace. Raises LocalClusterError if the machine is off."""
        if self.first is None or not self.first.running:
            raise LocalClusterError(f"{self.name} is off")
        return self.first.pid

    def environment(self) -> dict[str, str]:
        """Environment of programs on this machine."""
        folders = [str(self.bin_folder)] if self.bin_folder else []
        # The kubelet runs with this Python and needs the same libraries and modules.
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ}
        return {
            **kept,
            "PATH": ":".join([*folders, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]),
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
        }

    def _disk(self) -> list[str]:
        """The folder of a recorded Mac that has a mount namespace, below which its own part of the file system lies."""
        return [str(self.bin_folder.parent)] if self.bin_folder is not None and self.mode == "namespaces" else []

    async def switch_on(self) -> None:
        """Start the machine. In namespaces its network has no connections yet. Raises LocalClusterError."""
        starter = self.children.start(
            f"launchd of {self.name}",
            [sys.executable, "-S", "-s", str(Path(launchd.__file__)), self.name, self.mode, *self._disk()],
            env=dict(os.environ),
            log=self.log_file,
            pipes=True,
            # In loopback mode it must outlive us to end what it started; it does so when its input ends.
            die_with_us=False,
        )
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=16 << 20)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), starter.stdout)
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, starter.stdin)
        self._input = asyncio.StreamWriter(transport, protocol, None, loop)
        try:
            async with asyncio.timeout(BIRTH_SECONDS):
                line = await reader.readline()
        except TimeoutError as error:
            raise LocalClusterError(f"{self.name} did not start within {BIRTH_SECONDS} s") from error
        if not line:
            raise LocalClusterError(f"{self.name} did not start:\n{tail(self.log_file)}")
        pid = int(json.loads(line)["pid"])
        self.first = starter if pid == starter.pid else self.children.adopt(Child(starter.name, pid, self.log_file))
        self._reader = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            event: dict[str, Any] = json.loads(line)
            match event["event"]:
                case "started":
                    self.kubelet_pid, self.kubelet_end = int(event["pid"]), ""
                case "exited":
                    self.kubelet_pid = None
                    code = int(event["code"])
                    self.kubelet_end = f"signal {-code}" if code < 0 else f"exit code {code}"
                    log.warning("kubelet of %s ended (%s)\n%s", self.name, self.kubelet_end, tail(self.log_file))
                case "refused":
                    self._refusal = str(event["reason"])
                case "network":
                    task = asyncio.create_task(self._change_network(int(event["id"]), [str(word) for word in event["argv"]]))
                    self._changing.add(task)
                    task.add_done_callback(self._changing.discard)
                case "ran":
                    future = self._runs.pop(int(event["id"]), None)
                    if future and not future.done():
                        future.set_result(Ran(int(event["code"]), str(event["stdout"]), str(event["stderr"])))
            async with self._changed:
                self._changed.notify_all()
        self.kubelet_pid = None
        for future in self._runs.values():
            if not future.done():
                future.set_exception(LocalClusterError(f"{self.name} was switched off"))
        self._runs.clear()

    async def _change_network(self, number: int, argv: Sequence[str]) -> None:
        try:
            ran = await self.change_network(argv) if self.change_network else Ran(1, "", "not supported\n")
        except LocalClusterError as error:
            ran = Ran(1, "", f"{error}\n")
        with contextlib.suppress(LocalClusterError, OSError):
            await self._order(do="answer", id=number, code=ran.code, stdout=ran.stdout, stderr=ran.stderr)

    async def _order(self, **order: object) -> None:
        if self._input is None or not self.on:
            raise LocalClusterError(f"{self.name} is off")
        self._input.write(json.dumps(order).encode() + b"\n")
        await self._input.drain()

    async def _until(self, what: str, running: bool) -> None:
        try:
            async with asyncio.timeout(ORDER_SECONDS), self._changed:
                await self._changed.wait_for(lambda: (self.kubelet_pid is not None) == running or self._refusal != "")
        except TimeoutError as error:
            raise LocalClusterError(f"{self.name}: its kubelet did not {what} within {ORDER_SECONDS} s") from error
        if self._refusal:
            raise LocalClusterError(f"{self.name}: {self._refusal}")

    async def start_kubelet(self, argv: Sequence[str], log_file: Path) -> None:
        """Start the kubelet. Raises LocalClusterError if it is running or cannot be started."""
        if self.kubelet_pid is not None:
            raise LocalClusterError(f"{self.name}: its kubelet is already running (process {self.kubelet_pid})")
        self._refusal = ""
        await self._order(do="start", name="kubelet", argv=list(argv), env=self.environment(), log=str(log_file))
        await self._until("start", True)

    async def kill_kubelet(self, number: signal.Signals) -> None:
        """End the kubelet only; its containers keep running."""
        if self.on and self.kubelet_pid is None:
            raise LocalClusterError(f"{self.name}: its kubelet is not running")
        self._refusal = ""
        await self._order(do="kill", name="kubelet", signal=int(number))
        await self._until("end", False)

    async def signal_kubelet(self, number: signal.Signals) -> None:
        """Send the kubelet a signal that does not end it: SIGSTOP or SIGCONT."""
        if self.kubelet_pid is None:
            raise LocalClusterError(f"{self.name}: its kubelet is not running")
        await self._order(do="kill", name="kubelet", signal=int(number))

    async def run(self, argv: Sequence[str], text: str = "", seconds: float = 30, env: Mapping[str, str] | None = None) -> Ran:
        """Run a command in the machine with ``text`` as its input. Raises LocalClusterError after ``seconds``."""
        number = next(self._numbers)
        future: asyncio.Future[Ran] = asyncio.get_running_loop().create_future()
        self._runs[number] = future
        await self._order(
            do="run", id=number, argv=list(argv), env={**self.environment(), **(env or {})}, input=text, seconds=seconds
        )
        try:
            async with asyncio.timeout(seconds + ORDER_SECONDS):
                return await future
        except TimeoutError as error:
            raise LocalClusterError(f"{self.name}: {argv[0]} did not finish within {seconds} s") from error
        finally:
            self._runs.pop(number, None)

    async def switch_off(self) -> None:
        """Cut the power: when this returns, every process of the machine has ended."""
        if self.first is None:
            return
        first, self.first = self.first, None
        left: set[int] = set()
        if self.mode == "loopback":
            left = descendants.of(first.pid)
        first.kill()
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                await first.ended.wait()
        except TimeoutError as error:
            raise LocalClusterError(f"{self.name}: its processes did not end within {ORDER_SECONDS} s") from error
        # Without a PID namespace the processes are ended one by one.
        descendants.kill_all(left)
        if self._input is not None:
            self._input.close()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        self.kubelet_pid = None
        self.kubelet_end = "the machine is off"
