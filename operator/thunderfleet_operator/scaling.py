"""The state of autoscaling between rounds, in memory only: requests, turns, and reports of routers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.exchange.routing import DemandReport
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment

from thunderfleet_operator.decide.group.lifecycle import DRAIN_SECONDS, ready
from thunderfleet_operator.decide.scaling.autoscaling import FRESH_SECONDS, WAKE_SECONDS, Scaling, idle_seconds, in_flight
from thunderfleet_operator.observe.demands import Demands, Key
from thunderfleet_operator.observe.load import Candidate, Load, Signals
from thunderfleet_operator.observe.objects.plans import GroupView, Report

TURN_SECONDS = 30.0
"""How long a ModelDeployment tries to make room for another one."""
KEPT_SECONDS = TURN_SECONDS + DRAIN_SECONDS
"""How long this room is kept for the other one."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A ModelDeployment makes room for another one (``to``). ``plans``: what is kept free for that one."""

    to: str
    since: float
    plans: tuple[Plan, ...] = ()


def demand_key(deployment: ModelDeployment) -> Key:
    """The key of a ModelDeployment in the reports of routers."""
    meta = deployment.metadata
    return str(meta.namespace), meta.name, str(meta.uid)


class ScalingMemory:
    """By ``namespace/name``. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._loads: dict[str, Load] = {}
        self._alive: dict[str, float] = {}
        self._turns: dict[str, _Turn] = {}
        self._demands = Demands()

    def reported(self, report: DemandReport) -> None:
        """A router has reported."""
        self._demands = self._demands.with_report(report, self._clock())

    def signals(self, key: str, deployment: ModelDeployment) -> Signals:
        """What is known of the requests to a ModelDeployment now."""
        now = self._clock()
        asked = self._demands.asked(demand_key(deployment), now)
        since = self._alive.setdefault(key, now)
        if asked.wake_seconds is not None and asked.wake_seconds < WAKE_SECONDS:
            since = self._alive[key] = max(since, now - asked.wake_seconds)
        self._turns = {other: turn for other, turn in self._turns.items() if now < turn.since + KEPT_SECONDS}
        turn = self._turns.get(key)
        return Signals(
            load=self._loads.get(key, Load()),
            asked=asked,
            now=now,
            alive_seconds=now - since,
            yields_to=turn.to if turn is not None and now < turn.since + TURN_SECONDS else None,
            reserved=tuple(plan for other in self._turns.values() if other.to != key for plan in other.plans),
        )

    def keep(
        self, key: str, scaling: Scaling | None, candidates: Iterable[Candidate] = (), *, placed: bool = False
    ) -> tuple[str, ...]:
        """Records a decision. The ModelDeployments that have to make room, to be decided soon.

        ``candidates``: those that it was decided among. Their room is kept until ``placed``: whether all groups have a place.
        """
        if placed:
            self._turns = {o: replace(turn, plans=()) if turn.to == key else turn for o, turn in self._turns.items()}
        if scaling is None:
            self._loads.pop(key, None)
            return ()
        self._loads[key] = scaling.load
        plans = {one.name: one.plans for one in candidates}
        for other in scaling.yields:
            self._turns[other] = _Turn(key, self._clock(), plans.get(other, ()))
        return scaling.yields

    def needed(self) -> dict[str, int]:
        """How many groups the requests in progress need now, of each ModelDeployment of which it is known."""
        now = self._clock()
        last = {key: load.samples[-1] for key, load in self._loads.items() if load.samples}
        return {key: sample.highest for key, sample in last.items() if now - sample.since < FRESH_SECONDS}

    def forget(self, key: str) -> None:
        """A ModelDeployment has been deleted."""
        self._loads.pop(key, None)
        self._alive.pop(key, None)
        # The room that it made stays reserved, unless it was reserved for this ModelDeployment.
        self._turns = {other: turn for other, turn in self._turns.items() if turn.to != key}

    def candidate(self, key: str, deployment: ModelDeployment, groups: Iterable[tuple[GroupView, Report]]) -> Candidate:
        """A ModelDeployment that could make room for another one."""
        signals = self.signals(key, deployment)
        reports = [(view, report) for view, report in groups if view.plan is not None or view.all_pods]
        counts = [in_flight(report) for _, report in reports]
        known = [count for count in counts if count is not None]
        idle = [idle_seconds(report) for _, report in reports]
        if signals.asked.idle_seconds is not None:
            idle.append(signals.asked.idle_seconds)
        return Candidate(
            name=key,
            uid=str(deployment.metadata.uid),
            groups=tuple(view.index for view, _ in reports),
            in_flight=sum(known) + signals.asked.waiting if len(known) == len(counts) else None,
            idle_seconds=min(idle, default=0.0),
            ready_seconds=min((report.phase_seconds if ready(report) else 0.0 for _, report in reports), default=0.0),
            plans=tuple(view.plan for view, _ in reports if view.plan is not None),
        )
