"""The collections that the operator keeps in memory, from kopf's events, from lists and from its own writes.

Each write returns the new object, which is cached at once, so the operator always reads its own writes. The resourceVersions of
one cluster are ordered, so an older object never replaces a newer one.
"""

from collections import deque
from collections.abc import Container, Iterator, MutableMapping
from dataclasses import dataclass, field
from itertools import islice

from thunderfleet_crds.names import API_VERSION, LABEL_MANAGED_BY, MANAGED_BY
from thunderfleet_lib.csr.names import REQUESTS as REQUESTS_PATH
from thunderfleet_lib.csr.names import SERVING_SIGNER
from thunderfleet_lib.kube import Json, key_of

from thunderfleet_operator.watch.claims import Claims
from thunderfleet_operator.watch.lean import Lean, Packed, plan_only, pod_only, undecided_only, version


@dataclass(frozen=True, slots=True)
class Collection:
    """One kind of object. ``selector`` and ``fields``: a label and a field selector that limit what is listed and watched."""

    name: str
    prefix: str
    selector: str | None = None
    fields: str | None = None

    @property
    def path(self) -> str:
        """The path of the collection over all namespaces."""
        return f"{self.prefix}/{self.name}"

    @property
    def query(self) -> dict[str, object]:
        """The parameters of a list."""
        selectors = {"labelSelector": self.selector, "fieldSelector": self.fields}
        return {name: selector for name, selector in selectors.items() if selector}

    def folder(self, namespace: str) -> str:
        """The path of the collection in one namespace."""
        return f"{self.prefix}/namespaces/{namespace}/{self.name}"

    def item(self, namespace: str | None, name: str) -> str:
        """The path of one object."""
        return f"{self.folder(namespace)}/{name}" if namespace else f"{self.path}/{name}"


_OURS = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
_API = f"/apis/{API_VERSION}"
NODES = Collection("nodes", "/api/v1")
PODS = Collection("pods", "/api/v1")
CONFIGMAPS = Collection("configmaps", "/api/v1", _OURS)
SERVICES = Collection("services", "/api/v1", _OURS)
SECRETS = Collection("secrets", "/api/v1", _OURS)
"""Written, never read, and so not cached."""
ENDPOINT_SLICES = Collection(
    "endpointslices", "/apis/discovery.k8s.io/v1", f"endpointslice.kubernetes.io/managed-by={MANAGED_BY}"
)
NODEPROFILES = Collection("nodeprofiles", _API)
LINKS = Collection("thunderboltlinks", _API)
DEPLOYMENTS = Collection("modeldeployments", _API)
CACHES = Collection("modelcaches", _API)
REQUESTS = Collection(
    REQUESTS_PATH.rpartition("/")[2], REQUESTS_PATH.rpartition("/")[0], fields=f"spec.signerName={SERVING_SIGNER}"
)
"""Requests of kubelets for serving certificates."""
CACHED = (NODES, PODS, CONFIGMAPS, SERVICES, ENDPOINT_SLICES, NODEPROFILES, LINKS, DEPLOYMENTS, CACHES, REQUESTS)

LABELS_READ = (NODES, PODS, ENDPOINT_SLICES)
"""Where the operator reads labels."""

POD_BYTES = 32 * 1024
"""Of a pod that takes more, packed, only what the operator reads is kept. Its own pods take less."""

REMEMBERED = 512
"""Number of changes of a collection whose keys are kept, so that derived values can be updated without reading all
objects."""

REMEMBERED_GONE = 4096
"""Number of deleted objects of a collection whose versions are kept. Users can delete any number between two lists."""

Kept = Packed | Json
"""An object in memory: packed, or as it is if it comes from a file (``plan``)."""


class Items(MutableMapping[str, Json]):
    """Objects by ``namespace/name``. Those that the API server sent are unpacked whenever they are read."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        """The object in memory. It is replaced by another Python object when the API server's object changes, and only then."""

    def __getitem__(self, key: str) -> Json:
        return unpacked(self.kept[key])

    def __setitem__(self, key: str, item: Json) -> None:
        self.kept[key] = item

    def __delitem__(self, key: str) -> None:
        del self.kept[key]

    def __contains__(self, key: object) -> bool:
        return key in self.kept

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)


