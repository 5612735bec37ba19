"""Keeps the catalog current from what the API server sends. While the server is away, the catalog stays as it is."""

import asyncio
import base64
import logging
import time
from collections.abc import Callable

from thunderfleet_crds.exchange import routing
from thunderfleet_crds.names import API_VERSION, MODELDEPLOYMENT_PLURAL
from thunderfleet_lib.kube import Kube, Reflector

from thunderfleet_router.decide.catalog import Builder, Catalog

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05
"""Changes within this time are handled together."""
REST = 4.0
"""Changes are collected for this many times as long as the last catalog took: requests get most of the processor time."""
MOST_REST_SECONDS = 2.0
UNREAD = ("managedFields", "annotations", "labels", "finalizers", "ownerReferences")
"""Metadata of ModelDeployments that is not kept: any user who may create some can add hundreds of kilobytes to each."""
AWAY_SECONDS = 3.0
"""How long a watch may be interrupted before the API server counts as away. The API server ends watches regularly."""


class Watch:
    """``on_change`` gets each new catalog."""

    def __init__(self, kube: Kube, namespace: str, on_change: Callable[[Catalog], None]) -> None:
        self.catalog = Catalog()
        self.built = False
        """Whether ``catalog`` was built from objects of the API server."""
        self.pair: tuple[str, str] | None = None
        """Certificate and key (PEM) for connections to the operator."""
        self.operator: str | None = None
        """URL of the operator replica that leads, where demand is reported."""
        self._builder = Builder()
        self._on_change = on_change
        self._changed = asyncio.Event()
        core = f"/api/v1/namespaces/{namespace}"
        deployments = f"/apis/{API_VERSION}/{MODELDEPLOYMENT_PLURAL}"
        self._deployments = Reflector(kube, deployments, {}, self._note, unread=UNREAD)
        self._routes = Reflector(kube, f"{core}/configmaps", {"labelSelector": routing.LABEL_ROUTES}, self._note)
        # Watches one object by its name, so that a Role can grant access to only this object.
        self._secret = Reflector(
            kube, f"{core}/secrets", {"fieldSelector": f"metadata.name={routing.ROUTING_SECRET}"}, self._note
        )

    @property
    def synced(self) -> bool:
        """Whether everything has been read once."""
        return all(one.synced.is_set() for one in (self._deployments, self._routes, self._secret))

    @property
    def connected(self) -> bool:
        """Whether changes of ModelDeployments arrive."""
        return self._deployments.connected

    async def run(self) -> None:
        """Watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in (self._deployments, self._routes, self._secret):
                tasks.create_task(reflector.run())
                tasks.create_task(self._first(reflector))
            tasks.create_task(self._rebuild())

    def _note(self, _: str) -> None:
        self._changed.set()

    async def _first(self, reflector: Reflector) -> None:
        await reflector.synced.wait()
        self._changed.set()

    async def _rebuild(self) -> None:
        rest = 0.0
        while True:
            await self._changed.wait()
            await asyncio.sleep(max(SETTLE_SECONDS, min(rest, MOST_REST_SECONDS)))
            self._changed.clear()
            began = time.thread_time()
            if not self.synced:
                continue
            secret = (next(iter(self._secret.items.values()), None) or {}).get("data") or {}
            self.pair = _pair(secret)
            self.operator = _operator(secret)
            documents = [str((item.get("data") or {}).get(routing.ROUTES_FIELD) or "") for item in self._routes.items.values()]
            self.catalog = self._builder.build(self._deployments.items.values(), documents, routing.routing_keys(secret))
            self.built = True
            self._on_change(self.catalog)
            rest = REST * (time.thread_time() - began)


def _operator(data: dict[str, object]) -> str | None:
    try:
        address = base64.b64decode(str(data[routing.OPERATOR_FIELD]), validate=True).decode()
    except (KeyError, ValueError):
        return None
    return f"https://{address}" if address else None


def _pair(data: dict[str, object]) -> tuple[str, str] | None:
    try:
        certificate, key = (
            base64.b64decode(str(data[name]), validate=True).decode() for name in (routing.TLS_CERTIFICATE, routing.TLS_KEY)
        )
    except (KeyError, ValueError):
        return None
    return certificate, key
