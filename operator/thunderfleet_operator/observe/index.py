"""The cached objects as values, kept from round to round.

All values follow one rule: a value is made from objects or from other values, and is made again when one of them has changed.
An object that has not changed keeps its value, so code that uses values may compare them by identity. A status of a
ModelDeployment changes with nearly every round, but rarely what its pods and plans are: tables that are made of these stay.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Set
from operator import is_
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import ValidationError
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.meta.apimodel import ApiModel

from thunderfleet_operator.observe.fleet.builder import FleetBuilder, changed_names
from thunderfleet_operator.observe.fleet.links import LinksOf
from thunderfleet_operator.observe.fleet.usage import Taken, Usage
from thunderfleet_operator.observe.objects.fetchpods import FetchPod, read_fetch_pod
from thunderfleet_operator.observe.objects.metadata import DeploymentKey, Json, PlacementKey
from thunderfleet_operator.observe.objects.nodes import Node, read_node
from thunderfleet_operator.observe.objects.plans import Epoch, accepted, counts, newest_epochs, placement_key, read_epoch
from thunderfleet_operator.observe.objects.pods import Pod, proven, read_pod
from thunderfleet_operator.observe.objects.profiles import ProfileReader
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.observe.objects.requests import SentRequest, read_request
from thunderfleet_operator.observe.objects.routers import Router
from thunderfleet_operator.placement import Fleet
from thunderfleet_operator.watch.cache import (
    CACHES,
    CONFIGMAPS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    LINKS,
    NODEPROFILES,
    NODES,
    PODS,
    REQUESTS,
    SERVICES,
    Cache,
    Collection,
    Kept,
    Store,
    unpacked,
)

log = logging.getLogger(__name__)

AT_ONCE = 20
"""Objects that ``warm`` reads without a pause."""

T = TypeVar("T")
K = TypeVar("K")
M = TypeVar("M", bound=ApiModel)
V = TypeVar("V", Pod, Epoch)


class _Kept(NamedTuple):
    """``revision``: of the collection of ``objects``, of the collections of a table, or the inputs of a value."""

    revision: Any
    objects: dict[str, Any]
    value: Any


def _model(kind: type[M]) -> Callable[[Json], M | None]:
    """Reads one of our own kinds; None for an object that breaks the schema of this version."""

    def read(item: Json) -> M | None:
        try:
            return kind.load(item)
        except ValidationError:
            return None

    return read


def _read(collection: Collection, read: Callable[[Json], Any], key: str, item: Kept, into: dict[str, Any]) -> None:
    """Sets the value of an object in ``into``.

    All readers accept what the API server allows. If one fails, the object keeps its earlier value or is left out: users may
    write some of these objects, and one of them must not stop the rounds of all ModelDeployments.
    """
    try:
        into[key] = read(unpacked(item, interned=True))
    except Exception:
        state = "ignoring its change" if key in into else "ignoring the object"
        log.exception("cannot read %s %s; %s. This is an error in the operator: report it", collection.name, key, state)


def _followed(store: Store, collection: Collection, known: _Kept, changes: Iterable[str], read: Callable[[Json], Any]) -> _Kept:
    """Returns the values after some changes. Takes time for these changes and for two shallow copies."""
    items, values = dict(known.objects), dict(known.value)
    for key in dict.fromkeys(changes):
        item = store.items.kept.get(key)
        if item is None:
            items.pop(key, None)
            values.pop(key, None)
        elif items.get(key) is not item:
            items[key] = item
            _read(collection, read, key, item, values)
    return _Kept(store.revision, items, values)


def _grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, tuple[T, ...]]:
    found: dict[K, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}


class Index:
    """The values of one cache. A returned value is never modified. ``keys`` returns the operator's keys."""

    def __init__(self, cache: Cache, keys: Callable[[], Keyring]) -> None:
        self._cache = cache
        self._keys = keys
        self._kept: dict[str, _Kept] = {}
        self._kept_with: Keyring | None = None
        self._builder = FleetBuilder()
        self._links_of = LinksOf()
        self._profile_reader = ProfileReader()

    def _follow_keys(self) -> None:
        """Drops all values when the keys have changed, because signatures were checked with the earlier keys."""
        keys = self._keys()
        if self._kept_with is not keys:
            self._kept.clear()
            self._kept_with = keys

    def _objects(self, collection: Collection, read: Callable[[Json], T], name: str = "") -> Mapping[str, T]:
        """One value for each object of a collection, by ``namespace/name``. ``name``: which value of an object."""
        self._follow_keys()
        store = self._cache[collection]
        name = name or collection.name
        known = self._kept.get(name)
        if known is None or known.revision != store.revision:
            changes = store.changed_since(known.revision) if known is not None and isinstance(known.revision, int) else None
            if known is not None and changes is not None:
                known = self._kept[name] = _followed(store, collection, known, changes, read)
            else:
                objects, values = (known.objects, known.value) if known else ({}, {})
                items = dict(store.items.kept)
                made = {key: values[key] for key in items if key in values}
                for key, item in items.items():
                    # Objects are replaced in the cache, never modified.
                    if objects.get(key) is not item:
                        _read(collection, read, key, item, made)
                known = self._kept[name] = _Kept(store.revision, items, made)
        return cast("Mapping[str, T]", known.value)

    async def warm(self) -> None:
        """Reads the objects of Macs and cables in parts, with pauses, so that the first round has little to read at once."""
        self._follow_keys()
        readers: dict[Collection, Callable[[Json], object]] = {
            NODEPROFILES: self._profile_reader.read,
            LINKS: _model(ThunderboltLink),
        }
        for collection, read in readers.items():
            objects, values = dict(self._cache[collection].items.kept), dict[str, object]()
            for number, (key, item) in enumerate(objects.items()):
                _read(collection, read, key, item, values)
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
            # Stored without a revision, so the round reads again what has changed meanwhile.
            self._kept[collection.name] = _Kept(None, objects, values)

    def _table(self, name: str, collections: Iterable[Collection], make: Callable[[], T]) -> T:
        """A value made from whole collections."""
        self._follow_keys()
        revision = tuple(self._cache[collection].revision for collection in collections)
        known = self._kept.get(name)
        if known is None or known.revision != revision:
            known = self._kept[name] = _Kept(revision, {}, make())
        return cast("T", known.value)

    def _made(self, name: str, inputs: tuple[object, ...], make: Callable[[], T]) -> T:
        """A value made from other ones. The same as before if it equals it."""
        self._follow_keys()
        known = self._kept.get(name)
        if known is None or not all(map(is_, known.revision, inputs)):
            value: Any = make()
            known = self._kept[name] = _Kept(inputs, {}, known.value if known is not None and known.value == value else value)
        return cast("T", known.value)

    def _owned(
        self, name: str, values: Mapping[K, V | None], make: Callable[[V, ModelDeployment | None], V | None]
    ) -> Mapping[K, V]:
        """What ``make`` returns for each value and its ModelDeployment. The same mapping while none of that has changed.

        Only values that have changed themselves, or whose ModelDeployment has, are made again.
        """
        deployments, known = self.deployments, self._kept.get(name)
        inputs = values, deployments
        if known is not None and all(map(is_, known.revision, inputs)):
            return cast("Mapping[K, V]", known.value)
        parts: dict[Any, tuple[str, V | None]] = dict(known.objects) if known is not None else {}
        past: tuple[Mapping[Any, object], Mapping[str, object]] = known.revision if known is not None else ({}, {})
        owners: Set[str] = changed_names(past[1], deployments)
        same = known is not None
        for key in {*changed_names(past[0], values), *(key for key, part in parts.items() if part[0] in owners)}:
            value, before = values.get(key), parts.pop(key, None)
            result = None
            if value is not None:
                namespace, owner_name = value.deployment
                owner = f"{namespace}/{owner_name}" if owner_name else ""
                result = make(value, deployments.get(owner))
                if before is not None and before[1] == result:
                    result = before[1]
                parts[key] = owner, result
            same = same and result is (before[1] if before is not None else None)
        found: Any = known.value if known is not None else {}
        if not same:
            found = {key: parts[key][1] for key in values if key in parts and parts[key][1] is not None}
        self._kept[name] = _Kept(inputs, parts, found)
        return cast("Mapping[K, V]", found)

    # --- one value an object -----------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, Node]:
        """By name, those being deleted included."""
        return self._objects(NODES, read_node)

    @property
    def live_nodes(self) -> Mapping[str, Node]:
        """By name, those being deleted left out."""
        return self._table("live nodes", (NODES,), lambda: {k: node for k, node in self.nodes.items() if not node.deleting})

    @property
    def pods(self) -> Mapping[str, Pod]:
        """All pods of the cluster. Only those that the operator made belong to a group."""
        raw = self._objects(PODS, lambda item: read_pod(item, self._keys()))
        return self._owned("proven pods", raw, proven)

    @property
    def epochs(self) -> Mapping[str, Epoch]:
        """The plans that the operator made, by the ``namespace/name`` of their ConfigMaps, those being deleted included."""
        raw = self._objects(CONFIGMAPS, lambda item: read_epoch(item, self._keys()))
        return self._owned("accepted plans", raw, accepted)

    @property
    def profiles(self) -> Mapping[str, NodeProfile | None]:
        """By Mac."""
        return self._objects(NODEPROFILES, self._profile_reader.read)

    @property
    def links(self) -> Mapping[str, ThunderboltLink | None]:
        """By name."""
        return self._objects(LINKS, _model(ThunderboltLink))

    @property
    def deployments(self) -> Mapping[str, ModelDeployment | None]:
        """All ModelDeployments."""
        return self._objects(DEPLOYMENTS, _model(ModelDeployment))

    def named_config_maps(self, namespace: str, prefix: str) -> dict[str, str]:
        """UIDs by name of the ConfigMaps of ours in a namespace whose name begins with ``prefix``."""
        items = self._cache[CONFIGMAPS].items
        start = f"{namespace}/{prefix}"
        return {key.partition("/")[2]: str(items[key]["metadata"].get("uid")) for key in items if key.startswith(start)}

    def routers(self, namespace: str) -> tuple[Router, ...]:
        """The routers in the namespace of the release that are ready."""
        pods, nodes = self.pods, self.live_nodes
        return self._made(
            f"routers in {namespace}",
            (pods, nodes),
            lambda: tuple(
                Router(pod.node, node.address)
                for pod in pods.values()
                if pod.router and pod.ready and pod.terminating is None and pod.deployment[0] == namespace and pod.node
                if (node := nodes.get(pod.node)) is not None and node.address is not None
            ),
        )

    @property
    def caches(self) -> Mapping[str, ModelCache | None]:
        """All ModelCaches."""
        return self._objects(CACHES, _model(ModelCache))

    @property
    def fetch_pods_of(self) -> Mapping[str, tuple[FetchPod, ...]]:
        """By ``namespace/name`` of their ModelCache, the operator's pods that read from the hub."""
        raw = self._objects(PODS, lambda item: read_fetch_pod(item, self._keys()), "fetch pods")
        return self._table(
            "fetch pods of", (PODS,), lambda: _grouped((pod.cache, pod) for pod in raw.values() if pod is not None)
        )

    def service(self, key: str) -> Json | None:
        """A Service of ours."""
        return self._cache[SERVICES].items.get(key)

    @property
    def endpoint_slices(self) -> Mapping[str, Json]:
        """EndpointSlices of ours by namespace/name."""
        return self._cache[ENDPOINT_SLICES].items

    @property
    def requests_of(self) -> Mapping[str, tuple[SentRequest, ...]]:
        """By Node, the undecided requests of its kubelet for serving certificates, the newest first."""
        raw = self._objects(REQUESTS, read_request)

        def make() -> Mapping[str, tuple[SentRequest, ...]]:
            newest = sorted((sent for sent in raw.values() if sent), key=lambda sent: (sent.created, sent.name), reverse=True)
            return _grouped((sent.node, sent) for sent in newest)

        return self._table("requests of", (REQUESTS,), make)

    @property
    def nodes_at(self) -> Mapping[str, tuple[str, ...]]:
        """By address, the Nodes that publish it."""
        return self._table(
            "nodes at",
            (NODES,),
            lambda: _grouped((address, name) for name, node in self.nodes.items() for address in sorted(node.addresses)),
        )

    # --- tables ------------------------------------------------------------------------------------------------------

    @property
    def loopback(self) -> bool:
        """Whether any Node's address is in 127.0.0.0/8."""
        return self._table("loopback", (NODES,), lambda: any(node.loopback for node in self.nodes.values()))

    @property
    def epochs_of(self) -> Mapping[DeploymentKey, tuple[Epoch, ...]]:
        """By the namespace and name of their ModelDeployment."""
        epochs = self.epochs
        return self._made("epochs of", (epochs,), lambda: _grouped((e.deployment, e) for e in epochs.values()))

    @property
    def pods_of(self) -> Mapping[DeploymentKey, tuple[Pod, ...]]:
        """Runner pods, by the namespace and name of their ModelDeployment."""
        pods = self.pods
        return self._made("pods of", (pods,), lambda: _grouped((p.deployment, p) for p in pods.values() if p.deployment[1]))

    @property
    def plans(self) -> Mapping[PlacementKey, Plan]:
        """Plans that are not being deleted. Copies of earlier ones are left out."""
        epochs = self.epochs
        return self._made(
            "plans",
            (epochs,),
            lambda: {placement_key(e.plan): e.plan for e in epochs.values() if e.current and not e.deleting},
        )

    @property
    def newest_epochs(self) -> Mapping[tuple[str, str, int], int]:
        """By namespace, name and group: the number of the newest plan."""
        plans = self.plans
        return self._made("newest epochs", (plans,), lambda: {key[:3]: key[3] for key in sorted(plans)})

    @property
    def plans_on(self) -> Mapping[str, tuple[PlacementKey, ...]]:
        """By Mac, the placements whose plan names it."""
        plans = self.plans
        return self._made(
            "plans on", (plans,), lambda: _grouped((rank.node, key) for key, plan in plans.items() for rank in plan.ranks)
        )

    @property
    def running_on(self) -> Mapping[str, frozenset[PlacementKey]]:
        """By Mac, the placements that have a pod there that has not ended."""
        pods = self.pods
        return self._made(
            "running on",
            (pods,),
            lambda: {
                node: frozenset(keys)
                for node, keys in _grouped(
                    (p.node, p.placement) for p in pods.values() if p.owner and p.node and not p.ended
                ).items()
            },
        )

    @property
    def links_of(self) -> Mapping[str, tuple[ThunderboltLink, ...]]:
        """By Mac, the links that end there."""
        return self._table("links of", (LINKS,), lambda: self._links_of.of(self.links))

    @property
    def usage(self) -> Usage:
        """Everything that reserves something on the Macs."""
        pods, epochs = self.pods, self.epochs
        newest = self._made("newest placements", (epochs,), lambda: newest_epochs(epochs.values()))
        full = self._owned("counting plans", newest, lambda epoch, owner: epoch if counts(epoch, owner) else None)

        def make() -> Usage:
            held = {key: epoch.plan for key, epoch in newest.items() if key not in full}
            return Usage(pods, {key: epoch.plan for key, epoch in full.items()}, held)

        return self._made("usage", (pods, newest, full), make)

    @property
    def taken(self) -> Taken:
        """What is taken on each Mac."""
        usage, known = self.usage, self._kept.get("taken")
        past: tuple[Usage, Taken] = (known.revision[0], known.value) if known is not None else (Usage(), Taken())
        return self._made("taken", (usage,), lambda: usage.taken_after(*past))

    @property
    def fleet(self) -> Fleet:
        """All Macs and cables, with what is taken. The same value while nothing that counts has changed."""
        return self._builder.fleet(self.nodes, self.profiles, self.links, self.taken)
