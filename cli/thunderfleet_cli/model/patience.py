"""When ``thunderfleet model pull`` stops waiting. Pure."""

from dataclasses import dataclass, field

from thunderfleet_cli.model.view import Json, waits_for

WORKING = frozenset(("Resolving", "Quantizing", "Fetching"))
NAMES_ITS_END = frozenset(("RateLimited",))
"""The hub has named the time of the next attempt, which may be hours away."""
TRIED_AGAIN = frozenset(("Pending", "NotResolved", "NoSource", "WrongBytes", "NothingToFetch"))
"""They may pass without a change: a file is fetched again, a Mac with the model boots, the operator starts."""
WORKING_SECONDS = 1800.0
TRIED_AGAIN_SECONDS = 300.0
OTHER_SECONDS = 30.0


@dataclass
class Patience:
    """How long a ModelCache has waited without progress: bytes that no Mac had before.

    A file that is fetched again and again is no progress, although its reasons change all the time. ``now``: monotonic seconds.
    """

    now: float
    _manifest: str | None = None
    _most: int = 0
    _gained: float = field(init=False)
    _other: float | None = None
    """Since when the reason has been one that only a user can fix."""

    def __post_init__(self) -> None:
        self._gained = self.now

    def over(self, cache: Json, now: float) -> str | None:
        """Why waiting has no point any more; None if it has one."""
        status = cache.get("status") or {}
        done = sum(int(copy.get("bytesDone") or 0) for copy in status.get("macs") or [])
        if done > self._most or status.get("manifest") != self._manifest:
            self._manifest, self._most, self._gained = status.get("manifest"), done, now
        reason = waits_for(cache).partition(":")[0]
        patient = reason in WORKING | TRIED_AGAIN | NAMES_ITS_END
        self._other = None if patient else self._other if self._other is not None else now
        if self._other is not None:
            return f"this has lasted for {OTHER_SECONDS:.0f} s" if now - self._other > OTHER_SECONDS else None
        limit = WORKING_SECONDS if reason in WORKING else TRIED_AGAIN_SECONDS
        if reason in NAMES_ITS_END or now - self._gained <= limit:
            return None
        return f"nothing more has arrived for {limit / 60:.0f} minutes"
