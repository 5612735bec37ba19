"""One round for one ModelDeployment: observe, decide, carry out once.

A round does not wait for the planner: it sends the open questions of the decision to the planner, and the answer puts the key
on the queue again.

Rounds of several ModelDeployments run at once. One at a time takes what others may need too (``reservations``). That ends its
turn at the planner, and the next one decides while this one creates Secrets and pods and writes its status.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.act.drains import Drains
from thunderfleet_operator.act.executor import Executor, Placed
from thunderfleet_operator.act.group_client import GroupClient
from thunderfleet_operator.decide.deployment import ADVICE_SECONDS, Decision, Settings, decide
from thunderfleet_operator.decide.scaling.turns import take_turns
from thunderfleet_operator.observe.concerns import Profiles, Reach, reach
from thunderfleet_operator.observe.fleet.steadiness import Steadiness
from thunderfleet_operator.observe.fleet.weights import WeightsFleets
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.load import Candidate
from thunderfleet_operator.observe.observed import Advice, Observed
from thunderfleet_operator.observe.reader import groups_of, observe_deployment
from thunderfleet_operator.placement import Fleet, WhatIsBetter
from thunderfleet_operator.planning.planner import Planner
from thunderfleet_operator.reservations import Reservations
from thunderfleet_operator.scaling import ScalingMemory

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""How long a round waits for the planner's placement of a group, before the other groups go on without it."""
LINE_SECONDS = 10.0
"""The same for a ModelDeployment without a status that waits for its turn: the planner finds a place for others meanwhile."""
CROWD = 10
CROWD_SECONDS = 0.1
"""If more than ``CROWD`` ModelDeployments have no placement, each of them has a round only this many seconds times their number
after another one was placed. Otherwise most of the time would go to those that cannot be placed."""


def _epoch(observed: Observed, group: int) -> int:
    epoch = observed.groups[group].epoch
    return epoch.number if epoch is not None else 0


