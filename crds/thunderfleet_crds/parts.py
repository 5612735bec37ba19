"""Parts of a model: which of its files a Mac needs for some of its layers. Pure.

Numbers of layers and files are written as ranges, such as ``0-13,20``. A file's number is its place in the manifest, which is
sorted by path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field

from thunderfleet_crds.apimodel import ApiModel
from thunderfleet_crds.fields import Int64

MAX_PARTS: Final = 1024
MAX_NUMBER: Final = 16_384
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")

Ranges = Annotated[str, Field(max_length=1024, pattern=r"^([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?$")]
"""Numbers as ranges, in ascending order; empty for none."""
ManyRanges = Annotated[str, Field(max_length=16_384, pattern=r"^([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?$")]
"""The same, for files."""


class WeightFile(ApiModel):
    """A file of weights, and the layers whose weights it has."""

    file: Annotated[int, Field(ge=0, lt=MAX_NUMBER)] = Field(
        description="Number of the file in the manifest, in which files are sorted by path, starting at 0."
    )
    bytes: Int64 = Field(description="Size of the file in bytes.")
    layers: Ranges = Field(default="", description="Layers whose weights are in it, as ranges such as 0-13,20.")
    shared: bool = Field(
        default=False, description="Whether it has weights that all ranks need, such as the embeddings or the head."
    )


def numbers(text: str) -> frozenset[int]:
    """The numbers of ranges. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text[:80]!r} is not a list of ranges such as 0-13,20")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < MAX_NUMBER:
            raise ValueError(f"{part!r} is not a range of numbers below {MAX_NUMBER}")
        found.update(range(first, last + 1))
    return frozenset(found)


def ranges(found: Iterable[int]) -> str:
    """Numbers as ranges."""
    parts: list[list[int]] = []
    for number in sorted(set(found)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def files_for(weights: Iterable[WeightFile], layers: frozenset[int], count: int) -> frozenset[int]:
    """Numbers of the files of a model with ``count`` files that ranks with these layers need.

    A file that is no weights, or has weights that all ranks need, is needed for any layer. A file with layers of two ranks is
    needed by both.
    """
    left_out = {one.file for one in weights if not one.shared and not numbers(one.layers) & layers}
    return frozenset(range(count)) - left_out


def bytes_for(weights: Iterable[WeightFile], layers: frozenset[int], total: int) -> int:
    """Bytes of these files, of a model with ``total`` bytes."""
    left_out = sum(one.bytes for one in weights if not one.shared and not numbers(one.layers) & layers)
    return max(0, total - left_out)
