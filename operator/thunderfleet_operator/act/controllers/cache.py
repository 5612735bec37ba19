"""One round for one ModelCache: pods that read from the hub, and the status."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from thunderfleet_crds.kinds.modelcache import ModelCache, ModelCacheStatus
from thunderfleet_crds.meta.conditions import set_condition
from thunderfleet_crds.names import API_VERSION, MODELCACHE_KIND
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType
from thunderfleet_lib.kube import ApiError, Json

from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.status.progress import SEE_STALLED
from thunderfleet_operator.decide.status.verdict import MESSAGE_LENGTH, Verdict
from thunderfleet_operator.decide.weights import cache as caches
from thunderfleet_operator.decide.weights import manifests
from thunderfleet_operator.decide.weights.cache import CacheDecision
from thunderfleet_operator.decide.weights.manifests import HubSettings
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.observe.reader import observe_cache
from thunderfleet_operator.watch.cache import CACHES, PODS

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0
"""Minimum interval between statuses that differ only in progress."""
PROGRESS = frozenset({"macs", "progress", "conditions"})


class CacheController:
    """``clock`` is UTC now; ``keys`` returns the operator's keys."""

    def __init__(
        self,
        index: Index,
        writer: Writer,
        pods: PodSettings,
        hub: HubSettings,
        keys: Callable[[], Keyring],
        clock: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._writer = writer
        self._pods = pods
        self._hub = hub
        self._keys = keys
        self._clock = clock
        self._monotonic = monotonic
        self._written: dict[str, float] = {}

    async def round(self, key: str) -> float | None:
        """Seconds until the next round although nothing may have changed."""
        observed = observe_cache(self._index, key, self._clock())
        if observed is None:
            self._written.pop(key, None)
            return None
        refused = self._hub.uris.refusal(observed.cache.spec.uri)
        decision = caches.decide(replace(observed, not_allowed=refused))
        for pod in decision.delete:
            await self._writer.delete(PODS, pod.namespace, pod.name, pod.uid)
        problem = await self._create(observed.cache, decision)
        status = decision.status if problem is None else _refused(observed.cache, decision.status, problem, observed.now)
        wait = await self._write(key, observed.cache, status)
        times = [seconds for seconds in (decision.recheck_seconds, wait) if seconds is not None]
        return min(times, default=None)

    async def _create(self, cache: ModelCache, decision: CacheDecision) -> str | None:
        """Creates the pod. Returns why the API server refuses it; None if it does not."""
        if decision.create is None:
            return None
        manifest = manifests.pod(cache, decision.create, self._pods, self._hub, self._keys())
        try:
            await self._writer.create(PODS, manifest)
        except ApiError as error:
            if error.status == 409:
                # The cache is behind, or the pod before it terminates.
                return None
            if error.status not in (403, 422):
                raise
            return f"the API server rejected the pod that reads from the hub: {error.message}"
        return None

    async def _write(self, key: str, cache: ModelCache, status: ModelCacheStatus) -> float | None:
        """Writes the status if it differs. Returns the seconds until progress may be written, if it was too early."""
        if status == cache.status:
            return None
        changed = {name for name in type(status).model_fields if getattr(status, name) != getattr(cache.status, name)}
        since = self._monotonic() - self._written.get(key, float("-inf"))
        if changed <= PROGRESS and _states(status) == _states(cache.status) and since < PROGRESS_SECONDS:
            return PROGRESS_SECONDS - since
        meta = {"name": cache.metadata.name, "namespace": cache.metadata.namespace}
        body: Json = {"apiVersion": API_VERSION, "kind": MODELCACHE_KIND, "metadata": meta, "status": status.dump()}
        try:
            await self._writer.apply_status(CACHES, body)
        except ApiError as error:
            if error.status != 404:
                raise
        self._written[key] = self._monotonic()
        return None


def _states(status: ModelCacheStatus) -> object:
    """The fields that are written at once when they change."""
    macs = [(copy.node, copy.phase, copy.reason) for copy in status.macs]
    return macs, [(one.type, one.status, one.reason) for one in status.conditions]


def _refused(cache: ModelCache, status: ModelCacheStatus, problem: str, now: datetime) -> ModelCacheStatus:
    """The status if the API server refuses the pod, which a user must change."""
    about = (ConditionType.RECONCILING, ConditionType.STALLED)
    failed = Verdict(True, Reason.DOWNLOAD_FAILED, problem[:MESSAGE_LENGTH])
    # Keeps the values of the last status: the round has computed new ones as if the pod started.
    found = tuple(one for one in cache.status.conditions if one.type in about)
    for one in status.conditions:
        if one.type not in about:
            done = one.status is ConditionStatus.TRUE
            found += (one if done else one.model_copy(update={"reason": failed.reason, "message": failed.message}),)
    for kind, verdict in ((ConditionType.RECONCILING, SEE_STALLED), (ConditionType.STALLED, failed)):
        found = set_condition(
            found, kind, verdict.status, verdict.reason, verdict.message, now=now, observed_generation=cache.metadata.generation
        )
    return status.model_copy(update={"conditions": found})
