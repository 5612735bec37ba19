"""Which images are deleted when the disk is too full. Pure."""

from collections.abc import Iterable, Set
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """An image on the disk. ``used``: when it was last used (seconds since the epoch). ``size``: bytes."""

    key: str
    size: int
    used: float


def excess(capacity: int, available: int, high: int, low: int) -> int:
    """Bytes to delete: down to ``low`` percent of the file system when more than ``high`` percent of it are used."""
    used = capacity - available
    if capacity <= 0 or used * 100 <= high * capacity:
        return 0
    return max(0, used - low * capacity // 100)


def doomed(images: Iterable[Kept], in_use: Set[str], now: float, minimum_age: float, need: int) -> list[str]:
    """The keys of the images to delete until ``need`` bytes are free, least recently used images first.

    Never one that is in use, or was used within ``minimum_age`` seconds: a container may be about to start from it.
    """
    free, found = 0, []
    for image in sorted(images, key=lambda one: (one.used, one.key)):
        if free >= need:
            break
        # A time in the future was written before the clock was set back.
        if image.key in in_use or 0 <= now - image.used < minimum_age:
            continue
        found.append(image.key)
        free += image.size
    return found
