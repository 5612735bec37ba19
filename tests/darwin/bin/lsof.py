#!python
"""``lsof`` in the two forms that our programs use; prints fields, and fails with code 1 if there is nothing to print.

``lsof -nP -a -p PID -i TCP@ADDRESS:PORT -Fn``: the connections of a process that have the address at either end.
``lsof -nP -iTCP:PORT -sTCP:LISTEN -Fpnt``: the sockets that listen on a port, of all processes.
"""

import os
import socket
import struct
import sys

PROC = "@PROC@"
LISTEN = "0A"


def main() -> int:
    """Returns the exit code."""
    words = sys.argv[1:]
    if words[:3] == ["-nP", "-a", "-p"] and words[4] == "-i" and words[6:] == ["-Fn"]:
        return connections(words[3], words[5].removeprefix("TCP@"))
    if len(words) == 4 and words[0] == "-nP" and words[1].startswith("-iTCP:") and words[2:] == ["-sTCP:LISTEN", "-Fpnt"]:
        return listeners(int(words[1].removeprefix("-iTCP:")))
    sys.exit(f"lsof: these tests do not know {words}")


def connections(pid: str, end: str) -> int:
    """The first form."""
    address, port = end.split(":")
    wanted = f"{socket.inet_aton(address)[::-1].hex().upper()}:{int(port):04X}"
    found = [row for row in rows("tcp") if wanted in row[1:3] and f"socket:[{row[9]}]" in links(pid)]
    if found:
        print(f"p{pid}")
    for row in found:
        # A listening socket has no other end.
        print(f"f3\nn{name(row[1])}" + (f"->{name(row[2])}" if row[3] != LISTEN else ""))
    return 0 if found else 1


def listeners(port: int) -> int:
    """The second form."""
    found = [
        (family, row)
        for family, table in (("IPv4", "tcp"), ("IPv6", "tcp6"))
        for row in rows(table)
        if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port
    ]
    code = 1
    for pid in filter(str.isdigit, os.listdir(PROC) if found else ()):
        held = [(family, row) for family, row in found if f"socket:[{row[9]}]" in links(pid)]
        if held:
            code = 0
            print(f"p{pid}")
        for family, row in held:
            print(f"f3\nt{family}\nn{name(row[1]).replace('0.0.0.0:', '*:').replace('[::]:', '*:')}")
    return code


def rows(table: str) -> list[list[str]]:
    """The rows of a table of the kernel."""
    try:
        with open(f"{PROC}/net/{table}") as file:
            return [line.split() for line in file][1:]
    except OSError:
        return []


def links(pid: str) -> set[str]:
    """What a process has open."""
    try:
        return {os.readlink(f"{PROC}/{pid}/fd/{name}") for name in os.listdir(f"{PROC}/{pid}/fd")}
    except OSError:
        return set()


def name(text: str) -> str:
    """An address as lsof shows it."""
    address, _, port = text.partition(":")
    packed = struct.pack("=4I", *(int(address[at : at + 8], 16) for at in range(0, 32, 8))) if len(address) == 32 else b""
    host = f"[{socket.inet_ntop(socket.AF_INET6, packed)}]" if packed else socket.inet_ntoa(bytes.fromhex(address)[::-1])
    return f"{host}:{int(port, 16)}"


sys.exit(main())
