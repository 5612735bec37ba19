"""One container from its start to its exit file."""

import errno
import json
import os
import select
import signal
import sys
import time

from thunderfleet_kubelet.shim import files
from thunderfleet_kubelet.shim.console import Console
from thunderfleet_kubelet.shim.log import Log, Stream
from thunderfleet_kubelet.shim.processes import birth, group_lives, marked, of_user, signal_all
from thunderfleet_kubelet.shim.program import Program, run_program

LEFTOVER_SECONDS = 5.0
"""The time between SIGTERM and SIGKILL for processes that outlive the main process."""

DRAIN_SECONDS = 2.0
"""How long output is read after SIGKILL to processes that cannot be found."""

STARTED = "started"

LONGEST_WAIT_SECONDS = 3600.0

EXIT_SECONDS = 600.0
"""How long a full disk may delay the exit file."""


class Owner:
    """Owns one container. ``folder``: the files of the attempt."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(os.path.join(folder, "spec.json"), encoding="utf-8") as file:
            self.spec = json.load(file)
        self.pid = 0
        self.status: int | None = None
        self.started = self.finished = 0.0
        self.deadline: float | None = None
        self.grace_exceeded = False
        self.asked = False
        tty, stdin = bool(self.spec.get("tty")), bool(self.spec.get("stdin"))
        self.console = Console(folder, tty, stdin) if tty or stdin else None
        if self.console is not None:
            # The kubelet may send SIGUSR1 before this shim can handle it.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def path(self, name: str) -> str:
        """A file of the attempt."""
        return os.path.join(self.folder, name)

    def start(self) -> str:
        """Starts the program. Returns the error; empty if it runs."""
        spec = self.spec
        log = Log(spec["log"], spec["logBytes"], spec["logFiles"])
        program = Program(spec["argv"], spec["env"], spec["cwd"], spec["uid"], spec["gid"], spec["groups"], spec.get("nice", 0))
        stdin = self.console.open(spec["uid"], spec["gid"]) if self.console is not None else -1
        report, tty = os.pipe(), self.console is not None and self.console.tty
        outputs: list[tuple[str, tuple[int, int]]] = []
        if not tty:
            outputs = [("stdout", os.pipe()), ("stderr", os.pipe())]
        writers = [stdin, stdin] if tty else [pair[1] for _, pair in outputs]
        self.started = time.time()
        self.pid = os.fork()
        if self.pid == 0:
            run_program(program, writers[0], writers[1], report[1], stdin, tty)
        for writer in {*writers, report[1], *([stdin] if stdin >= 0 else [])}:
            os.close(writer)
        tap = self.console.put if self.console is not None else None
        if tty and self.console is not None:
            outputs = [("stdout", (self.console.outer, -1))]
        self.streams = [Stream(name, pair[0], log, tap) for name, pair in outputs]
        with os.fdopen(report[0], "rb") as answer:
            problem = answer.read().decode("utf-8", "replace")
        if problem:
            os.waitpid(self.pid, 0)
            self.write_exit(128, 0, "StartError", problem)
        else:
            record = {"shim": os.getpid(), "pid": self.pid, "birth": birth(self.pid), "startedAt": self.started}
            try:
                files.write_file(self.path("running.json"), json.dumps(record))
            except OSError:
                # Without this file, no kubelet would find the program.
                self.kill_everything()
                raise
        return problem

    def write_exit(self, code: int, number: int, reason: str, message: str) -> None:
        """Records the exit; ``number`` is that of the signal. Raises OSError if the disk stays full."""
        record = {
            "exitCode": code,
            "signal": number,
            "startedAt": self.started,
            "finishedAt": time.time(),
            "reason": reason,
            "message": message,
            "graceExceeded": self.grace_exceeded,
        }
        limit = time.monotonic() + EXIT_SECONDS
        while True:
            try:
                files.write_file(self.path("exit.json"), json.dumps(record))
                return
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or time.monotonic() >= limit:
                    raise
                time.sleep(1.0)

    def reap(self) -> None:
        """Records the exit of the main process, and reaps all other children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status, self.finished = status, time.time()

    def read_stop(self) -> None:
        """Handles a stop request: SIGTERM to the group now, SIGKILL when the grace period is over."""
        try:
            with open(self.path("stop"), encoding="utf-8") as file:
                grace = float(file.read())
        except (OSError, ValueError):
            grace = float(self.spec["grace"])
        deadline = time.monotonic() + grace
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        if not self.asked and grace > 0:
            self.signal_group(signal.SIGTERM)
        self.asked = True

    def signal_group(self, number: int) -> None:
        """Signals the program's process group, if it still exists."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # macOS returns EPERM for a group that has only zombies left.
            return

    def others(self) -> list[int]:
        """All processes of this container, in its process group or not."""
        found = set(marked(self.spec["marker"], self.pid))
        if self.spec["ownUser"] is not None:
            found |= set(of_user(self.spec["ownUser"]))
        return sorted(found - {os.getpid()})

    def kill_everything(self) -> None:
        """Kills all processes of the container."""
        self.signal_group(signal.SIGKILL)
        signal_all(self.others(), signal.SIGKILL)

    def serve(self) -> None:
        """Copies output and handles signals until all processes of the container have ended."""
        self.prepare_signals()
        if os.path.exists(self.path("stop")):
            self.read_stop()
        self.reap()
        while self.status is None:
            self.turn()
            if self.deadline is not None and self.status is None and time.monotonic() >= self.deadline:
                self.grace_exceeded = self.grace_exceeded or (self.asked and self.had_grace())
                self.deadline = time.monotonic() + 1.0
                self.kill_everything()
        self.end_leftovers()
        for stream in self.streams:
            while stream.open and stream.read():
                pass
            stream.finish()
        code = os.waitstatus_to_exitcode(self.status)
        number = -code if code < 0 else 0
        code = 128 + number if number else code
        self.write_exit(code, number, "Completed" if code == 0 else "Error", "")

    def prepare_signals(self) -> None:
        """Makes signals and output wake ``turn``."""
        self.wake, writer = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if self.console is not None:
            signal.signal(signal.SIGUSR1, lambda *_: None)
        for unwanted in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(unwanted, signal.SIG_IGN)
        self.poll = select.poll()
        self.poll.register(self.wake, select.POLLIN)
        for stream in self.streams:
            self.poll.register(stream.fd, select.POLLIN)
        if self.console is not None:
            self.console.serve(self.poll)

    def had_grace(self) -> bool:
        """Whether the stop request left any time; a container that is killed immediately has no grace period to exceed."""
        try:
            with open(self.path("stop"), encoding="utf-8") as file:
                return float(file.read()) > 0
        except (OSError, ValueError):
            return True

    def end_leftovers(self) -> None:
        """Terminates the processes that outlive the main process: SIGTERM, then SIGKILL."""
        pids = self.others()
        if not group_lives(self.pid) and not pids:
            return
        self.signal_group(signal.SIGTERM)
        signal_all(pids, signal.SIGTERM)
        limit = time.monotonic() + LEFTOVER_SECONDS
        if self.deadline is not None:
            limit = min(limit, self.deadline)
        pause = 0.02
        while True:
            self.turn(pause)
            pause = min(pause * 1.5, 0.5)
            if not group_lives(self.pid) and not self.others():
                return
            if time.monotonic() >= limit:
                self.kill_everything()
            if time.monotonic() >= limit + DRAIN_SECONDS:
                return

    def turn(self, pause: float | None = None) -> None:
        """Waits for output, a signal, the end of the grace period, or ``pause`` seconds."""
        wait = pause
        if wait is None and self.deadline is not None:
            # A grace period may be longer than what poll takes.
            wait = min(max(0.0, self.deadline - time.monotonic()), LONGEST_WAIT_SECONDS)
        for fd, _ in self.poll.poll(None if wait is None else int(wait * 1000) + 1):
            if fd == self.wake:
                self.handle_signals()
            elif self.console is None or not self.console.handles(fd):
                self.copy_output(fd)
        self.reap()

    def handle_signals(self) -> None:
        """Handles a SIGTERM that arrived; other signals only wake the shim."""
        try:
            numbers = os.read(self.wake, 512)
        except OSError:
            return
        if signal.SIGTERM in numbers:
            self.read_stop()
        if self.console is not None and signal.SIGUSR1 in numbers:
            self.console.look()

    def copy_output(self, fd: int) -> None:
        """Copies available output of one stream to the log."""
        for stream in self.streams:
            if stream.fd == fd and stream.open:
                stream.read()
                if not stream.open:
                    self.poll.unregister(fd)
                    if self.console is not None:
                        self.console.closed(fd)


def main() -> int:
    """Leaves a shim in its own session behind, and returns when it has started the program or has failed to."""
    os.umask(0o077)
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            text = answer.read().decode("utf-8", "replace")
        if text == STARTED:
            return 0
        print(text or "the shim exited before it started the program", file=sys.stderr)
        return 1
    os.close(reader)
    os.setsid()
    os.chdir("/")
    try:
        run(sys.argv[1], writer)
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        raise
    finally:
        sys.stderr.flush()
    os._exit(0)


def run(folder: str, writer: int) -> None:
    """Runs the attempt in ``folder`` to its end. Reports its start on ``writer``."""
    owner = Owner(folder)
    os.open(owner.path("alive"), os.O_RDWR | os.O_CLOEXEC)
    if os.path.exists(owner.path("exit.json")):
        os.write(writer, b"the attempt was given up before it started")
        return
    try:
        os.close(os.open(owner.path("claimed"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # The kubelet restarted while it started this attempt, so there are two shims; the first one runs the program.
        os.write(writer, STARTED.encode())
        return
    problem = owner.start()
    null = os.open("/dev/null", os.O_RDWR)
    errors = os.open(owner.path("shim.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(errors, 2)
    os.write(writer, (problem or STARTED).encode())
    os.close(writer)
    if not problem:
        owner.serve()
