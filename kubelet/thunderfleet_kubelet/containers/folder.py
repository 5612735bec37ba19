"""The containers of one pod as they lie on disk: start by a shim, see what became of it, ask it to stop.

Everything that a kubelet needs to know of a container stands in its folder, so a kubelet that comes later finds what an
earlier one left. A running shim holds a named pipe open: whoever opens it for reading learns at once, and without asking
again and again, when the shim has ended.

    pods/UID/pod.json                      the pod as accepted
    pods/UID/containers/NAME/N/            attempt N: the shim's files
    pods/UID/containers/NAME/sandbox/N/    what attempt N sees as its mount point, HOME and TMPDIR
    pods/UID/logs/NAME/N.log               its log
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thunderfleet_kubelet import shim
from thunderfleet_kubelet.containers.attempt import LOST_EXIT_CODE, START_ERROR, STATUS_UNKNOWN, Attempt, Start
from thunderfleet_kubelet.containers.user import Identity

Json = dict[str, Any]

log = logging.getLogger(__name__)

START_SECONDS = 30.0
LOG_BYTES = 10 * 1024 * 1024
LOG_FILES = 5
MESSAGE_BYTES = 4096
KEPT_ATTEMPTS = 2
"""The last attempt and the one before, whose log ``kubectl logs --previous`` shows."""


class StartFailed(Exception):
    """The shim itself could not be started."""


@dataclass(frozen=True)
class Launch:
    """All that a shim needs to run one attempt."""

    start: Start
    argv: list[str]
    env: Mapping[str, str]
    cwd: Path
    identity: Identity
    grace: float
    image_id: str
    message_path: str = "/dev/termination-log"
    message_from_log: bool = False


@dataclass
class PodFolder:
    """Where one pod lives on this machine, and what its containers' folders say."""

    path: Path
    _ended: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    _starting: set[tuple[str, int]] = field(default_factory=set)
    """Attempts that this kubelet is just starting: that nobody owns them yet means nothing."""

    @property
    def uid(self) -> str:
        return self.path.name

    def sandbox(self, container: str, number: int) -> Path:
        return self.path / "containers" / container / "sandbox" / str(number)

    def attempt(self, container: str, number: int) -> Path:
        return self.path / "containers" / container / str(number)

    def log(self, container: str, number: int) -> Path:
        return self.path / "logs" / container / f"{number}.log"

    def volume(self, name: str, uid: int) -> Path:
        return self.path / "volumes" / name / str(uid)

    def empty(self, name: str) -> Path:
        return self.path / "empty" / name

    def load(self) -> Json | None:
        """The pod as it was accepted, or None when the folder was not finished."""
        try:
            pod = json.loads((self.path / "pod.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return pod if isinstance(pod, dict) else None

    def save(self, pod: Json) -> None:
        """Accepts the pod: from now on it is this node's, whatever happens to the kubelet."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o711)
        os.chmod(self.path, 0o711)
        for name in ("containers", "volumes", "empty", "logs"):
            (self.path / name).mkdir(exist_ok=True)
            os.chmod(self.path / name, 0o700 if name == "logs" else 0o711)
        shim.write_file(str(self.path / "pod.json"), json.dumps(pod))
        os.chmod(self.path / "pod.json", 0o600)

    def remove(self) -> None:
        # pod.json goes first: a half-removed folder must not be taken for a pod.
        (self.path / "pod.json").unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def numbers(self, container: str) -> list[int]:
        try:
            names = os.listdir(self.path / "containers" / container)
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isdigit())

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path / "containers"))
        except OSError:
            return []

    def attempts(self) -> dict[str, tuple[Attempt, ...]]:
        """All containers' attempts that are still on disk, oldest first. One that an earlier kubelet was about to start when it
        ended is none: nothing of it ever ran, and a pod that never restarts must not fail by an upgrade.
        """
        found: dict[str, tuple[Attempt, ...]] = {}
        for name in self.names():
            numbers = self.numbers(name)
            if numbers and self._never_started(name, numbers[-1]):
                shutil.rmtree(self.attempt(name, numbers[-1]), ignore_errors=True)
                # Should its shim come up after all, it cannot leave its mark any more, and gives up.
                self._end_orphans(name, numbers.pop(), None)
            found[name] = tuple(self.read(name, number) for number in numbers)
        return found

    def _never_started(self, container: str, number: int) -> bool:
        folder = self.attempt(container, number)
        return (
            (container, number) not in self._starting
            and not alive(folder)
            and not (folder / "running.json").exists()
            and not (folder / "exit.json").exists()
        )

    def make_sandbox(self, container: str, number: int) -> Path:
        """The attempt's own folder: its HOME and TMPDIR, and what its mounts are shown under. Always a new one, as a container
        that is restarted gets a new file system: the kubelet (often root) must not work in what a program could prepare. It is
        closed to everybody else until ``start`` hands it over: other containers of the same user run already.
        """
        sandbox = self.sandbox(container, number)
        sandbox.parent.mkdir(parents=True, exist_ok=True)
        for folder in (sandbox.parent.parent, sandbox.parent):
            os.chmod(folder, 0o711)
        for old in sandbox.parent.iterdir():
            shutil.rmtree(old, ignore_errors=True)
        for folder in (sandbox, sandbox / "tmp", sandbox / "dev"):
            folder.mkdir(mode=0o700)
        return sandbox

    async def start(self, container: str, launch: Launch) -> None:
        """Starts one attempt and returns when it runs, or has failed to (an attempt that has ended, of reason StartError).
        Raises StartFailed when not even its shim could be started.
        """
        number = launch.start.number
        folder, output = self.attempt(container, number), self.log(container, number)
        self._starting.add((container, number))
        try:
            folder.mkdir(parents=True, mode=0o700)
            try:
                self._prepare(container, launch, folder, output)
            except OSError:
                # A full disk, mostly. Nothing has been started, so this was no attempt.
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._drop_old(container, number)
            await self._launch(container, number, folder)
        finally:
            self._starting.discard((container, number))

    def _prepare(self, container: str, launch: Launch, folder: Path, output: Path) -> None:
        """Everything that the shim needs to find. Raises OSError."""
        number = launch.start.number
        output.parent.mkdir(parents=True, exist_ok=True)
        sandbox = self.sandbox(container, number)
        message = _termination_file(sandbox, launch.message_path)
        if message is not None:
            message.touch(mode=0o600)
        spec = {
            "argv": launch.argv,
            "env": dict(launch.env),
            "cwd": str(launch.cwd),
            "uid": launch.identity.uid,
            "gid": launch.identity.gid,
            "groups": list(launch.identity.groups),
            "log": str(output),
            "logBytes": LOG_BYTES,
            "logFiles": LOG_FILES,
            "marker": str(sandbox),
            "grace": launch.grace,
            "backoff": launch.start.backoff,
            "containerId": container_id(self.uid, container, number),
            "imageId": launch.image_id,
            "message": str(message.relative_to(sandbox)) if message is not None else "",
            "messageFromLog": launch.message_from_log,
        }
        hand_over(sandbox, launch.identity)
        os.mkfifo(folder / "alive", 0o600)
        shim.write_file(str(folder / "spec.json"), json.dumps(spec))
        os.chmod(folder / "spec.json", 0o600)

    async def _launch(self, container: str, number: int, folder: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(Path(shim.__file__)),
            str(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            env={},
        )
        try:
            async with asyncio.timeout(START_SECONDS):
                _, errors = await process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise StartFailed(f"the shim of container {container!r} did not start within {START_SECONDS:.0f} s") from None
        if process.returncode and not (folder / "exit.json").exists():
            text = errors.decode("utf-8", "replace").strip().splitlines()
            self.write_exit(container, number, START_ERROR, text[-1] if text else "its shim ended", 128)
            raise StartFailed(f"the shim of container {container!r} failed: {text[-1] if text else process.returncode}")

    def _drop_old(self, container: str, number: int) -> None:
        for old in self.numbers(container):
            if old <= number - KEPT_ATTEMPTS:
                shutil.rmtree(self.attempt(container, old), ignore_errors=True)
                self._ended.pop((container, old), None)
                output = self.log(container, old)
                for file in output.parent.glob(f"{output.name}*"):
                    file.unlink(missing_ok=True)

    def read(self, container: str, number: int) -> Attempt:
        """What became of one attempt. One whose shim is gone without a word is recorded as ended, its processes ended."""
        known = self._ended.get((container, number))
        if known is not None:
            return known
        folder = self.attempt(container, number)
        spec = _json(folder / "spec.json") or {}
        ended = _json(folder / "exit.json")
        running = _json(folder / "running.json")
        if ended is None and (container, number) not in self._starting and not alive(folder):
            # It may have written its last word between the two looks.
            ended = _json(folder / "exit.json")
            if ended is None:
                self._end_orphans(container, number, running)
                if running is not None:
                    text = "the container's shim was killed; how the container ended is not known"
                    reason, code = STATUS_UNKNOWN, LOST_EXIT_CODE
                else:
                    reason, text, code = START_ERROR, "the kubelet ended while it started this container", 128
                ended = self.write_exit(container, number, reason, text, code)
        common: Json = {
            "number": number,
            "backoff": float(spec.get("backoff") or 0.0),
            "container_id": str(spec.get("containerId") or ""),
            "image_id": str(spec.get("imageId") or ""),
            "stopping": (folder / "stop").exists(),
        }
        if ended is None:
            if running is None:
                return Attempt(state="starting", **common)
            return Attempt(state="running", started_at=float(running["startedAt"]), **common)
        attempt = Attempt(
            state="exited",
            started_at=ended["startedAt"] or ended["finishedAt"],
            finished_at=ended["finishedAt"],
            exit_code=int(ended["exitCode"]),
            signal=int(ended["signal"]),
            reason=str(ended["reason"]),
            message=str(ended["message"]) or self._message(container, number, spec, int(ended["exitCode"])),
            grace_exceeded=bool(ended["graceExceeded"]),
            **common,
        )
        self._ended[(container, number)] = attempt
        return attempt

    def _message(self, container: str, number: int, spec: Json, code: int) -> str:
        """The program's last words (``terminationMessagePath``). Its user owns the folder: no links are followed."""
        text = b""
        if spec.get("message"):
            with contextlib.suppress(OSError):
                fd = open_inside(self.sandbox(container, number), str(spec["message"]), os.O_RDONLY | os.O_NONBLOCK)
                with os.fdopen(fd, "rb") as file:
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        text = file.read(MESSAGE_BYTES)
        if not text and code and spec.get("messageFromLog"):
            with contextlib.suppress(OSError):
                lines = self.log(container, number).read_bytes().splitlines()[-80:]
                text = b"\n".join(line.split(b" ", 3)[3] for line in lines if line.count(b" ") >= 3)[-2048:]
        return text.decode("utf-8", "replace")

    def write_exit(self, container: str, number: int, reason: str, message: str, code: int) -> Json:
        folder = self.attempt(container, number)
        running = _json(folder / "running.json")
        record = {
            "exitCode": code,
            "signal": 0,
            "startedAt": running["startedAt"] if running else 0.0,
            "finishedAt": time.time(),
            "reason": reason,
            "message": message,
            "graceExceeded": False,
        }
        try:
            shim.write_file(str(folder / "exit.json"), json.dumps(record))
        except OSError as error:
            # It is known here at least: a full disk must not keep the pod's other containers from being looked after.
            log.warning("%s: not written: %s", folder / "exit.json", error)
        return record

    def _end_orphans(self, container: str, number: int, running: Json | None) -> None:
        """A container must not go on with nobody to own it."""
        if running is not None and running.get("birth") and shim.birth(int(running["pid"])) == running["birth"]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(running["pid"]), signal.SIGKILL)
        shim.signal_all(shim.marked(str(self.sandbox(container, number))), signal.SIGKILL)

    def end_everything(self) -> None:
        """Ends, without grace, whatever still runs of a pod that cannot be known any more."""
        for name in self.names():
            for number in self.numbers(name):
                with contextlib.suppress(OSError):
                    self.stop(name, number, 0.0)
                self._end_orphans(name, number, _json(self.attempt(name, number) / "running.json"))

    def stop(self, container: str, number: int, grace: float) -> None:
        """Asks the attempt's shim to end it: SIGTERM now, SIGKILL after ``grace`` seconds. May be repeated with less grace."""
        folder = self.attempt(container, number)
        before = stop_grace(folder)
        if before is None or grace < before:
            # A shim that is just starting reads it when it is ready.
            try:
                shim.write_file(str(folder / "stop"), f"{grace:.3f}")
            except OSError as error:
                # Asked without a word it gives the grace of the pod's spec.
                log.warning("%s: not written: %s", folder / "stop", error)
        running = _json(folder / "running.json")
        if running is None or not alive(folder):
            return
        # The shim is there (it holds the pipe), so the number is its own.
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(running["shim"]), signal.SIGTERM)

    def spec(self, container: str, number: int) -> Json:
        """The shim's spec of an attempt: environment, user, working folder. Raises FileNotFoundError."""
        spec = _json(self.attempt(container, number) / "spec.json")
        if spec is None:
            raise FileNotFoundError(self.attempt(container, number) / "spec.json")
        return spec


