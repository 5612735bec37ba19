"""The header blocks of SPDY/3.1: names and values, compressed with one zlib stream per direction and a preset dictionary.

https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/, section 2.6.10. Pure.
"""

import struct
import zlib
from collections.abc import Mapping

BLOCK_BYTES = 16 * 1024
"""The largest block, before and after decompression. That of a port-forward has about 100 bytes."""

_LEVEL = 6

# Section 2.6.10.1: words with their length in front, then text.
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length content-location "
    "content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match "
    "if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range "
    "referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get "
    "status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin"
)
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept "
    "Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch"
    "charset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _text(value: str) -> bytes:
    return struct.pack(">I", len(value)) + value.encode("latin-1")


DICTIONARY = b"".join(_text(word.replace("_", " ")) for word in _WORDS.split()) + _TEXT.encode()


class HeaderError(Exception):
    """A header block that cannot be read. The ones after it cannot be read either."""


class Compressor:
    """Writes header blocks."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(_LEVEL, zdict=DICTIONARY)

    def pack(self, headers: Mapping[str, str]) -> bytes:
        """The next block."""
        plain = struct.pack(">I", len(headers)) + b"".join(_text(key) + _text(value) for key, value in headers.items())
        return self._zlib.compress(plain) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class Decompressor:
    """Reads header blocks."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)

    def unpack(self, block: bytes) -> dict[str, str]:
        """The next block. Raises HeaderError."""
        try:
            plain = self._zlib.decompress(block, BLOCK_BYTES)
        except zlib.error as error:
            raise HeaderError(f"headers are not compressed as in SPDY/3: {error}") from None
        if self._zlib.unconsumed_tail:
            raise HeaderError(f"headers are larger than {BLOCK_BYTES} bytes")
        reader = _Reader(plain)
        return {reader.text(): reader.text() for _ in range(reader.number())}


class _Reader:
    """Reads numbers and texts from the start of ``data``. Raises HeaderError."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise HeaderError("headers end too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def text(self) -> str:
        return self._take(self.number()).decode("latin-1")
