"""The pieces in which a file is copied, and the list of their hashes. Pure.

The hub gives one hash for a whole file. A Mac that has a file with this hash computes the hash of each chunk, so that others
can check each chunk as it arrives, from several Macs. A list from another Mac can be wrong, so a file is used only when its own
hash is right.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Collection
from dataclasses import dataclass

CHUNK_BYTES = 8 * 2**20
DIGEST_BYTES = 32


def count(size: int) -> int:
    """The number of chunks of a file of ``size`` bytes; 0 for an empty one."""
    return -(-size // CHUNK_BYTES)


def length(index: int, size: int) -> int:
    """The number of bytes of a chunk."""
    return min(CHUNK_BYTES, size - index * CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class ChunkList:
    """The SHA-256 of each chunk of a file, one after the other."""

    digests: bytes

    def digest(self, index: int) -> bytes:
        return self.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]

    def fits(self, size: int) -> bool:
        """Whether it has one hash for each chunk of a file of this size."""
        return len(self.digests) == count(size) * DIGEST_BYTES

    @property
    def sha256(self) -> str:
        """Identifies the list."""
        return hashlib.sha256(self.digests).hexdigest()


def pack(held: Collection[int], size: int) -> str:
    """The chunks that a Mac has, as base64 of one bit per chunk."""
    bits = bytearray(-(-count(size) // 8))
    for index in held:
        bits[index // 8] |= 1 << (index % 8)
    return base64.b64encode(bits).decode()


def unpack(text: str, size: int) -> frozenset[int]:
    """The inverse of ``pack``. Raises ValueError."""
    try:
        bits = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the list of chunks is not base64: {error}") from None
    total = count(size)
    if len(bits) != -(-total // 8):
        raise ValueError(f"the list of chunks has {len(bits)} bytes for {total} chunks")
    found = frozenset(at * 8 + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1)
    if found and max(found) >= total:
        raise ValueError(f"the list of chunks has more than {total} chunks")
    return found
