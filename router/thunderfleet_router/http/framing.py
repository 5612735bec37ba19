"""HTTP/1.1 between the router and gateways: the bytes of a request, and of its response while they arrive. Pure.

Only what gateways send is understood. Anything else raises BadResponse, and the connection is not used again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

HEAD_BYTES: Final = 64 * 1024
"""Maximum bytes of the headers of a response, and of the trailers after a body in chunks."""
SIZE_BYTES: Final = 256
"""Maximum bytes of the line with the size of a chunk."""
_HEAD: Final = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\r\n\0]*)?((?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*)*)")
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")
_FORBIDDEN: Final = re.compile(r"[\r\n\0]")
_END: Final = b"\r\n\r\n"
_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})


class BadResponse(Exception):
    """The bytes are no response that the router understands."""


def request(path: str, host: str, headers: Mapping[str, str], length: int) -> bytes:
    """The head of a POST with a body of ``length`` bytes. Raises ValueError for values that would end a line."""
    values = {"Host": host, "Accept": "*/*", **headers, "Content-Length": str(length)}
    text = "".join(f"{name}: {value}\r\n" for name, value in values.items())
    # Each header has one line, unless a value has an end of a line of its own.
    if text.count("\n") != len(values) or text.count("\r") != len(values) or "\0" in text or _FORBIDDEN.search(path):
        raise ValueError("a header of the request has the end of a line in its value")
    # As the server read them: bytes that are not UTF-8 stay as they are.
    return f"POST {path} HTTP/1.1\r\n{text}\r\n".encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a response."""

    status: int
    headers: Mapping[str, tuple[str, str]]
    """Name as it was sent and value, by the name in lower case."""

    def get(self, name: str) -> str:
        """The value of a header; empty if there is none. ``name``: in lower case."""
        found = self.headers.get(name)
        return found[1] if found is not None else ""

    @property
    def content_type(self) -> str:
        """The media type, without parameters."""
        return self.get("content-type").partition(";")[0].strip().lower()


class _Body(Enum):
    LENGTH = auto()
    CHUNKS = auto()
    CLOSE = auto()
    """The end of the connection ends it."""


class _Chunk(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILERS = auto()


class Response:
    """One response to a POST."""

    def __init__(self) -> None:
        self.head: Head | None = None
        """None until its headers are complete."""
        self.complete = False
        self.reusable = False
        """Whether the connection may have another request, once the response is complete."""
        self._rest = b""
        """Bytes of an incomplete line or of incomplete headers."""
        self._body = _Body.CLOSE
        self._left = 0
        """Bytes that are left of the body, or of the chunk."""
        self._chunk = _Chunk.SIZE

    def feed(self, data: bytes) -> bytes:
        """The part of the body in these bytes. Raises BadResponse."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        while self.head is None:
            end = data.find(_END)
            if end > HEAD_BYTES or (end < 0 and len(data) > HEAD_BYTES):
                raise BadResponse(f"the headers have more than {HEAD_BYTES} bytes")
            if end < 0:
                self._rest = data
                return b""
            self._read_head(data[:end])
            data = data[end + len(_END) :]
        if self._body is _Body.CHUNKS:
            return self._chunks(data)
        if self._body is _Body.CLOSE and not self.complete:
            return data
        part = data[: self._left]
        self._left -= len(part)
        self.complete = not self._left
        self._check_excess(len(data) - len(part))
        return part

    def end(self) -> None:
        """The connection has ended. Raises BadResponse if the response has not."""
        self.reusable = False
        if self.complete:
            return
        if self.head is None or self._body is not _Body.CLOSE:
            raise BadResponse("the connection ended before the response did")
        self.complete = True

    def _check_excess(self, count: int) -> None:
        if count:
            # Not a part of this response, and nothing else was asked for.
            self.reusable = False

    # --- headers ---

    def _read_head(self, text: bytes) -> None:
        found = _HEAD.fullmatch(text)
        if found is None:
            raise BadResponse("the status or a header is malformed")
        code = int(found[2])
        if code == 101:
            raise BadResponse("the gateway switches to another protocol")
        if code < 200:
            # The response follows.
            return
        headers: dict[str, tuple[str, str]] = {}
        for line in found[3].decode("utf-8", "surrogateescape").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            key = name.lower()
            if key in headers and key in _FRAMING:
                raise BadResponse(f"{name} is sent twice")
            headers[key] = name, value.strip(" \t")
        head = Head(code, headers)
        self._frame(head, old=found[1] == b"0")
        self.head = head

    def _frame(self, head: Head, *, old: bool) -> None:
        encoding, length = head.get("transfer-encoding"), head.get("content-length")
        self.reusable = not old and "close" not in head.get("connection").lower()
        if head.status in (204, 304):
            self._body, self.complete = _Body.LENGTH, True
        elif encoding:
            if encoding.lower() != "chunked" or length:
                raise BadResponse("the length of the body is ambiguous")
            self._body = _Body.CHUNKS
        elif length:
            if not _LENGTH.fullmatch(length):
                raise BadResponse("the length of the body is no number")
            self._body, self._left = _Body.LENGTH, int(length)
            self.complete = not self._left
        else:
            self.reusable = False

    # --- chunks ---

    def _chunks(self, data: bytes) -> bytes:
        """The contents of the chunks in these bytes; what is left of a line is kept."""
        parts = []
        at, size = 0, len(data)
        while at < size and not self.complete:
            if self._chunk is _Chunk.DATA:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._chunk = _Chunk.DATA_END
            end = data.find(b"\r\n", at)
            if end < 0:
                self._keep(data[at:])
                return b"".join(parts)
            self._line(data[at:end])
            at = end + 2
        if self.complete:
            self._check_excess(size - at)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _keep(self, rest: bytes) -> None:
        if len(rest) > (HEAD_BYTES if self._chunk is _Chunk.TRAILERS else SIZE_BYTES):
            raise BadResponse("a line between chunks does not end")
        self._rest = rest

    def _line(self, line: bytes) -> None:
        """A complete line between the contents of chunks."""
        if self._chunk is _Chunk.DATA_END:
            if line:
                raise BadResponse("a chunk is longer than its size")
            self._chunk = _Chunk.SIZE
        elif self._chunk is _Chunk.TRAILERS:
            self.complete = not line
            self._left += len(line)
            if self._left > HEAD_BYTES:
                raise BadResponse(f"the trailers have more than {HEAD_BYTES} bytes")
        else:
            size = _SIZE.fullmatch(line)
            if size is None:
                raise BadResponse("the size of a chunk is no number")
            self._left = int(size[1], 16)
            self._chunk = _Chunk.DATA if self._left else _Chunk.TRAILERS
