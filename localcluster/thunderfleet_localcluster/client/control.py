"""Control of a running cluster through its folder: commands to its supervisor, ending it, removing its data."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError

DOWN_SECONDS = 30
POLL_SECONDS = 0.02


def running(folder: ClusterFolder) -> bool:
    """Whether a cluster is running in ``folder``."""
    try:
        with folder.lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def running_beside(folder: ClusterFolder) -> list[str]:
    """The names of the clusters that are running in the folders beside ``folder``."""
    found = []
    for lock in sorted(folder.root.parent.glob(f"*/{folder.lock.name}")):
        with contextlib.suppress(OSError):
            found += [lock.parent.name] if running(ClusterFolder(lock.parent)) else []
    return found


def send_command(folder: ClusterFolder, command: Mapping[str, object], seconds: float) -> dict[str, Any]:
    """Send a command to the supervisor and return its answer. Raises LocalClusterError, also if the answer is an error."""
    log = folder.log("supervisor")
    try:
        with _connected(folder) as channel:
            channel.settimeout(seconds)
            channel.sendall(json.dumps(command).encode() + b"\n")
            answer = b""
            while chunk := channel.recv(65536):
                answer += chunk
    except TimeoutError as error:
        name = command.get("do")
        raise LocalClusterError(
            f"the process of the cluster in {folder.root} did not answer {name!r} within {seconds} s; see {log}"
        ) from error
    except OSError as error:
        raise LocalClusterError(f"cannot reach the process of the cluster in {folder.root}: {error}; see {log}") from error
    if not answer:
        raise LocalClusterError(f"the process of the cluster in {folder.root} has ended; see {log}")
    data: dict[str, Any] = json.loads(answer)
    if "error" in data:
        raise LocalClusterError(str(data["error"]), usage=bool(data.get("usage")))
    return data


def end_cluster(folder: ClusterFolder, seconds: float = DOWN_SECONDS) -> bool:
    """End the cluster in ``folder``, by force if necessary; False if none was running. Raises LocalClusterError."""
    if not running(folder):
        return False
    with contextlib.suppress(LocalClusterError):
        send_command(folder, {"do": "down"}, 5)
    pid = int(folder.lock.read_text())
    deadline = time.monotonic() + seconds
    for number, until in ((None, deadline - seconds / 2), (signal.SIGTERM, deadline - seconds / 4), (signal.SIGKILL, deadline)):
        if number is not None and running(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while running(folder) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
    if running(folder):
        raise LocalClusterError(f"the cluster in {folder.root} did not stop within {seconds} s (its process: {pid})")
    return True


def remove(folder: ClusterFolder, everything: bool = False) -> None:
    """Remove a cluster's data except logs and models; with ``everything``, remove these too."""
    if everything:
        shutil.rmtree(folder.root, ignore_errors=True)
        return
    for path in (folder.control_plane, folder.machines):
        shutil.rmtree(path, ignore_errors=True)
    for file in (folder.state, folder.kubeconfig, folder.socket, folder.lock, folder.spec):
        file.unlink(missing_ok=True)
    for path in (folder.models, folder.logs, folder.root):
        with contextlib.suppress(OSError):
            path.rmdir()


@contextlib.contextmanager
def _connected(folder: ClusterFolder) -> Iterator[socket.socket]:
    """A connection to the supervisor's socket, by a link: socket paths are limited to 103 bytes on macOS (sun_path)."""
    # Not in $TMPDIR, whose path may be long.
    with socket.socket(socket.AF_UNIX) as channel, tempfile.TemporaryDirectory(prefix="tf-", dir="/tmp") as short:
        link = os.path.join(short, "c")
        os.symlink(folder.root.absolute(), link)
        channel.connect(os.path.join(link, folder.socket.name))
        yield channel
