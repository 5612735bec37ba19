"""Whether a pod's status needs writing, and as which patch. Pure."""

from typing import Any

Json = dict[str, Any]


def as_patch(status: Json) -> Json:
    """The status as a strategic merge patch.

    Conditions merge by type, so fields that a condition no longer has are nulled. Addresses would merge by address, and an old
    one would stay.
    """
    patch = dict(status)
    if "conditions" in status:
        patch["conditions"] = [{"reason": None, "message": None} | condition for condition in status["conditions"]]
    for key in ("hostIPs", "podIPs"):
        if key in status:
            patch[key] = [*status[key], {"$patch": "replace"}]
    return patch


def version_of(item: Json) -> int:
    """The resource version of an object; 0 without one."""
    text = str(item["metadata"].get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0


def covers(present: object, wanted: object) -> bool:
    """Whether ``present`` has everything that ``wanted`` has. The API server omits empty values."""
    if isinstance(wanted, dict):
        known = present if isinstance(present, dict) else {}
        return all(covers(known.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        known_items = present if isinstance(present, list) else []
        if wanted and isinstance(wanted[0], dict) and "type" in wanted[0]:
            by_type = {item.get("type"): item for item in known_items}
            return all(covers(by_type.get(item["type"]), {"reason": None, "message": None} | item) for item in wanted)
        return len(known_items) == len(wanted) and all(map(covers, known_items, wanted))
    return present == wanted or (not present and not wanted)


def only_started(present: Json, wanted: Json) -> bool:
    """Whether ``wanted`` differs from ``present`` in nothing but containers that have started and are not ready yet."""
    before = {one.get("name"): one.get("started") for one in present.get("containerStatuses") or []}
    statuses = [one | {"started": before.get(one.get("name"))} for one in wanted.get("containerStatuses") or []]
    return not covers(present, wanted) and covers(present, wanted | {"containerStatuses": statuses})
