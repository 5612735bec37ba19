#!python
"""``lsof -nP -a -p PID -i TCP@ADDRESS:PORT -t``, the only form that our programs use.

Prints PID if it has a socket with that address at either end, and fails with code 1 otherwise.
"""

import os
import socket
import sys

PROC = "@PROC@"


def main() -> int:
    """Returns the exit code."""
    words = sys.argv[1:]
    if words[:3] != ["-nP", "-a", "-p"] or words[4] != "-i" or words[6:] != ["-t"]:
        sys.exit(f"lsof: these tests do not know {words}")
    pid, (address, port) = words[3], words[5].removeprefix("TCP@").split(":")
    wanted = f"{socket.inet_aton(address)[::-1].hex().upper()}:{int(port):04X}"
    try:
        with open(f"{PROC}/net/tcp") as file:
            rows = [line.split() for line in file][1:]
        links = {os.readlink(f"{PROC}/{pid}/fd/{name}") for name in os.listdir(f"{PROC}/{pid}/fd")}
    except OSError:
        return 1
    if any(wanted in row[1:3] and f"socket:[{row[9]}]" in links for row in rows):
        print(pid)
        return 0
    return 1


sys.exit(main())
