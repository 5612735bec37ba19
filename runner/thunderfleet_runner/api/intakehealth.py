"""Whether the intake process works, from its questions and answers. Pure, except for the clock argument."""

from collections.abc import Callable
from typing import Final

HUNG_SECONDS: Final = 10.0
"""A question takes a second of CPU. One that has had no answer for longer waits for a process that hangs."""
CALM_SECONDS: Final = 30.0
"""How long a problem is reported at least, so that a process that keeps ending has one problem and not many."""
HUNG: Final = f"it has not answered for {HUNG_SECONDS:g} s"


class IntakeHealth:
    """What is wrong with the process. ``now``: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._asked: float | None = None
        self._said = ""
        self._bad_at = 0.0
        self._works = True

    @property
    def problem(self) -> str:
        """A sentence about the process; "" if it works. It stays the same while the problem does."""
        if self._hangs:
            return HUNG
        recent = self._now() - self._bad_at < CALM_SECONDS
        return self._said if recent or not self._works else ""

    @property
    def _hangs(self) -> bool:
        return self._asked is not None and self._now() - self._asked > HUNG_SECONDS

    def asked(self) -> None:
        """A question was sent to it."""
        self._asked = self._now()

    def answered(self) -> None:
        """It has answered, or a question exceeded a limit, which does not count as a problem."""
        if self._hangs:
            self._said, self._bad_at = HUNG, self._now()
        self._asked, self._works = None, True

    def started(self) -> None:
        """A new process is ready."""
        self._works = True

    def ended(self, text: str) -> None:
        """It has ended by itself, or did not start. ``text``: how."""
        self._asked, self._said, self._bad_at, self._works = None, text, self._now(), False
