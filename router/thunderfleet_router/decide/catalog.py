"""The router's view of the fleet: ModelDeployments, their groups and the keys that they accept. Pure.

Objects may be written by other versions. Those that cannot be read are left out, so that one invalid object does not affect the
others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
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

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def gateway_names(self) -> tuple[str, ...]:
        """The names that its gateways accept, by precedence."""
        return client_names(self.namespace, self.name, self.model)


@dataclass(frozen=True, slots=True)
class Catalog:
    """All ModelDeployments, by ``namespace/name``, and the routing keys with which keys are looked up.

    ``by_name``: the ModelDeployments that a name may mean, in the order of ``namespace/name``.
    """

    deployments: Mapping[str, Deployment] = field(default_factory=dict)
    digest_keys: tuple[bytes, ...] = ()
    by_digest: Mapping[str, tuple[Deployment, ...]] = field(default_factory=dict)
    by_name: Mapping[str, Sequence[Deployment]] = field(default_factory=dict)


def build(objects: Iterable[Mapping[str, Any]], documents: Iterable[str], keys: Mapping[str, bytes]) -> Catalog:
    """The catalog of ModelDeployments and Routes documents. ``keys``: routing keys by id."""
    routes = {found.uid: found for found in (_routes(text) for text in documents) if found is not None}
    deployments = {}
    for item in objects:
        try:
            found = _deployment(item, routes, keys)
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        deployments[found.full_name] = found
    used = {found.key_id for found in routes.values()}
    by_digest: dict[str, tuple[Deployment, ...]] = {}
    for deployment in deployments.values():
        for digest in deployment.keys:
            by_digest[digest] = (*by_digest.get(digest, ()), deployment)
    digest_keys = tuple(key for name, key in sorted(keys.items()) if name in used)
    return Catalog(deployments, digest_keys, by_digest, _by_name(deployments))


def _by_name(deployments: Mapping[str, Deployment]) -> dict[str, list[Deployment]]:
    found: dict[str, list[Deployment]] = {}
    for _, deployment in sorted(deployments.items()):
        for name in dict.fromkeys((*deployment.gateway_names, *deployment.aliases)):
            found.setdefault(name, []).append(deployment)
    return found


def _routes(text: str) -> Routes | None:
    if len(text) > routing.ROUTES_BYTES:
        return None
    try:
        return Routes.model_validate_json(text)
    except ValidationError:
        return None


def _deployment(item: Mapping[str, Any], routes: Mapping[str, Routes], keys: Mapping[str, bytes]) -> Deployment:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    namespace, name, uid = str(metadata["namespace"]), str(metadata["name"]), str(metadata["uid"])
    server, memory = spec.get("server") or {}, spec.get("memory") or {}
    document = routes.get(uid)
    if document is not None and (document.namespace, document.deployment) != (namespace, name):
        document = None
    groups = tuple(_groups(namespace, name, uid, status, document, keys))
    requires_key = bool(server.get("apiKeySecret"))
    context_tokens = int(memory.get("contextTokens") or routing.DEFAULT_CONTEXT_TOKENS)
    cached_tokens = memory.get("cachedTokens")
    return Deployment(
        namespace=namespace,
        name=name,
        uid=uid,
        model=served_name(spec["model"].get("repository"), spec["model"].get("path"), spec["model"].get("uri")),
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
        keys={key.digest: key for key in document.keys} if document is not None and requires_key else {},
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
