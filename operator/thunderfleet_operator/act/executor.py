"""Carries out the decision of one round for one ModelDeployment.

A round may be cut short or repeated: what it finds undone it does, what it finds done it leaves alone.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from thunderfleet_crds.modeldeployment import ModelDeployment, ModelDeploymentStatus
from thunderfleet_crds.names import API_VERSION, MODELDEPLOYMENT_KIND
from thunderfleet_crds.plan import Plan
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.kube import ApiError, Json

from thunderfleet_operator.act.drains import Drains
from thunderfleet_operator.act.group_client import GroupClient
from thunderfleet_operator.act.keys import KeyPair, group_keys
from thunderfleet_operator.act.mac_controller import MacController
from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.decide import manifests
from thunderfleet_operator.decide.deployment import (
    BLOCKED_SECONDS,
    Decision,
    GroupDecision,
    NewPlacement,
    Result,
    status_after,
    views_after,
)
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.status.events import occurrences
from thunderfleet_operator.decide.status.group import transport
from thunderfleet_operator.decide.status.outcome import Blocked
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.observe.plans import Epoch, GroupView
from thunderfleet_operator.observe.pods import Pod, read_pod
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, PODS, SECRETS, SERVICES

log = logging.getLogger(__name__)

NAMES_TRIED = 8
"""Epochs whose names are tried when objects of a deleted ModelDeployment still have them."""


class Done(NamedTuple):
    """The result of a round."""

    recheck_seconds: float | None
    """Seconds until the next round although nothing may have changed."""
    unplaced: bool
    """Whether a group could not be placed or created."""


class Executor:
    """``master`` returns the operator's key."""

    def __init__(
        self,
        writer: Writer,
        groups: GroupClient,
        macs: MacController,
        drains: Drains,
        metrics: Metrics,
        settings: PodSettings,
        master: Callable[[], bytes],
    ) -> None:
        self._writer = writer
        self._groups = groups
        self._macs = macs
        self._drains = drains
        self._metrics = metrics
        self._settings = settings
        self._master = master
        self._secrets: set[str] = set()

    async def carry_out(self, key: str, decision: Decision) -> Done:
        """Everything that was decided."""
        deployment = decision.deployment
        for failure, group in decision.quarantines:
            await self._macs.quarantine(failure, group)
        results: dict[int, Result] = {}
        for ending in decision.ending:
            results[ending.view.index] = Result(deleted=await self._delete_pods(deployment, ending.delete))
        for group_decision in decision.groups:
            results[group_decision.view.index] = await self._group(deployment, group_decision)
        await self._collect(deployment, decision.collect)
        if decision.service is not None:
            await self._writer.apply(SERVICES, decision.service)
        views = views_after(decision, results)
        self.listen(key, views)
        await self._status(deployment, status_after(decision, results))
        rechecks = [*self._drain(key, decision), decision.recheck_seconds]
        await self._macs.settle(decision.nodes.union(*(view.nodes for view in views.values())))
        blocked = any(result.blocked for result in results.values())
        if blocked:
            rechecks.append(BLOCKED_SECONDS)
        if any(pod is None for result in results.values() for pod in result.deleted.values()):
            # A pod that was gone at once makes room, and no event about it follows.
            rechecks.append(0.0)
        recheck = min((seconds for seconds in rechecks if seconds is not None), default=None)
        return Done(recheck, blocked or any(group.unplaceable or group.planning for group in decision.groups))

    def listen(self, key: str, views: Mapping[int, GroupView]) -> None:
        """Polls every group that has a rank 0, also while its pods terminate: it reports when it has drained."""
        plans: dict[int, tuple[Plan, KeyPair]] = {}
        for index, view in views.items():
            if view.plan is not None and any(pod.rank == 0 for pod in view.pods):
                plans[index] = (view.plan, self._keys(view.plan))
        self._groups.listen(key, plans)

    def forget(self, key: str) -> None:
        """Stops polling the groups of a ModelDeployment that has been deleted."""
        self._groups.listen(key, {})
        self._drains.keep(key, frozenset())

    def _keys(self, plan: Plan) -> KeyPair:
        return group_keys(self._master(), plan.uid, plan.index, plan.epoch)

    # --- one group ---------------------------------------------------------------------------------------------------

    async def _group(self, deployment: ModelDeployment, decision: GroupDecision) -> Result:
        """A new placement replaces all pods together; else pods that are missing are created, and old ones deleted."""
        plan = decision.plan
        if decision.placement is not None:
            try:
                plan = await self._write_plan(deployment, decision.view, decision.placement)
            except ApiError as error:
                if error.status != 403:
                    raise
                return Result(blocked=Blocked(Reason.FORBIDDEN, str(error)))
            log.info("%s: epoch %d on %s", plan.group, plan.epoch, ", ".join(rank.node for rank in plan.ranks))
            self._metrics.placements.labels(transport(plan).value).inc()
        deleted = await self._delete_pods(deployment, decision.delete)
        if plan is None:
            return Result(deleted=deleted)
        if decision.create:
            # Before the pods: agents stop measuring on these Macs first.
            await self._macs.settle(rank.node for rank in plan.ranks)
        created: list[Pod] = []
        blocked: Blocked | None = None
        try:
            await self._apply_secret(deployment, plan)
            for rank in decision.create:
                manifest = manifests.pod(deployment, plan, rank, self._settings)
                created.append(read_pod(await self._writer.apply(PODS, manifest)))
        except ApiError as error:
            if error.status not in (403, 422):
                raise
            blocked = _refused(plan, error)
        return Result(plan if decision.placement is not None else None, tuple(created), deleted, blocked)

    async def _write_plan(self, deployment: ModelDeployment, view: GroupView, placement: NewPlacement) -> Plan:
        """Writes the Secret and the plan, under the next epoch whose names are free."""
        plan = placement.plan
        while True:
            try:
                await self._apply_secret(deployment, plan)
                manifest = manifests.config_map(deployment, plan, placement.spec_hash, placement.reason)
                await self._writer.apply(CONFIGMAPS, manifest)
                return plan
            except ApiError as error:
                # The name belongs to a deleted ModelDeployment until the garbage collector runs. The operator cannot see
                # that beforehand: it reads no Secrets.
                taken = error.status == 422 and "immutable" in error.message
                if not taken or plan.epoch > view.last_epoch + NAMES_TRIED:
                    raise
                plan = manifests.renumbered(plan, plan.epoch + 1)

    async def _apply_secret(self, deployment: ModelDeployment, plan: Plan) -> None:
        """Applies a placement's keys, once in the life of this process: they are derived, so the bytes never change."""
        name = f"{plan.namespace}/{manifests.group_name(plan.deployment, plan.index, plan.epoch)}/{plan.uid}"
        if name not in self._secrets:
            pair = self._keys(plan)
            await self._writer.apply(SECRETS, manifests.secret(deployment, plan, pair.certificate, pair.key))
            self._secrets.add(name)

    async def _delete_pods(self, deployment: ModelDeployment, pods: Iterable[Pod]) -> dict[str, Pod | None]:
        """By name, each pod as it terminates; None if it is gone."""
        found: dict[str, Pod | None] = {}
        for pod in pods:
            left = await self._writer.delete(PODS, deployment.metadata.namespace, pod.name, pod.uid)
            found[pod.name] = read_pod(left) if left is not None else None
        return found

    # --- the deployment ----------------------------------------------------------------------------------------------

    async def _collect(self, deployment: ModelDeployment, epochs: Iterable[Epoch]) -> None:
        namespace = deployment.metadata.namespace
        for epoch in epochs:
            await self._writer.delete(SECRETS, namespace, epoch.config_map)
            await self._writer.delete(CONFIGMAPS, namespace, epoch.config_map)
            self._secrets.discard(f"{namespace}/{epoch.config_map}/{deployment.metadata.uid}")

    async def _status(self, deployment: ModelDeployment, status: ModelDeploymentStatus) -> None:
        """Writes the status if it differs, and an Event for each change that is worth one."""
        if status == deployment.status:
            return
        metadata = {"name": deployment.metadata.name, "namespace": deployment.metadata.namespace}
        body: Json = {"apiVersion": API_VERSION, "kind": MODELDEPLOYMENT_KIND, "metadata": metadata, "status": status.dump()}
        try:
            await self._writer.apply_status(DEPLOYMENTS, body)
        except ApiError as error:
            if error.status == 404:
                return
            raise
        for occurrence in occurrences(deployment.status, status):
            await self._writer.emit(deployment, occurrence)

    def _drain(self, key: str, decision: Decision) -> list[float | None]:
        """Drains after the status has been written, so that readers of ``status.endpoint`` have moved on."""
        ending = [group.view for group in decision.ending if group.drain]
        replaced = [group.view for group in decision.groups if group.drain]
        rechecks: list[float | None] = [*self._drains.start(key, ending, notice=True)]
        rechecks += self._drains.start(key, replaced, notice=decision.deployment.spec.replicas > 1)
        self._drains.keep(key, {view.index for view in replaced} | {group.view.index for group in decision.ending})
        return rechecks


def _refused(plan: Plan, error: ApiError) -> Blocked:
    if "violates PodSecurity" in error.message:
        command = f"kubectl label namespace {plan.namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
        return Blocked(Reason.POD_SECURITY_FORBIDDEN, f"namespace {plan.namespace} does not allow runner pods; run: {command}")
    return Blocked(Reason.POD_REFUSED, f"the API server rejected the runner pods: {error.message}")
