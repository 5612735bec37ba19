"""The router's view of the fleet: ModelDeployments, their groups and the keys that they accept. Pure.

Objects may be written by other versions. Those that cannot be read are left out, so that one invalid object does not affect the
others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import ValidationError
from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.routing import AcceptedKey, Routes
from thunderfleet_crds.names import client_names, served_name
from thunderfleet_crds.vocabulary import GroupPhase

_COMING = frozenset(
    {
        GroupPhase.PENDING, GroupPhase.STARTING, GroupPhase.WAITING, GroupPhase.PREPARING, GroupPhase.FORMING,
        GroupPhase.LOADING, GroupPhase.BACKING_OFF,
    }
)  # fmt: skip

MAX_KEPT = 50_000
"""Entries of all values that are kept with one catalog. An entry of a listing takes 300 bytes."""

T = TypeVar("T")


class Outlook(StrEnum):
    """Whether a ModelDeployment serves, or will."""

    READY = "Ready"
    COMING = "Coming"
    """A group is placed or loads."""
    ASLEEP = "Asleep"
    """Scaled to zero; a request wakes it."""
    OFF = "Off"
    """Suspended or without replicas: no request changes that."""
    FAILED = "Failed"
    """Its groups have given up."""


@dataclass(frozen=True, slots=True)
class Group:
    """A placement of a group. Its name identifies it: an epoch is never used twice."""

    name: str
    """``namespace/deployment-index/epoch``."""
    index: int
    url: str
    """``http://address:port`` of the gateway."""
    credential: str | None
    """None for a group that was placed before routers had credentials."""
    phase: str

    @property
    def ready(self) -> bool:
        return self.phase == GroupPhase.READY

    @property
    def lost(self) -> bool:
        """Whether the placement can no longer answer requests that it has received."""
        return self.phase not in (GroupPhase.READY, GroupPhase.DRAINING)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A ModelDeployment."""

    namespace: str
    name: str
    uid: str
    model: str
    """The name that its gateways use: the repository."""
    aliases: tuple[str, ...]
    created: int
    """Seconds since 1970."""
    requires_key: bool
    slots: int
    """Requests that a group runs at once."""
    context_tokens: int
    cached_tokens: int
    groups: tuple[Group, ...]
    outlook: Outlook
    message: str
    """Why it does not serve, from its condition Ready."""
    deleting: bool = False
    """Whether it has been deleted, and its groups end."""
    keys: Mapping[str, AcceptedKey] = field(default_factory=dict)
    """By digest."""
    gateway_names: tuple[str, ...] = ()
    """The names that its gateways accept, by precedence."""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


class _Values:
    """Values by key, with at most MAX_KEPT entries in all, or one larger value."""

    def __init__(self) -> None:
        self.by_key: dict[object, object] = {}
        self.entries = 0

    def add(self, key: object, value: object, entries: int) -> None:
        """Adds a value; drops all others if there is no room for it."""
        if self.entries + entries > MAX_KEPT:
            self.by_key.clear()
            self.entries = 0
        self.by_key[key] = value
        self.entries += entries


@dataclass(frozen=True, slots=True)
class Catalog:
    """All ModelDeployments, by ``namespace/name``, and the routing keys with which keys are looked up."""

    deployments: Mapping[str, Deployment] = field(default_factory=dict)
    digest_keys: tuple[bytes, ...] = ()
    by_digest: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By the digest of a key, the ModelDeployments that accept it."""
    by_name: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By name, the ModelDeployments that it may mean, in order."""
    all_require_keys: bool = False
    """Whether there are ModelDeployments, and each requires a key."""
    _kept: _Values = field(default_factory=_Values, compare=False, repr=False)

    def accepting(self, digest: str) -> list[Deployment]:
        """The ModelDeployments that accept the key with this digest."""
        return [self.deployments[name] for name in self.by_digest.get(digest, ())]

    def named(self, name: str) -> list[Deployment]:
        """The ModelDeployments that a name may mean."""
        return [self.deployments[found] for found in self.by_name.get(name, ())]

    def kept(self, key: object, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """``make()``, or what it returned for this key and this catalog before: clients ask the same again and again.

        ``size``: the number of entries of the value.
        """
        if key not in self._kept.by_key:
            made = make()
            self._kept.add(key, made, 1 + size(made))
        return cast("T", self._kept.by_key[key])


class _Document(NamedTuple):
    """A Routes document. ``keys``: by digest."""

    routes: Routes
    keys: Mapping[str, AcceptedKey]


class _Made(NamedTuple):
    """A ModelDeployment, and what it was made from. None: it cannot be read."""

    item: Mapping[str, Any]
    document: _Document | None
    deployment: Deployment | None


class Builder:
    """Makes each catalog from the one before.

    A user can have a thousand ModelDeployments with hundreds of keys each, and one of them changes at a time. Objects and texts
    are replaced when they change, never modified.
    """

    def __init__(self) -> None:
        self._documents: dict[str, _Document | None] = {}
        """By text."""
        self._made: dict[int, _Made] = {}
        """By the identity (``id``) of the object, which is kept here, so its identity is not reused."""
        self._keys: Mapping[str, bytes] = {}
        self._catalog = Catalog()

    def build(self, objects: Iterable[Mapping[str, Any]], documents: Iterable[str], keys: Mapping[str, bytes]) -> Catalog:
        """The catalog of ModelDeployments and Routes documents. ``keys``: routing keys by id."""
        before = self._documents
        self._documents = {text: before[text] if text in before else _document(text) for text in documents}
        routes = {found.routes.uid: found for found in self._documents.values() if found is not None}
        made = self._made if keys == self._keys else {}
        self._keys, self._made = dict(keys), {}
        deployments = {}
        for item in objects:
            known, document = made.get(id(item)), routes.get(_uid(item))
            if known is None or known.item is not item or known.document is not document:
                known = _Made(item, document, _read(item, document, keys))
            self._made[id(item)] = known
            if known.deployment is not None:
                deployments[known.deployment.full_name] = known.deployment
        used = {found.routes.key_id for found in routes.values()}
        digest_keys = tuple(key for name, key in sorted(keys.items()) if name in used)
        past, by_digest, by_name = self._catalog, self._catalog.by_digest, self._catalog.by_name
        if not _same_index(past.deployments, deployments):
            by_digest, by_name = _by_digest(deployments), _by_name(deployments)
        closed = bool(deployments) and all(one.requires_key for one in deployments.values())
        self._catalog = Catalog(deployments, digest_keys, by_digest, by_name, closed)
        return self._catalog


def build(objects: Iterable[Mapping[str, Any]], documents: Iterable[str], keys: Mapping[str, bytes]) -> Catalog:
    """The catalog, as ``Builder`` makes it."""
    return Builder().build(objects, documents, keys)


def _same_index(before: Mapping[str, Deployment], after: Mapping[str, Deployment]) -> bool:
    """Whether both have the same names and keys in ``by_digest`` and ``by_name``."""
    return before.keys() == after.keys() and all(_same_entries(before[name], one) for name, one in after.items())


def _same_entries(one: Deployment, other: Deployment) -> bool:
    if one is other:
        return True
    return (one.gateway_names, one.aliases) == (other.gateway_names, other.aliases) and one.keys.keys() == other.keys.keys()


def _by_digest(deployments: Mapping[str, Deployment]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, deployment in deployments.items():
        for digest in deployment.keys:
            found.setdefault(digest, []).append(name)
    return found


def _by_name(deployments: Mapping[str, Deployment]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for full_name, deployment in sorted(deployments.items()):
        for name in dict.fromkeys((*deployment.gateway_names, *deployment.aliases)):
            found.setdefault(name, []).append(full_name)
    return found


def _document(text: str) -> _Document | None:
    found = _routes(text)
    return _Document(found, {key.digest: key for key in found.keys}) if found is not None else None


def _uid(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata")
    return str(metadata.get("uid")) if isinstance(metadata, Mapping) else ""


def _read(item: Mapping[str, Any], document: _Document | None, keys: Mapping[str, bytes]) -> Deployment | None:
    try:
        return _deployment(item, document, keys)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _routes(text: str) -> Routes | None:
    if len(text) > routing.ROUTES_BYTES:
        return None
    try:
        return Routes.model_validate_json(text)
    except ValidationError:
        return None


def _deployment(item: Mapping[str, Any], document: _Document | None, keys: Mapping[str, bytes]) -> Deployment:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    namespace, name, uid = str(metadata["namespace"]), str(metadata["name"]), str(metadata["uid"])
    server, memory = spec.get("server") or {}, spec.get("memory") or {}
    if document is not None and (document.routes.namespace, document.routes.deployment) != (namespace, name):
        document = None
    groups = tuple(_groups(namespace, name, uid, status, document.routes if document is not None else None, keys))
    model = served_name(spec["model"].get("repository"), spec["model"].get("path"), spec["model"].get("uri"))
    requires_key = bool(server.get("apiKeySecret"))
    context_tokens = int(memory.get("contextTokens") or routing.DEFAULT_CONTEXT_TOKENS)
    cached_tokens = memory.get("cachedTokens")
    return Deployment(
        namespace=namespace,
        name=name,
        uid=uid,
        model=model,
        aliases=tuple(str(alias) for alias in (server.get("aliases") or ())[: routing.MAX_ALIASES]),
        created=_seconds(metadata.get("creationTimestamp")),
        requires_key=requires_key,
        slots=int(memory.get("concurrentRequests") or routing.DEFAULT_CONCURRENT_REQUESTS),
        context_tokens=context_tokens,
        cached_tokens=routing.cache_capacity(None if cached_tokens is None else int(cached_tokens), context_tokens),
        groups=groups,
        outlook=_outlook(metadata, spec, status, groups),
        message=_message(status),
        deleting=bool(metadata.get("deletionTimestamp")),
        keys=document.keys if document is not None and requires_key else {},
        gateway_names=client_names(namespace, name, model),
    )


def _groups(
    namespace: str, name: str, uid: str, status: Mapping[str, Any], document: Routes | None, keys: Mapping[str, bytes]
) -> Iterable[Group]:
    known = {(entry.index, entry.epoch): entry.key_id for entry in document.groups} if document is not None else {}
    for entry in status.get("groups") or ():
        index, epoch, endpoint = int(entry.get("index") or 0), int(entry.get("epoch") or 0), entry.get("endpoint")
        parts = urlsplit(str(endpoint or ""))
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            continue
        key = keys.get(known.get((index, epoch), ""))
        credential = routing.group_credential(key, namespace, name, uid, index, epoch) if key is not None else None
        yield Group(f"{namespace}/{name}-{index}/{epoch}", index, f"http://{parts.netloc}", credential, str(entry.get("state")))


def _outlook(
    metadata: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any], groups: tuple[Group, ...]
) -> Outlook:
    if metadata.get("deletionTimestamp"):
        return Outlook.OFF
    if any(group.ready for group in groups):
        return Outlook.READY
    if spec.get("suspend"):
        return Outlook.OFF
    phases = {str(entry.get("state")) for entry in status.get("groups") or ()}
    if phases & _COMING:
        return Outlook.COMING
    if GroupPhase.GAVE_UP in phases:
        return Outlook.FAILED
    if isinstance(spec.get("autoscaling"), Mapping):
        return Outlook.ASLEEP
    return Outlook.COMING if int(spec.get("replicas", 1)) > 0 else Outlook.OFF


def _seconds(time: object) -> int:
    return int(datetime.fromisoformat(str(time)).timestamp()) if time else 0


def _message(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            return str(condition.get("message") or "")[:512]
    return ""
