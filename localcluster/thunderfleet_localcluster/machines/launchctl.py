"""The ``launchctl`` of a recorded Mac: hands its arguments to the Mac's first process. Standard library only.

Commands that change network settings use it too, with ``--network`` and their name in front of the arguments.
"""

import json
import socket
import sys

ADDRESS = "\0thunderfleet.launchd"
"""An abstract UNIX address: only processes in the Mac's network namespace can connect, and it leaves no file."""
SECONDS = 60


def main(arguments: list[str]) -> int:
    """Exit codes are those of launchctl: 0, or the number of the error that it prints."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(SECONDS)
        line.connect(ADDRESS)
        call: object = {"network": arguments[1:]} if arguments[:1] == ["--network"] else arguments
        line.sendall(json.dumps(call).encode() + b"\n")
        answer = b""
        while data := line.recv(65536):
            answer += data
    reply = json.loads(answer)
    sys.stdout.write(reply["stdout"])
    sys.stderr.write(reply["stderr"])
    return int(reply["code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
