"""Turn-taking: which ModelDeployments are stopped to make room for one that a request waits for.

Only ModelDeployments are stopped that a request can start again (``minReplicas: 0``), that have no request in progress, and
that have served for a minimum time. The one with the oldest last request is stopped first. If the room would not be enough,
none is stopped.

ModelDeployments of one namespace take turns. Those of several namespaces do so only if both name the same PriorityClass:
without it, no user has allowed models of other namespaces to stop theirs.
"""

from collections.abc import Callable, Sequence

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment

from thunderfleet_operator.observe.load import Candidate

RESIDENCY_SECONDS = 60.0
"""Minimum time that a model serves before it can be stopped for another one."""
QUIET_SECONDS = 5.0
"""How long a model must have had no request before it can be stopped for another one."""
MAX_CANDIDATES = 8
"""Maximum number of ModelDeployments that are stopped for one. Trying each number takes a search for a placement."""


def take_turns(one: ModelDeployment, other: ModelDeployment) -> bool:
    """Whether one of them may be stopped to make room for the other."""
    if not one.wakes or not other.wakes:
        return False
    if one.metadata.namespace == other.metadata.namespace:
        return True
    return one.spec.priority_class_name is not None and one.spec.priority_class_name == other.spec.priority_class_name


def may_yield(one: Candidate) -> bool:
    """Whether a ModelDeployment may be stopped now."""
    return one.in_flight == 0 and one.idle_seconds >= QUIET_SECONDS and one.ready_seconds >= RESIDENCY_SECONDS


def yielding(candidates: Sequence[Candidate], fits: Callable[[Sequence[Candidate]], bool]) -> tuple[str, ...]:
    """The fewest, least recently used first, that make enough room. ``fits``: whether a placement exists without these."""
    usable = sorted((one for one in candidates if may_yield(one)), key=lambda one: (-one.idle_seconds, one.name))
    usable = usable[:MAX_CANDIDATES]
    if not usable or not fits(usable):
        return ()
    for count in range(1, len(usable)):
        if fits(usable[:count]):
            return tuple(one.name for one in usable[:count])
    return tuple(one.name for one in usable)
