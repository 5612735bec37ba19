"""SPDY/3.1 frames as values. The payload of a data frame is passed on in the pieces in which it arrives, so no frame is kept.

https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/, section 2.2. Pure.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from thunderfleet_kubelet.serving.portforward.headers import BLOCK_BYTES, Compressor, Decompressor, HeaderError

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN = 1
PROTOCOL_ERROR, REFUSED_STREAM, CANCEL = 1, 3, 5
"""Codes of RST_STREAM."""

HEAD = 8
_CONTROL = 0x8000
_VERSION = 3
_STREAM_BITS = 0x7FFFFFFF
_LEAST = {SYN_STREAM: 10, RST_STREAM: 8, PING: 4}
"""The least bytes of the payload, by type."""


class ProtocolError(Exception):
    """The peer violates SPDY/3.1; the connection ends."""


@dataclass(frozen=True)
class Opened:
    """The peer opens ``stream``."""

    stream: int
    headers: Mapping[str, str]
    fin: bool


@dataclass(frozen=True)
class Data:
    """Bytes of ``stream``. ``fin``: the peer's last ones."""

    stream: int
    data: bytes
    fin: bool


@dataclass(frozen=True)
class Reset:
    """The peer ends ``stream`` in both directions."""

    stream: int


@dataclass(frozen=True)
class Ping:
    """The peer requests an answer with the same ``number``; its own numbers are odd."""

    number: int


@dataclass(frozen=True)
class GoAway:
    """The peer opens no more streams."""


Frame = Opened | Data | Reset | Ping | GoAway


class FrameReader:
    """Reads the frames of a client from bytes in any pieces. Raises ProtocolError; after that it cannot be used."""

    def __init__(self) -> None:
        self._headers = Decompressor()
        self._rest = bytearray()
        self._wanted = HEAD
        """The size of the part that is being read: a head, or a whole control frame."""
        self._stream = self._left = 0
        """The data frame that is being read: its stream, and how many bytes are missing."""
        self._fin = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that ``data`` completes, and the pieces of data frames in it. Keeps less than BLOCK_BYTES."""
        view = memoryview(data)
        while view:
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                yield Data(self._stream, bytes(piece), self._fin and not self._left)
                continue
            taken = self._wanted - len(self._rest)
            self._rest += view[:taken]
            view = view[taken:]
            if len(self._rest) == self._wanted:
                yield from self._complete()

    def _complete(self) -> Iterator[Frame]:
        """Takes a head, or a whole control frame."""
        first, kind, flags = struct.unpack_from(">HHB", self._rest)
        size = int.from_bytes(self._rest[5:HEAD], "big")
        if not first & _CONTROL:
            self._stream, self._left, self._fin = first << 16 | kind, size, bool(flags & FIN)
            self._rest.clear()
            if not size:
                yield Data(self._stream, b"", self._fin)
            return
        if first != _CONTROL | _VERSION:
            raise ProtocolError(f"frame of SPDY version {first & ~_CONTROL}: must be {_VERSION}")
        if not _LEAST.get(kind, 0) <= size <= BLOCK_BYTES:
            raise ProtocolError(f"control frame of type {kind} has {size} bytes: allowed are up to {BLOCK_BYTES}")
        self._wanted = HEAD + size
        if len(self._rest) < self._wanted:
            return
        payload = bytes(self._rest[HEAD:])
        self._rest.clear()
        self._wanted = HEAD
        frame = self._control(kind, flags, payload)
        if frame is not None:
            yield frame

    def _control(self, kind: int, flags: int, payload: bytes) -> Frame | None:
        number = int.from_bytes(payload[:4], "big")
        if kind in (SYN_STREAM, HEADERS):
            # Blocks share one zlib stream, so even unneeded ones must be decompressed.
            start = _LEAST[SYN_STREAM] if kind == SYN_STREAM else 4
            try:
                headers = self._headers.unpack(payload[start:])
            except HeaderError as error:
                raise ProtocolError(str(error)) from None
            return Opened(number & _STREAM_BITS, headers, bool(flags & FIN)) if kind == SYN_STREAM else None
        if kind == RST_STREAM:
            return Reset(number & _STREAM_BITS)
        if kind == PING:
            return Ping(number)
        # Window updates and settings of the client are ignored: the client's own library has no flow control either.
        return GoAway() if kind == GOAWAY else None


def _control_frame(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return struct.pack(">HHI", _CONTROL | _VERSION, kind, flags << 24 | len(payload)) + payload


class FrameWriter:
    """Writes the frames of the server's side."""

    def __init__(self) -> None:
        self._headers = Compressor()

    def opening(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """Opens a stream; only clients of a port-forward do."""
        return _control_frame(SYN_STREAM, struct.pack(">IIH", stream, 0, 0) + self._headers.pack(headers))

    def reply(self, stream: int) -> bytes:
        """Accepts a stream that the client has opened."""
        return _control_frame(SYN_REPLY, struct.pack(">I", stream) + self._headers.pack({}))

    @staticmethod
    def data(stream: int, data: bytes, *, fin: bool = False) -> bytes:
        """Bytes of a stream; ``fin``: the last ones."""
        return struct.pack(">II", stream, (FIN if fin else 0) << 24 | len(data)) + data

    @staticmethod
    def reset(stream: int, code: int) -> bytes:
        """Ends a stream."""
        return _control_frame(RST_STREAM, struct.pack(">II", stream, code))

    @staticmethod
    def ping(number: int) -> bytes:
        """Answers a ping."""
        return _control_frame(PING, struct.pack(">I", number))
