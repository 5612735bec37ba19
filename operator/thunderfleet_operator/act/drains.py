"""Groups that are to go: asked to drain after a moment's notice, and waited for, but not for ever.

What drains follows from the plan and status in every round; only since when is kept here. A restarted operator begins to count
anew, and the runner's own limits hold meanwhile.
"""

from collections.abc import Callable, Iterable, Set
from datetime import datetime

from thunderfleet_operator.act.group_client import Groups
from thunderfleet_operator.observe.snapshot import GroupView

NOTICE_SECONDS = 1.0
"""Between the status that names another endpoint and the end of the one before it."""


class Drains:
    """``key`` is the deployment's ``namespace/name``."""

    def __init__(self, groups: Groups, clock: Callable[[], datetime]) -> None:
        self._groups = groups
        self._clock = clock
        self._since: dict[tuple[str, int, int], datetime] = {}

    def seconds(self, key: str, view: GroupView) -> float:
        """For how long a group has been waited for that is to drain; 0 when it is not."""
        since = self._since.get((key, view.index, view.last_epoch))
        return (self._clock() - since).total_seconds() if since else 0.0

    def ask(self, key: str, views: Iterable[GroupView], *, notice: bool) -> list[float]:
        """Asks these groups to drain; with ``notice`` after a moment, so that who reads ``status.endpoint`` learns first of
        another one. Seconds until the next look.
        """
        rechecks = []
        for view in views:
            self._since.setdefault((key, view.index, view.last_epoch), self._clock())
            left = NOTICE_SECONDS - self.seconds(key, view) if notice else 0.0
            if left > 0:
                rechecks.append(left)
            elif view.plan is not None:
                self._groups.drain(key, view.index, view.plan.epoch)
        return rechecks

    def keep(self, key: str, indexes: Set[int]) -> None:
        """Forgets all groups of the deployment but these."""
        self._since = {drain: since for drain, since in self._since.items() if drain[0] != key or drain[1] in indexes}
