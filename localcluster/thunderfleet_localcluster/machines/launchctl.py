"""The ``launchctl`` of a recorded Mac: hands its arguments to the Mac's first process.

Commands that change network settings use it too, with ``--network`` and their name in front of the arguments. An installation
calls it hundreds of times, so it imports only modules that are part of the interpreter.
"""

import sys

ADDRESS = "\0thunderfleet.launchd"
"""An abstract UNIX address: only processes in the Mac's network namespace can connect, and it leaves no file."""
SECONDS = 60
END = b"\0\n"
"""Follows the last argument of a call. Arguments contain no NUL, which separates them."""


def call_of(arguments: list[str]) -> bytes:
    """The text of a call with these arguments."""
    return b"\0".join(word.encode() for word in arguments) + END


def arguments_of(call: bytes) -> list[str]:
    """The arguments of a whole call."""
    text = call.removesuffix(END).decode("utf-8", "replace")
    return text.split("\0") if text else []


def answer_of(code: int, stdout: str, stderr: str) -> bytes:
    """The text of an answer."""
    return "\0".join((str(code), stdout, stderr)).encode()


def main(arguments: list[str]) -> int:
    """Exit codes are those of launchctl: 0, or the number of the error that it prints."""
    # Unlike socket, it imports nothing else.
    from _socket import AF_UNIX, SOCK_STREAM, socket

    line = socket(AF_UNIX, SOCK_STREAM)
    line.settimeout(SECONDS)
    line.connect(ADDRESS)
    line.sendall(call_of(arguments))
    answer = b""
    while data := line.recv(65536):
        answer += data
    line.close()
    code, stdout, stderr = answer.decode().split("\0")
    sys.stdout.write(stdout)
    sys.stderr.write(stderr)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
