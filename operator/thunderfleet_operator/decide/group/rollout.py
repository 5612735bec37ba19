"""A changed spec replaces the groups that serve one at a time."""

from collections.abc import Mapping, Set

from thunderfleet_crds.vocabulary import GroupPhase

from thunderfleet_operator.decide.group.lifecycle import ready, serves
from thunderfleet_operator.observe.objects.plans import GroupView, Report


def next_to_roll(
    views: Mapping[int, GroupView], reports: Mapping[int, Report], wanted_hash: str, stuck: Set[int]
) -> int | None:
    """The one serving group that may be replaced now: the lowest index, once all others serve.

    A group that is already draining for the rollout comes first. ``stuck``: groups that cannot be placed; they do not hold up
    the rollout.
    """
    outdated = [i for i, view in views.items() if view.epoch is not None and view.epoch.spec_hash != wanted_hash]
    for i in outdated:
        status, epoch = views[i].status, views[i].epoch
        draining = status and epoch and status.epoch == epoch.number and status.state is GroupPhase.DRAINING
        if draining and serves(views[i], reports[i]):
            return i
    if any(not ready(reports[i]) and i not in stuck for i in views):
        return None
    return min((i for i in outdated if ready(reports[i])), default=None)
