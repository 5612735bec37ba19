"""How far the wall clock of this machine is from the API server's, from the header ``Date`` of responses. Pure.

The header has whole seconds, and a response takes time, so a response gives a lower and an upper bound of the difference. A
slow API server only widens these bounds. The decision changes only if both bounds are on one side of a limit. The limits for
wrong and right differ, so that a clock near a limit does not change the decision back and forth.
"""

from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from thunderfleet_lib.clock import Moment

WRONG_SECONDS: Final = 5.0
"""A clock with a larger difference is wrong. With a time server a Mac is within a tenth of a second. With a larger difference,
times in logs and status of several Macs no longer show what came first. Nothing else breaks yet: Kubernetes dates its
certificates five minutes back, and no program compares its clock with the times in a Lease."""
RIGHT_SECONDS: Final = 3.0
"""A wrong clock counts as right again if its difference is below this."""
SETTLE_SECONDS: Final = 30.0
"""A wrong clock must be right for this long, because one of several API servers may have another clock."""
RESPONSES: Final = 2
"""Number of consecutive responses after which a clock counts as wrong."""
SET_SECONDS: Final = 0.5
"""A response is ignored if the clock was set by more than this meanwhile."""


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
    """The bounds from a response that was dated between ``sent`` and ``received``. None without a valid date."""
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
    """The clock of this machine, compared with the responses of an API server."""

    def __init__(self) -> None:
        self.known = False
        """Whether any response had a valid date."""
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
            # Bounds that are consistent with the known difference change nothing.
            tolerance = max(2.0, abs(self.wrong) / 10)
            if not found.low - tolerance <= self.wrong <= found.high + tolerance:
                self.wrong = round(found.middle)
