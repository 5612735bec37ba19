"""The document of one ModelDeployment for routers: digests of its API keys, with their limits, and its groups."""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
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
from thunderfleet_crds.names import LABEL_MANAGED_BY, MANAGED_BY

NAME_PREFIX = "thunderfleet-routes-"
"""Prefix of the names of all documents."""


SECRET_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Valid names of Secrets. Any other text, such as ``../other/keys``, could lead to another path of the API."""


def secret_of(deployment: ModelDeployment) -> str | None:
    """``namespace/name`` of the Secret with its API keys; None if it needs none, or if no Secret can have the name."""
    name = deployment.spec.server.api_key_secret
    return f"{deployment.metadata.namespace}/{name}" if name and SECRET_NAME.fullmatch(name) else None


def digests(data: Mapping[str, object], routing_key: bytes) -> dict[str, str]:
    """Digests of the API keys in the ``data`` of a Secret (base64), by the name of the field.

    Empty values are ignored, as the runners of groups do, and so are values that are not text or too long.
    """
    found: dict[str, str] = {}
    for name in sorted(data):
        try:
            value = base64.b64decode(str(data[name]), validate=True)
            text = value.decode().strip()
        except (binascii.Error, ValueError):
            continue
        if text and len(value) <= MAX_KEY_BYTES and len(found) < MAX_KEYS:
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
