"""The containers of one pod: start and stop them through their shims, and read what the shims record."""

import contextlib
import json
import logging
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers import launch as launching
from thunderfleet_kubelet.containers.attempt import LOST_EXIT_CODE, START_ERROR, START_EXIT_CODE, STATUS_UNKNOWN, Attempt
from thunderfleet_kubelet.containers.errors import StartFailed
from thunderfleet_kubelet.containers.folder import PodFolder, read_json
from thunderfleet_kubelet.containers.launch import Launch
from thunderfleet_kubelet.containers.termination import end_of_log, read_message
from thunderfleet_kubelet.containers.watch import is_alive
from thunderfleet_kubelet.shim import files, processes

Json = dict[str, Any]

log = logging.getLogger(__name__)

KEPT_ATTEMPTS = 2
"""The last attempt, and the one before it for ``kubectl logs --previous``."""


class ContainerRuntime:
    """The containers of the pod in ``folder``. Methods raise OSError if a file cannot be read now; then nothing is changed."""

    def __init__(self, folder: PodFolder) -> None:
        self._folder = folder
        self._ended: dict[tuple[str, int], Attempt] = {}
        self._starting: set[tuple[str, int]] = set()
        """The attempts that this kubelet is starting; a missing shim is not an error for them."""

    def attempts(self) -> dict[str, tuple[Attempt, ...]]:
        """All containers' attempts on disk, oldest first.

        An attempt whose kubelet ended before the shim ran does not count: nothing of it ran, and a pod that never restarts
        must not fail because its kubelet was upgraded.
        """
        found: dict[str, tuple[Attempt, ...]] = {}
        for name in self._folder.names():
            numbers = self._folder.numbers(name)
            if numbers and self._never_started(name, numbers[-1]):
                shutil.rmtree(self._folder.attempt(name, numbers[-1]), ignore_errors=True)
                # A shim that starts late exits if its folder is missing.
                self._kill_orphans(name, numbers.pop(), None)
            found[name] = tuple(self.read(name, number) for number in numbers)
        return found

    def _never_started(self, container: str, number: int) -> bool:
        attempt = self._folder.attempt(container, number)
        return (
            (container, number) not in self._starting
            and not is_alive(attempt)
            and not (attempt / "running.json").exists()
            and not (attempt / "exit.json").exists()
        )

    async def make_sandbox(self, container: str, number: int) -> Path:
        """Creates the sandbox of the next attempt."""
        return await launching.make_sandbox(self._folder, container, number)

    async def start(self, container: str, launch: Launch) -> None:
        """Starts one attempt; returns when it runs, or has ended with reason StartError. Raises StartFailed without a shim."""
        number = launch.start.number
        attempt = self._folder.attempt(container, number)
        self._starting.add((container, number))
        try:
            attempt.mkdir(parents=True, mode=0o700)
            try:
                launching.prepare(self._folder, container, launch)
            except OSError:
                # A full disk, for example. Nothing has started, so this was no attempt.
                shutil.rmtree(attempt, ignore_errors=True)
                raise
            self._drop_old(container, number)
            error = await self._run_shim(container, attempt)
            if error and not (attempt / "exit.json").exists():
                self._write_exit(container, number, START_ERROR, error, START_EXIT_CODE)
                raise StartFailed(f"shim of container {container!r} failed: {error}")
        finally:
            self._starting.discard((container, number))

    async def _run_shim(self, container: str, attempt: Path) -> str:
        return await launching.run_shim(container, attempt)

    def _drop_old(self, container: str, number: int) -> None:
        for old in self._folder.numbers(container):
            if old <= number - KEPT_ATTEMPTS:
                shutil.rmtree(self._folder.attempt(container, old), ignore_errors=True)
                self._ended.pop((container, old), None)
                output = self._folder.log(container, old)
                for file in output.parent.glob(f"{output.name}*"):
                    file.unlink(missing_ok=True)

    def read(self, container: str, number: int) -> Attempt:
        """The state of one attempt. If its shim died without recording an exit, that is recorded and its processes killed."""
        known = self._ended.get((container, number))
        if known is not None:
            return known
        attempt = self._folder.attempt(container, number)
        spec = read_json(attempt / "spec.json") or {}
        running = read_json(attempt / "running.json")
        ended = self._exit_record(container, number, attempt, running)
        common: Json = {
            "number": number,
            "backoff": float(spec.get("backoff") or 0.0),
            "container_id": str(spec.get("containerId") or ""),
            "image_id": str(spec.get("imageId") or ""),
            "image": str(spec.get("image") or ""),
            "boot": str(spec.get("boot") or ""),
            "stopping": (attempt / "stop").exists(),
        }
        if ended is None:
            if running is None:
                return Attempt(state="starting", **common)
            return Attempt(state="running", started_at=float(running["startedAt"]), pid=int(running["pid"]), **common)
        code = int(ended["exitCode"])
        result = Attempt(
            state="exited",
            started_at=ended["startedAt"] or ended["finishedAt"],
            finished_at=ended["finishedAt"],
            exit_code=code,
            signal=int(ended["signal"]),
            reason=str(ended["reason"]),
            message=str(ended["message"]) or self._message(container, number, spec, code),
            grace_exceeded=bool(ended["graceExceeded"]),
            **common,
        )
        self._ended[(container, number)] = result
        return result

    def _exit_record(self, container: str, number: int, attempt: Path, running: Json | None) -> Json | None:
        """The exit that the shim recorded, or one for a shim that died; None while the attempt is live."""
        ended = read_json(attempt / "exit.json")
        if ended is not None or (container, number) in self._starting or is_alive(attempt):
            return ended
        # The shim may have written it after the first read.
        ended = read_json(attempt / "exit.json")
        if ended is not None:
            return ended
        self._kill_orphans(container, number, running)
        if running is None:
            message = "the kubelet stopped while starting this container"
            return self._write_exit(container, number, START_ERROR, message, START_EXIT_CODE)
        message = "the container's shim was killed; the container's exit code is unknown"
        return self._write_exit(container, number, STATUS_UNKNOWN, message, LOST_EXIT_CODE)

    def _message(self, container: str, number: int, spec: Json, code: int) -> str:
        path = str(spec.get("message") or "")
        text = read_message(self._folder.sandbox(container, number), path, int(spec["uid"])) if path else ""
        if not text and code and spec.get("messageFromLog"):
            return end_of_log(self._folder.log(container, number))
        return text

    def keep_messages(self) -> None:
        """Copies the termination messages into the records of the attempts, because the sandboxes will be deleted."""
        for name in self._folder.names():
            for number in self._folder.numbers(name):
                file = self._folder.attempt(name, number) / "exit.json"
                message, record = self.read(name, number).message, read_json(file)
                if record is not None and record["message"] != message:
                    with contextlib.suppress(OSError):
                        files.write_file(str(file), json.dumps({**record, "message": message}))

    def _write_exit(self, container: str, number: int, reason: str, message: str, code: int) -> Json:
        attempt = self._folder.attempt(container, number)
        running = read_json(attempt / "running.json")
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
            files.write_file(str(attempt / "exit.json"), json.dumps(record))
        except OSError as error:
            # Kept in memory, so that on a full disk the pod's other containers are still managed.
            log.warning("%s: cannot write: %s", attempt / "exit.json", error)
        return record

    def _kill_orphans(self, container: str, number: int, running: Json | None) -> None:
        """Kills the processes of an attempt that has no shim."""
        group = 0
        if running is not None and running.get("birth") and processes.birth(int(running["pid"])) == running["birth"]:
            group = int(running["pid"])
        found = processes.marked(str(self._folder.sandbox(container, number)), group)
        if group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        user = (read_json(self._folder.attempt(container, number) / "spec.json") or {}).get("ownUser")
        if user is not None and not self._others_live(container, number):
            found += processes.of_user(user)
        processes.signal_all(found, signal.SIGKILL)

    def _others_live(self, container: str, number: int) -> bool:
        """Whether another attempt of the pod runs or starts, because the record of this one's end could not be written."""
        others = {(name, each) for name in self._folder.names() for each in self._folder.numbers(name)} - {(container, number)}
        return any(other in self._starting or is_alive(self._folder.attempt(*other)) for other in others)

    def kill_all(self) -> None:
        """Kills all processes of a pod that the API server does not have and whose files are unusable."""
        for name in self._folder.names():
            for number in self._folder.numbers(name):
                running = None
                with contextlib.suppress(OSError):
                    running = read_json(self._folder.attempt(name, number) / "running.json")
                    self.stop(name, number, 0.0)
                self._kill_orphans(name, number, running)

    def stop(self, container: str, number: int, grace: float) -> None:
        """Lets the shim stop the attempt: SIGTERM now, SIGKILL after ``grace`` seconds. Repeat it to shorten the grace."""
        attempt = self._folder.attempt(container, number)
        before = self.stop_grace(container, number)
        if before is None or grace < before:
            # A shim that is still starting reads it when it is ready.
            try:
                files.write_file(str(attempt / "stop"), f"{grace:.3f}")
            except OSError as error:
                # Without the file, the shim uses the grace period of the pod's spec.
                log.warning("%s: cannot write: %s", attempt / "stop", error)
        running = read_json(attempt / "running.json")
        if running is None or not is_alive(attempt):
            return
        # The shim is alive, so the pid is its own.
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(running["shim"]), signal.SIGTERM)

    def stop_grace(self, container: str, number: int) -> float | None:
        """The grace period of an earlier stop; None without one."""
        try:
            return float((self._folder.attempt(container, number) / "stop").read_text())
        except (FileNotFoundError, ValueError):
            return None
