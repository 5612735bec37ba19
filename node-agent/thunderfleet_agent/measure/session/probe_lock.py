"""One Mac is in at most one probe between Macs at a time, agreed between the two agents and not by luck.

Nobody holds and waits. Whoever wants to measure a peer asks it and is answered at once: yes or not now. While its own question
is out, a Mac says no to everybody but a Mac whose name sorts before its own: then it drops its question and says yes. So among
any Macs that want each other at once the first by name always gets its answer, and the others ask again later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


class Busy(Exception):
    """Not now, and why."""


def yields(own: str, peer: str) -> bool:
    """Whether a Mac that is asking somebody drops that for ``peer``, who asks it. Pure."""
    return peer < own


@dataclass(eq=False)
class Hold:
    """Being in a probe with ``peer``: ``certain`` once both have said yes."""

    peer: str
    certain: bool


class Desk:
    """Who this Mac is busy with. Every method is immediate."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._hold: Hold | None = None

    @property
    def peer(self) -> str | None:
        """With whom this Mac is in a probe, or wants to be; None with nobody."""
        return self._hold.peer if self._hold else None

    @contextlib.contextmanager
    def asking(self, peer: str) -> Iterator[Hold]:
        """Around question and probe. Raises Busy when this Mac is in a probe."""
        if self._hold is not None:
            raise self._busy(self._hold)
        with self._held(Hold(peer, certain=False)) as hold:
            yield hold

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Around a probe of this Mac's own devices, which nobody shall disturb. Raises Busy."""
        if self._hold is not None:
            raise self._busy(self._hold)
        with self._held(Hold("itself", certain=True)):
            yield

    def sure(self, hold: Hold) -> None:
        """The peer has said yes. Raises Busy when this Mac has said yes to somebody else meanwhile."""
        if self._hold is not hold:
            raise Busy(f"{self._node} said yes to {self.peer or 'another Mac'} meanwhile")
        hold.certain = True

    @contextlib.contextmanager
    def granted(self, peer: str) -> Iterator[None]:
        """Around the probe that ``peer`` asked for; a peer of its own name is somebody at its terminal. Raises Busy."""
        hold = self._hold
        if hold is not None and (hold.certain or not yields(self._node, peer)):
            raise self._busy(hold)
        with self._held(Hold(peer, certain=True)):
            yield

    def _busy(self, hold: Hold) -> Busy:
        by_hand = hold.peer == self._node
        return Busy(f"{self._node} is being measured by hand" if by_hand else f"{self._node} is in a probe with {hold.peer}")

    @contextlib.contextmanager
    def _held(self, hold: Hold) -> Iterator[Hold]:
        self._hold = hold
        try:
            yield hold
        finally:
            if self._hold is hold:
                self._hold = None
