"""What the operator knows of the cluster: a few collections, kept true by kopf's events and now and then by a list.

kopf tells of no deletion that happened while its watch was broken, so a list (at the start, after every relist of kopf's
and every few minutes) takes out what is gone. Writes answer with the new object, which goes in at once: the operator
always sees what it has done. resourceVersions of one cluster are ordered, so an older view never replaces a newer one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from thunderfleet_crds.names import API_VERSION, LABEL_MANAGED_BY, MANAGED_BY
from thunderfleet_lib.kube import Json, key_of


@dataclass(frozen=True, slots=True)
class Collection:
    """A kind that is cached. ``selector``: only objects with these labels."""

    name: str
    prefix: str
    selector: str | None = None

    @property
    def path(self) -> str:
        return f"{self.prefix}/{self.name}"

    @property
    def query(self) -> dict[str, object]:
        return {"labelSelector": self.selector} if self.selector else {}

    def item(self, namespace: str | None, name: str) -> str:
        """The path of one object."""
        return f"{self.prefix}/namespaces/{namespace}/{self.name}/{name}" if namespace else f"{self.path}/{name}"


_OURS = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
_API = f"/apis/{API_VERSION}"
NODES = Collection("nodes", "/api/v1")
PODS = Collection("pods", "/api/v1")
CONFIGMAPS = Collection("configmaps", "/api/v1", _OURS)
SERVICES = Collection("services", "/api/v1", _OURS)
SECRETS = Collection("secrets", "/api/v1", _OURS)
"""Written, never read: not among the cached."""
NODEPROFILES = Collection("nodeprofiles", _API)
LINKS = Collection("thunderboltlinks", _API)
DEPLOYMENTS = Collection("modeldeployments", _API)
CACHED = (NODES, PODS, CONFIGMAPS, SERVICES, NODEPROFILES, LINKS, DEPLOYMENTS)


def version(item: Json | None) -> int:
    """The resourceVersion as a number; -1 when there is none."""
    if item is None:
        return -1
    try:
        return int(item["metadata"].get("resourceVersion") or -1)
    except ValueError:
        return -1


def _lean(item: Json) -> Json:
    """Without managedFields: half of an object, and of no use here."""
    metadata = item["metadata"]
    if "managedFields" not in metadata:
        return item
    return {**item, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


@dataclass
class Store:
    """One collection, by ``namespace/name``."""

    collection: Collection
    items: dict[str, Json] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    """Versions at which objects were deleted, until the next list: a late older view must not bring them back."""
    revision: int = 0
    """Moves with every change: what was derived from the collection stands while it does not."""

    def put(self, item: Json) -> bool:
        """Whether this was news."""
        key = key_of(item)
        new = version(item)
        if new <= version(self.items.get(key)) or new <= self.gone.get(key, -1):
            return False
        self.items[key] = _lean(item)
        self.revision += 1
        return True

    def drop(self, item: Json) -> bool:
        key = key_of(item)
        known = self.items.get(key)
        self.gone[key] = max(version(item), self.gone.get(key, -1))
        if known is None or known["metadata"].get("uid") != item["metadata"].get("uid"):
            return False
        del self.items[key]
        self.revision += 1
        return True

    def forget(self, key: str) -> None:
        """What a write found missing."""
        self.items.pop(key, None)
        self.revision += 1

    def replace(self, items: Iterable[Json], list_version: str) -> set[str]:
        """Takes over a list; the keys that differ from what was known."""
        listed = {key_of(item): item for item in items}
        changed = {key for key, item in listed.items() if self.put(item)}
        limit = int(list_version) if list_version.isdigit() else 0
        for key in [key for key, item in self.items.items() if key not in listed and version(item) <= limit]:
            del self.items[key]
            changed.add(key)
        self.revision += bool(changed)
        self.gone = {key: at for key, at in self.gone.items() if at > limit}
        return changed

    def __iter__(self) -> Iterator[Json]:
        return iter(list(self.items.values()))


class Cache:
    """All collections."""

    def __init__(self) -> None:
        self.stores = {collection.name: Store(collection) for collection in CACHED}

    def __getitem__(self, collection: Collection) -> Store:
        return self.stores[collection.name]
