"""Names of Kubernetes objects."""

from typing import Any

Json = dict[str, Any]
"""A JSON object, as the API server sends it."""


def name_of(item: Json) -> str:
    """The object's name."""
    return str(item["metadata"]["name"])


def key_of(item: Json) -> str:
    """``namespace/name``, or ``name`` of a cluster-scoped object."""
    metadata = item["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])
