"""Conditions and causes of an entity that is selected on the page. Pure."""

from collections.abc import Sequence
from typing import Any

from thunderfleet_view import facts, why
from thunderfleet_view.facts import Json, Picture, Signs
from thunderfleet_view.health import of_condition
from thunderfleet_view.live.fleet import Fleet, Kind

_KINDS = {"mac": (Kind.NODES, Kind.PROFILES), "cable": (Kind.LINKS,), "model": (Kind.DEPLOYMENTS,)}
MAX_CONDITIONS = 32
NO_SIGNS = Signs()


def details(
    fleet: Fleet,
    entity_id: str,
    pods: Sequence[Json],
    operators: Sequence[Json] | None,
    signs: Signs = NO_SIGNS,
) -> dict[str, Any] | None:
    """Conditions of the objects behind an entity; for a model, also the path to the cause. None if there is no such entity.

    ``pods``: those of the model. ``operators``: the operator's pods; None if they could not be read. ``signs``: of
    programs that work, as far as they could be read.
    """
    sort, _, key = entity_id.partition("/")
    found = [item for kind in _KINDS.get(sort, ()) if (item := fleet.objects[kind].get(key)) is not None]
    if entity_id not in fleet.entities or not found:
        return None
    explained = why.as_values(why.why(_picture(fleet, pods, operators, signs), found[0])) if sort == "model" else None
    return {"id": entity_id, "conditions": [one for item in found for one in _conditions(item)], "why": explained}


def _conditions(item: Json) -> Sequence[dict[str, str]]:
    return [
        {
            "type": kind,
            "status": facts.plain(one.get("status") or ""),
            "reason": facts.plain(one.get("reason") or ""),
            "message": facts.plain(one.get("message") or ""),
            "since": facts.plain(one.get("lastTransitionTime") or ""),
            "health": of_condition(one).value,
        }
        for kind, one in list(facts.conditions(item).items())[:MAX_CONDITIONS]
    ]


def _picture(fleet: Fleet, pods: Sequence[Json], operators: Sequence[Json] | None, signs: Signs) -> Picture:
    unread = {} if operators is not None else {"operators": "the operator's pods could not be read"}
    return Picture(
        nodes=list(fleet.objects[Kind.NODES].values()),
        profiles=list(fleet.objects[Kind.PROFILES].values()),
        links=list(fleet.objects[Kind.LINKS].values()),
        pods=pods,
        operators=operators or (),
        unread=unread,
        **vars(signs),
    )
