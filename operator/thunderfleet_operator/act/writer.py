"""Writes to the API server: creates, server-side apply under one field manager, and deletes that name the UID.

Every answer goes into the cache at once, so the next round reads the writes of this one. The watch then has no news about
them, so the writer itself reports each change.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from thunderfleet_crds.names import MANAGED_BY
from thunderfleet_lib.kube import ApiError, Json, Kube, key_of

from thunderfleet_operator.act.events import About
from thunderfleet_operator.decide.status.events import Occurrence
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.watch.cache import REQUESTS, Cache, Collection

log = logging.getLogger(__name__)

FIELD_MANAGER = MANAGED_BY

_TERM: ContextVar[int | None] = ContextVar("term", default=None)


@contextmanager
def in_term(term: int) -> Iterator[None]:
    """What is decided in this block is written in this term only."""
    token = _TERM.set(term)
    try:
        yield
    finally:
        _TERM.reset(token)


class NotLeading(Exception):
    """The Lease has expired since the decision: another replica may be writing, or has written meanwhile."""


Changed = Callable[[Collection, str, Json | None, Json | None], None]
"""Called with the collection, the key, and the object before and after its change; None: no such object."""


class Writer:
    """Writes while this replica leads, and a round only in the term in which it began.

    ``term`` returns the number of this replica's term, 0 while it does not lead. ``event`` has an Event written. ``missing`` is
    called when a status is written to an object that is not found: the cache may still have it.
    """

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        metrics: Metrics,
        term: Callable[[], int],
        changed: Changed,
        event: Callable[[About, Occurrence], None],
        missing: Callable[[Collection], None] = lambda collection: None,
    ) -> None:
        self._kube = kube
        self._changed = changed
        self._cache = cache
        self._metrics = metrics
        self._term = term
        self.event = event
        self._missing = missing

    def _counted(self, resource: str, verb: str) -> None:
        term, began = self._term(), _TERM.get()
        if not term:
            raise NotLeading(f"no longer the leader; skipped {verb} of {resource}")
        if began is not None and began != term:
            # What that replica wrote was not considered.
            raise NotLeading(f"another replica may have led since this was decided; skipped {verb} of {resource}")
        self._metrics.writes.labels(resource, verb).inc()

    async def create(self, collection: Collection, manifest: Json) -> Json:
        """Creates an object and returns it. Raises ApiError (409) if the name is taken; that object is left as it is."""
        self._counted(collection.name, "create")
        answer = await self._kube.create(collection.folder(manifest["metadata"]["namespace"]), manifest)
        self._put(collection, answer)
        log.info("created %s %s", collection.name, key_of(manifest))
        return answer

    def knows(self, collection: Collection, key: str) -> bool:
        """Whether the cache has an object of this ``namespace/name``."""
        return key in self._cache[collection].items

    async def apply(self, collection: Collection, manifest: Json) -> Json:
        """Applies an object and returns it as the API server has it now."""
        self._counted(collection.name, "apply")
        meta = manifest["metadata"]
        path = collection.item(meta.get("namespace"), meta["name"])
        answer = await self._kube.apply(path, manifest, FIELD_MANAGER)
        self._put(collection, answer)
        log.info("applied %s %s", collection.name, key_of(manifest))
        return answer

    async def merge(self, collection: Collection, manifest: Json, patch: Json) -> None:
        """Replaces what ``patch`` has of the object with the name and UID of ``manifest``; lists are replaced whole."""
        self._counted(collection.name, "patch")
        meta = manifest["metadata"]
        path = collection.item(meta.get("namespace"), meta["name"])
        body = {"metadata": {"uid": meta["uid"]}, **patch}
        self._put(collection, await self._kube.patch(path, body, manager=FIELD_MANAGER))
        log.info("patched %s %s", collection.name, key_of(manifest))

    async def apply_status(self, collection: Collection, manifest: Json) -> None:
        """Applies ``manifest`` (name and status) to the status of an object that exists."""
        self._counted(collection.name, "apply-status")
        meta = manifest["metadata"]
        path = collection.item(meta.get("namespace"), meta["name"]) + "/status"
        try:
            answer = await self._kube.apply(path, manifest, FIELD_MANAGER)
        except ApiError as error:
            if error.status == 404:
                self._missing(collection)
            raise
        self._put(collection, answer)

    async def patch_status(self, collection: Collection, name: str, patch: list[Json]) -> None:
        """Applies a JSON patch to the status of a cluster-scoped object."""
        self._counted(collection.name, "patch-status")
        path = collection.item(None, name) + "/status"
        answer = await self._kube.patch(path, patch, content="application/json-patch+json", manager=FIELD_MANAGER)
        self._put(collection, answer)

    async def patch_approval(self, name: str, patch: Json) -> None:
        """Applies a merge patch to the subresource ``approval`` of a certificate request."""
        self._counted(REQUESTS.name, "patch-approval")
        path = REQUESTS.item(None, name) + "/approval"
        self._put(REQUESTS, await self._kube.patch(path, patch, manager=FIELD_MANAGER))

    def forget(self, collection: Collection, key: str, uid: str) -> None:
        """Removes an object from the cache that a write found missing."""
        store = self._cache[collection]
        before = store.items.get(key)
        if store.forget(key, uid):
            self._changed(collection, key, before, None)

    def _put(self, collection: Collection, item: Json) -> None:
        if collection.name not in self._cache.stores:
            return
        key, store = key_of(item), self._cache[collection]
        before = store.items.get(key)
        if store.put(item):
            self._changed(collection, key, before, item)

    async def delete(self, collection: Collection, namespace: str | None, name: str, uid: str) -> Json | None:
        """Deletes exactly this object, with its own grace period. Returns the terminating object; None if it is gone."""
        self._counted(collection.name, "delete")
        answer = await self._kube.delete(collection.item(namespace, name), uid=uid)
        key = f"{namespace}/{name}" if namespace else name
        left = answer if answer is not None and (answer.get("metadata") or {}).get("deletionTimestamp") else None
        if collection.name in self._cache.stores:
            if left is not None:
                self._put(collection, left)
            else:
                self.forget(collection, key, uid)
            log.info("deleted %s %s", collection.name, key)
        return left
