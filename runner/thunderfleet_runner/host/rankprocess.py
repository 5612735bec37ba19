"""A rank's process from its supervisor's side: start, messages, end, exit code.

One process for each attempt, in its own process group, so that nothing it starts outlives it. It may start before its attempt:
then it imports MLX and waits for ``Start``. The last lines of its output are kept: often they are the only trace of an error.
"""

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from thunderfleet_lib.host.hostcmd import Output

from thunderfleet_runner import framing, protocol
from thunderfleet_runner.host import priority
from thunderfleet_runner.host.commands import HOST

log = logging.getLogger(__name__)
rank_log = logging.getLogger("rank")

RANK_MODULE = "thunderfleet_runner.rank"
"""The module in the command line of every rank."""
TAIL_LINES = 40
LINE_BYTES = 1 << 16
"""Longer lines of a rank's output are dropped."""
PS_SECONDS = 5.0
_LEVELS = {"WARNING": logging.WARNING, "ERROR": logging.ERROR, "CRITICAL": logging.ERROR}
TERM_SECONDS = 2.0
"""Seconds between SIGTERM and SIGKILL."""
LEAVE_SECONDS = 1.0
"""How long a waiting process may take to exit by itself."""
_OF_A_GROUP = ("MLX_", "JACCL_", "THUNDERFLEET_RANK")
_OF_ONE_PROCESS = {"MLX_DISABLE_COMPILE", "MLX_MAX_OPS_PER_BUFFER", "MLX_MAX_MB_PER_BUFFER", "MLX_BFS_MAX_WIDTH"}
"""MLX settings of a single process, which the image or the pod may set."""


def rank_command(group: str, epoch: int, rank: int) -> list[str]:
    """The rank's command line. The arguments are only for people with ``ps``."""
    arguments = ["--group", group, "--epoch", str(epoch), "--rank", str(rank)]
    # -P: do not search the working directory for modules.
    return [sys.executable, "-P", "-m", RANK_MODULE, *arguments]