def unpacked(kept: Kept, *, interned: bool = False) -> Json:
    """The object. ``interned``: to keep values that are made from it, which then share equal strings."""
    return kept.unpack(interned=interned) if isinstance(kept, Packed) else kept


def _version(kept: Kept | None) -> int:
    if kept is None:
        return -1
    return kept.version if isinstance(kept, Packed) else version(kept)


def _uid(kept: Kept) -> object:
    return kept.uid if isinstance(kept, Packed) else kept["metadata"].get("uid")


@dataclass
class Store:
    """The objects of one collection, by ``namespace/name``."""

    collection: Collection
    items: Items = field(default_factory=Items)
    gone: dict[str, int] = field(default_factory=dict)
    """Versions at which the last objects were deleted, until the next list, so that an older event that arrives late does not
    restore them. The newest are at the end."""
    revision: int = 0
    """Increases by one with every change. A value made from the collection is valid while it stays the same."""
    claims: Claims | None = None
    """Which links are kept; None for all other kinds."""
    _lean: Lean = field(default_factory=Lean)
    _changes: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """The keys of the last changes, the newest at the end."""

    def put(self, item: Json) -> bool:
        """Adds or replaces an object; False if it is not newer than the one that is known, or not kept."""
        if not self.is_news(item):
            return False
        key = key_of(item)
        if self.claims is not None:
            replaced = self.claims.take(item)
            if replaced is None:
                return False
            for other in replaced:
                self.items.kept.pop(other, None)
                self._changed(other)
        packed = Packed.of(self._reduced(item))
        if self.collection is PODS and len(packed.text) > POD_BYTES:
            packed = Packed.of(pod_only(item))
        self.items.kept[key] = packed
        self._changed(key)
        return True

    def is_news(self, item: Json) -> bool:
        """Whether an object is newer than the one that is known."""
        key, new = key_of(item), version(item)
        return new > _version(self.items.kept.get(key)) and new > self.gone.get(key, -1)

    def _changed(self, key: str) -> None:
        if self.claims is not None and key not in self.items:
            self.claims.drop(key)
        self.revision += 1
        self._changes.append(key)

    def changed_since(self, revision: int) -> tuple[str, ...] | None:
        """The keys of all changes after a revision, in their order; None if it is too long ago."""
        count = self.revision - revision
        return tuple(islice(self._changes, len(self._changes) - count, None)) if count <= len(self._changes) else None

    def _reduced(self, item: Json) -> Json:
        if self.collection is CONFIGMAPS:
            return plan_only(item)
        if self.collection is REQUESTS:
            return undecided_only(item)
        return self._lean(item, labels=self.collection in LABELS_READ)

    def drop(self, item: Json) -> bool:
        """Removes an object that was deleted; False if it is not known."""
        key = key_of(item)
        known = self.items.kept.get(key)
        self.gone[key] = max(version(item), self.gone.pop(key, -1))
        if len(self.gone) > REMEMBERED_GONE:
            del self.gone[next(iter(self.gone))]
        if known is None or _uid(known) != item["metadata"].get("uid"):
            return False
        del self.items[key]
        self._changed(key)
        return True

    def forget(self, key: str, uid: str) -> bool:
        """Removes an object that a write found missing. Another one that has its name by now stays, and the answer is False."""
        known = self.items.kept.get(key)
        if known is None or _uid(known) != uid:
            return False
        del self.items[key]
        self._changed(key)
        return True

    def keep(self, keys: Container[str], list_version: str) -> dict[str, Json]:
        """Removes every object that a list did not have; those removed, by key."""
        limit = int(list_version) if list_version.isdigit() else 0
        gone = [key for key, kept in self.items.kept.items() if key not in keys and _version(kept) <= limit]
        removed = {key: self.items.pop(key) for key in gone}
        for key in removed:
            self._changed(key)
        self.gone = {key: at for key, at in self.gone.items() if at > limit}
        return removed

    def __iter__(self) -> Iterator[Json]:
        return iter(list(self.items.values()))


class Cache:
    """All collections."""

    def __init__(self) -> None:
        self.stores = {one.name: Store(one, claims=Claims() if one is LINKS else None) for one in CACHED}

    def __getitem__(self, collection: Collection) -> Store:
        return self.stores[collection.name]
