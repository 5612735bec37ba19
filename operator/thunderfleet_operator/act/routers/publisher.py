"""Keeps the Secret of routers and the document of each ModelDeployment up to date, while this replica leads."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import NamedTuple

from thunderfleet_crds.exchange.routing import routes_name
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_operator.act.keys import KeyPair, router_pair
from thunderfleet_operator.act.routers.api_keys import NOTHING, ApiKeys
from thunderfleet_operator.act.writer import NotLeading, Writer
from thunderfleet_operator.decide.routing.documents import (
    MAX_KEYS_OF_NAMESPACE,
    MAX_SECRETS_OF_NAMESPACE,
    NAME_PREFIX,
    config_map,
    document,
    in_turn,
    secret_of,
    secrets_of,
    shares,
)
from thunderfleet_operator.decide.routing.keys import routing_key, routing_keys, secret
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.plans import Epoch
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.watch.cache import CONFIGMAPS, SECRETS

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
AGAIN_SECONDS = 300.0
"""Interval at which everything is written again, because another client may have deleted it."""
MAX_WRITES = 200
"""Maximum number of documents that one round writes. Namespaces take turns, so that a large one does not delay the others."""


class _Made(NamedTuple):
    """A document, as the text of its ConfigMap, and what it was made from."""

    deployment: ModelDeployment
    digests: Mapping[str, str]
    epochs: Sequence[Epoch]
    keys: Keyring
    name: str
    text: str

    def still(self, deployment: ModelDeployment, digests: Mapping[str, str], epochs: Sequence[Epoch], keys: Keyring) -> bool:
        """Whether it would be the same from these."""
        same = self.deployment is deployment and self.keys is keys and self.digests == digests
        return same and len(self.epochs) == len(epochs) and all(map(is_, self.epochs, epochs))


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
        self._made: dict[str, _Made] = {}
        self._written: dict[str, str] = {}
        self._written_at = 0.0
        self._logged: dict[str, str] = {}
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
        secrets = secrets_of(deployments.values())
        await self._api_keys.refresh(secrets, routing_key(keys.newest))
        found = {key: self._digests(one, secrets) for key, one in deployments.items()}
        shared = shares({key: len(digests or ()) for key, digests in found.items()}, deployments)
        self._log_left_out(deployments, secrets, shared)
        made = {}
        for key, digests in found.items():
            # Keys that have not been read yet must not be published as removed.
            if digests is not None:
                made[key] = self._document(key, deployments[key], digests if key in shared else NOTHING, keys)
            elif key in self._made:
                made[key] = self._made[key]
        self._made = made
        self._written = {key: text for key, text in self._written.items() if key == "secret" or key in deployments}
        known = deployments.keys() | {key.partition("/")[0] for key in deployments}
        self._logged = {about: text for about, text in self._logged.items() if about in known}
        for key in in_turn(key for key, one in made.items() if self._written.get(key) != one.text)[:MAX_WRITES]:
            await self._publish(key, made[key])
        await self._drop({routes_name(*key.split("/")) for key in deployments})

    def _digests(self, deployment: ModelDeployment, secrets: set[str]) -> Mapping[str, str] | None:
        """Of its API keys; None if they have not been read yet."""
        name = secret_of(deployment)
        return self._api_keys.digests(name) if name in secrets and name is not None else NOTHING

    def _document(self, key: str, deployment: ModelDeployment, digests: Mapping[str, str], keys: Keyring) -> _Made:
        """The document of one ModelDeployment. Thousands that have not changed are not made again each second."""
        epochs = self._index.epochs_of.get((str(deployment.metadata.namespace), deployment.metadata.name), ())
        known = self._made.get(key)
        if known is not None and known.still(deployment, digests, epochs, keys):
            return known
        plans = [epoch.plan for epoch in epochs if epoch.current and not epoch.deleting]
        routes = document(deployment, digests, routing_key(keys.newest), plans, routing_keys(keys))
        manifest = config_map(self._namespace, routes)
        return _Made(deployment, digests, epochs, keys, str(manifest["metadata"]["name"]), json.dumps(manifest, sort_keys=True))

    async def _publish(self, key: str, made: _Made) -> None:
        """Writes one document. One that is refused does not keep others back. Raises ApiError if there is no answer."""
        try:
            await self._writer.apply(CONFIGMAPS, json.loads(made.text))
        except ApiError as error:
            if error.unanswered:
                raise
            self._log(key, f"cannot publish ConfigMap {self._namespace}/{made.name} of ModelDeployment {key}: {error}")
        else:
            self._written[key] = made.text
            self._logged.pop(key, None)

    def _log_left_out(self, deployments: Mapping[str, ModelDeployment], secrets: set[str], shared: set[str]) -> None:
        left = {key for key, one in deployments.items() if (name := secret_of(one)) is not None and name not in secrets}
        for key in left | (deployments.keys() - shared):
            self._log(
                key.partition("/")[0],
                f"routers accept no key for ModelDeployment {key}: its namespace names more than {MAX_SECRETS_OF_NAMESPACE} "
                f"Secrets with API keys, or has more than {MAX_KEYS_OF_NAMESPACE} keys in all",
            )

    def _log(self, about: str, text: str) -> None:
        """Logs each problem once."""
        if self._logged.get(about) != text:
            log.warning("%s", text)
            self._logged[about] = text

    async def _write(self, key: str, manifest: Json) -> None:
        text = json.dumps(manifest, sort_keys=True)
        if self._written.get(key) != text:
            await self._writer.apply(SECRETS if manifest["kind"] == "Secret" else CONFIGMAPS, manifest)
            self._written[key] = text

    async def _drop(self, wanted: set[str]) -> None:
        """Deletes the documents of ModelDeployments that are gone."""
        gone = {n: uid for n, uid in self._index.named_config_maps(self._namespace, NAME_PREFIX).items() if n not in wanted}
        for name, uid in list(gone.items())[:MAX_WRITES]:
            await self._writer.delete(CONFIGMAPS, self._namespace, name, uid)
