"""kopf as the frame: it watches, we take its events as hints.

Only ``on.event`` handlers: they write nothing to the objects, no annotation, no finalizer. Peering is off (a Lease decides
who acts), posting of Events is off (they are ours), and scanning is off (the kinds are known, and no right on CRDs is needed).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from typing import Any

import kopf
from thunderfleet_lib.kube import Json, Kube

from thunderfleet_operator.watch.cache import CACHED, Collection

log = logging.getLogger(__name__)

LOGIN_SECONDS = 300
"""For so long kopf uses one reading of the credentials; tokens rotate in the sandbox folder."""


class OncePerMinute(logging.Filter):
    """Lets one record a minute through: seven watches that try again each say the same while the API server is away."""

    def __init__(self) -> None:
        super().__init__()
        self._last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if record.created - self._last < 60:
            return False
        self._last = record.created
        return True


class Patience:
    """Seconds between tries while the API server is away: kopf is never to give up."""

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 1.0, 2.0, 3.0), repeat(5.0))


async def connection(kube: Kube) -> kopf.ConnectionInfo:
    """The credentials that our own client uses, read now."""
    configuration = kube._configuration
    token = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, bare = (token or "").partition(" ")
    return kopf.ConnectionInfo(
        server=kube.host,
        ca_path=configuration.ssl_ca_cert or None,
        insecure=not configuration.verify_ssl,
        scheme=scheme if bare else None,
        token=bare or token or None,
        certificate_path=configuration.cert_file or None,
        private_key_path=configuration.key_file or None,
        expiration=datetime.now(UTC) + timedelta(seconds=LOGIN_SECONDS) if token else None,
    )


def settings() -> kopf.OperatorSettings:
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.scanning.disabled = True
    found.peering.standalone = True
    found.watching.server_timeout = 300
    found.watching.client_timeout = 330
    found.watching.connect_timeout = 10
    found.networking.request_timeout = 30
    found.networking.connect_timeout = 10
    found.networking.error_backoffs = Patience()
    for collection in CACHED:
        if collection.selector:
            found.watching.label_selectors[collection.name] = collection.selector
    return found


def registry(kube: Kube, told: Callable[[Collection, str | None, Json], None]) -> kopf.OperatorRegistry:
    """``told(collection, type, object)`` for every event; type None: the object was listed."""
    found = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection(kube)

    kopf.on.login(registry=found, id="credentials", errors=kopf.ErrorsMode.TEMPORARY, backoff=2)(login)

    def watch(collection: Collection) -> None:
        async def changed(event: Any, **_: Any) -> None:
            told(collection, event.get("type"), dict(event["object"]))

        named, _, version = collection.prefix.removeprefix("/apis/").partition("/")
        group = named if collection.prefix.startswith("/apis/") else ""
        kopf.on.event(group, version if group else "v1", collection.name, registry=found, id=f"watch-{collection.name}")(
            changed
        )

    for collection in CACHED:
        watch(collection)
    return found


async def run(
    kube: Kube,
    told: Callable[[Collection, str | None, Json], None],
    stop: asyncio.Event,
    ready: asyncio.Event,
) -> None:
    """Watches until ``stop`` is set. ``ready`` is set once kopf has started."""
    # What it says of each event is of no use to anybody here.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    for name in ("watching", "api"):
        logging.getLogger(f"kopf._cogs.clients.{name}").addFilter(OncePerMinute())
    await kopf.operator(
        registry=registry(kube, told),
        settings=settings(),
        standalone=True,
        clusterwide=True,
        stop_flag=stop,
        ready_flag=ready,
    )
