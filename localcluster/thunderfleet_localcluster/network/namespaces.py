"""Network namespaces: entering them, checking whether this user may, and running ``ip`` in them.

``can_isolate`` tries every operation that a cluster needs, and returns the reason if one is refused, because ``thunderfleet
local up`` prints why it uses loopback addresses instead.
"""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from thunderfleet_lib.host.hostcmd import BlockingHost, FailureKind, Output

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.machines.linux import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    libc_call,
    mount_own_proc,
)

CLONE_NEWUSER = 0x10000000
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
IP_SECONDS = 20
TRY_SECONDS = 30


def program(name: str) -> str | None:
    """Path of a program; also looks in the sbin folders, which are not on every user's PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")


def enter_namespaces() -> None:
    """Move this process into new network, mount and host name namespaces, and its children into a new PID namespace.

    Without root this takes a user namespace in which only the invoking user exists, as root. Call it before starting threads.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS
    if uid != 0:
        flags |= CLONE_NEWUSER
    libc_call("unshare", flags)
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


_TRY = (
    "import sys; sys.path[:0] = [sys.argv[1]]; "
    "from thunderfleet_localcluster.network.namespaces import try_namespaces; try_namespaces()"
)


def try_namespaces() -> None:
    """Try every kernel operation that a cluster needs; exits with a message if one is refused."""
    try:
        enter_namespaces()
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        mount_own_proc()
        ip_batch("link add lan0 type bridge\nlink add a0 type veth peer name b0\nlink set a0 master lan0\n")
    except (OSError, LocalClusterError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def can_isolate() -> str | None:
    """Why this user cannot use network namespaces here; None if they work."""
    if not sys.platform.startswith("linux"):
        return "this system has no network namespaces"
    if program("ip") is None:
        return "the program ip (package iproute2) is not installed"
    here = str(Path(__file__).resolve().parents[2])
    tried = BlockingHost().run([sys.executable, "-c", _TRY, here], TRY_SECONDS)
    if isinstance(tried, Output):
        return None
    if tried.kind is FailureKind.TIMED_OUT:
        return f"creating namespaces did not finish within {TRY_SECONDS} s"
    return (
        "the system does not allow network namespaces: " + (tried.error.strip().splitlines() or [f"exit code {tried.code}"])[-1]
    )


def ip_batch(commands: str) -> None:
    """Run ``ip -batch`` in this network namespace. Raises LocalClusterError with the error of ip."""
    found = program("ip")
    if found is None:
        raise LocalClusterError("the program ip (package iproute2) is not installed")
    try:
        done = subprocess.run(
            [found, "-batch", "-"], input=commands, capture_output=True, text=True, timeout=IP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LocalClusterError(f"ip did not finish within {IP_SECONDS} s:\n{commands}") from error
    if done.returncode != 0:
        raise LocalClusterError(f"ip: {done.stderr.strip()}")


def can_bind(address: str) -> bool:
    """Whether an interface of this machine has the address."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
