"""One layer as bounded bytes: decompressed while it is read, counted and hashed. Run in the process that unpacks."""

import gzip
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

MAX_READ = 1024**2
"""The largest read: tarfile reads a whole extended header at once, whatever size it declares."""
HEADER_BYTES = 1024**2
"""How many bytes the headers of one entry may have."""
RATIO = 200
"""How many times larger than the compressed layer its content may be."""
RATIO_FREE = 64 * 1024**2
"""This much content is allowed whatever the ratio: a few zeros compress very well."""
WINDOW_LOG = 27
"""zstd's window: at most 128 MiB of memory."""


class UnpackError(Exception):
    """The layer is not unpacked; the message names the entry and the reason."""


@dataclass
class Budget:
    """The remaining limits for all layers of an image."""

    bytes: int
    entries: int


class Layer:
    """The tar archive in ``file`` as a stream that tarfile reads forwards. ``compression``: empty, gzip or zstd."""

    def __init__(self, file: Path, compression: str, budget: Budget) -> None:
        self._source = _open(file, compression)
        self._limit = RATIO_FREE + RATIO * file.stat().st_size
        self._budget = budget
        self._hash = hashlib.sha256()
        self._position = 0
        self._header: int | None = None

    def __enter__(self) -> "Layer":
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the file."""
        self._source.close()

    def expect_header(self) -> None:
        """The next reads are of the headers of one entry, until ``expect_content``."""
        self._header = HEADER_BYTES

    def expect_content(self) -> None:
        """The next reads are of the content of an entry."""
        self._header = None

    def tell(self) -> int:
        """The position in the uncompressed content."""
        return self._position

    def seek(self, position: int) -> int:
        """Reads on to ``position``."""
        if position < self._position:
            raise UnpackError("the archive contains a reference to an earlier position; build the image again")
        while self._position < position:
            if not self._take(min(MAX_READ, position - self._position)):
                break
        return self._position

    def read(self, size: int = -1) -> bytes:
        """``size`` bytes, fewer at the end."""
        if size < 0 or size > MAX_READ or (self._header is not None and size > self._header):
            raise UnpackError(f"the headers of an entry have more than {HEADER_BYTES} bytes")
        parts = []
        while size and (part := self._take(size)):
            parts.append(part)
            size -= len(part)
        content = b"".join(parts)
        if self._header is not None:
            self._header -= len(content)
        return content

    def _take(self, size: int) -> bytes:
        part = self._source.read(size)
        self._position += len(part)
        self._budget.bytes -= len(part)
        if self._budget.bytes < 0:
            raise UnpackError("the image's content is larger than imagePulls.maxBytes allows")
        if self._position > self._limit:
            raise UnpackError(f"the layer's content is more than {RATIO} times as large as the layer")
        self._hash.update(part)
        return part

    def finish(self) -> str:
        """Reads what is left, and returns the digest of the whole content."""
        while self._take(MAX_READ):
            pass
        return f"sha256:{self._hash.hexdigest()}"


def _open(file: Path, compression: str) -> BinaryIO:
    if compression == "gzip":
        return cast(BinaryIO, gzip.open(file, "rb"))
    if compression == "zstd":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        options = {int(zstd.DecompressionParameter.window_log_max): WINDOW_LOG}
        return cast(BinaryIO, zstd.ZstdFile(file, "rb", options=options))
    return file.open("rb")
