"""kopf as the watcher: it lists and watches, and passes every event on.

It has ``on.event`` handlers only, so it writes no annotation and no finalizer. Peering is off because a Lease decides which
replica acts, posting because the operator creates its own Events, and scanning because the kinds are known.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from typing import Any, cast

import kopf
from thunderfleet_lib.kube import Json, Kube

from thunderfleet_operator.watch.cache import CACHED, Collection

log = logging.getLogger(__name__)

LOGIN_SECONDS = 300
"""How long kopf uses credentials before it requests them again; tokens rotate."""
PAGE = 20
"""Objects of one page of kopf's lists. Kopf reads pages of any size, and any user may create pods of a megabyte each."""
IDLE_SECONDS = 0.1
"""How long kopf keeps a whole object after it has handled its event. With several seconds, it would keep everything that it
lists at its start."""


class Backoffs:
    """Endless series of seconds between retries while the API server cannot be reached."""

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 1.0, 2.0, 3.0), repeat(5.0))


async def connection(kube: Kube) -> kopf.ConnectionInfo:
    """The operator's own credentials, for kopf."""
    found = await kube.credentials()
    scheme, _, token = (found.authorization or "").partition(" ")
    return kopf.ConnectionInfo(
        server=found.server,
        ca_path=found.ca,
        insecure=found.insecure,
        scheme=scheme if token else None,
        token=token or found.authorization,
        certificate_path=found.certificate,
        private_key_path=found.key,
        expiration=datetime.now(UTC) + timedelta(seconds=LOGIN_SECONDS) if found.authorization else None,
    )


class _NothingToCompare(kopf.DiffBaseStorage):
    """Stores no last configuration. ``on.event`` handlers get no differences, for which kopf would copy each object twice."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[kopf.FieldSpec] | None = None) -> kopf.BodyEssence:
        """Nothing of the object."""
        return kopf.BodyEssence({})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Nothing is stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Stores nothing."""


class _NoProgress(kopf.ProgressStorage):
    """Stores no progress. Kopf does not retry ``on.event`` handlers, so it need not search each object for stored progress."""

    def fetch(self, *, key: kopf.HandlerId, body: kopf.Body) -> None:
        """Nothing is stored."""

    def store(self, *, key: kopf.HandlerId, record: kopf.ProgressRecord, body: kopf.Body, patch: kopf.Patch) -> None:
        """Stores nothing."""

    def purge(self, *, key: kopf.HandlerId, body: kopf.Body, patch: kopf.Patch) -> None:
        """There is nothing to remove."""

    def touch(self, *, body: kopf.Body, patch: kopf.Patch, value: str | None) -> None:
        """Changes nothing."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """The same: there is nothing to leave out."""
        return essence


def settings() -> kopf.OperatorSettings:
    """Kopf's settings, see above."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.scanning.disabled = True
    found.peering.standalone = True
    found.watching.server_timeout = 300
    found.watching.client_timeout = 330
    found.watching.connect_timeout = 10
    found.watching.chunk_size = PAGE
    found.queueing.idle_timeout = IDLE_SECONDS
    found.networking.request_timeout = 30
    found.networking.connect_timeout = 10
    found.networking.error_backoffs = Backoffs()
    found.persistence.diffbase_storage = _NothingToCompare()
    found.persistence.progress_storage = _NoProgress()
    for collection in CACHED:
        if collection.selector:
            found.watching.label_selectors[collection.name] = collection.selector
        if collection.fields:
            found.watching.field_selectors[collection.name] = collection.fields
    return found


Event = Callable[[Collection, str | None, Json], None]
"""Called with the collection, the type and the object of each event; type None: the object was listed."""

News = Callable[[Collection, str | None, Json], bool]
"""Called with the same of each event before that: whether it is passed on. A handler is a quarter of what an event costs."""


def registry(kube: Kube, event: Event, news: News) -> kopf.OperatorRegistry:
    """The handlers: a login, and one for each collection."""
    found = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection(kube)

    kopf.on.login(registry=found, id="credentials", errors=kopf.ErrorsMode.TEMPORARY, backoff=2)(login)

    def watch(collection: Collection) -> None:
        async def handler(**arguments: Any) -> None:
            raw = arguments["event"]
            event(collection, raw.get("type"), dict(raw["object"]))

        def passed(*, event: kopf.RawEvent, **_: Any) -> bool:
            return news(collection, event.get("type"), cast(Json, event["object"]))

        named, _, version = collection.prefix.removeprefix("/apis/").partition("/")
        group = named if collection.prefix.startswith("/apis/") else ""
        kind = (group, version if group else "v1", collection.name)
        kopf.on.event(*kind, registry=found, id=f"watch-{collection.name}", when=passed)(handler)

    for collection in CACHED:
        watch(collection)
    return found


class _OncePerMinute(logging.Handler):
    """Passes one record a minute of each logger on to the root logger's handlers.

    While the API server cannot be reached, each of kopf's watches logs every retry.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Passes a record on, or drops it."""
        if record.created - self._last.get(record.name, float("-inf")) >= 60:
            self._last[record.name] = record.created
            logging.getLogger().handle(record)


def _quiet_logs() -> None:
    """Kopf logs every event that it handles, and every retry of every watch."""
    logger = logging.getLogger("kopf")
    logger.setLevel(logging.WARNING)
    # A handler gets the records of all loggers below its own; a filter of a logger does not.
    logger.propagate = False
    logger.handlers = [_OncePerMinute()]


async def run(kube: Kube, event: Event, news: News, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Watches until ``stop`` is set. Sets ``ready`` once kopf has started."""
    _quiet_logs()
    # Otherwise kopf would look up the name of this process's user, and the users of pods have no names.
    os.environ.setdefault("POD_ID", "thunderfleet-operator")
    await kopf.operator(
        registry=registry(kube, event, news),
        settings=settings(),
        standalone=True,
        clusterwide=True,
        stop_flag=stop,
        ready_flag=ready,
    )
