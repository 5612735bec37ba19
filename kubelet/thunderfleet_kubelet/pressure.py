"""When a file system is too full: eviction thresholds, as in a KubeletConfiguration. Pure.

``nodefs`` is the file system of the kubelet's folder, with the pods' files and logs. ``imagefs`` is the file system of the
images, if it is another one and can be written to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

DEFAULTS: Mapping[str, str] = {
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
"""The hard eviction thresholds of Kubernetes, by signal."""

Resource = Literal["ephemeral-storage", "inodes"]


@dataclass(frozen=True)
class FileSystem:
    """Bytes and inodes of a file system. ``inodes`` 0: it has no fixed number of them."""

    available: int
    capacity: int
    inodes_free: int = 0
    inodes: int = 0


@dataclass(frozen=True)
class Threshold:
    """``signal`` is met below ``amount``; if ``relative``, that is a fraction of the capacity. ``text``: as configured."""

    signal: str
    amount: Fraction
    relative: bool
    text: str

    @property
    def resource(self) -> Resource:
        """The resource that is scarce when the threshold is met."""
        return "inodes" if self.signal.endswith("inodesFree") else "ephemeral-storage"

    def limit(self, capacity: int) -> int:
        """The smallest amount of ``capacity`` that must be free."""
        return int(self.amount * capacity) if self.relative else int(self.amount)


@dataclass(frozen=True)
class Met:
    """A threshold that is met: less than ``limit`` is available."""

    threshold: Threshold
    limit: int
    available: int


@dataclass(frozen=True)
class DiskState:
    """``met``: the thresholds that are met now. ``pressure``: also for a while afterwards; None: unknown."""

    met: tuple[Met, ...] = ()
    pressure: bool | None = None
    why: tuple[Threshold, ...] = ()
    """The thresholds that explain ``pressure``."""


def parse_threshold(signal: str, text: str) -> Threshold:
    """A percentage (``10%``) or a quantity (``5Gi``). Raises ValueError."""
    # Imported late, because the configuration is read for --help too, and this imports the client library.
    from thunderfleet_lib.quantity import parse_quantity

    if signal not in DEFAULTS:
        raise ValueError(f"{signal!r} is not a signal; use {', '.join(DEFAULTS)}")
    try:
        relative = text.strip().endswith("%")
        amount = parse_quantity(text.strip().removesuffix("%")) / (100 if relative else 1)
    except ValueError:
        raise ValueError(f"{signal}: {text!r} is neither a percentage nor a quantity, such as 10% or 5Gi") from None
    if amount < 0 or (relative and amount >= 1):
        raise ValueError(f"{signal}: {text!r} must be at least 0, and a percentage less than 100%")
    return Threshold(signal, amount, relative, text.strip())


def thresholds(settings: Mapping[str, str]) -> tuple[Threshold, ...]:
    """The defaults with ``settings`` over them; a threshold of 0 is never met. Raises ValueError."""
    return tuple(parse_threshold(signal, text) for signal, text in {**DEFAULTS, **settings}.items())


def met(limits: tuple[Threshold, ...], systems: Mapping[str, FileSystem]) -> tuple[Met, ...]:
    """The thresholds that are met. ``systems``: ``nodefs`` and, if there is one, ``imagefs``."""
    found = []
    for one in limits:
        system = systems.get(one.signal.partition(".")[0])
        if system is None:
            continue
        inodes = one.resource == "inodes"
        free, capacity = (system.inodes_free, system.inodes) if inodes else (system.available, system.capacity)
        limit = one.limit(capacity)
        if capacity and free < limit:
            found.append(Met(one, limit, free))
    return tuple(found)


def reserved(limits: tuple[Threshold, ...], capacity: int) -> int:
    """Bytes of the nodefs that are not available to pods, because using them causes eviction."""
    return max((one.limit(capacity) for one in limits if one.signal == "nodefs.available"), default=0)
