"""The metadata that every child of a ModelDeployment has."""

from datetime import datetime
from typing import Any

from thunderfleet_crds.names import LABEL_DEPLOYMENT, LABEL_EPOCH, LABEL_GROUP, LABEL_RANK, MODELDEPLOYMENT_KIND

Json = dict[str, Any]

DeploymentKey = tuple[str, str]
"""Namespace and name of a ModelDeployment."""
GroupKey = tuple[str | None, int]
"""UID of a ModelDeployment and index of the group."""
PlacementKey = tuple[str, str, int, int]
"""Namespace, name, group and epoch."""


def parse_time(text: object) -> datetime | None:
    """An API time as a datetime; None if unset."""
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")) if text else None


def _owner(item: Json) -> Json | None:
    for owner in item["metadata"].get("ownerReferences") or []:
        if owner.get("controller") and owner.get("kind") == MODELDEPLOYMENT_KIND:
            return dict(owner)
    return None


def owner_uid(item: Json) -> str | None:
    """UID of the ModelDeployment that controls this object."""
    owner = _owner(item)
    return str(owner.get("uid")) if owner else None


def owner_key(item: Json) -> str | None:
    """``namespace/name`` of the ModelDeployment that controls this object."""
    owner = _owner(item)
    return f"{item['metadata'].get('namespace')}/{owner.get('name')}" if owner else None


def deployment_key(item: Json) -> DeploymentKey:
    """The ModelDeployment that this object's label names; an empty name if there is none."""
    metadata = item["metadata"]
    return str(metadata.get("namespace")), str((metadata.get("labels") or {}).get(LABEL_DEPLOYMENT) or "")


def _number(item: Json, label: str) -> int:
    try:
        return int((item["metadata"].get("labels") or {}).get(label, ""))
    except ValueError:
        return -1


def group_index(item: Json) -> int:
    """The group that a child belongs to; -1 without the label."""
    return _number(item, LABEL_GROUP)


def epoch_number(item: Json) -> int:
    """The placement that a child belongs to; -1 without the label."""
    return _number(item, LABEL_EPOCH)


def rank_number(item: Json) -> int:
    """The rank that a pod runs; -1 without the label."""
    return _number(item, LABEL_RANK)


def annotation(item: Json, name: str) -> str:
    """An annotation; empty if there is none."""
    return str((item["metadata"].get("annotations") or {}).get(name) or "")


def deleting(item: Json) -> bool:
    """Whether the object has been deleted and is still there."""
    return bool(item["metadata"].get("deletionTimestamp"))
