"""One Mac takes part in at most one probe at a time, and both agents of a probe lock it.

No agent holds a lock while it waits for another. A request is answered at once: accepted, or busy. While its own request is
pending, a Mac refuses every peer except one whose name sorts before its own; for that one it drops its own request. So of any
Macs that request each other at the same time, the first by name succeeds, and the others try again later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

# In place of a peer, while a Mac measures its own GPU. No node has this name.
THIS_MAC = "(this Mac)"


class MacBusy(Exception):
    """This Mac takes part in another probe."""


def yields(own: str, peer: str) -> bool:
    """Whether a Mac drops its own pending request in favor of one from ``peer``. Pure."""
    return peer < own


@dataclass(eq=False)
class Hold:
    """A probe with ``peer``; ``certain`` once both Macs have accepted."""

    peer: str
    certain: bool


class ProbeLock:
    """The probe that this Mac takes part in. No method waits."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._hold: Hold | None = None

    @property
    def peer(self) -> str | None:
        """The peer of the current or requested probe; None without one."""
        return self._hold.peer if self._hold else None

    @contextlib.contextmanager
    def asking(self, peer: str) -> Iterator[Hold]:
        """Held during request and probe. Raises MacBusy."""
        if self._hold is not None:
            raise self._busy(self._hold)
        with self._held(Hold(peer, certain=False)) as hold:
            yield hold

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Held during a probe of this Mac alone. Raises MacBusy."""
        if self._hold is not None:
            raise self._busy(self._hold)
        with self._held(Hold(THIS_MAC, certain=True)):
            yield

    def confirm(self, hold: Hold) -> None:
        """The peer has accepted. Raises MacBusy if this Mac has accepted another request in the meantime."""
        if self._hold is not hold:
            raise MacBusy(f"{self._node} accepted a request from {self.peer or 'another Mac'} first")
        hold.certain = True

    @contextlib.contextmanager
    def granted(self, peer: str) -> Iterator[None]:
        """Held during a probe that ``peer`` requested. A peer of this Mac's own name is a lease. Raises MacBusy."""
        hold = self._hold
        if hold is not None and (hold.certain or not yields(self._node, peer)):
            raise self._busy(hold)
        with self._held(Hold(peer, certain=True)):
            yield

    def _busy(self, hold: Hold) -> MacBusy:
        if hold.peer == self._node:
            return MacBusy(f"`thunderfleet-agent measure` runs on {self._node}")
        if hold.peer == THIS_MAC:
            return MacBusy(f"{self._node} is measuring its own GPU")
        return MacBusy(f"{self._node} is running a benchmark with {hold.peer}")

    @contextlib.contextmanager
    def _held(self, hold: Hold) -> Iterator[Hold]:
        self._hold = hold
        try:
            yield hold
        finally:
            if self._hold is hold:
                self._hold = None
