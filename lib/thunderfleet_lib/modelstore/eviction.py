"""Chooses the models that a Mac removes when it needs disk space."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    """A model of the store. Times in seconds of one clock."""

    digest: str
    repository: str
    commit: str
    bytes: int
    used: float
    """When something last referred to it."""


def evict(models: Iterable[Kept], referenced: Collection[str], excess_bytes: int) -> tuple[Kept, ...]:
    """The models to remove, least recently used first, until ``excess_bytes`` are freed.

    Models in ``referenced`` are never chosen. A blob that two models share counts for both, so the caller must check the free
    space again after removing them.
    """
    chosen: list[Kept] = []
    for model in sorted(models, key=lambda one: (one.used, one.digest)):
        if excess_bytes <= 0:
            break
        if model.digest not in referenced:
            chosen.append(model)
            excess_bytes -= model.bytes
    return tuple(chosen)
