"""Starts the shim of one attempt: sandbox, spec file, process."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.containers.attempt import Start
from thunderfleet_kubelet.containers.errors import StartFailed
from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.containers.inputs.user import ContainerUser
from thunderfleet_kubelet.containers.termination import message_file
from thunderfleet_kubelet.shim import files

START_SECONDS = 30.0


@dataclass(frozen=True)
class Launch:
    """What a shim needs to run one attempt. ``grace``: seconds between SIGTERM and SIGKILL unless a stop sets another."""

    start: Start
    argv: list[str]
    env: Mapping[str, str]
    cwd: Path
    user: ContainerUser
    grace: float
    image_id: str
    log_bytes: int
    log_files: int
    image: str = ""
    """The image's name in the pod's spec."""
    boot: str = ""
    """The present boot of the machine."""
    own_user: int | None = None
    """A user that only this container of the pod has while it runs, and no other pod."""
    message_path: str = "/dev/termination-log"
    message_from_log: bool = False
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    nice: int = 0
    """The nice value of its processes, 0 for that of the kubelet. Only root can set one below its own."""


async def make_sandbox(folder: PodFolder, container: str, number: int) -> Path:
    """Creates the sandbox of an attempt: its HOME and TMPDIR, and the root of its mounts.

    Always a new folder, as a restarted container gets a new file system, and because the kubelet, often root, must not work in
    a folder that a program prepared. It stays closed to other users until ``prepare`` gives it to the container's user.
    """
    sandbox = folder.sandbox(container, number)
    sandbox.parent.mkdir(parents=True, exist_ok=True)
    for parent in (sandbox.parent.parent, sandbox.parent):
        os.chmod(parent, 0o711)
    for old in list(sandbox.parent.iterdir()):
        # The container chooses how many files of its last attempt have to be deleted.
        with contextlib.suppress(OSError):
            await leftovers.delete(old)
    for made in (sandbox, sandbox / "tmp", sandbox / "dev"):
        made.mkdir(mode=0o700)
    return sandbox


def give_away(sandbox: Path, owner: ContainerUser) -> None:
    """Gives a complete sandbox to its container's user, the folder itself last. Links are not followed."""
    if (os.geteuid(), os.getegid()) == (owner.uid, owner.gid):
        return
    for folder, _, names in os.walk(sandbox, topdown=False):
        for name in names:
            os.chown(os.path.join(folder, name), owner.uid, owner.gid, follow_symlinks=False)
        os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)


def prepare(folder: PodFolder, container: str, launch: Launch) -> None:
    """Writes everything that the shim reads. Raises OSError."""
    number = launch.start.number
    attempt, output = folder.attempt(container, number), folder.log(container, number)
    output.parent.mkdir(parents=True, exist_ok=True)
    sandbox = folder.sandbox(container, number)
    message = message_file(sandbox, launch.message_path)
    if message is not None:
        message.touch(mode=0o600)
    spec = {
        "argv": launch.argv,
        "env": dict(launch.env),
        "cwd": str(launch.cwd),
        "uid": launch.user.uid,
        "gid": launch.user.gid,
        "groups": list(launch.user.groups),
        "log": str(output),
        "logBytes": launch.log_bytes,
        "logFiles": launch.log_files,
        "marker": str(sandbox),
        "ownUser": launch.own_user,
        "grace": launch.grace,
        "backoff": launch.start.backoff,
        "containerId": folder.container_id(container, number),
        "imageId": launch.image_id,
        "image": launch.image,
        "boot": launch.boot,
        "message": str(message.relative_to(sandbox)) if message is not None else "",
        "messageFromLog": launch.message_from_log,
        "stdin": launch.stdin,
        "stdinOnce": launch.stdin_once,
        "tty": launch.tty,
        "nice": launch.nice,
    }
    give_away(sandbox, launch.user)
    os.mkfifo(attempt / "alive", 0o600)
    if launch.stdin:
        os.mkfifo(attempt / "stdin", 0o600)
    if launch.stdin or launch.tty:
        (attempt / "attach").mkdir(mode=0o700)
    files.write_file(str(attempt / "spec.json"), json.dumps(spec))
    os.chmod(attempt / "spec.json", 0o600)


async def run_shim(container: str, attempt: Path) -> str:
    """Runs the shim until it has started the container, and leaves it running. Returns the error of a shim that failed.

    Raises StartFailed if the shim does not start in time.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(Path(files.__file__).parent),
        str(attempt),
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
        raise StartFailed(f"shim of container {container!r} did not start within {START_SECONDS:.0f} s") from None
    if not process.returncode:
        return ""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"shim exited with code {process.returncode}"
