"""Keeps the fleet current from what the API server sends. While the server is away, the fleet stays as it is.

Leases change every few seconds, so they are read at intervals instead of watched.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from thunderfleet_crds import names
from thunderfleet_lib.kube import ApiError, Json, Kube, Part, Reflector, Silence, of_part

from thunderfleet_view import components, facts
from thunderfleet_view.facts import Picture, Signs
from thunderfleet_view.live.feed import Feed
from thunderfleet_view.live.fleet import Entity, Fleet, Kind
from thunderfleet_view.live.leases import PAGE, PODS, folder, read_signs
from thunderfleet_view.problems import silent_machines, silent_macs

log = logging.getLogger(__name__)

OURS: Final = f"/apis/{names.API_VERSION}"
RESOURCES: Final = {
    Kind.NODES: ("/api/v1/nodes", "nodes"),
    Kind.PROFILES: (f"{OURS}/{names.NODEPROFILE_PLURAL}", f"{names.NODEPROFILE_PLURAL}.{names.GROUP}"),
    Kind.LINKS: (f"{OURS}/{names.THUNDERBOLTLINK_PLURAL}", f"{names.THUNDERBOLTLINK_PLURAL}.{names.GROUP}"),
    Kind.DEPLOYMENTS: (f"{OURS}/{names.MODELDEPLOYMENT_PLURAL}", f"{names.MODELDEPLOYMENT_PLURAL}.{names.GROUP}"),
}
"""Path of each kind, and its name for `kubectl auth can-i list`."""
LOOK_SECONDS: Final = 1.0
AWAY_SECONDS: Final = 3.0
"""How long a watch may be interrupted before the API server counts as away. The API server ends watches regularly."""
ASK_SECONDS: Final = 2.0
"""Interval of requests that check the API server, because watches of a hanging API server stay open."""
POD_SECONDS: Final = 5.0
LEASES_SECONDS: Final = 5.0
"""How often the Leases of components of the control plane are read."""
OPERATORS: Final = {"labelSelector": f"{names.LABEL_NAME}=thunderfleet,app.kubernetes.io/component=operator"}


class Watch:
    """``namespace``: that of the ModelDeployments to show; None for all.

    ``leased``: whether to read Leases and the pods of operator and agents, which needs more rights. ``release``: the namespace
    of those pods, for users without rights in all namespaces; None for all.
    """

    def __init__(
        self, kube: Kube, feed: Feed, namespace: str | None = None, *, leased: bool = False, release: str | None = None
    ) -> None:
        self.fleet = Fleet()
        self._kube = kube
        self._feed = feed
        self._namespace = namespace
        self._leased = leased
        self._release = release
        self.signs = Signs()
        """The Leases and pods of agents that were read last."""
        self._operators: Sequence[Json] | None = None
        self._away: datetime | None = None
        self._part: Part | None = None
        self._silent = 0.0
        self._reflectors = {kind: self._reflector(kind) for kind in Kind}

    @property
    def synced(self) -> bool:
        """Whether every readable kind has been read once."""
        return all(one.synced.is_set() or one.refusal is not None for one in self._reflectors.values())

    async def run(self) -> None:
        """Watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors.values():
                tasks.create_task(reflector.run())
            tasks.create_task(self._look())
            tasks.create_task(self._ask())
            if self._leased:
                tasks.create_task(self._read_leases())

    async def pods_of(self, entity: Entity) -> tuple[Sequence[Json], Sequence[Json] | None]:
        """The pods of a model, and the operator's; None if those cannot be read."""
        namespace, _, name = str(entity["name"]).partition("/")
        query = {"labelSelector": f"{names.LABEL_DEPLOYMENT}={name}"}
        found = await asyncio.gather(
            self._pods(f"/api/v1/namespaces/{namespace}/pods", query), self._pods(folder(PODS, self._release), OPERATORS)
        )
        return found[0] or (), found[1]

    def endpoint(self, full_name: str) -> str | None:
        """URL of the API of the model ``namespace/name``; None while it does not serve."""
        deployment = self.fleet.objects[Kind.DEPLOYMENTS].get(full_name) or {}
        url = (deployment.get("status") or {}).get("endpoint")
        return str(url) if url else None

    async def _pods(self, path: str, query: dict[str, str]) -> Sequence[Json] | None:
        try:
            async with asyncio.timeout(POD_SECONDS):
                return (await self._kube.list(path, **query))[0]
        except (ApiError, TimeoutError):
            return None

    def _reflector(self, kind: Kind) -> Reflector:
        path = RESOURCES[kind][0]
        if kind is Kind.DEPLOYMENTS and self._namespace is not None:
            path = f"{OURS}/namespaces/{self._namespace}/{names.MODELDEPLOYMENT_PLURAL}"
        return Reflector(self._kube, path, {}, self._noter(kind), page=PAGE)

    def _noter(self, kind: Kind) -> Callable[[str], None]:
        def note(key: str) -> None:
            changed = self.fleet.put(kind, key, self._reflectors[kind].items.get(key))
            self._publish(changed)

        return note

    def _publish(self, changed: Collection[str]) -> None:
        if changed:
            self._feed.publish({one: self.fleet.entity(one) for one in changed})

    def _picture(self) -> Picture:
        """The Nodes, and the objects by which programs show that they work."""
        unread = {} if self._operators is not None else {"operators": "the operator's pods could not be read"}
        nodes, about = list(self.fleet.objects[Kind.NODES].values()), vars(self.signs)
        return Picture(nodes=nodes, operators=self._operators or (), unread=unread, **about)

    def _components(self) -> Mapping[str, str]:
        if not self._leased:
            return {}
        picture = self._picture()
        ready = {facts.name(node) for node in picture.nodes if facts.holds(node, "Ready") and not facts.is_linux(node)}
        silent = {name: text for name, text in silent_macs(picture).items() if name in ready}
        return {**components.problems(picture), **silent_machines(picture), **silent}

    async def _read_leases(self) -> None:
        while True:
            self._operators = await self._pods(folder(PODS, self._release), OPERATORS)
            self.signs = await read_signs(self._kube, self._operators or (), self._release)
            self._publish(self.fleet.silence(silent_macs(self._picture())))
            await asyncio.sleep(LEASES_SECONDS)

    async def _ask(self) -> None:
        silence = Silence(self._kube)
        while True:
            self._part = await silence.ask()
            await asyncio.sleep(ASK_SECONDS)

    async def _look(self) -> None:
        """Reports what is wrong with the connection itself, and with components of the control plane."""
        while True:
            self._feed.say(list(self._notes()))
            await asyncio.sleep(LOOK_SECONDS)

    def _notes(self) -> Iterator[str]:
        watched = all(one.connected for one in self._reflectors.values())
        self._silent = 0.0 if watched else self._silent + LOOK_SECONDS
        connected = watched and self._part is None
        if connected:
            self._away = None
        elif self._silent > AWAY_SECONDS or self._part is not None:
            self._away = self._away or datetime.now(UTC)
            said = of_part(self._part or Part.API_SERVER, self._kube.host)
            yield f"{said}; this is the state of {self._away:%H:%M:%S} UTC"
        for kind, reflector in self._reflectors.items():
            if reflector.refusal is not None:
                yield _refused(RESOURCES[kind][1], reflector.refusal)
        # The last data of a silent API server is out of date.
        for component, text in self._components().items() if connected else ():
            yield f"{component}: {text}"


def _refused(resource: str, error: ApiError) -> str:
    if error.status == 404:
        return f"the cluster has no {resource}: install the chart (docs/install.md)"
    if error.status in (401, 403):
        return f"you are not allowed to list {resource}: check with `kubectl auth can-i list {resource}`"
    return f"cannot list {resource}: {error}"
