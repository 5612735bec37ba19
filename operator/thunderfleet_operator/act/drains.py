"""Groups that must drain: sends the request to rank 0 of each after a short notice, and records when each began to drain.

Which groups drain follows from plan and status in every round. Only the time is kept here: an operator that restarts counts
again from zero, and the runner's own limits hold meanwhile.
"""

from collections.abc import Callable, Iterable, Set

from thunderfleet_operator.act.group_client import GroupClient
from thunderfleet_operator.observe.objects.plans import GroupView

NOTICE_SECONDS = 1.0
"""Delay from the status that names another endpoint to the drain of the group behind the old one, for clients to notice."""


class Drains:
    """``key`` is the ModelDeployment's ``namespace/name``.

    ``clock``: monotonic seconds. With the wall clock, a step forward would cut a drain short, and one back would prolong it.
    """

    def __init__(self, groups: GroupClient, clock: Callable[[], float]) -> None:
        self._groups = groups
        self._clock = clock
        self._since: dict[tuple[str, int, int], float] = {}

    def seconds(self, key: str, view: GroupView) -> float:
        """Seconds since the group started to drain; 0 if it is not draining."""
        since = self._since.get((key, view.index, view.last_epoch))
        return self._clock() - since if since is not None else 0.0

    def start(self, key: str, views: Iterable[GroupView], *, notice: bool) -> list[float]:
        """Drains these groups. Returns the seconds until each group that is still on notice needs another round.

        ``notice``: a moment later, so that readers of ``status.endpoint`` see another endpoint first.
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
        """Drops all groups of the ModelDeployment except these."""
        self._since = {drain: since for drain, since in self._since.items() if drain[0] != key or drain[1] in indexes}
