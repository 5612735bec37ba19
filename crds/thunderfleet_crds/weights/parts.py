"""Parts of a model: which of its files a Mac needs for some of its layers. Pure.

Numbers of layers and files are written as ranges, such as ``0-13,20``. A file's number is its place in the manifest, which is
sorted by path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field

from thunderfleet_crds.meta.apimodel import ApiModel
from thunderfleet_crds.meta.fields import Int64

MAX_PARTS: Final = 1024
MAX_NUMBER: Final = 16_384
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")

Ranges = Annotated[str, Field(max_length=1024, pattern=r"^([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?$")]
"""Numbers as ranges, in ascending order; empty for none."""
ManyRanges = Annotated[str, Field(max_length=16_384, pattern=r"^([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?$")]
"""The same, for files."""


class WeightFile(ApiModel):
    """A weight file, and the layers that have weights in it."""

    file: Annotated[int, Field(ge=0, lt=MAX_NUMBER)] = Field(
        description="Number of the file, starting at 0, when the files of the manifest are sorted by path."
    )
    bytes: Int64 = Field(description="Size of the file in bytes.")
    layers: Ranges = Field(default="", description="Layers with weights in the file, as ranges such as 0-13,20.")
    shared: bool = Field(
        default=False, description="Whether the file has weights that all ranks need, such as the embeddings or the head."
    )


def numbers(text: str) -> frozenset[int]:
    """The numbers in a text of ranges. Raises ValueError."""
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
    """The text of ranges for numbers."""
    parts: list[list[int]] = []
    for number in sorted(set(found)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def files_for(weights: Iterable[WeightFile], layers: frozenset[int], count: int) -> frozenset[int]:
    """The numbers of the files that ranks with these layers need, of a model with ``count`` files.

    A file without weights, and a file with weights that all ranks need, is needed for any layer. A file with layers of two
    ranks is needed by both.
    """
    left_out = {one.file for one in weights if not one.shared and not numbers(one.layers) & layers}
    return frozenset(range(count)) - left_out


def bytes_for(weights: Iterable[WeightFile], layers: frozenset[int], total: int) -> int:
    """Total size of these files in bytes, for a model with ``total`` bytes."""
    left_out = sum(one.bytes for one in weights if not one.shared and not numbers(one.layers) & layers)
    return max(0, total - left_out)
