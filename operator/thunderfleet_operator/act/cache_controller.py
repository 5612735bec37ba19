"""One round for one ModelCache: pods that read from the hub, and the status."""

import logging
import time
from collections.abc import Callable
from datetime import datetime

from thunderfleet_crds.modelcache import ModelCache, ModelCacheStatus
from thunderfleet_crds.names import API_VERSION, MODELCACHE_KIND
from thunderfleet_lib.kube import ApiError, Json

from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.weights import cache as caches
from thunderfleet_operator.decide.weights import manifests
from thunderfleet_operator.decide.weights.cache import CacheDecision
from thunderfleet_operator.decide.weights.manifests import HubSettings
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.proofs import Keyring
from thunderfleet_operator.observe.reader import observe_cache
from thunderfleet_operator.watch.cache import CACHES, PODS

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0
"""How often at most a status is written in which only progress has changed."""
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
        decision = caches.decide(observed)
        for pod in decision.delete:
            await self._writer.delete(PODS, pod.namespace, pod.name, pod.uid)
        problem = await self._create(observed.cache, decision)
        status = decision.status if problem is None else _refused(decision.status, problem)
        wait = await self._write(key, observed.cache, status)
        times = [seconds for seconds in (decision.recheck_seconds, wait) if seconds is not None]
        return min(times, default=None)

    async def _create(self, cache: ModelCache, decision: CacheDecision) -> str | None:
        """Creates the pod. Why the API server refuses it, if so."""
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
        """Writes the status if it differs; seconds until progress may be written, if it was too early for it."""
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


def _refused(status: ModelCacheStatus, problem: str) -> ModelCacheStatus:
    conditions = tuple(
        one if one.status == "True" else one.model_copy(update={"reason": "DownloadFailed", "message": problem})
        for one in status.conditions
    )
    return status.model_copy(update={"conditions": conditions})