class Reconciler:
    """``clock`` is UTC now, ``monotonic`` a clock in seconds.

    ``yields`` is called with a ModelDeployment (``namespace/name``) that has to make room for another one, ``again`` with one
    that a change of the fleet concerns, and the seconds until its round. ``reservations``: of all rounds that take something.
    """

    def __init__(
        self,
        index: Index,
        groups: GroupClient,
        drains: Drains,
        executor: Executor,
        settings: Settings,
        planner: Planner,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        scaling: ScalingMemory | None = None,
        yields: Callable[[str], None] = lambda key: None,
        again: Callable[[str, float], None] = lambda key, seconds: None,
        reservations: Reservations | None = None,
    ) -> None:
        self._reservations = reservations if reservations is not None else Reservations()
        self._scaling = scaling if scaling is not None else ScalingMemory(monotonic)
        self._yields = yields
        self._again = again
        self._steadiness = Steadiness()
        self._monotonic = monotonic
        self._index = index
        self._groups = groups
        self._drains = drains
        self._executor = executor
        self._settings = settings
        self._clock = clock
        self._planner = planner
        self._advice: dict[str, dict[int, Advice]] = {}
        self._asked: dict[tuple[str, int], tuple[Fleet, frozenset[str], int]] = {}
        """What the last question about a better placement was about, by ModelDeployment and group: as in ``Advice``."""
        self._settling: dict[tuple[str, int], float] = {}
        """By ModelDeployment and group, since when (monotonic) its first placement waits for reports about a cable."""
        self._fleets = WeightsFleets()
        self._waiting: dict[str, datetime] = {}
        """Time at which a round began to wait for the planner, by ModelDeployment."""
        self.unplaced: set[str] = set()
        """ModelDeployments without a place that do not wait for their turn at the planner: a group that ends may make room."""
        self._settled: set[str] = set()
        """ModelDeployments whose last round found all groups serving and nothing to do."""
        self._fleet: tuple[Fleet, Profiles] = Fleet(), {}
        """What the last round of the fleet saw. Rounds that have begun or are queued since then see it, or a newer one."""

    async def deployment(self, key: str) -> float | None:
        """One round. Seconds until the next although nothing may have changed."""
        try:
            return await self._round(key)
        finally:
            self._planner.round_over(key)

    async def _round(self, key: str) -> float | None:
        deployment = self._deployment(key)
        if deployment is None:
            return None
        self._executor.listen(key, groups_of(self._index, deployment), self._index.fleet)
        left = self._groups.first_answers_in(key)
        if left > 0:
            # Put off, not waited for: all other rounds would wait too, seconds for each Mac that is off.
            return left
        self._settled.discard(key)
        decision, taken = await self._decide(key, deployment.wanted_groups)
        if decision is not None and decision.exclusive:
            return await self._take(key, decision, taken)
        if decision is None:
            return None
        left = self._note(key, decision)
        return left if left > 0 else await self._carry_out(key, decision, Placed())

    async def _take(self, key: str, decision: Decision, taken: int) -> float | None:
        """The rest of a round that takes something. ``taken``: of ``reservations`` when it was decided."""
        unasked = False
        async with self._reservations.taking():
            if self._reservations.taken != taken:
                # What another round has taken meanwhile is not there for this one.
                newer = self._decided(key)
                if newer is None:
                    return None
                if not newer.exclusive:
                    return 0.0
                decision, unasked = newer, bool(newer.questions)
            left = self._note(key, decision)
            if left > 0:
                return 0.0 if unasked else left
            placed = await self._executor.place(decision)
        # What is next in line need not wait for the pods.
        self._planner.round_over(key)
        again = await self._carry_out(key, decision, placed)
        return 0.0 if unasked else again

    def _note(self, key: str, decision: Decision) -> float:
        """Records what later rounds need of a decision. Seconds until it is carried out, without an answer of the planner."""
        self._settle(key, decision)
        if any(group.planning and group.unplaceable is None for group in decision.groups):
            left = self._patience(key, decision)
            if left > 0:
                return left
        self._waiting.pop(key, None)
        placed = not any(group.planning or group.unplaceable is not None for group in decision.groups)
        for other in self._scaling.keep(key, decision.scaling, decision.observed.candidates, placed=placed):
            self._yields(other)
        return 0.0

    async def _carry_out(self, key: str, decision: Decision, placed: Placed) -> float | None:
        """The writes of a round that concern no other ModelDeployment. Seconds until the next round."""
        self._planner.keep(key, {group.view.index for group in decision.groups if group.placement is None})
        # Before the writes: groups that end meanwhile make room.
        self._count_unplaced(key, any(group.unplaceable or group.planning for group in decision.groups))
        done = await self._executor.carry_out(key, decision, placed)
        self._count_unplaced(key, done.unplaced)
        if decision.settled and not done.unplaced:
            self._settled.add(key)
        return done.recheck_seconds

    def _count_unplaced(self, key: str, unplaced: bool) -> None:
        if unplaced and not self._planner.in_line(key):
            self.unplaced.add(key)
        else:
            self.unplaced.discard(key)

    def begin(self) -> None:
        """A round of every ModelDeployment follows: a change of the fleet until now begins no other one."""
        self._fleet = self._index.fleet, self._index.profiles

    async def fleet(self, _: str) -> None:
        """A round of the fleet: begins rounds of the ModelDeployments that what has changed since the last one concerns."""
        self._see_fleet()
        (fleet, profiles), self._fleet = self._fleet, (self._index.fleet, self._index.profiles)
        found = reach(fleet, self._index.fleet, profiles, self._index.profiles)
        for key in self._index.deployments if found is not Reach.NOBODY else ():
            if found is Reach.EVERYBODY:
                self._again(key, 0.0)
            elif not self._planner.in_line(key):
                self._again(key, self._put_off(key, found))

    def _put_off(self, key: str, found: Reach) -> float:
        """Seconds until the round of a ModelDeployment that a change of the fleet may concern."""
        if key in self._settled or (found is Reach.TAKEN and key not in self.unplaced):
            # A better placement is searched once in a while, however often the fleet changes. What others take is none.
            return ADVICE_SECONDS
        # Without a place before, and with less room now: only its message may change.
        crowd = len(self.unplaced) if found is Reach.TAKEN else 0
        return min(ADVICE_SECONDS, CROWD_SECONDS * crowd) if crowd > CROWD else 0.0

    def _see_fleet(self) -> None:
        """Records interruptions of cables. A fleet that no round reads is not recorded."""
        self._steadiness = self._steadiness.with_fleet(self._index.fleet, self._monotonic())

    def _settle(self, key: str, decision: Decision) -> None:
        """Records since when groups wait for reports about a cable."""
        waiting = {(key, group.view.index) for group in decision.groups if group.unknown is not None}
        self._settling = {of: at for of, at in self._settling.items() if of[0] != key or of in waiting}
        for group in waiting:
            self._settling.setdefault(group, self._monotonic())
        if waiting:
            # The next round sends the question again: what was planned over TCP still holds, but something better may be there.
            self._planner.keep(key, {group.view.index for group in decision.groups if group.unknown is None})

    def _patience(self, key: str, decision: Decision) -> float:
        """Seconds to wait for the planner before the round continues without it.

        Most answers arrive in this time, so the status does not show the wait.
        """
        since = self._waiting.setdefault(key, self._clock())
        fresh = not decision.deployment.status.conditions
        patience = LINE_SECONDS if fresh and self._planner.in_line(key) else PATIENCE_SECONDS
        return max(0.0, patience - age_seconds(since, self._clock()))

    async def _decide(self, key: str, wanted_groups: int) -> tuple[Decision | None, int]:
        """Decides, and again as long as the planner answers at once; None if there is nothing to do.

        Also what had been taken by then.
        """
        decision: Decision | None = None
        taken = self._reservations.taken
        # One group is placed at a time, and each place decides what is left for the next group.
        for _ in range(wanted_groups + 1):
            taken = self._reservations.taken
            decision = self._decided(key)
            if decision is None or not await self._planner.ask(key, decision.questions):
                break
        return decision, taken

    def _decided(self, key: str) -> Decision | None:
        """Decides about what is there now, with the answers that are there; None if there is nothing to do."""
        observed = self._observe(key)
        if observed is None:
            return None
        decision = decide(observed, self._settings, self._planner.answers(key))
        for index, question in decision.questions.items():
            if isinstance(question, WhatIsBetter):
                self._asked.setdefault((key, index), (observed.fleet, decision.avoids, _epoch(observed, index)))
        return decision

    def _observe(self, key: str) -> Observed | None:
        """Everything that the round reads."""
        # Objects may have changed during a wait; from here on nothing is awaited until the round has decided.
        deployment = self._deployment(key)
        if deployment is None:
            return None
        now, routing = self._clock(), self._settings.routers
        advice = self._advice.setdefault(key, {})
        for index, text in self._planner.take_better(key).items():
            about = self._asked.pop((key, index), None)
            if about is not None:
                fleet, avoids, epoch = about
                advice[index] = Advice(fleet, avoids, epoch, now, text)
        self._see_fleet()
        return observe_deployment(
            self._index,
            deployment,
            now,
            report=lambda view: self._groups.report(key, view.index, view.epoch.number if view.epoch else 0),
            draining_seconds=lambda view: self._drains.seconds(key, view),
            settling_seconds={index: self._monotonic() - at for (of, index), at in self._settling.items() if of == key},
            advice=dict(advice),
            steadiness=self._steadiness,
            signals=replace(self._scaling.signals(key, deployment), can_wake=routing is not None),
            candidates=self._candidates(key, deployment),
            routers=self._index.routers(routing.namespace) if routing is not None else (),
            fleets=self._fleets,
        )

    def _candidates(self, key: str, deployment: ModelDeployment) -> tuple[Candidate, ...]:
        """ModelDeployments that could make room for one that a request has woken."""
        if not deployment.wakes or not deployment.wanted_groups:
            return ()
        found = []
        for name, other in self._index.deployments.items():
            if other is None or name == key or not other.wanted_groups or not take_turns(deployment, other):
                continue
            views = groups_of(self._index, other).values()
            groups = [(v, self._groups.report(name, v.index, v.epoch.number if v.epoch else 0)) for v in views]
            found.append(self._scaling.candidate(name, other, groups))
        return tuple(found)

    def _deployment(self, key: str) -> ModelDeployment | None:
        """The ModelDeployment; None, and everything about it is dropped, if it has been deleted."""
        deployments = self._index.deployments
        deployment = deployments.get(key)
        if key in deployments and deployment is None:
            log.error("ModelDeployment %s does not match the schema of this version; update the CRDs (helm upgrade)", key)
            return None
        if deployment is None or deployment.metadata.deletion_timestamp is not None:
            # The garbage collector deletes the children, by their owner references.
            self._executor.forget(key)
            self._advice.pop(key, None)
            self._fleets.forget(key)
            self._waiting.pop(key, None)
            self._settling = {of: at for of, at in self._settling.items() if of[0] != key}
            self._asked = {asked: about for asked, about in self._asked.items() if asked[0] != key}
            self._planner.forget(key)
            self._scaling.forget(key)
            self.unplaced.discard(key)
            self._settled.discard(key)
            return None
        return deployment
