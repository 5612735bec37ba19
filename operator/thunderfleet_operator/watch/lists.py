"""Lists that correct the cache where kopf reports no events.

The first lists fill the cache before the first round. Later, kopf lists a kind again after each broken watch, but reports no
deletion that happened meanwhile: one list of the metadata finds those. If kopf's list is empty, nothing tells that it has
listed; then a write that finds its object missing asks for that list.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from thunderfleet_lib.kube import ApiError, Json, Kube, key_of

from thunderfleet_operator.watch.cache import CACHED, LINKS, Cache, Collection, unpacked

log = logging.getLogger(__name__)

RELIST_SECONDS = 2.0
"""The metadata is listed this long after the last event of kopf's own list."""
LOOK_SECONDS = 1.0
"""How often it is checked whether that is due."""
RETRY_SECONDS = 2.0
FILLED_AT_ONCE = 3
"""How many kinds the first lists read at once. The API server answers each page a few hundredths of a second late, because it
waits until its own cache is current. More kinds at once would need more memory: users can fill the pages of some of them."""
AGAIN_SECONDS = 600.0
"""Links are listed again after this long while some are not kept: others of the Mac may have been deleted since. Those that two
such lists in a row do not keep are deleted."""
LEFT_LINKS = 4096
"""Number of links without a place that are remembered from one such list to the next, and so deleted at most."""

Changed = Callable[[Collection, str, Json | None, Json | None], None]
"""Called with the collection, the ``namespace/name``, and the object before and after; None: there is none."""
Remove = Callable[[str, str], Awaitable[object]]
"""Deletes a link by name and UID. Raises ApiError."""


async def _remove_nothing(name: str, uid: str) -> None:
    """Leaves the link."""


class Lists:
    """``changed`` is called for everything that a list changes in the cache, ``remove`` for links that nobody else deletes."""

    def __init__(self, kube: Kube, cache: Cache, changed: Changed, remove: Remove = _remove_nothing) -> None:
        self._kube = kube
        self._cache = cache
        self._changed = changed
        self._remove = remove
        self._left: dict[str, str] = {}
        """Links that the last list of links did not keep: name and UID."""
        self._relisted: dict[str, float] = {}
        self._links_listed = time.monotonic()
        self._refilling = asyncio.Lock()
        self._begun = self._complete = 0
        """Numbers of the last refill that has begun, and of the last one that is complete."""

    async def fill(self) -> None:
        """Fills the cache. Waits for missing CRDs and permissions, and logs which are missing.

        ``changed`` is not called: no key is being worked on yet, and all keys are queued afterwards.
        """
        turns = asyncio.Semaphore(FILLED_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                for collection in CACHED:
                    group.create_task(self._fill_first(collection, turns))
        except ExceptionGroup as errors:
            # The group only says how many errors there are. The operator ends with what this one says.
            raise errors.exceptions[0] from errors

    async def _fill_first(self, collection: Collection, turns: asyncio.Semaphore) -> None:
        while True:
            try:
                async with turns:
                    await self._fill(collection, tell=False)
                return
            except ApiError as error:
                advice = (
                    "; the CRD is missing: run helm upgrade with the chart, which contains it" if error.status == 404 else ""
                )
                log.warning("cannot list %s: %s%s; retrying in %.0f s", collection.name, error, advice, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)

    async def refill(self) -> None:
        """Lists everything once more, after a write whose result is unknown. Raises ApiError.

        Of rounds that fail together each requests one: a list that begins after their requests serves all of them.
        """
        asked = self._begun
        async with self._refilling:
            if self._complete > asked:
                return
            self._begun = number = self._begun + 1
            for collection in CACHED:
                await self._fill(collection, tell=True)
            self._complete = number

    async def _fill(self, collection: Collection, *, tell: bool) -> dict[str, str]:
        """Reads a list page by page into the cache, because all pages of a large fleet are several times as large as the cache.

        ``tell``: whether ``changed`` is called. Returns the first objects that the cache does not keep: key and UID.
        """
        left: dict[str, str] = {}
        store = self._cache[collection]
        keys: set[str] = set()
        version = ""
        async for page in self._kube.pages(collection.path, collection.query):
            version = page.version
            for item in page.items:
                key = key_of(item)
                keys.add(key)
                before = store.items.kept.get(key)
                # Unpacked only if it has changed, as few have.
                if store.put(item) and tell:
                    self._changed(collection, key, unpacked(before) if before is not None else None, store.items[key])
                if key not in store.items and len(left) < LEFT_LINKS:
                    left[key] = str(item["metadata"].get("uid"))
        self._keep(collection, keys, version, tell=tell)
        return left

    def _keep(self, collection: Collection, keys: set[str], version: str, *, tell: bool = True) -> None:
        """Removes from the cache what a list did not have."""
        for key, item in self._cache[collection].keep(keys, version).items():
            if tell:
                self._changed(collection, key, item, None)

    def relisted(self, collection: Collection) -> None:
        """Notes that kopf has listed an object of this collection."""
        self._relisted[collection.name] = time.monotonic()

    def missing(self, collection: Collection) -> None:
        """Notes that a write has found no such object. It may be gone, or the API server does not serve its kind yet."""
        self._relisted.setdefault(collection.name, time.monotonic())

    async def run(self) -> None:
        """Lists the metadata of each collection once after each list of kopf's, or ``missing``. Runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._list_left_links()
            for collection in CACHED:
                relisted = self._relisted.get(collection.name)
                if relisted is None or time.monotonic() - relisted < RELIST_SECONDS:
                    continue
                try:
                    await self._drop_deleted(collection)
                except ApiError as error:
                    log.warning("cannot list %s: %s; retrying", collection.name, error)
                    continue
                if self._relisted.get(collection.name) == relisted:
                    del self._relisted[collection.name]

    async def _list_left_links(self) -> None:
        claims = self._cache[LINKS].claims
        if claims is None or not claims.exceeded:
            self._left = {}
            return
        if time.monotonic() - self._links_listed < AGAIN_SECONDS:
            return
        self._links_listed = time.monotonic()
        before, claims.exceeded = claims.exceeded, set()
        earlier, self._left = self._left, {}
        try:
            self._left = await self._fill(LINKS, tell=True)
            for name, uid in self._left.items():
                # No round ever sees it, not even after its Macs are deleted. The agent of a cable that exists reports it again.
                if earlier.get(name) == uid:
                    await self._remove(name, uid)
        except ApiError as error:
            claims.exceeded |= before
            log.warning("cannot list or delete %s: %s; retrying in %.0f s", LINKS.name, error, AGAIN_SECONDS)

    async def _drop_deleted(self, collection: Collection) -> None:
        """Removes from the cache what the API server no longer has."""
        keys, version = await self._kube.list_keys(collection.path, **collection.query)
        self._keep(collection, keys, version)
