"""Which group probably has the beginning of a prompt in its prompt cache. Pure.

A prompt is a chain of blocks; the digest of a block covers all blocks before it. The router keeps, for each group, the digests
of the prompts sent to it, as many as its cache can hold; the least recently used are dropped first.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

BLOCK_BYTES = 512
MAX_BLOCKS = 256
"""Maximum blocks of a prompt; the rest is ignored."""
BYTES_PER_TOKEN = 4
LEAST_REMEMBERED, MOST_REMEMBERED = 256, 32_768
"""Bounds of the number of blocks that are kept for one group."""

Chain = Sequence[bytes]


def chain(prompt: bytes) -> Chain:
    """The digests of a prompt's whole blocks."""
    found, before = [], b""
    for start in range(0, min(len(prompt), MAX_BLOCKS * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        before = hashlib.blake2b(before + prompt[start : start + BLOCK_BYTES], digest_size=8).digest()
        found.append(before)
    return found


class Remembered:
    """The blocks that one group has probably cached. ``tokens``: the size of its cache."""

    def __init__(self, tokens: int) -> None:
        self._limit = min(max(tokens * BYTES_PER_TOKEN // BLOCK_BYTES, LEAST_REMEMBERED), MOST_REMEMBERED)
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def matching(self, blocks: Chain) -> int:
        """Number of known blocks at the beginning of the chain."""
        low, high = 0, len(blocks)
        # A block is dropped before those that it follows, so the known ones are at the beginning.
        while low < high:
            middle = (low + high) // 2
            if blocks[middle] in self._blocks:
                low = middle + 1
            else:
                high = middle
        return low

    def add(self, blocks: Chain) -> None:
        """Adds a prompt."""
        for block in reversed(blocks[: self._limit]):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._limit:
            self._blocks.popitem(last=False)
