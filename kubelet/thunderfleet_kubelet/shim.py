"""The tiny process that owns one container, so that a container outlives the kubelet that started it.

Run as a script (``python -I -S shim.py FOLDER``), with nothing but the standard library and as little of it as possible:
there is one for every running container. It leaves the kubelet's session, starts the program in a session of its own as the
container's user, writes its output to the container's log, passes on the request to stop, and leaves the exit code in a file.
A kubelet speaks to it through the files of FOLDER alone:

- ``spec.json`` (read once): argv, env, cwd, uid, gid, groups, log, marker, grace, logBytes, logFiles.
- ``alive``: a named pipe that the shim keeps open for writing, so whoever has it open for reading sees the end of the
  file when the shim is gone, whatever ended it, and cannot be fooled by a process number that was given to another.
- ``running.json``: ``shim`` and ``pid`` (process numbers), ``birth`` (of ``pid``), ``startedAt`` (seconds since the epoch).
- ``claimed``: there as soon as a shim has taken the attempt; a second one leaves it alone.
- ``stop``: seconds of grace as text; then SIGTERM to the shim. May be repeated with less grace.
- ``exit.json``: ``exitCode``, ``signal``, ``startedAt``, ``finishedAt``, ``reason``, ``message``, ``graceExceeded``. Written
  when no process of the container is left, after the last line of the log.

Every process of a container carries the container's sandbox folder (``marker``) in its environment. By it those are found
that left the process group with a setsid of their own.
"""

import errno
import json
import os
import select
import signal
import sys
import time

MARKER_VARIABLE = "CONTAINER_SANDBOX_MOUNT_POINT"

LINE_BYTES = 16384
"""A longer line is written in parts, as a container runtime does."""

LEFTOVER_SECONDS = 5.0
"""What is left of the group when the main process has ended gets this long between SIGTERM and SIGKILL."""

DRAIN_SECONDS = 2.0
"""How long output is still read when no process is left that we know of."""

EXIT_SECONDS = 600.0
"""How long a full disk may keep the exit code from being written."""

PS_SECONDS = 10.0


def write_file(path: str, text: str) -> None:
    """Writes ``text`` to ``path`` so that a reader sees all of it or the old content."""
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def marked(marker: str) -> list[int]:
    """Process numbers of everything alive on this machine that carries ``marker`` (a sandbox folder) in its environment."""
    wanted = f"{MARKER_VARIABLE}={marker}".encode()
    found = []
    if os.path.exists("/proc/self/environ"):
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0") and not _zombie(int(entry)):
                        found.append(int(entry))
            except OSError:
                continue
        return found
    # macOS: ps shows the environment of the caller's own processes, and to root of all of them.
    return marked_in(ask_ps(["-axEww", "-o", "pid=,stat=,command="]), wanted)


def marked_in(output: bytes, wanted: bytes) -> list[int]:
    """The same from the text of ``ps -axEww -o pid=,stat=,command=``, which has the environment after the command."""
    found = []
    for line in output.splitlines():
        fields = line.split(None, 2)
        if len(fields) < 3 or not fields[0].isdigit() or fields[1].startswith(b"Z"):
            continue
        if b" " + wanted + b" " in b" " + fields[2] + b" ":
            found.append(int(fields[0]))
    return found


def ask_ps(arguments: list[str]) -> bytes:
    """What ``ps`` says; nothing when it takes too long."""
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writer, 1)]
    child = os.posix_spawn("/bin/ps", ["ps", *arguments], {"LC_ALL": "C"}, file_actions=actions)
    os.close(writer)
    output, limit = b"", time.monotonic() + PS_SECONDS
    try:
        while True:
            if not select.select([reader], [], [], max(0.0, limit - time.monotonic()))[0]:
                os.kill(child, signal.SIGKILL)
                output = b""
                break
            data = os.read(reader, 65536)
            if not data:
                break
            output += data
    finally:
        os.close(reader)
    # Not an error if whoever collects all children of this process was faster (contextlib would cost a shim memory).
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        return output
    return output


