"""What ``thunderfleet model`` shows and creates. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from thunderfleet_crds.names import API_VERSION, MAX_NAME_LENGTH, MODELCACHE_KIND

Json = dict[str, Any]
HEADER = ("NAMESPACE", "NAME", "REPOSITORY", "SIZE", "COPIES", "STATUS", "MACS")


def name_for(repository: str) -> str:
    """A name for the ModelCache of a repository; empty if no character of it is usable."""
    text = re.sub(r"[^a-z0-9]+", "-", repository.rpartition("/")[2].lower())
    return re.sub(r"^[^a-z]+", "", text)[:MAX_NAME_LENGTH].strip("-")


def manifest(namespace: str, name: str, repository: str, revision: str, copies: int, secret: str | None) -> Json:
    """The ModelCache."""
    spec: Json = {"repository": repository, "revision": revision, "copies": copies}
    if secret:
        spec["tokenSecret"] = secret
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": MODELCACHE_KIND, "metadata": metadata, "spec": spec}


def condition(cache: Json, name: str) -> Json:
    """A condition; empty if it is not there, or of an earlier spec."""
    found: list[Json] = (cache.get("status") or {}).get("conditions") or []
    current = [one for one in found if one.get("observedGeneration") == cache["metadata"].get("generation")]
    return next((one for one in current if one["type"] == name), {})


def is_fetched(cache: Json) -> bool:
    """Whether all Macs that shall hold the model have it."""
    return condition(cache, "Fetched").get("status") == "True"


def waits_for(cache: Json) -> str:
    """What it waits for, in words."""
    for name in ("Resolved", "Fetched"):
        found = condition(cache, name)
        if found.get("status") != "True":
            return f"{found.get('reason') or 'Pending'}: {found.get('message') or 'waiting for the operator'}"
    return "Fetched"


def _held(copy: Json) -> str:
    """A Mac that has what it shall hold, with the layers if that is a part; empty for another one."""
    if copy.get("phase") == "Part":
        return f"{copy['node']}({copy.get('layers') or ''})"
    return str(copy["node"]) if copy.get("phase") == "Complete" else ""


def row(cache: Json) -> tuple[str, ...]:
    """One line of the table."""
    meta, status = cache["metadata"], cache.get("status") or {}
    macs = ",".join(filter(None, map(_held, status.get("macs") or [])))
    state = condition(cache, "Resolved" if condition(cache, "Resolved").get("status") != "True" else "Fetched")
    shown = [meta["namespace"], meta["name"], cache["spec"]["repository"], status.get("size"), status.get("copies")]
    return tuple(str(value or "-") for value in (*shown, state.get("reason"), macs))


def unreferenced(profiles: Iterable[Json], caches: Iterable[Json]) -> list[tuple[str, ...]]:
    """A line for each model that Macs keep although no ModelCache names it."""
    named = {(cache.get("status") or {}).get("manifest") for cache in caches}
    found: dict[tuple[str, str], list[str]] = {}
    for profile in profiles:
        for copy in (profile.get("status") or {}).get("copies") or []:
            if copy["manifest"] not in named:
                held = {**copy, "node": profile["metadata"]["name"]}
                found.setdefault((copy["repository"], copy["commit"][:8]), []).append(_held(held) or held["node"])
    return [("-", "-", f"{name}@{commit}", "-", "-", "Unreferenced", ",".join(macs)) for (name, commit), macs in found.items()]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns."""
    every = [HEADER, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(HEADER))]
    lines = ("   ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip() for row in every)
    return "\n".join(lines)
