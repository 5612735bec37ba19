"""Lists by the value of a field, which several fields of an object can have."""

from collections.abc import Sequence

from thunderfleet_lib.kube.client import ApiError, Kube
from thunderfleet_lib.kube.names import Json, name_of


async def with_value(kube: Kube, path: str, fields: Sequence[str], value: str, label: str) -> list[Json]:
    """The cluster-scoped objects at ``path`` of which one of the fields has this value, in order of their names.

    ``label``: one that they have too, for a CRD of an earlier version that cannot select by these fields. Others can set it on
    any object, so the fields are compared. Raises ApiError.
    """
    found: dict[str, Json] = {}
    try:
        for field in fields:
            items, _ = await kube.list(path, fieldSelector=f"{field}={value}")
            found |= {name_of(item): item for item in items}
    except ApiError as error:
        if error.status != 400:
            raise
        items, _ = await kube.list(path, labelSelector=label)
        found = {name_of(item): item for item in items if any(_at(item, field) == value for field in fields)}
    return [found[name] for name in sorted(found)]


def _at(item: Json, field: str) -> object:
    """The value at a path such as ``spec.a.node``."""
    value: object = item
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
