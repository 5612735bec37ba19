#!python
"""``lsof -nP -a -p PID -i TCP@ADDRESS:PORT -Fn``, the only form that our programs use.

Prints the connections of a process that have the address at either end, as fields; fails with code 1 if there is none.
"""

import os
import socket
import sys

PROC = "@PROC@"


def main() -> int:
    """Returns the exit code."""
    words = sys.argv[1:]
    if words[:3] != ["-nP", "-a", "-p"] or words[4] != "-i" or words[6:] != ["-Fn"]:
        sys.exit(f"lsof: these tests do not know {words}")
    pid, (address, port) = words[3], words[5].removeprefix("TCP@").split(":")
    wanted = f"{socket.inet_aton(address)[::-1].hex().upper()}:{int(port):04X}"
    try:
        with open(f"{PROC}/net/tcp") as file:
            rows = [line.split() for line in file][1:]
        links = {os.readlink(f"{PROC}/{pid}/fd/{name}") for name in os.listdir(f"{PROC}/{pid}/fd")}
    except OSError:
        return 1
    found = [row for row in rows if wanted in row[1:3] and f"socket:[{row[9]}]" in links]
    if found:
        print(f"p{pid}")
    for row in found:
        # A listening socket has no other end.
        print(f"f3\nn{name(row[1])}" + (f"->{name(row[2])}" if row[3] != "0A" else ""))
    return 0 if found else 1


def name(text: str) -> str:
    """An address as lsof shows it."""
    address, _, port = text.partition(":")
    return f"{socket.inet_ntoa(bytes.fromhex(address)[::-1])}:{int(port, 16)}"


sys.exit(main())
