"""Writing to the API server: server-side apply under one field manager, deletes that name the UID, and nothing else.

Every answer goes into the cache at once, so the next decision sees what this one did.
"""

import logging
from collections.abc import Callable

from thunderfleet_crds.names import MANAGED_BY
from thunderfleet_lib.kube import ApiError, Json, Kube, key_of

from thunderfleet_operator.act import events
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.watch.cache import Cache, Collection

log = logging.getLogger(__name__)

FIELD_MANAGER = MANAGED_BY


class NotLeading(Exception):
    """The lease ran out between decision and act: another replica may be writing."""


class Actor:
    """``instance`` is this replica's name, for Events."""

    def __init__(self, kube: Kube, cache: Cache, metrics: Metrics, leading: Callable[[], bool], instance: str) -> None:
        self._kube = kube
        self._instance = instance
        self._cache = cache
        self._metrics = metrics
        self._leading = leading

    def _counted(self, resource: str, verb: str) -> None:
        if not self._leading():
            raise NotLeading(f"{verb} of {resource} left to the replica that leads now")
        self._metrics.writes.labels(resource, verb).inc()

    async def apply(self, collection: Collection, manifest: Json) -> Json:
        """Applies one object of ours; what is cached is updated."""
        self._counted(collection.name, "apply")
        meta = manifest["metadata"]
        path = collection.item(meta.get("namespace"), meta["name"])
        answer = await self._kube.apply(path, manifest, FIELD_MANAGER)
        if collection.name in self._cache.stores:
            self._cache[collection].put(answer)
        log.info("applied %s %s", collection.name, key_of(manifest))
        return answer

    async def apply_status(self, collection: Collection, manifest: Json) -> None:
        """Applies ``manifest`` (name, status) to the status subresource of an object that exists."""
        self._counted(collection.name, "apply-status")
        meta = manifest["metadata"]
        path = collection.item(meta.get("namespace"), meta["name"]) + "/status"
        self._cache[collection].put(await self._kube.apply(path, manifest, FIELD_MANAGER))

    async def patch_status(self, collection: Collection, name: str, patch: list[Json]) -> None:
        """A JSON patch of the status of a cluster-scoped object."""
        self._counted(collection.name, "patch-status")
        path = collection.item(None, name) + "/status"
        self._cache[collection].put(
            await self._kube.patch(path, patch, content="application/json-patch+json", manager=FIELD_MANAGER)
        )

    async def delete(self, collection: Collection, namespace: str | None, name: str, uid: str | None = None) -> None:
        """Deletes with the object's own grace; gone already is fine."""
        self._counted(collection.name, "delete")
        answer = await self._kube.delete(collection.item(namespace, name), uid=uid)
        if collection.name not in self._cache.stores:
            return
        store = self._cache[collection]
        key = f"{namespace}/{name}" if namespace else name
        if answer is not None and (answer.get("metadata") or {}).get("deletionTimestamp"):
            store.put(answer)
        else:
            store.forget(key)
        log.info("deleted %s %s", collection.name, key)

    async def tell(self, about: events.About, occurrence: events.Occurrence) -> None:
        """An Event. That it could not be told stops nothing."""
        self._counted("events", "create")
        try:
            body = events.manifest(about, occurrence, self._instance)
            await self._kube.create(f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body)
        except ApiError as error:
            log.warning("event %s of %s: %s", occurrence.reason, about.metadata.name, error)
