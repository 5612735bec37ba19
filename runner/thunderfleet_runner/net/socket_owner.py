"""Which process holds a TCP connection on this machine."""

import socket
import sys
from pathlib import Path

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, FailureKind

LSOF_SECONDS = 15.0
TABLE_READS = 5
_HOST = BlockingHost()


def owns(pid: int, end: tuple[str, int], other: tuple[str, int]) -> bool | None:
    """Whether process ``pid`` holds the TCP socket bound to ``end`` here and connected to ``other``; None when unknown."""
    address, port = end[:2]
    if sys.platform == "linux":
        try:
            # The kernel does not return the table in one piece: a row may be missed while connections change.
            tables = (Path("/proc/net/tcp").read_text() for _ in range(TABLE_READS))
            inode = next((found for table in tables if (found := inode_of(table, end, other)) is not None), None)
            links = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            return None
        return inode is not None and any(_leads_to(link, f"socket:[{inode}]") for link in links)
    said = _HOST.run(["lsof", "-nP", "-a", "-p", str(pid), "-i", f"TCP@{address}:{port}", "-Fn"], LSOF_SECONDS)
    if isinstance(said, Failure):
        # lsof exits with 1 when it finds nothing.
        return False if said.kind is FailureKind.FAILED else None
    # lsof also finds the other end, and the same address with another peer.
    return f"n{address}:{port}->{other[0]}:{other[1]}" in said.text.splitlines()


def _leads_to(link: Path, target: str) -> bool:
    try:
        return link.readlink().name == target
    except OSError:
        # Closed in the meantime.
        return False


def inode_of(table: str, end: tuple[str, int], other: tuple[str, int]) -> str | None:
    """The inode of the socket between two IPv4 ends, in Linux's /proc/net/tcp.

    One end does not identify a socket: the port of a closed connection (inode 0) is reused for one to another peer.
    """
    wanted = [f"{socket.inet_aton(address)[::-1].hex().upper()}:{port:04X}" for address, port in (end[:2], other[:2])]
    rows = (line.split() for line in table.splitlines()[1:])
    return next((row[9] for row in rows if len(row) > 9 and row[1:3] == wanted), None)