def stop_grace(folder: Path) -> float | None:
    """The grace that was already asked for, if any."""
    try:
        return float((folder / "stop").read_text())
    except (OSError, ValueError):
        return None


def open_inside(root: Path, path: str, flags: int) -> int:
    """Opens ``path`` below ``root`` without following any symbolic link on the way. Raises OSError."""
    *folders, name = Path(path).parts
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


def hand_over(sandbox: Path, owner: Identity) -> None:
    """Gives a sandbox that is whole to its container's user, itself last; links stay links, and what they lead to as it is."""
    if (os.geteuid(), os.getegid()) == (owner.uid, owner.gid):
        return
    for folder, _, files in os.walk(sandbox, topdown=False):
        for name in files:
            os.chown(os.path.join(folder, name), owner.uid, owner.gid, follow_symlinks=False)
        os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)


def _termination_file(sandbox: Path, path: str) -> Path | None:
    """Where the program's last words go; None where that is not the sandbox's own folder (a volume is shown there, and what
    lies in it is the programs').
    """
    target = sandbox / path.lstrip("/")
    inside = ".." not in target.parts and target.parent in (sandbox, sandbox / "dev", sandbox / "tmp")
    return target if inside and not target.parent.is_symlink() and not target.is_symlink() else None


def container_id(uid: str, container: str, number: int) -> str:
    """An identity for one attempt of one container, in the form that ``containerID`` has."""
    return "thunderfleet://" + hashlib.sha256(f"{uid}/{container}/{number}".encode()).hexdigest()


def _json(path: Path) -> Json | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def alive(folder: Path) -> bool:
    """Whether the shim of the attempt in ``folder`` is there now."""
    try:
        fd = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.read(fd, 1) != b""
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


class Watch:
    """Calls ``ended`` once, from the event loop, when the shim of the attempt in ``folder`` has ended."""

    def __init__(self, folder: Path, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._fd = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._readable)
        # A shim that had ended before the pipe was opened causes no event.
        self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        if self._fd < 0:
            return
        try:
            if os.read(self._fd, 64):
                return
        except BlockingIOError:
            return
        self.close()
        self._ended()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
