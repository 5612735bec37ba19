"""The document of one ModelDeployment for routers: digests of its API keys, with their limits, and its groups."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.exchange.routing import (
    LABEL_ROUTES,
    MAX_KEY_BYTES,
    MAX_KEYS,
    ROUTES_FIELD,
    AcceptedKey,
    GroupKey,
    KeyLimits,
    Routes,
    key_digest,
    key_id,
    routes_name,
)
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.meta.fields import is_secret_name
from thunderfleet_crds.names import LABEL_MANAGED_BY, MANAGED_BY

NAME_PREFIX = "thunderfleet-routes-"
"""Prefix of the names of all documents."""

MAX_FIELDS = 4 * MAX_KEYS
"""Fields of a Secret that are examined, the first ones by name."""
MAX_KEYS_OF_NAMESPACE = 256 * MAX_KEYS
"""API keys of all ModelDeployments of a namespace that are published. Each router keeps all of them in memory."""
MAX_SECRETS_OF_NAMESPACE = 256


def secret_of(deployment: ModelDeployment) -> str | None:
    """``namespace/name`` of the Secret with its API keys; None if it needs none, or if no Secret can have the name."""
    name = deployment.spec.server.api_key_secret
    return f"{deployment.metadata.namespace}/{name}" if name and is_secret_name(name) else None


def in_turn(keys: Iterable[str]) -> list[str]:
    """``namespace/name`` of objects in an order in which namespaces take turns; those of one namespace stay in order."""
    counts: dict[str, int] = {}
    turns: list[tuple[int, str]] = []
    for key in keys:
        namespace = key.partition("/")[0]
        counts[namespace] = counts.get(namespace, 0) + 1
        turns.append((counts[namespace], key))
    return [key for _, key in sorted(turns, key=lambda turn: turn[0])]


def secrets_of(deployments: Iterable[ModelDeployment]) -> set[str]:
    """``namespace/name`` of the Secrets to read: MAX_SECRETS_OF_NAMESPACE of each namespace, the first that were named."""
    found: dict[str, dict[str, None]] = {}
    for deployment in sorted(deployments, key=_age):
        name = secret_of(deployment)
        of_namespace = found.setdefault(str(deployment.metadata.namespace), {})
        if name is not None and (name in of_namespace or len(of_namespace) < MAX_SECRETS_OF_NAMESPACE):
            of_namespace[name] = None
    return {name for names in found.values() for name in names}


def _age(deployment: ModelDeployment) -> tuple[datetime, str]:
    meta = deployment.metadata
    return meta.creation_timestamp or datetime.max.replace(tzinfo=UTC), meta.name


def shares(counts: Mapping[str, int], deployments: Mapping[str, ModelDeployment]) -> set[str]:
    """The ModelDeployments whose keys are published: as many as MAX_KEYS_OF_NAMESPACE allows, the oldest first.

    ``counts``: their numbers of keys. Both by ``namespace/name``.
    """
    left: dict[str, int] = {}
    found = set()
    for key in sorted(counts, key=lambda key: _age(deployments[key])):
        namespace = key.partition("/")[0]
        rest = left.get(namespace, MAX_KEYS_OF_NAMESPACE) - counts[key]
        if rest >= 0:
            left[namespace] = rest
            found.add(key)
    return found


def digests(data: Mapping[str, object], routing_key: bytes) -> dict[str, str]:
    """Digests of the API keys in the ``data`` of a Secret (base64), by the name of the field.

    Empty values are ignored, as the runners of groups do, and so are values that are not text or too long.
    """
    found: dict[str, str] = {}
    # A Secret may have a hundred thousand fields.
    for name in sorted(data)[:MAX_FIELDS]:
        if len(found) >= MAX_KEYS:
            break
        try:
            value = base64.b64decode(str(data[name]), validate=True)
            text = value.decode().strip()
        except (binascii.Error, ValueError):
            continue
        if text and len(value) <= MAX_KEY_BYTES:
            found[name] = key_digest(routing_key, text)
    return found


def document(
    deployment: ModelDeployment, keys: Mapping[str, str], routing_key: bytes, plans: Iterable[Plan], known: Iterable[str]
) -> Routes:
    """The document. ``keys``: ``digests`` of its Secret. ``plans``: of its groups. ``known``: ids of the routing keys."""
    meta, limits = deployment.metadata, {entry.name: entry for entry in deployment.spec.server.api_keys}
    ids = frozenset(known)
    newest: dict[int, Plan] = {}
    for plan in plans:
        if plan.uid == meta.uid and (plan.index not in newest or plan.epoch > newest[plan.index].epoch):
            newest[plan.index] = plan
    groups = [
        GroupKey(index=plan.index, epoch=plan.epoch, key_id=plan.router.key_id)
        for _, plan in sorted(newest.items())
        if plan.router is not None and plan.router.key_id in ids
    ]
    accepted = [
        AcceptedKey(
            name=name,
            digest=digest,
            limits=KeyLimits.model_validate(limits[name].model_dump(exclude={"name"})) if name in limits else KeyLimits(),
        )
        for name, digest in keys.items()
    ]
    return Routes(
        namespace=str(meta.namespace),
        deployment=meta.name,
        uid=str(meta.uid),
        key_id=key_id(routing_key),
        keys=tuple(accepted),
        groups=tuple(groups),
    )


def config_map(namespace: str, routes: Routes) -> dict[str, Any]:
    """The ConfigMap with a document, in the ``namespace`` of the release."""
    labels = {LABEL_ROUTES: "", LABEL_MANAGED_BY: MANAGED_BY}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": routes_name(routes.namespace, routes.deployment), "namespace": namespace, "labels": labels},
        "data": {ROUTES_FIELD: routes.model_dump_json(by_alias=True, exclude_none=True)},
    }
