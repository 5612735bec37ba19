"""The rank's end of the socketpair with its supervisor: blocking, for threads."""

import socket
import threading
from collections.abc import Mapping

from pydantic import BaseModel

from thunderfleet_runner import framing, protocol


class Channel:
    """Sends from several threads, receives in one.

    ``send`` and ``receive`` raise EOFError or OSError when the supervisor has gone: the rank must exit then.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._frames = framing.Frames()
        self._ready: list[bytes] = []

    @classmethod
    def inherited(cls, environment: Mapping[str, str]) -> "Channel":
        """The channel that the supervisor left in THUNDERFLEET_RANK_FD. Raises ValueError when there is none."""
        return cls(framing.inherited(environment))

    def send(self, *messages: BaseModel) -> None:
        """Writes the messages to the socket, in order, in one write."""
        data = b"".join(protocol.encode(message) for message in messages)
        with self._sending:
            self._socket.sendall(data)

    def receive(self) -> protocol.ToRank:
        """Blocks for the next message. Raises EOFError when the supervisor has closed, BrokenStream for invalid bytes."""
        while not self._ready:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError("the supervisor closed the channel")
            self._ready.extend(self._frames.feed(data))
        return protocol.decode_to_rank(self._ready.pop(0))
