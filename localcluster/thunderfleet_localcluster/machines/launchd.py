"""The first process of a machine, as launchd is on a Mac.

It creates the machine (in namespace mode: namespaces for network, processes and host name; for a Mac also folders of its own),
starts and ends the kubelet on command, and adopts processes that the kubelet leaves behind. A recorded Mac in namespaces also
runs its LaunchDaemons and answers its ``launchctl``. When this process ends, the machine ends: killing it cuts the power of the
Mac, and it ends by itself when the supervisor closes its input.

It runs as a file and uses the standard library only, as do the modules that it imports, so that a large fleet needs little
memory. Orders come as JSON lines on standard input, events go out as JSON lines on standard output.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any

if __name__ == "__main__":
    # The package's folder is not on the path of a file that is run.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from thunderfleet_localcluster.machines import descendants, launchctl, linux

if TYPE_CHECKING:
    from thunderfleet_localcluster.machines.jobs import Jobs

SO_PEERCRED = 17
"""Linux: process, user and group at the other end of a UNIX socket."""
NO_ROOT = (14, "** Error: Command requires admin privileges.\n", "")
CALLERS, CALL_BYTES = 16, 65536
"""The most callers of launchctl at once, and the longest call."""


def scratch() -> IO[bytes]:
    """An anonymous file. On Linux it needs no import of tempfile, which would cost memory in every machine."""
    if sys.platform.startswith("linux"):
        return os.fdopen(os.memfd_create("scratch"), "w+b")
    import tempfile

    return tempfile.TemporaryFile()


class Launchd:
    """Runs jobs on orders of the supervisor."""

    def __init__(self, own_namespace: bool, daemons: "Jobs | None" = None) -> None:
        self.own_namespace = own_namespace
        self.daemons = daemons
        self.jobs: dict[str, int] = {}
        self.callers: dict[socket.socket, bytes] = {}
        self.asked: dict[int, socket.socket] = {}
        self.questions = 0
        self.runs: dict[int, tuple[dict[str, Any], float, Any, Any]] = {}
        self.recorded: set[int] = set()

    def say(self, **event: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(1, json.dumps(event).encode() + b"\n")

    def start(self, order: dict[str, Any]) -> None:
        name = str(order["name"])
        if name in self.jobs:
            self.say(event="refused", name=name, reason=f"{name} is already running (process {self.jobs[name]})")
            return
        try:
            with open(order["log"], "ab") as log:
                # reap() collects every child, so Popen must not wait for it.
                job = subprocess.Popen(
                    order["argv"],
                    env=order["env"],
                    cwd=order.get("cwd") or "/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            self.say(event="refused", name=name, reason=f"cannot start {order['argv'][0]}: {error.strerror}")
            return
        job.returncode = 0
        self.jobs[name] = job.pid
        self.say(event="started", name=name, pid=job.pid)

    def kill(self, order: dict[str, Any]) -> None:
        pid = self.jobs.get(str(order["name"]))
        if pid is None:
            self.say(event="refused", name=order["name"], reason=f"{order['name']} is not running")
        else:
            os.kill(pid, int(order["signal"]))

    def run(self, order: dict[str, Any]) -> None:
        """Run one command; its output follows in an event when it ends."""
        # reap() closes them when the command has ended.
        out, err, given = scratch(), scratch(), scratch()
        given.write(str(order.get("input") or "").encode())
        given.seek(0)
        try:
            job = subprocess.Popen(
                order["argv"], env=order["env"], cwd="/", stdin=given, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            self.say(event="ran", id=order["id"], code=127, stdout="", stderr=f"{order['argv'][0]}: {error.strerror}\n")
            return
        finally:
            given.close()
        job.returncode = 0
        self.runs[job.pid] = (order, time.monotonic() + float(order["seconds"]), out, err)

    def reap(self) -> None:
        for pid, code in descendants.ended():
            for name, job in list(self.jobs.items()):
                if job == pid:
                    del self.jobs[name]
                    self.say(event="exited", name=name, pid=pid, code=code)
            if self.daemons is not None:
                self.daemons.exited(pid, code)
            if pid in self.runs:
                order, _, out, err = self.runs.pop(pid)
                texts = []
                for file in (out, err):
                    file.seek(0)
                    texts.append(file.read().decode("utf-8", "replace"))
                    file.close()
                self.say(event="ran", id=order["id"], code=code, stdout=texts[0], stderr=texts[1])

    def end(self) -> None:
        """End the whole machine. In its own PID namespace the kernel does that when this process ends."""
        if self.own_namespace:
            os._exit(0)
        for _ in range(200):
            left = descendants.of(os.getpid()) | {pid for pid in self.recorded if _alive(pid)}
            if not left:
                break
            descendants.kill_all(left)
            self.recorded.clear()
            self.reap()
            time.sleep(0.02)
        os._exit(0)

    def listen(self) -> socket.socket:
        """The socket to which launchctl connects."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(launchctl.ADDRESS)
        listener.listen(CALLERS)
        listener.setblocking(False)
        return listener

    def accept(self, listener: socket.socket, watched: selectors.BaseSelector) -> None:
        """A call of launchctl begins."""
        with contextlib.suppress(BlockingIOError):
            caller, _ = listener.accept()
            if len(self.callers) >= CALLERS:
                caller.close()
                return
            caller.setblocking(False)
            self.callers[caller] = b""
            watched.register(caller, selectors.EVENT_READ, "caller")

    def serve(self, caller: socket.socket, watched: selectors.BaseSelector) -> None:
        """Read a call of launchctl, and answer it when it is complete."""
        with contextlib.suppress(OSError):
            data = caller.recv(CALL_BYTES)
            text = self.callers[caller] = self.callers[caller] + data
            whole = text.endswith(launchctl.END)
            if data and not whole and len(text) <= CALL_BYTES:
                return
            if self.daemons is not None and whole:
                user = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12))[1]
                call = launchctl.arguments_of(text)
                network = call[:1] == ["--network"]
                if network and user == 0:
                    watched.unregister(caller)
                    del self.callers[caller]
                    self.ask(caller, call[1:])
                    return
                caller.sendall(launchctl.answer_of(*(NO_ROOT if network else self.daemons.answer(call, user))))
        watched.unregister(caller)
        del self.callers[caller]
        caller.close()

    def ask(self, caller: socket.socket, argv: list[str]) -> None:
        """Request a change of the network settings from the supervisor; a call of ``answer`` follows."""
        if len(self.asked) >= CALLERS or not argv:
            caller.close()
            return
        self.questions += 1
        self.asked[self.questions] = caller
        self.say(event="network", id=self.questions, argv=argv)

    def answer(self, order: dict[str, Any]) -> None:
        """Answer a command that changes network settings."""
        caller = self.asked.pop(int(order["id"]), None)
        if caller is not None:
            with contextlib.suppress(OSError), caller:
                caller.setblocking(True)
                caller.sendall(launchctl.answer_of(order["code"], order["stdout"], order["stderr"]))

    def wait_seconds(self, recording: bool) -> float | None:
        """How long to wait for orders at most."""
        waits = [1.0] if self.runs else [2.0] if recording else []
        if self.daemons is not None and (due := self.daemons.deadline()) is not None:
            waits.append(due)
        return min(waits, default=None)

    def loop(self) -> None:
        """Serve orders until the input ends."""
        read, write = os.pipe()
        for end in (read, write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        watched = selectors.DefaultSelector()
        watched.register(0, selectors.EVENT_READ, "orders")
        watched.register(read, selectors.EVENT_READ, "signals")
        if self.daemons is not None:
            watched.register(self.listen(), selectors.EVENT_READ, "launchctl")
            self.daemons.boot()
        # On macOS orphans get another parent, so descendants are recorded while they still are.
        recording = not self.own_namespace and not sys.platform.startswith("linux")
        buffer = b""
        while True:
            orders = b""
            for key, _ in watched.select(self.wait_seconds(recording)):
                if key.data == "orders":
                    orders = os.read(0, 65536)
                    if not orders:
                        self.end()
                else:
                    self.look(key, watched)
            self.reap()
            self.expire()
            if recording:
                self.recorded |= descendants.of(os.getpid())
            *lines, buffer = (buffer + orders).split(b"\n")
            for line in lines:
                order = json.loads(line)
                {"start": self.start, "kill": self.kill, "run": self.run, "answer": self.answer}[order["do"]](order)
                self.reap()

    def look(self, key: selectors.SelectorKey, watched: selectors.BaseSelector) -> None:
        """Handle events that are no orders: a signal, a caller of launchctl."""
        if key.data == "signals":
            with contextlib.suppress(BlockingIOError):
                os.read(key.fd, 4096)
        elif isinstance(key.fileobj, socket.socket):
            (self.accept if key.data == "launchctl" else self.serve)(key.fileobj, watched)

    def expire(self) -> None:
        """Do the work that is due: end commands that take too long, start and end LaunchDaemons."""
        if self.daemons is not None:
            self.daemons.tick()
        for pid, (_, deadline, _, _) in self.runs.items():
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def own_mac(home: str) -> "Jobs":
    """Give the Mac whose folder is ``home`` a root of its own, in this mount namespace; its LaunchDaemons."""
    # Only recorded Macs need the memory.
    from thunderfleet_localcluster.machines import own_root
    from thunderfleet_localcluster.machines.jobs import FOLDER, Jobs

    disk = os.path.join(home, "disk")
    commands = os.path.join(home, "bin")
    own_root.enter(disk, os.path.dirname(os.path.dirname(home)), commands)
    return Jobs(FOLDER, os.path.join(disk, "disabled.json"), commands)


def main(name: str, mode: str, home: str = "") -> int:
    """``mode`` is ``namespaces`` or ``loopback``; ``home``: in namespaces, the folder of a machine that is a recorded Mac."""
    daemons = None
    if mode == "namespaces":
        linux.libc_call("unshare", linux.CLONE_NEWNET | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWUTS)
        linux.libc_call("sethostname", name.encode(), len(name))
        pid = os.fork()
        if pid:
            # The supervisor, our parent, is the first process of its PID namespace and so inherits the child.
            os.write(1, json.dumps({"event": "born", "pid": pid}).encode() + b"\n")
            os._exit(0)
        if home:
            daemons = own_mac(home)
        linux.mount_own_proc()
    else:
        if sys.platform.startswith("linux"):
            linux.libc_call("prctl", linux.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.write(1, json.dumps({"event": "born", "pid": os.getpid()}).encode() + b"\n")
    Launchd(mode == "namespaces", daemons).loop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
