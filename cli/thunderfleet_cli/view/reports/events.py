"""``events``: what happened to a ModelDeployment, its pods, Macs and cables, in order. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from thunderfleet_crds import names
from thunderfleet_view import facts
from thunderfleet_view.facts import Json, Picture

from thunderfleet_cli.view.page import BAD, Page
from thunderfleet_cli.view.reports.status import unread

KINDS = frozenset((names.MODELDEPLOYMENT_KIND, names.NODEPROFILE_KIND, names.THUNDERBOLTLINK_KIND, "Node", "Pod"))


def time_of(event: Json) -> str:
    """The time of the last occurrence of an event."""
    series = event.get("series") or {}
    return facts.plain(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )


def chosen(picture: Picture, deployment: Json | None) -> list[Json]:
    """Events of a deployment and the objects that it uses, oldest first; without one, of all Thunderfleet objects."""
    wanted = None if deployment is None else set(_objects(picture, deployment))
    found = [event for event in picture.events if _belongs(event, wanted)]
    return sorted(found, key=lambda event: (time_of(event), facts.name(event)))


def _belongs(event: Json, wanted: set[tuple[str, str, str]] | None) -> bool:
    about = event.get("involvedObject") or {}
    kind, name = str(about.get("kind")), str(about.get("name"))
    if wanted is None:
        return kind in KINDS
    namespaced = kind in (names.MODELDEPLOYMENT_KIND, "Pod")
    return (kind, str(about.get("namespace") or "") if namespaced else "", name) in wanted or any(
        # Deleted pods: their names begin with the deployment's name.
        kind == "Pod" and of == "Pods" and about.get("namespace") == namespace and name.startswith(f"{prefix}-")
        for of, namespace, prefix in wanted
    )


def _objects(picture: Picture, deployment: Json) -> Iterator[tuple[str, str, str]]:
    metadata = deployment["metadata"]
    namespace = str(metadata.get("namespace") or "")
    yield names.MODELDEPLOYMENT_KIND, namespace, metadata["name"]
    yield "Pods", namespace, metadata["name"]
    for group in facts.groups(deployment):
        for rank in group.get("ranks") or ():
            for kind in ("Node", names.NODEPROFILE_KIND):
                yield kind, "", str(rank.get("node"))
        for link in facts.links_of(picture, facts.group_name(deployment, group)):
            yield names.THUNDERBOLTLINK_KIND, "", link


def as_values(found: Sequence[Json]) -> list[dict[str, Any]]:
    """Events by time."""
    return [
        {
            "time": time_of(event),
            "type": facts.plain(event.get("type") or ""),
            "reason": facts.plain(event.get("reason") or ""),
            "object": _object(event),
            "message": facts.plain(event.get("message") or ""),
            "count": event.get("count") or (event.get("series") or {}).get("count") or 1,
        }
        for event in found
    ]


def show(found: Sequence[Json], picture: Picture, page: Page, now: datetime) -> None:
    """A table like that of `kubectl get events`."""
    rows = [
        (
            facts.ago(one["time"], now),
            (one["type"], BAD if one["type"] == "Warning" else ""),
            one["reason"],
            one["object"],
            one["message"] + (f" (x{one['count']})" if one["count"] > 1 else ""),
        )
        for one in as_values(found)
    ]
    if rows:
        page.table(("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"), rows)
    elif "events" not in picture.unread:
        page.line("no events; the API server keeps them for an hour")
    unread(picture, page)


def _object(event: Json) -> str:
    about = event.get("involvedObject") or {}
    return f"{facts.plain(about.get('kind') or '')}/{facts.plain(about.get('name') or '')}".lower()
