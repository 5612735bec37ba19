"""The supervisor's process: lock, namespaces, and the first process of the PID namespace.

``thunderfleet local up`` starts it with a pipe as standard input, the lifeline. If the pipe ends before ``detach``, the cluster
ends. Standard output carries progress as JSON lines, standard error is the log. Commands come through a UNIX socket.

In namespace mode the process that was started stays outside and only holds the lock; the cluster runs in a child, the first
process of a PID namespace. If that is killed, the kernel ends its processes, interfaces and mounts. So that the outer process
stays small, the modules of the cluster are imported in the child only.
"""

import argparse
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.machines.linux import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    libc_call,
    mount_own_proc,
)
from thunderfleet_localcluster.supervisor.report import Report
from thunderfleet_localcluster.supervisor.spec import Spec

log = logging.getLogger("thunderfleet.supervisor")

BACKLOG = 128
Listeners = tuple[socket.socket, socket.socket]


def main() -> int:
    """Entry point; ``thunderfleet local up`` calls it."""
    parser = argparse.ArgumentParser(
        prog="thunderfleet-supervisor", description="Run one local cluster; started by `thunderfleet local up`."
    )
    parser.add_argument("spec", type=Path, help="the cluster to run (JSON)")
    parser.add_argument("--folder", type=Path, required=True, help="the cluster's folder")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        return _supervise(ClusterFolder(arguments.folder), Spec.from_json(arguments.spec.read_text()))
    except (LocalClusterError, OSError) as error:
        log.error("%s", error)
        Report().write(state="failed", error=str(error))
        return 1


def _supervise(folder: ClusterFolder, spec: Spec) -> int:
    os.chdir(folder.root)
    _take_lock(folder)
    _clean(folder)
    _hold_image(spec.image.lock)
    listeners = _listener(), _listener()
    if spec.mode == "namespaces":
        return _run_in_namespaces(folder, spec, listeners)
    if sys.platform.startswith("linux"):
        libc_call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return _run(folder, spec, listeners)


def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)


def _run(folder: ClusterFolder, spec: Spec, listeners: Listeners) -> int:
    from thunderfleet_localcluster.supervisor.run import run

    return run(folder, spec, listeners)


def _run_in_namespaces(folder: ClusterFolder, spec: Spec, listeners: Listeners) -> int:
    """Run the cluster in a child that is the first process of new namespaces, and wait for it."""
    from thunderfleet_localcluster.network.namespaces import enter_namespaces

    enter_namespaces()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            libc_call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            mount_own_proc()
            code = _run(folder, spec, listeners)
        except BaseException:
            log.exception("the supervisor failed")
        finally:
            os._exit(code)
    for listener in listeners:
        listener.close()
    # Only the child may hold the pipes, so that their other ends see when it closes them.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _take_lock(folder: ClusterFolder) -> None:
    """Lock the folder for this process and those that inherit the descriptor. Raises LocalClusterError if it is locked."""
    lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise LocalClusterError(f"a cluster is already running in {folder.root}") from error
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())


def _clean(folder: ClusterFolder) -> None:
    """Remove the data of an earlier cluster in this folder, except models: the data is useless without its keys."""
    for path in (folder.control_plane, folder.machines):
        if path.exists():
            shutil.rmtree(path)
    for old in folder.logs.glob("*.log"):
        if old != folder.log("supervisor"):
            old.unlink(missing_ok=True)
    for file in (folder.state, folder.kubeconfig, folder.socket):
        file.unlink(missing_ok=True)


def _hold_image(path: str) -> None:
    """Hold a shared lock on the image while this process runs, so that it is not pruned."""
    fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), fcntl.LOCK_SH)
