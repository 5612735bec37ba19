"""Keeps the Secret of routers and the document of each ModelDeployment up to date, while this replica leads."""

import asyncio
import json
import logging
from collections.abc import Callable

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_operator.act.keys import KeyPair, router_pair
from thunderfleet_operator.act.routers.api_keys import NOTHING, ApiKeys
from thunderfleet_operator.act.writer import NotLeading, Writer
from thunderfleet_operator.decide.routing.documents import NAME_PREFIX, config_map, document, secret_of
from thunderfleet_operator.decide.routing.keys import routing_key, routing_keys, secret
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.watch.cache import CONFIGMAPS, SECRETS

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
AGAIN_SECONDS = 300.0
"""How often everything is written again although nothing has changed here: it may have been deleted."""


class Publisher:
    """``namespace``: of the release. ``address``: where this replica receives reports. ``clock``: monotonic seconds."""

    def __init__(
        self,
        kube: Kube,
        index: Index,
        writer: Writer,
        keys: Callable[[], Keyring],
        leading: Callable[[], bool],
        namespace: str,
        address: str,
        clock: Callable[[], float],
    ) -> None:
        self._index = index
        self._writer = writer
        self._keys = keys
        self._leading = leading
        self._namespace = namespace
        self._address = address
        self._clock = clock
        self._api_keys = ApiKeys(kube, clock)
        self._written: dict[str, str] = {}
        self._written_at = 0.0
        self._pair: KeyPair | None = None

    @property
    def pair(self) -> KeyPair:
        """The key pair of connections between routers and the operator."""
        if self._pair is None:
            # For the life of this process: its listener presents it too.
            self._pair = router_pair(self._keys().newest)
        return self._pair

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if self._leading():
                try:
                    await self.round()
                except NotLeading:
                    self._written.clear()
                except ApiError as error:
                    log.warning("cannot publish to routers: %s; retrying", error)
                except Exception:
                    # One object that cannot be read must not end the operator.
                    log.exception("cannot publish to routers; retrying")
            else:
                self._written.clear()
            await asyncio.sleep(ROUND_SECONDS)

    async def round(self) -> None:
        """Writes objects that differ from the desired ones. Raises ApiError and NotLeading."""
        if self._clock() - self._written_at >= AGAIN_SECONDS:
            self._written.clear()
            self._written_at = self._clock()
        keys, pair = self._keys(), self.pair
        await self._write("secret", secret(self._namespace, keys, pair.certificate, pair.key, self._address))
        deployments = {key: found for key, found in self._index.deployments.items() if found is not None}
        named = {name for found in deployments.values() if (name := secret_of(found)) is not None}
        newest = routing_key(keys.newest)
        await self._api_keys.refresh(named, newest)
        wanted = set()
        for key, deployment in deployments.items():
            wanted.add(await self._document(key, deployment, newest, routing_keys(keys)))
        await self._drop(wanted)
        self._written = {key: text for key, text in self._written.items() if key == "secret" or key in deployments}

    async def _document(self, key: str, deployment: ModelDeployment, newest: bytes, known: dict[str, bytes]) -> str:
        """Writes one document. The name of its ConfigMap."""
        name = secret_of(deployment)
        digests = self._api_keys.digests(name) if name is not None else NOTHING
        place = (str(deployment.metadata.namespace), deployment.metadata.name)
        plans = [epoch.plan for epoch in self._index.epochs_of.get(place, ()) if epoch.current and not epoch.deleting]
        routes = document(deployment, digests or NOTHING, newest, plans, known)
        manifest = config_map(self._namespace, routes)
        # Keys that have not been read yet must not be published as removed.
        if digests is not None:
            await self._write(key, manifest)
        return str(manifest["metadata"]["name"])

    async def _write(self, key: str, manifest: Json) -> None:
        text = json.dumps(manifest, sort_keys=True)
        if self._written.get(key) != text:
            await self._writer.apply(SECRETS if manifest["kind"] == "Secret" else CONFIGMAPS, manifest)
            self._written[key] = text

    async def _drop(self, wanted: set[str]) -> None:
        """Deletes the documents of ModelDeployments that are gone."""
        for name, uid in self._index.named_config_maps(self._namespace, NAME_PREFIX).items():
            if name not in wanted:
                await self._writer.delete(CONFIGMAPS, self._namespace, name, uid)
