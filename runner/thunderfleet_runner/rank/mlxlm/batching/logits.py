"""A hash of the logits of some steps, where the ranks of a group must have the same bits.

Ranks that sample the same token may still have different logits. A corrupted value, or a GPU that computes wrong results, shows
in the logits long before it changes a token.
"""

import struct
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

EVERY_STEPS = 16
"""Logits are compared at each answer's first token, and of one answer in each of this many steps: a row has 100,000 values."""
_WORDS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}


class LogitsHash:
    """Chooses the same rows on every rank, by what all ranks have in common: the steps and the requests in them."""

    def __init__(self) -> None:
        self._steps = 0
        self._seen: frozenset[int] = frozenset()

    def of(self, responses: Sequence[Any]) -> int | None:
        """The hash of one row of mlx-lm's responses of a step; None if it is not this step's turn."""
        if not responses:
            return None
        self._steps += 1
        new = [response for response in responses if response.uid not in self._seen]
        self._seen = frozenset(response.uid for response in responses)
        if not new and self._steps % EVERY_STEPS:
            return None
        return row_hash((new or responses)[self._steps % len(new or responses)].logprobs)


def row_hash(row: Any) -> int:
    """The sum of the row's bits as integers, modulo 2^32."""
    # Computed on the CPU, because the row is complete, and a GPU stream would compute the next step first.
    words = row.view(_WORDS[row.itemsize], stream=mx.cpu).astype(mx.uint32, stream=mx.cpu)
    return int(mx.sum(words, stream=mx.cpu).item())  # type: ignore[arg-type]


def value_hash(value: float) -> int:
    """The bits of a single log probability."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)