def birth(pid: int) -> str:
    """When the process was started, as the system says it: with the number it names one process for good. Empty: gone."""
    if os.path.exists("/proc/self/stat"):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                ticks = file.read().rpartition(b")")[2].split()[19].decode()
            # Ticks count from the machine's start.
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return f"{file.read().strip()} {ticks}"
        except (OSError, IndexError):
            return ""
    return ask_ps(["-o", "lstart=", "-p", str(pid)]).decode("utf-8", "replace").strip()


def _zombie(pid: int) -> bool:
    return _state_and_group(pid)[0] in (b"Z", b"X")


def _state_and_group(pid: int) -> tuple[bytes, int]:
    """A process's state letter and process group, from Linux's /proc; ``X`` when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0], int(fields[2])
    except (OSError, IndexError):
        return b"X", 0


def group_lives(group: int) -> bool:
    """Whether any process of the group runs. A zombie that nobody has collected does not count, where that can be told."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # macOS answers so for a group of which only zombies are left.
        return os.path.exists("/proc/self/stat")
    if not os.path.exists("/proc/self/stat"):
        return True
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            state, its = _state_and_group(int(entry))
            if its == group and state not in (b"Z", b"X"):
                return True
    return False


def signal_all(pids: list[int], number: int) -> None:
    """Signals each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


class Log:
    """The container's log: one line of output a line, ``<RFC 3339 time> <stdout|stderr> <F|P> <text>``, as container runtimes
    write it. Rotated here, since only here is nobody writing while it happens: ``log`` -> ``log.1`` -> ``log.2`` …
    """

    def __init__(self, path: str, limit: int, files: int) -> None:
        self.path, self.limit, self.files = path, limit, files
        self.size = 0
        self.fd = -1
        self._second, self._text = -1, ""
        self.open()

    def open(self) -> None:
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self.size = os.fstat(self.fd).st_size

    def _stamp(self) -> str:
        now = time.time_ns()
        second, rest = divmod(now, 1_000_000_000)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{rest:09d}Z"

    def write(self, stream: str, lines: list[tuple[bytes, bool]]) -> None:
        """``lines``: (text without its newline, whether the line ends here)."""
        stamp = self._stamp()
        heads = {True: f"{stamp} {stream} F ".encode(), False: f"{stamp} {stream} P ".encode()}
        data = b"".join(heads[full] + text + b"\n" for text, full in lines)
        try:
            if self.size and self.size + len(data) > self.limit:
                self._rotate()
            while data:
                written = os.write(self.fd, data)
                self.size += written
                data = data[written:]
        except OSError:
            # A full disk must not end the program; what it says meanwhile is lost.
            return

    def _rotate(self) -> None:
        for number in range(self.files - 1, 0, -1):
            older = f"{self.path}.{number - 1}" if number > 1 else self.path
            if os.path.exists(older):
                os.replace(older, f"{self.path}.{number}")
        os.close(self.fd)
        self.open()


class Stream:
    """One of the program's two outputs on its way to the log."""

    def __init__(self, name: str, fd: int, log: Log) -> None:
        self.name, self.fd, self.log, self.rest, self.open = name, fd, log, b"", True
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Takes what is there. False at the end of the stream, or when there is nothing now."""
        try:
            data = os.read(self.fd, 65536)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return False
            data = b""
        if not data:
            self.finish()
            return False
        parts = (self.rest + data).split(b"\n")
        self.rest = parts.pop()
        lines: list[tuple[bytes, bool]] = []
        for part in parts:
            while len(part) > LINE_BYTES:
                lines.append((part[:LINE_BYTES], False))
                part = part[LINE_BYTES:]
            lines.append((part, True))
        while len(self.rest) > LINE_BYTES:
            lines.append((self.rest[:LINE_BYTES], False))
            self.rest = self.rest[LINE_BYTES:]
        if lines:
            self.log.write(self.name, lines)
        return True

    def finish(self) -> None:
        if self.open:
            if self.rest:
                self.log.write(self.name, [(self.rest, True)])
            os.close(self.fd)
            self.open = False


def become(uid: int | None, gid: int | None, groups: list[int]) -> None:
    """Gives up the kubelet's identity for the container's. Nothing to do when it is the same one."""
    if gid is not None and (gid != os.getegid() or uid != os.geteuid()):
        os.setgroups(groups)
        os.setgid(gid)
    elif groups:
        os.setgroups(groups)
    if uid is not None and uid != os.geteuid():
        os.setuid(uid)


def run_program(spec: dict, out: int, err: int, report: int) -> None:  # type: ignore[type-arg]
    """In the forked child: becomes the program, or says on ``report`` why not. Never returns."""
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            # Python ignores SIGPIPE and SIGXFSZ, and what is ignored stays so in the new program.
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(0o022)
        become(spec["uid"], spec["gid"], spec["groups"])
        os.chdir(spec["cwd"])
        execute(spec["argv"], spec["env"])
    except BaseException as error:
        os.write(report, explain(spec, error).encode())
    finally:
        os._exit(128)


def execute(argv: list[str], env: dict[str, str]) -> None:
    """Becomes the program, looked up on the PATH in ``env``. (``os.execvpe`` imports a module, and the container's user may
    not be allowed to read this Python's folder.)
    """
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    problem: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    for folder in env.get("PATH", "").split(":"):
        try:
            os.execve(os.path.join(folder or ".", argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error
    raise problem


def explain(spec: dict, error: BaseException) -> str:  # type: ignore[type-arg]
    """Why the program could not be started, for the user."""
    program = spec["argv"][0]
    if isinstance(error, FileNotFoundError):
        if not os.path.isdir(spec["cwd"]):
            return f"working folder {spec['cwd']} does not exist"
        return f"command {program!r} was not found on PATH={spec['env'].get('PATH', '')}"
    if isinstance(error, PermissionError):
        return f"command {program!r} cannot be started as user {spec['uid']} in {spec['cwd']}: {error.strerror}"
    return f"command {program!r} cannot be started: {error}"


class Shim:
    """One container from its start to its exit file."""

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

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def start(self) -> str:
        """Starts the program. Returns why not, or nothing."""
        log = Log(self.spec["log"], self.spec["logBytes"], self.spec["logFiles"])
        out, err, report = os.pipe(), os.pipe(), os.pipe()
        self.started = time.time()
        self.pid = os.fork()
        if self.pid == 0:
            run_program(self.spec, out[1], err[1], report[1])
        for writer in (out[1], err[1], report[1]):
            os.close(writer)
        self.streams = [Stream("stdout", out[0], log), Stream("stderr", err[0], log)]
        with os.fdopen(report[0], "rb") as answer:
            problem = answer.read().decode("utf-8", "replace")
        if problem:
            os.waitpid(self.pid, 0)
            self.write_exit(128, 0, "StartError", problem)
        else:
            record = {"shim": os.getpid(), "pid": self.pid, "birth": birth(self.pid), "startedAt": self.started}
            try:
                write_file(self.path("running.json"), json.dumps(record))
            except OSError:
                # A program that no kubelet could ever find must not run.
                self.kill_everything()
                raise
        return problem

    def write_exit(self, code: int, number: int, reason: str, message: str) -> None:
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
                write_file(self.path("exit.json"), json.dumps(record))
                return
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or time.monotonic() >= limit:
                    raise
                time.sleep(1.0)

    def reap(self) -> None:
        """Notes the end of the main process; collects whatever else is a child of ours."""
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
        """A request to stop: SIGTERM to the group now, SIGKILL when the grace is over."""
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
        """Signals the program's process group, if anything is left of it."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # macOS refuses permission for a group of which only a zombie is left.
            return

    def others(self) -> list[int]:
        """Processes of this container outside of its process group, and inside."""
        return [pid for pid in marked(self.spec["marker"]) if pid != os.getpid()]

    def kill_everything(self) -> None:
        self.signal_group(signal.SIGKILL)
        signal_all(self.others(), signal.SIGKILL)

    def serve(self) -> None:
        """Reads output and signals until the program and all that it started have ended."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for unwanted in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(unwanted, signal.SIG_IGN)
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        for stream in self.streams:
            poll.register(stream.fd, select.POLLIN)
        if os.path.exists(self.path("stop")):
            self.read_stop()
        self.reap()
        while self.status is None:
            self.turn(poll, wake_read)
            if self.deadline is not None and self.status is None and time.monotonic() >= self.deadline:
                self.grace_exceeded = self.grace_exceeded or bool(self.asked and self.remaining_grace_was_given())
                self.deadline = time.monotonic() + 1.0
                self.kill_everything()
        self.end_leftovers(poll, wake_read)
        for stream in self.streams:
            while stream.open and stream.read():
                pass
            stream.finish()
        code = os.waitstatus_to_exitcode(self.status)
        number = -code if code < 0 else 0
        code = 128 + number if number else code
        self.write_exit(code, number, "Completed" if code == 0 else "Error", "")

    def remaining_grace_was_given(self) -> bool:
        """A container stopped with no grace at all was not late."""
        try:
            with open(self.path("stop"), encoding="utf-8") as file:
                return float(file.read()) > 0
        except (OSError, ValueError):
            return True

    def end_leftovers(self, poll: select.poll, wake_read: int) -> None:
        """The main process has ended: so do all others of the container, politely first."""
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
            self.turn(poll, wake_read, pause)
            pause = min(pause * 1.5, 0.5)
            if not group_lives(self.pid) and not self.others():
                return
            if time.monotonic() >= limit:
                self.kill_everything()
            if time.monotonic() >= limit + DRAIN_SECONDS:
                return

    def turn(self, poll: select.poll, wake_read: int, pause: float | None = None) -> None:
        """Waits for the next output, signal, or the end of the grace."""
        wait = pause
        if wait is None and self.deadline is not None:
            wait = max(0.0, self.deadline - time.monotonic())
        for fd, _ in poll.poll(None if wait is None else int(wait * 1000) + 1):
            if fd == wake_read:
                try:
                    numbers = os.read(wake_read, 512)
                except OSError:
                    continue
                if signal.SIGTERM in numbers:
                    self.read_stop()
            for stream in self.streams:
                if stream.fd == fd and stream.open:
                    stream.read()
                    if not stream.open:
                        poll.unregister(fd)
        self.reap()


def main() -> int:
    """The launcher: leaves a shim of its own session behind, and ends when the program has started or could not."""
    folder = sys.argv[1]
    os.umask(0o077)
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            text = answer.read().decode("utf-8", "replace")
        if text == "started":
            return 0
        print(text or "the shim ended before it had started the program", file=sys.stderr)
        return 1
    os.close(reader)
    os.setsid()
    os.chdir("/")
    try:
        shim = Shim(folder)
        os.open(shim.path("alive"), os.O_RDWR | os.O_CLOEXEC)
        if os.path.exists(shim.path("exit.json")):
            os.write(writer, b"given up before it had started")
            os._exit(0)
        try:
            os.close(os.open(shim.path("claimed"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            # A kubelet ended in the middle, and the next one has sent another shim: whoever comes first runs the program.
            os.write(writer, b"started")
            os._exit(0)
        problem = shim.start()
        null = os.open("/dev/null", os.O_RDWR)
        errors = os.open(shim.path("shim.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(errors, 2)
        os.write(writer, (problem or "started").encode())
        os.close(writer)
        if not problem:
            shim.serve()
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        raise
    finally:
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
