"""The rank's process, as its supervisor holds it: started, heard, ended, reaped.

One process an attempt, in a process group of its own, so that nothing it started outlives it. It may be started before there
is an attempt: then it imports MLX and waits for ``Start``. Its end is known by the kernel and by its socket, whichever comes
first; the end of what it wrote to stderr is kept, since that is often all it said.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from thunderfleet_runner import framing, protocol

log = logging.getLogger(__name__)
rank_log = logging.getLogger("rank")

RANK_MODULE = "thunderfleet_runner.rank"
"""In the command line of every rank: what it is started by begins so."""
TAIL_LINES = 40
TERM_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""
LEAVE_SECONDS = 1.0
"""How long one that waits for an attempt has to leave by itself."""
_OF_A_GROUP = ("MLX_", "JACCL_", "THUNDERFLEET_RANK")
_OF_ONE_PROCESS = {"MLX_DISABLE_COMPILE", "MLX_MAX_OPS_PER_BUFFER", "MLX_MAX_MB_PER_BUFFER", "MLX_BFS_MAX_WIDTH"}
"""How MLX works by itself: what the image or the pod says of that holds."""


def rank_command(group: str, epoch: int, rank: int) -> list[str]:
    """The rank's command line. What follows the module is read by nobody but people with ``ps`` and ``end_orphan``."""
    told = ["--group", group, "--epoch", str(epoch), "--rank", str(rank)]
    # -P: the folder that the pod happens to work in is not searched for modules.
    return [sys.executable, "-P", "-m", RANK_MODULE, *told]


def rank_environment(base: Mapping[str, str], fd: int) -> dict[str, str]:
    """The supervisor's environment without anything by which MLX or a rank would find a group, plus what a rank needs to be
    heard. What MLX is to know of its group comes with ``Start``.
    """
    clean = {name: value for name, value in base.items() if name in _OF_ONE_PROCESS or not name.startswith(_OF_A_GROUP)}
    clean |= {framing.FD_VARIABLE: str(fd), framing.PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    clean |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return clean


class RankProcess:
    """One started rank. ``on_message`` gets what it says; ``on_exit`` its return code, once, when it is reaped and its socket
    is read to the end.
    """

    def __init__(self, process: asyncio.subprocess.Process, end: socket.socket, pid_file: Path) -> None:
        self._process = process
        self._socket = end
        self._pid_file = pid_file
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._outgoing = bytearray()
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = asyncio.Event()
        self.failed: protocol.Failed | None = None
        """Its last words, when it had any."""

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        pid_file: Path,
        on_message: Callable[[protocol.FromRank], None],
        on_exit: Callable[[int], None],
    ) -> "RankProcess":
        """Starts ``command`` and begins to listen. Raises OSError when it cannot be started."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
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
        _remember(pid_file, process.pid)
        self = cls(process, ours, pid_file)
        ours.setblocking(False)
        said = asyncio.create_task(self._listen(on_message), name="rank-socket")
        wrote = asyncio.create_task(self._pump(), name="rank-stderr")
        self._tasks = [said, wrote, asyncio.create_task(self._reap(said, wrote, on_exit), name="rank-exit")]
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def tail(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._tail)

    def send(self, message: protocol.ToRank) -> None:
        """Never blocks: what the rank does not take now waits in memory. A rank that has gone takes nothing."""
        if self._gone.is_set() or self._socket.fileno() < 0:
            return
        waiting = bool(self._outgoing)
        self._outgoing += protocol.encode(message)
        if not waiting:
            self._flush()

    def signal(self, number: int) -> None:
        """To the whole process group; nothing happens when it has gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def leave(self) -> None:
        """Ends one that waits for an attempt: asked first. Returns when it is reaped."""
        self.send(protocol.Stop())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._gone.wait()
        await self.end()

    async def end(self) -> None:
        """SIGTERM, then SIGKILL; returns when it is reaped."""
        if not self._gone.is_set():
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TERM_SECONDS):
                    await self._gone.wait()
        self.signal(signal.SIGKILL)
        await self._gone.wait()

    async def wait(self) -> None:
        await self._gone.wait()

    # --- inside ---

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
            rank_log.info("[%d] %s", self._process.pid, text)

    async def _reap(self, said: "asyncio.Task[None]", wrote: "asyncio.Task[None]", on_exit: Callable[[int], None]) -> None:
        code = await self._process.wait()
        # Whatever it started goes with it; a child that holds its pipes open must not hold us.
        self.signal(signal.SIGKILL)
        await asyncio.wait({said, wrote}, timeout=1.0)
        for task in (said, wrote):
            task.cancel()
        await asyncio.gather(said, wrote, return_exceptions=True)
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._socket)
        self._socket.close()
        self._pid_file.unlink(missing_ok=True)
        self._gone.set()
        on_exit(code)


def resident_bytes(pid: int) -> int:
    """Memory that a process holds; 0 when the system does not say. May take a moment."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0
    said = _ps(pid, "rss=").strip()
    return int(said) * 1024 if said.isdigit() else 0


def _remember(pid_file: Path, pid: int) -> None:
    pid_file.write_text(f"{pid}\n")


def end_orphan(pid_file: Path, group: str) -> int | None:
    """Ends the rank that an earlier supervisor of this pod left behind, if it is one; its process id, or None.

    The command line must name the module and the group: process ids are used again.
    """
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return None
    pid_file.unlink(missing_ok=True)
    line = _command_line(pid)
    if RANK_MODULE not in line or f"--group {group} " not in f"{line} ":
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
        return pid
    return None


def _command_line(pid: int) -> str:
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    return _ps(pid, "command=")


def _ps(pid: int, column: str) -> str:
    import subprocess

    try:
        done = subprocess.run(["/bin/ps", "-o", column, "-p", str(pid)], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
