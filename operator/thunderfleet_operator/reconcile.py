"""One round for one ModelDeployment: observe once, decide once, carry out once."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from thunderfleet_crds.modeldeployment import ModelDeployment
from thunderfleet_crds.vocabulary import GroupPhase

from thunderfleet_operator.act.drains import Drains
from thunderfleet_operator.act.executor import Executor
from thunderfleet_operator.act.group_client import GroupClient
from thunderfleet_operator.decide.deployment import Settings, decide
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.observed import Advice, Observed
from thunderfleet_operator.observe.reader import groups_of, observe_deployment

log = logging.getLogger(__name__)

FIRST_ANSWER_SECONDS = 5.0
"""How long the first answers of a deployment's groups are waited for, such as after a restart of the operator."""


class Reconciler:
    """``clock`` is UTC now."""

    def __init__(
        self,
        index: Index,
        groups: GroupClient,
        drains: Drains,
        executor: Executor,
        metrics: Metrics,
        settings: Settings,
        clock: Callable[[], datetime],
    ) -> None:
        self._index = index
        self._groups = groups
        self._drains = drains
        self._executor = executor
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._advice: dict[str, Mapping[int, Advice]] = {}
        self.unplaced: set[str] = set()
        """ModelDeployments that wait for a place: whatever ends or joins may make one."""

    async def deployment(self, key: str) -> float | None:
        """One round. Seconds until the next although nothing may have changed."""
        observed = await self._observe(key)
        if observed is None:
            return None
        decision = decide(observed, self._settings)
        done = await self._executor.carry_out(key, decision)
        self._advice[key] = decision.advice
        if done.unplaced:
            self.unplaced.add(key)
        else:
            self.unplaced.discard(key)
        self._count_groups()
        return done.recheck_seconds

    async def _observe(self, key: str) -> Observed | None:
        """Everything that the round reads, once every group has been asked for its state; None if there is nothing to do."""
        deployment = self._deployment(key)
        if deployment is None:
            return None
        self._executor.listen(key, groups_of(self._index, deployment))
        await self._groups.first_answers(key, FIRST_ANSWER_SECONDS)
        # Objects may have changed during the wait; from here on nothing is awaited until the round has decided.
        deployment = self._deployment(key)
        if deployment is None:
            return None
        return observe_deployment(
            self._index,
            deployment,
            self._clock(),
            report=lambda view: self._groups.report(key, view.index, view.epoch.number if view.epoch else 0),
            draining_seconds=lambda view: self._drains.seconds(key, view),
            advice=self._advice.get(key, {}),
        )

    def _deployment(self, key: str) -> ModelDeployment | None:
        """The ModelDeployment; None, and everything about it is forgotten, if it has been deleted."""
        deployments = self._index.deployments
        deployment = deployments.get(key)
        if key in deployments and deployment is None:
            log.error("ModelDeployment %s does not match the schema of this version; update the CRDs (helm upgrade)", key)
            return None
        if deployment is None or deployment.metadata.deletion_timestamp is not None:
            # The garbage collector deletes the children, by their owner references.
            self._executor.forget(key)
            self._advice.pop(key, None)
            self.unplaced.discard(key)
            self._count_groups()
            return None
        return deployment

    def _count_groups(self) -> None:
        counts = dict.fromkeys((stage.value for stage in GroupPhase), 0)
        for deployment in self._index.deployments.values():
            for group in deployment.status.groups if deployment is not None else ():
                counts[group.state.value] += 1
        for stage, count in counts.items():
            self._metrics.groups.labels(stage).set(count)
