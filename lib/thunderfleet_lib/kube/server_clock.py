"""How far the wall clock of this machine is from the API server's, from the header ``Date`` of responses. Pure.

The header has whole seconds, and a response takes time, so that a response says between which bounds the difference is. A
slow API server only widens the bounds. What is decided changes only if a whole interval is on one side of a limit, and the
limits for wrong and right differ, so that a clock near a limit does not make it change back and forth.
"""

from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from thunderfleet_lib.clock import Moment

WRONG_SECONDS: Final = 5.0
"""A clock that is further off is wrong. With a time server a Mac is within a tenth of a second, so it has none; and times in
logs and status of several Macs no longer show what came first. Nothing breaks by that yet: Kubernetes dates its certificates
five minutes back, and no program compares its clock with the times in a Lease."""
RIGHT_SECONDS: Final = 3.0
"""A wrong clock is right again within this."""
SETTLE_SECONDS: Final = 30.0
"""A wrong clock must be right for so long: of several API servers one may have another clock."""
RESPONSES: Final = 2
"""Consecutive responses that make a clock wrong."""
SET_SECONDS: Final = 0.5
"""A response during which the clock was set by more than this says nothing."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The clock of this machine is ahead by between ``low`` and ``high`` seconds; negative: behind."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The best estimate."""
        return (self.low + self.high) / 2


def ahead(date: str | None, sent: Moment, received: Moment) -> Ahead | None:
    """What a response says that was dated at a moment between ``sent`` and ``received``. None without a valid date."""
    if date is None or abs(received.jump(sent)) > SET_SECONDS:
        return None
    try:
        server = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
    return Ahead(sent.wall - server - 1, received.wall - server)


def _parsed(date: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(date) if date else None
    except ValueError:
        return None


class ServerClock:
    """What the responses of an API server say about the clock of this machine."""

    def __init__(self) -> None:
        self.known = False
        """Whether any response said something."""
        self.responses = 0
        """Number of responses."""
        self.now: datetime | None = None
        """The time of the API server at its last response, with whole seconds; None until it is known."""
        self.wrong: int | None = None
        """By how many seconds the clock is ahead (negative: behind); None if it is not wrong.

        It stays the same while the difference hardly changes."""
        self._beyond = 0
        self._right_since: float | None = None

    def note(self, date: str | None, sent: Moment, received: Moment) -> None:
        """Takes the ``Date`` of a response."""
        self.responses += 1
        self.now = _parsed(date) or self.now
        found = ahead(date, sent, received)
        if found is None:
            return
        self.known = True
        if self.wrong is None:
            beyond = found.low > WRONG_SECONDS or found.high < -WRONG_SECONDS
            self._beyond = self._beyond + 1 if beyond else 0
            if self._beyond >= RESPONSES:
                self.wrong, self._right_since = round(found.middle), None
        elif found.low >= -RIGHT_SECONDS and found.high <= RIGHT_SECONDS:
            if self._right_since is None:
                self._right_since = received.boot
            elif received.boot - self._right_since >= SETTLE_SECONDS:
                self.wrong, self._beyond = None, 0
        else:
            self._right_since = None
            # Not with bounds that say nothing new.
            tolerance = max(2.0, abs(self.wrong) / 10)
            if not found.low - tolerance <= self.wrong <= found.high + tolerance:
                self.wrong = round(found.middle)
