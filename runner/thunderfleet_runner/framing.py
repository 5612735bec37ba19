"""Frames on the socketpair of a supervisor and its rank process, and the variables that hand the socket over.

A frame is a 4-byte big-endian length followed by that many bytes of UTF-8 JSON. This module imports the standard library only:
a waiting rank process uses it before it has imported anything but MLX.
"""

import socket
import struct
from collections.abc import Iterator, Mapping

FD_VARIABLE = "THUNDERFLEET_RANK_FD"
"""Environment variable with the file descriptor of the rank's end of the socketpair."""
PARENT_VARIABLE = "THUNDERFLEET_SUPERVISOR_PID"
"""Environment variable with the supervisor's process id: a rank calls ``parentdeath.die_with`` with it before anything else.

A rank leaves SIGTERM to the kernel's default: MLX's init keeps Python's own handlers from running.
"""
ATTEMPT_VARIABLE = "THUNDERFLEET_RANK_ATTEMPT"
"""Environment variable with the attempt's number, set by ``Start``: for what runs beside MLX, such as a recorded JACCL."""
FRAME_LIMIT = 64 * 1024 * 1024
"""Maximum bytes of a frame's body; a longer one means that the stream is broken."""
_LENGTH = struct.Struct(">I")


class BrokenStream(Exception):
    """The bytes are no frame of this protocol; nothing after them can be read."""


def prefix(length: int) -> bytes:
    """What comes before a body of ``length`` bytes."""
    return _LENGTH.pack(length)


def frame(body: bytes) -> bytes:
    """``body`` with its length in front."""
    return prefix(len(body)) + body


def receive_frame(end: socket.socket) -> bytes:
    """The body of the next frame; blocks for it, and reads no byte beyond it.

    Raises EOFError when the other end has closed, BrokenStream for a length beyond FRAME_LIMIT.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(end, _LENGTH.size))
    if length > FRAME_LIMIT:
        raise BrokenStream(f"frame of {length} bytes announced, at most {FRAME_LIMIT} are allowed")
    return _receive_exactly(end, length)


def _receive_exactly(end: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    free = memoryview(data)
    while free:
        received = end.recv_into(free)
        if not received:
            raise EOFError("the supervisor closed the channel")
        free = free[received:]
    return bytes(data)


def inherited(environment: Mapping[str, str]) -> socket.socket:
    """The socket whose descriptor is in THUNDERFLEET_RANK_FD. Raises ValueError when there is none."""
    value = environment.get(FD_VARIABLE, "")
    if not value.isdigit():
        raise ValueError(f"{FD_VARIABLE} is {value!r}: a rank is started by its supervisor, not by hand")
    return socket.socket(fileno=int(value))


class Frames:
    """Splits a byte stream into frames' bodies, however it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that ``data`` completes. Raises BrokenStream for a length beyond FRAME_LIMIT."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > FRAME_LIMIT:
                raise BrokenStream(f"frame of {length} bytes announced, at most {FRAME_LIMIT} are allowed")
            if len(self._buffer) < _LENGTH.size + length:
                return
            body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            yield body
