"""List and watch: a local cache of one collection."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from thunderfleet_lib.kube.client import PAGE, ApiError, Kube
from thunderfleet_lib.kube.names import Json, key_of
from thunderfleet_lib.kube.retries import Retries

log = logging.getLogger(__name__)


@dataclass
class Reflector:
    """A cache of one collection, kept current by list and watch while ``run`` runs.

    ``on_change(key)`` is called after the cache has changed for that key (``namespace/name``), deletions included; it means
    that something changed, and the cache has the change. ``synced`` is set after the first list. While the API server is
    unreachable the cache keeps its content and ``run`` retries with back-off. ``page``: objects of one page of the list;
    programs with little memory read small ones. ``unread``: fields of the metadata that the cache does not keep.
    """

    kube: Kube
    path: str
    query: dict[str, object] = field(default_factory=dict)
    on_change: Callable[[str], None] | Callable[[str], Awaitable[None]] | None = None
    page: int = PAGE
    unread: tuple[str, ...] = ("managedFields",)

    def __post_init__(self) -> None:
        self.items: dict[str, Json] = {}
        self.synced = asyncio.Event()
        self.connected = False
        self.refusal: ApiError | None = None
        """Why the API server refused the last list or watch; None once it has accepted one."""
        self._retries = Retries()
        self._version = ""

    async def run(self) -> None:
        """Lists and watches until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._relist()
                await self._watch()
            except ApiError as error:
                self.connected = not error.unanswered
                # After silence the watch resumes where it was; after a refusal only a new list helps.
                if not error.unanswered:
                    self._version = ""
                if error.status == 410:
                    continue
                if not error.unanswered:
                    self.refusal = error
                delay = self._retries.seconds(error)
                log.warning("%s: %s; retrying in %.1f s", self.path, error, delay)
                await asyncio.sleep(delay)

    async def _watch(self) -> None:
        """Follows one watch connection to its end."""
        async for kind, item in self.kube.watch(self.path, self._version, opened=self._opened, **self.query):
            self._retries.succeeded()
            self._version = str(item["metadata"]["resourceVersion"])
            if kind == "BOOKMARK":
                continue
            key = key_of(item)
            if kind == "DELETED":
                self.items.pop(key, None)
            else:
                self.items[key] = self._kept(item)
            await self._changed(key)

    def _opened(self) -> None:
        self.connected = True

    async def _relist(self) -> None:
        fresh, version = dict[str, Json](), ""
        async for page in self.kube.pages(self.path, {"limit": self.page, **self.query}):
            fresh |= {key_of(item): self._kept(item) for item in page.items}
            version = page.version
        self._retries.succeeded()
        old, self.items = self.items, fresh
        self.synced.set()
        self.connected = True
        self.refusal = None
        for key in old.keys() | fresh.keys():
            if _version(old.get(key)) != _version(fresh.get(key)):
                await self._changed(key)
        self._version = version

    def _kept(self, item: Json) -> Json:
        metadata = {name: value for name, value in item["metadata"].items() if name not in self.unread}
        return {**item, "metadata": metadata}

    async def _changed(self, key: str) -> None:
        if self.on_change is not None:
            pending = self.on_change(key)
            if pending is not None:
                await pending


def _version(item: Json | None) -> str | None:
    return None if item is None else str(item["metadata"].get("resourceVersion"))
