"""Where processes listen for TCP connections: from ``/proc`` on Linux, from ``lsof`` on macOS.

All pods share the addresses of the machine, loopback included, where the control plane may listen too. So a port is forwarded
only to a socket that a process of the pod holds.
"""

import os
import socket
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

LSOF_SECONDS = 15.0
LSOF_PATH = "/usr/sbin:/usr/bin:/bin"
_LISTEN = "0A"
"""The state of a listening socket in Linux's /proc/net/tcp."""
TABLE_READS = 3
"""The table is read several times, because the kernel may leave out a row while other sockets are opened and closed."""


@dataclass(frozen=True)
class Listening:
    """A listening socket. ``0.0.0.0`` and ``::``: all addresses of a family. ``pids``: its processes, if requested."""

    address: str
    port: int
    pids: frozenset[int] = frozenset()

    @property
    def everywhere(self) -> bool:
        """Whether it listens on all addresses of its family."""
        return self.address in ("0.0.0.0", "::")

    @property
    def reached_at(self) -> str:
        """The address to connect to."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address, self.address)


def on_port(port: int, pids: set[int]) -> list[Listening]:
    """All sockets that listen on ``port``, with those of ``pids`` that hold them. Raises OSError if that is unknown."""
    if os.path.exists("/proc/self/net/tcp"):
        return _from_proc(port, pids)
    command = ["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fpnt"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=LSOF_SECONDS, check=False, env={"PATH": LSOF_PATH, "LC_ALL": "C"}
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"lsof did not answer within {LSOF_SECONDS:g} s") from None
    # lsof exits with 1 when it finds nothing.
    return parse_lsof(done.stdout.decode("utf-8", "replace"), pids)


def choose(found: Iterable[Listening]) -> Listening | None:
    """The socket to connect to: one that a process of the pod holds, and that connections to its address reach.

    On macOS another program may listen on 127.0.0.1 beside a socket for all addresses, and then gets those connections. With
    SO_REUSEPORT it may listen on the same address, and then gets some of them.
    """
    found = sorted(found, key=lambda one: (one.everywhere, ":" in one.address, one.address))
    foreign = {one.address for one in found if not one.pids}
    return next((one for one in found if one.pids and not {one.address, one.reached_at} & foreign), None)


def parse_lsof(output: str, pids: set[int]) -> list[Listening]:
    """The sockets in the output of ``lsof -nP -iTCP:PORT -sTCP:LISTEN -Fpnt``: fields ``p`` pid, ``t`` family, ``n`` name."""
    holders: dict[tuple[str, int], set[int]] = {}
    pid, family = 0, ""
    for line in output.splitlines():
        kind, value = line[:1], line[1:]
        if kind == "p" and value.isdigit():
            pid = int(value)
        elif kind == "t":
            family = value
        elif kind == "n":
            host, _, port = value.rpartition(":")
            if port.isdigit():
                host = ("::" if family == "IPv6" else "0.0.0.0") if host == "*" else host.strip("[]")
                holders.setdefault((host, int(port)), set()).add(pid)
    # lsof names processes, not sockets: a process of no pod may have a socket of its own on the same address.
    parts = ((end, part) for end, who in sorted(holders.items()) for part in (who & pids, who - pids) if part)
    return [Listening(host, port, frozenset(part & pids)) for (host, port), part in parts]


def _from_proc(port: int, pids: set[int]) -> list[Listening]:
    rows: dict[str, tuple[str, int]] = {}
    for _ in range(TABLE_READS):
        for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
            if os.path.exists(table):
                with open(table, encoding="ascii") as file:
                    rows |= parse_table(file.read(), port)
    wanted = {f"socket:[{inode}]": inode for inode in rows}
    holders: dict[str, set[int]] = {inode: set() for inode in rows}
    for pid in pids if rows else ():
        for target in _open_files(pid):
            if target in wanted:
                holders[wanted[target]].add(pid)
    return [Listening(host, number, frozenset(holders[inode])) for inode, (host, number) in sorted(rows.items())]


def _open_files(pid: int) -> Iterable[str]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue


def parse_table(table: str, port: int) -> dict[str, tuple[str, int]]:
    """Inode to (address, port) of the sockets that listen on ``port``, in /proc/net/tcp or /proc/net/tcp6."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            found[fields[9]] = (_address(fields[1].rpartition(":")[0]), port)
    return found


def _address(text: str) -> str:
    """An address of /proc/net: 32-bit words in the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    address = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return address.removeprefix("::ffff:") if "." in address else address