def rank_environment(base: Mapping[str, str], fd: int) -> dict[str, str]:
    """The supervisor's environment without variables by which MLX would find a group, plus the rank's end of the socketpair.

    MLX's variables for its group come with ``Start``.
    """
    clean = {name: value for name, value in base.items() if name in _OF_ONE_PROCESS or not name.startswith(_OF_A_GROUP)}
    clean |= {framing.FD_VARIABLE: str(fd), framing.PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    clean |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return clean


def mlx_settings(base: Mapping[str, str], planned: Mapping[str, str]) -> dict[str, str]:
    """MLX's settings that a rank gets: those of its own process from the supervisor's environment, and those of the plan.

    The plan is the same for all ranks, and takes precedence.
    """
    return {name: value for name, value in base.items() if name in _OF_ONE_PROCESS} | dict(planned)


def ignored_variables(base: Mapping[str, str]) -> list[str]:
    """MLX's variables in the supervisor's environment that no rank gets."""
    return sorted(name for name in base if name.startswith(("MLX_", "JACCL_")) and name not in _OF_ONE_PROCESS)


class _Exit(asyncio.subprocess.SubprocessStreamProtocol):
    """Notices the end of a process at once: up to Python 3.12, ``Process.wait`` also waits until nothing holds its output."""

    def __init__(self) -> None:
        super().__init__(limit=LINE_BYTES, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class RankProcess:
    """One started process.

    ``on_message`` gets its messages; ``on_exit`` its exit code, once, when it is reaped and its socket is read to the end.
    """

    def __init__(self, transport: asyncio.SubprocessTransport, exit_: _Exit, end: socket.socket, pid_file: Path) -> None:
        self._process = asyncio.subprocess.Process(transport, exit_, asyncio.get_running_loop())
        self._transport = transport
        self._exit = exit_
        self._socket = end
        self._pid_file = pid_file
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._outgoing = bytearray()
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = asyncio.Event()
        self._ended = False
        """Whether ``end`` sent a signal before the process had exited."""
        self._killed = False
        """Whether ``end`` sent SIGKILL."""
        self.failed: protocol.Failed | None = None
        """Its Failed message, if it sent one."""

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        pid_file: Path,
        on_message: Callable[[protocol.FromRank], None],
        on_exit: Callable[[int], None],
    ) -> "RankProcess":
        """Starts ``command`` and listens to it. Raises OSError when it cannot be started."""
        ours, theirs = socket.socketpair()
        try:
            transport, exit_ = await asyncio.get_running_loop().subprocess_exec(
                _Exit,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=rank_environment(os.environ, theirs.fileno()),
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        priority.inherited(transport.get_pid())
        _remember(pid_file, transport.get_pid())
        self = cls(transport, exit_, ours, pid_file)
        ours.setblocking(False)
        said = asyncio.create_task(self._listen(on_message), name="rank-socket")
        wrote = asyncio.create_task(self._pump(), name="rank-stderr")
        self._tasks = [said, wrote, asyncio.create_task(self._reap(said, wrote, on_exit), name="rank-exit")]
        return self

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def tail(self) -> str:
        """The last lines of its output."""
        return "\n".join(self._tail)

    @property
    def code(self) -> int:
        """Its exit code once it has exited; negative: the signal that ended it."""
        return self._process.returncode or 0

    @property
    def by_itself(self) -> bool:
        """Whether ``end`` is not the reason for its exit: it had exited before, or another SIGKILL ended it.

        False from the call of ``end`` until it has exited, unless it had exited before.
        """
        return not self._ended or (self._process.returncode == -signal.SIGKILL and not self._killed)

    def send(self, message: protocol.ToRank) -> None:
        """Never blocks: unsent data waits in memory. Dropped when the process has exited."""
        if self._gone.is_set() or self._socket.fileno() < 0:
            return
        waiting = bool(self._outgoing)
        self._outgoing += protocol.encode(message)
        if not waiting:
            self._flush()

    def signal(self, number: int) -> None:
        """Signals the whole process group; no effect when it has exited."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def leave(self) -> None:
        """Ends a waiting process: requests that it exits, then kills it. Returns when it is reaped."""
        self.send(protocol.Stop())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._gone.wait()
        await self.end()

    async def end(self) -> None:
        """SIGTERM, then SIGKILL; returns when it is reaped."""
        if not self._gone.is_set():
            self._ended = self._ended or not self._left()
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TERM_SECONDS):
                    await self._gone.wait()
        self._killed = self._killed or not self._exit.exited.is_set()
        self.signal(signal.SIGKILL)
        await self._gone.wait()

    async def wait(self) -> None:
        """Returns when it is reaped."""
        await self._gone.wait()

    # --- inside ---

    def _left(self) -> bool:
        """Whether it is exiting or has exited, possibly unnoticed: the system first closes its sockets, also those to peers."""
        if self._exit.exited.is_set() or self._socket.fileno() < 0:
            return True
        hung_up = select.poll()
        # macOS reports a hang-up only if another event is requested too.
        hung_up.register(self._socket, select.POLLIN)
        return any(events & select.POLLHUP for _, events in hung_up.poll(0))

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._outgoing:
                sent = self._socket.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            loop.add_writer(self._socket, self._flush)
            return
        except OSError:
            self._outgoing.clear()
        if self._socket.fileno() >= 0:
            loop.remove_writer(self._socket)

    async def _listen(self, on_message: Callable[[protocol.FromRank], None]) -> None:
        loop = asyncio.get_running_loop()
        frames = framing.Frames()
        try:
            while data := await loop.sock_recv(self._socket, 1 << 16):
                for body in frames.feed(data):
                    message = protocol.decode_from_rank(body)
                    if isinstance(message, protocol.Failed):
                        self.failed = message
                    on_message(message)
        except ConnectionError:
            pass
        except framing.BrokenStream as error:
            self.failed = protocol.Failed(stage="serve", text=str(error))
            on_message(self.failed)

    async def _pump(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._tail.append(text)
            rank_log.log(_level(text), "[%d] %s", self._process.pid, text)

    async def _reap(self, said: "asyncio.Task[None]", wrote: "asyncio.Task[None]", on_exit: Callable[[int], None]) -> None:
        await self._exit.exited.wait()
        # Also ends its children, because a child that keeps the pipes open must not block the supervisor.
        self.signal(signal.SIGKILL)
        await asyncio.wait({said, wrote}, timeout=1.0)
        for task in (said, wrote):
            task.cancel()
        await asyncio.gather(said, wrote, return_exceptions=True)
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._socket)
        self._socket.close()
        self._transport.close()
        self._pid_file.unlink(missing_ok=True)
        self._gone.set()
        on_exit(self.code)


def _level(line: str) -> int:
    """The level that a line of a rank's log names; that of other output is INFO."""
    words = line.split(" ", 3)
    return _LEVELS.get(words[2], logging.INFO) if len(words) > 3 else logging.INFO


def resident_bytes(pid: int) -> int:
    """Resident bytes of a process; 0 when unknown. May block for a moment."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0
    said = _ps(pid, "rss=").strip()
    return int(said) * 1024 if said.isdigit() else 0


def _remember(pid_file: Path, pid: int) -> None:
    pid_file.write_text(f"{pid}\n")


def _ps(pid: int, column: str) -> str:
    outcome = HOST.run(("/bin/ps", "-o", column, "-p", str(pid)), PS_SECONDS)
    return outcome.text if isinstance(outcome, Output) else ""
