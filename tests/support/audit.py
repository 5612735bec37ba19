"""Who wrote what to the API server, from its audit log. Pure but for reading the file."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
ASKED = frozenset(
    {"tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews", "localsubjectaccessreviews", "selfsubjectreviews"}
)
"""Resources that are only created to get an answer; nothing is stored."""


def read_from(log: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The complete events in ``log`` after ``offset``, and the offset of their end."""
    with log.open("rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data.rfind(b"\n") + 1
    return [json.loads(line) for line in data[:whole].splitlines()], offset + whole


def write_of(event: dict[str, Any]) -> str | None:
    """What an event wrote, as ``user verb resource namespace/name``; None when it wrote nothing.

    Leases do not count: they only show liveness. Reviews, rejected requests and dry runs store nothing.
    """
    about = event.get("objectRef") or {}
    if event.get("stage") != "ResponseComplete" or event.get("verb") not in WRITES or "resource" not in about:
        return None
    if about["resource"] == "leases" or about["resource"] in ASKED or "dryRun=All" in event.get("requestURI", ""):
        return None
    if (event.get("responseStatus") or {}).get("code", 200) >= 400:
        return None
    resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
    name = "/".join(part for part in (about.get("namespace"), about.get("name")) if part)
    return f"{event['user']['username']} {event['verb']} {resource} {name}".rstrip()


def writes(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """How often each write was done."""
    return Counter(said for event in events if (said := write_of(event)) is not None)
