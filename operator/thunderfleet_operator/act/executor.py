"""Carries out the decision of one round for one ModelDeployment: first what it takes from others, then the rest.

A round may be cut short or repeated: what it finds undone it does, what it finds done it leaves alone.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment, ModelDeploymentStatus
from thunderfleet_crds.names import ANNOTATION_HASH, API_VERSION, MODELDEPLOYMENT_KIND
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib import logs
from thunderfleet_lib.kube import ApiError, Json, key_of

from thunderfleet_operator.act import refusals
from thunderfleet_operator.act.batches import in_batches
from thunderfleet_operator.act.controllers.mac import MacController
from thunderfleet_operator.act.drains import Drains
from thunderfleet_operator.act.group_client import GroupClient
from thunderfleet_operator.act.keys import KeyPair, group_keys, secret_name, unsigned_group_keys
from thunderfleet_operator.act.pacing import Pacing
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
from thunderfleet_operator.decide.group.cables import connections
from thunderfleet_operator.decide.manifests import PodSettings, transport
from thunderfleet_operator.decide.routing.endpoints import is_headless
from thunderfleet_operator.decide.status.events import occurrences
from thunderfleet_operator.decide.status.outcome import Blocked
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.observe.objects.metadata import annotation
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.objects.plans import Epoch, GroupView, read_epoch
from thunderfleet_operator.observe.objects.pods import Pod, read_pod
from thunderfleet_operator.observe.objects.proofs import Keyring, Proof
from thunderfleet_operator.observe.observed import ServiceView
from thunderfleet_operator.placement import Fleet
from thunderfleet_operator.watch.cache import CACHES, CONFIGMAPS, DEPLOYMENTS, ENDPOINT_SLICES, PODS, SECRETS, SERVICES

log = logging.getLogger(__name__)

RESTORE_SECONDS = 10.0
"""Minimum interval between two writes of the same Service or EndpointSlice, in case another program keeps undoing them."""
CHECK_SECONDS = 10.0
"""How long after its first round this process checks that the Secrets of running groups still exist."""
NAMES_TRIED = 8
"""Number of epochs that are tried if other objects have their names, such as those of a deleted ModelDeployment."""


class Placed(NamedTuple):
    """What a round has taken."""

    plans: Mapping[int, Epoch | Blocked] = {}
    """By group, the placement that was written, or why it could not be."""
    cache: ApiError | None = None
    """Why the ModelCache was not written."""


class Done(NamedTuple):
    """The result of a round."""

    recheck_seconds: float | None
    """Seconds until the next round although nothing may have changed."""
    unplaced: bool
    """Whether a group could not be placed or created."""


class Executor:
    """``keys`` returns the operator's keys. ``later`` is called with a ModelDeployment whose Secrets are to be checked."""

    def __init__(
        self,
        writer: Writer,
        groups: GroupClient,
        macs: MacController,
        drains: Drains,
        metrics: Metrics,
        settings: PodSettings,
        keys: Callable[[], Keyring],
        later: Callable[[str], None],
        pacing: Pacing,
    ) -> None:
        self._writer = writer
        self._pacing = pacing
        self._groups = groups
        self._macs = macs
        self._drains = drains
        self._metrics = metrics
        self._settings = settings
        self._keys = keys
        self._later = later
        self._secrets: set[str] = set()
        """Secrets that this process has created or found, as ``namespace/name``."""
        self._unchecked: dict[str, dict[int, Epoch]] = {}
        """Placements that have their pods, and whose Secret this process has not seen, by ModelDeployment and group."""
        self._pairs: dict[str, dict[int, tuple[Epoch, KeyPair | None]]] = {}
        """The keys of placements, by ModelDeployment and group. Every round needs them, and deriving them costs a signature."""
        self._written: dict[tuple[str, str], tuple[str, float]] = {}
        """The Services and EndpointSlices that this process has written, and when, by ModelDeployment and kind."""

    async def place(self, decision: Decision) -> Placed:
        """What other rounds may take too: quarantines, placements, and the ModelCache. For one round at a time.

        Raises ApiError. What was written before stays: the next round goes on from there.
        """
        deployment = decision.deployment
        for failure, group in decision.quarantines:
            await self._macs.quarantine(failure, group)
        plans: dict[int, Epoch | Blocked] = {}
        for group_decision in decision.groups:
            view, placement = group_decision.view, group_decision.placement
            if placement is not None:
                with logs.fields(group=view.index):
                    plans[view.index] = await self._plan(deployment, view, placement)
        try:
            await self._cache(decision)
        except ApiError as error:
            if error.unanswered:
                raise
            # The groups come first.
            return Placed(plans, error)
        return Placed(plans)

    async def carry_out(self, key: str, decision: Decision, placed: Placed) -> Done:
        """Everything else that was decided. ``placed``: what ``place`` has returned for the decision. Raises ApiError."""
        deployment = decision.deployment
        results: dict[int, Result] = {}
        for ending in decision.ending:
            results[ending.view.index] = Result(deleted=await self._delete_pods(deployment, ending.delete))
        for group in decision.groups:
            with logs.fields(group=group.view.index):
                written = placed.plans.get(group.view.index)
                results[group.view.index] = await self._group(deployment, group, written, decision.observed.nodes)
        replaced = [group.view.epoch for group in decision.groups if results[group.view.index].epoch is not None]
        unverified = [epoch for epoch in replaced if epoch is not None and not epoch.proven]
        await self._collect(deployment, (*decision.collect, *unverified))
        service, later = await self._front(key, deployment, decision)
        if placed.cache is not None:
            raise placed.cache
        views = views_after(decision, results)
        self.listen(key, views, decision.observed.fleet)
        put_off = await self._status(key, deployment, status_after(decision, results, service))
        rechecks = [*self._drain(key, decision), decision.recheck_seconds, later, put_off]
        await self._macs.settle(decision.nodes.union(*(view.nodes for view in views.values())))
        blocked = any(result.blocked for result in results.values())
        if blocked or service is not None:
            rechecks.append(BLOCKED_SECONDS)
        if any(pod is None for result in results.values() for pod in result.deleted.values()):
            # A pod that was gone at once makes room, and no event about it follows.
            rechecks.append(0.0)
        recheck = min((seconds for seconds in rechecks if seconds is not None), default=None)
        return Done(recheck, blocked or any(group.unplaceable or group.planning for group in decision.groups))

    def listen(self, key: str, views: Mapping[int, GroupView], fleet: Fleet) -> None:
        """Polls every group that has a rank 0, also while its pods terminate: it reports when it has drained."""
        plans: dict[int, tuple[Plan, KeyPair]] = {}
        cables: dict[int, str] = {}
        known, pairs = self._pairs.get(key, {}), dict[int, tuple[Epoch, KeyPair | None]]()
        for index, view in views.items():
            pair = None
            if view.epoch is not None:
                # A placement that is read once more, as after a change of the operator's keys, is another value.
                same = index in known and known[index][0] is view.epoch
                pair = known[index][1] if same else self._pair(view.epoch)
                pairs[index] = view.epoch, pair
            if view.plan is not None and pair is not None and any(pod.rank == 0 for pod in view.pods):
                plans[index] = (view.plan, pair)
                cables[index] = connections(view.plan, fleet)
        self._pairs[key] = pairs
        self._groups.listen(key, plans, cables)

    def forget(self, key: str) -> None:
        """Stops polling the groups of a ModelDeployment that has been deleted."""
        self._groups.listen(key, {})
        self._pairs.pop(key, None)
        self._unchecked.pop(key, None)
        self._pacing.forget(key)
        self._drains.keep(key, frozenset())
        self._written = {name: written for name, written in self._written.items() if name[0] != key}

    def _pair(self, epoch: Epoch) -> KeyPair | None:
        """The keys of a placement; None if they cannot be derived any more."""
        if epoch.proven:
            return group_keys(self._master(epoch), epoch.plan)
        oldest = self._keys().oldest
        return unsigned_group_keys(oldest, epoch.plan) if epoch.finding.proof is Proof.NONE and oldest is not None else None

    def _master(self, epoch: Epoch) -> bytes:
        """The key that the placement was signed with."""
        key = self._keys().key(epoch.finding.key_id)
        if key is None:
            raise ValueError(
                f"the operator no longer has the key that signed ConfigMap {epoch.plan.namespace}/{epoch.config_map}"
            )
        return key

    # --- one group ---------------------------------------------------------------------------------------------------

    async def _plan(self, deployment: ModelDeployment, view: GroupView, placement: NewPlacement) -> Epoch | Blocked:
        """Writes a placement. Why it is refused, if it is."""
        try:
            epoch = await self._write_plan(deployment, view, placement)
        except ApiError as error:
            if error.status not in (403, 409):
                raise
            return refusals.of_plan(placement.plan, error)
        plan = epoch.plan
        where = ", ".join(rank.node for rank in plan.ranks)
        log.info("%s: placed epoch %d on %s", plan.group, plan.epoch, where, extra=logs.about(epoch=plan.epoch))
        self._metrics.placements.labels(transport(plan).value).inc()
        return epoch

    async def _group(
        self, deployment: ModelDeployment, decision: GroupDecision, written: Epoch | Blocked | None, nodes: Mapping[str, Node]
    ) -> Result:
        """A new placement (``written``) replaces all pods together; else missing pods are created, and old ones deleted."""
        if isinstance(written, Blocked):
            return Result(blocked=written)
        epoch = written or (decision.view.epoch if decision.plan is not None else None)
        deleted = await self._delete_pods(deployment, decision.delete)
        if epoch is None:
            return Result(deleted=deleted)
        if not decision.create and written is None:
            self._check_later(epoch)
            return Result(deleted=deleted)
        created, blocked = await self._create(deployment, epoch, decision.create, nodes)
        return Result(written, created, deleted, blocked)

    async def _create(
        self, deployment: ModelDeployment, epoch: Epoch, ranks: tuple[int, ...], nodes: Mapping[str, Node]
    ) -> tuple[tuple[Pod, ...], Blocked | None]:
        """Creates the Secret and then these pods of a placement. The pods; why there are no more if one was refused."""
        # Both before the pods: agents stop measuring on these Macs first.
        settled, secret = await asyncio.gather(
            self._macs.settle(rank.node for rank in epoch.plan.ranks if ranks),
            self._create_secret(epoch),
            return_exceptions=True,
        )
        if settled is not None:
            raise settled
        error, found = _refusal([secret]), list[Pod | BaseException]()
        if error is None:
            found = await in_batches(partial(self._create_pod, deployment, epoch, nodes=nodes), ranks)
            error = _refusal(found)
        created = tuple(one for one in found if isinstance(one, Pod))
        if error is None or ranks:
            return created, refusals.of_pods(epoch.plan, error) if error is not None else None
        _refused(epoch, error)
        return created, None

    def _check_later(self, epoch: Epoch) -> None:
        """Has the Secret of a placement checked in a round of its own: its pods run with the Secret that they have."""
        if self._secret_of(epoch) in self._secrets:
            return
        plan = epoch.plan
        key = f"{plan.namespace}/{plan.deployment}"
        self._unchecked.setdefault(key, {})[plan.index] = epoch
        self._later(key)

    async def check_secrets(self, key: str) -> None:
        """Creates the Secrets of a ModelDeployment's groups again if they were deleted. Raises ApiError."""
        unchecked = self._unchecked.get(key, {})
        for index, epoch in list(unchecked.items()):
            try:
                await self._create_secret(epoch)
            except ApiError as error:
                if error.status not in (403, 422):
                    raise
                _refused(epoch, error)
            if unchecked.get(index) is epoch:
                del unchecked[index]

    async def _write_plan(self, deployment: ModelDeployment, view: GroupView, placement: NewPlacement) -> Epoch:
        """Writes the plan under the next epoch whose name is free. Raises ApiError (409) if too many are taken."""
        plan = placement.plan
        while True:
            admitted = manifests.admitting(plan, self._keys())
            manifest = manifests.config_map(deployment, admitted, placement.spec_hash, placement.reason, self._keys())
            try:
                answer = await self._writer.create(CONFIGMAPS, manifest)
            except ApiError as error:
                # The operator watches only ConfigMaps with its label: another one may have the name.
                if error.status != 409 or plan.epoch > view.last_epoch + NAMES_TRIED:
                    raise
                plan = manifests.renumbered(plan, plan.epoch + 1)
                continue
            epoch = read_epoch(answer, self._keys())
            if epoch is None or not epoch.proven:
                name = f"ConfigMap {plan.namespace}/{plan.name}"
                raise ValueError(f"{name} was changed while it was created: check the mutating webhooks of the cluster")
            return epoch

    async def _create_secret(self, epoch: Epoch) -> None:
        """Creates a placement's keys, once in the life of this process: they are derived, so the bytes never change."""
        plan, master = epoch.plan, self._master(epoch)
        if (key := self._secret_of(epoch)) in self._secrets:
            return
        name = secret_name(master, plan)
        pair = group_keys(master, plan)
        try:
            await self._writer.create(SECRETS, manifests.secret(plan, epoch.uid, name, pair.certificate, pair.key))
        except ApiError as error:
            # No other client can predict the name: an earlier round has created it.
            if error.status != 409:
                raise
        self._secrets.add(key)

    def _secret_of(self, epoch: Epoch) -> str:
        """The ``namespace/name`` of a placement's Secret."""
        return f"{epoch.plan.namespace}/{secret_name(self._master(epoch), epoch.plan)}"

    async def _create_pod(self, deployment: ModelDeployment, epoch: Epoch, rank: int, nodes: Mapping[str, Node]) -> Pod:
        plan = epoch.plan
        name = secret_name(self._master(epoch), plan)
        node = nodes.get(plan.ranks[rank].node)
        counts = node is not None and node.counts_gpu_memory
        manifest = manifests.pod(deployment, plan, rank, self._settings, name, self._keys(), gpu_memory=counts)
        try:
            return read_pod(await self._writer.create(PODS, manifest), self._keys())
        except ApiError as error:
            if error.status == 409 and not self._writer.knows(PODS, key_of(manifest)):
                # The cache is behind; the pod may be the operator's.
                raise ApiError(
                    503, "Conflict", f"pod {key_of(manifest)} exists, but is not in the operator's cache yet"
                ) from error
            raise

    async def _delete_pods(self, deployment: ModelDeployment, pods: Iterable[Pod]) -> dict[str, Pod | None]:
        """By name, each pod as it terminates; None if it is gone."""
        found: dict[str, Pod | None] = {}
        for pod in pods:
            left = await self._writer.delete(PODS, deployment.metadata.namespace, pod.name, pod.uid)
            found[pod.name] = read_pod(left, self._keys()) if left is not None else None
        return found

    # --- the deployment ----------------------------------------------------------------------------------------------

    async def _collect(self, deployment: ModelDeployment, epochs: Iterable[Epoch]) -> None:
        """Deletes old plans; the garbage collector deletes their Secrets."""
        for epoch in epochs:
            await self._writer.delete(CONFIGMAPS, deployment.metadata.namespace, epoch.config_map, epoch.uid)
            if epoch.proven:
                self._secrets.discard(self._secret_of(epoch))
                self._unchecked.get(f"{epoch.plan.namespace}/{epoch.plan.deployment}", {}).pop(epoch.plan.index, None)

    async def _front(self, key: str, deployment: ModelDeployment, decision: Decision) -> tuple[Blocked | None, float | None]:
        """Writes the Service and its EndpointSlice. Why there is no Service; seconds until one of them is restored."""
        known = decision.observed.service
        # One with another hash is of another version, and was not changed by others.
        edited = (
            known is not None and decision.service is not None and known.hash == annotation(decision.service, ANNOTATION_HASH)
        )
        later = self._restored_later(key, decision.service) if edited else None
        service = None if later else await self._service(deployment, decision)
        if later is None and service is None and decision.service is not None:
            self._note(key, decision.service)
        if service is None and decision.endpoint_slice is not None:
            wait = self._restored_later(key, decision.endpoint_slice)
            if wait is None:
                await self._endpoint_slice(key, decision.endpoint_slice)
                self._note(key, decision.endpoint_slice)
            later = later or wait
        return service, later

    def _restored_later(self, key: str, manifest: Json | None) -> float | None:
        """Seconds until a manifest that was just written may be written again."""
        text, at = self._written.get((key, str(manifest["kind"])), ("", 0.0)) if manifest is not None else ("", 0.0)
        left = at + RESTORE_SECONDS - time.monotonic()
        return left if text and left > 0 and text == json.dumps(manifest, sort_keys=True) else None

    def _note(self, key: str, manifest: Json) -> None:
        self._written[key, str(manifest["kind"])] = json.dumps(manifest, sort_keys=True), time.monotonic()

    async def _service(self, deployment: ModelDeployment, decision: Decision) -> Blocked | None:
        """Creates or updates the Service. Why there is none, if it cannot."""
        manifest, meta = decision.service, deployment.metadata
        text = (
            f"Service {meta.namespace}/{meta.name} exists, and the operator did not create it: the groups serve at "
            "status.groups[].endpoint, but no Service selects them; delete that Service, or create this ModelDeployment under "
            "another name"
        )
        taken = Blocked(Reason.NAME_TAKEN, text)
        if manifest is None:
            return taken if decision.service_taken else None
        try:
            if "uid" in manifest["metadata"]:
                await self._update_service(manifest, decision.observed.service)
            else:
                await self._writer.create(SERVICES, manifest)
        except ApiError as error:
            if error.status == 409:
                return taken
            if error.status not in (403, 422):
                raise
            return Blocked(Reason.FORBIDDEN, f"the API server rejected Service {meta.namespace}/{meta.name}: {error.message}")
        return None

    async def _update_service(self, manifest: Json, known: ServiceView | None) -> None:
        """A Service cannot get an address once it is headless, or lose it, except by way of the type ExternalName.

        The API server refuses to take an address away. It accepts a manifest that names none, and leaves the Service headless.
        """
        turns = known is not None and is_headless(known.spec) != is_headless(manifest["spec"])
        if not turns:
            try:
                await self._apply_service(manifest)
                return
            except ApiError as error:
                if error.status != 422:
                    raise
        between = {"type": "ExternalName", "externalName": "kubernetes.default.svc"}
        await self._writer.apply(SERVICES, {**manifest, "spec": between})
        await self._apply_service(manifest)

    async def _apply_service(self, manifest: Json) -> None:
        """An apply leaves the ports that another manager has set: somebody, or the request that created the Service."""
        ports = manifest["spec"].get("ports", [])
        found = await self._writer.apply(SERVICES, manifest)
        if len(found["spec"].get("ports") or []) != len(ports):
            await self._writer.merge(SERVICES, manifest, {"spec": {"ports": ports}})

    async def _endpoint_slice(self, key: str, manifest: Json) -> None:
        """Writes where the Service leads."""
        try:
            await self._writer.apply(ENDPOINT_SLICES, manifest)
        except ApiError as error:
            if error.status not in (403, 422):
                raise
            log.warning("cannot write the EndpointSlice of Service %s: %s", key, error)

    async def _cache(self, decision: Decision) -> None:
        """Creates or changes the ModelCache of the deployment."""
        if decision.cache is None:
            return
        if decision.observed.weights.cache is None:
            try:
                await self._writer.create(CACHES, decision.cache)
            except ApiError as error:
                # The cache is behind: the next round reads it.
                if error.status != 409:
                    raise
        else:
            await self._writer.apply(CACHES, decision.cache)

    async def _status(self, key: str, deployment: ModelDeployment, status: ModelDeploymentStatus) -> float | None:
        """Writes the status if it differs, and an Event for each change that is worth one.

        Seconds until it can be written, if it was put off.
        """
        if status == deployment.status:
            return None
        left = self._pacing.left(key, deployment.status, status)
        if left > 0:
            return left
        metadata = {"name": deployment.metadata.name, "namespace": deployment.metadata.namespace}
        body: Json = {"apiVersion": API_VERSION, "kind": MODELDEPLOYMENT_KIND, "metadata": metadata, "status": status.dump()}
        try:
            await self._writer.apply_status(DEPLOYMENTS, body)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        self._pacing.wrote(key, deployment.status, status)
        for occurrence in occurrences(deployment.status, status):
            self._writer.event(deployment, occurrence)
        return None

    def _drain(self, key: str, decision: Decision) -> list[float | None]:
        """Drains after the status has been written, so that readers of ``status.endpoint`` have moved on."""
        ending = [group.view for group in decision.ending if group.drain]
        replaced = [group.view for group in decision.groups if group.drain]
        rechecks: list[float | None] = [*self._drains.start(key, ending, notice=True)]
        rechecks += self._drains.start(key, replaced, notice=decision.deployment.wanted_groups > 1)
        self._drains.keep(key, {view.index for view in replaced} | {group.view.index for group in decision.ending})
        return rechecks


def _refusal(found: Sequence[object]) -> ApiError | None:
    """The first answer that refuses an object, among results. Raises whatever else went wrong: that may pass by itself."""
    failures = [one for one in found if isinstance(one, BaseException)]
    for failure in failures:
        if not isinstance(failure, ApiError) or failure.status not in (403, 409, 422):
            raise failure
    return next((failure for failure in failures if isinstance(failure, ApiError)), None)


def _refused(epoch: Epoch, error: ApiError) -> None:
    """Logs that the Secret of a group cannot be created. Its pods run with the Secret that they have."""
    extra = logs.about(epoch=epoch.number)
    log.warning("%s: cannot create the Secret of epoch %d: %s", epoch.plan.group, epoch.number, error, extra=extra)
