"""Which ModelDeployment a request means, and which ones a caller may use. Pure.

A name is, in this order: namespace and name of a ModelDeployment, its name, its repository, the last part of the repository, an
alias. The first match is used, so an alias never replaces a name. Within one step, the caller's own
namespaces come first: those with a ModelDeployment that accepts the caller's key. Aliases of other namespaces are ignored for
the holder of a key, so an alias cannot attract requests of others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunderfleet_lib.httpapi.errors import ApiError

from thunderfleet_router.decide.callers import Caller
from thunderfleet_router.decide.catalog import Catalog, Deployment, Outlook

LISTED = 20
"""Maximum number of names in an error."""
MAX_LISTED = 4096
"""Maximum number of entries of ``/v1/models``, which a client without a key may get. Models of the caller's own namespaces come
first, and then one of each other namespace in turn, so that no namespace crowds out another."""
Keys = Callable[[Deployment], tuple[str, ...]]
Lookup = Callable[[int, str], list[Deployment]]
"""The ModelDeployments that have a name in one of the steps."""

_STEPS: tuple[Keys, ...] = (
    lambda deployment: deployment.gateway_names[:1],
    lambda deployment: deployment.gateway_names[1:2],
    lambda deployment: deployment.gateway_names[2:3],
    lambda deployment: deployment.gateway_names[3:],
    lambda deployment: deployment.aliases,
)
"""The names of each step, in the order of ``names.client_names`` of the API."""
_MODEL_STEP = 2
"""From this step on, several ModelDeployments of one namespace may have the name."""
_ALIASES = len(_STEPS) - 1


def unauthorized() -> ApiError:
    """Status 401, with the message of the gateway."""
    return ApiError(
        401,
        "the API key is missing or not accepted: send the header Authorization: Bearer <key>, or x-api-key: <key>",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def admit(catalog: Catalog, caller: Caller) -> None:
    """Raises ApiError if the caller has no key, and every ModelDeployment needs one."""
    if not caller.known and catalog.all_require_keys:
        raise unauthorized()


def usable(catalog: Catalog, caller: Caller) -> Sequence[Deployment]:
    """The ModelDeployments that the caller may use, own namespaces first. Raises ApiError if every one needs a key."""
    admit(catalog, caller)
    return catalog.kept(("usable", caller.id if caller.known else ""), lambda: _usable(catalog, caller), len)


def _usable(catalog: Catalog, caller: Caller) -> Sequence[Deployment]:
    found = [deployment for deployment in catalog.deployments.values() if caller.may_use(deployment)]
    return sorted(found, key=lambda deployment: (deployment.namespace not in caller.namespaces, deployment.full_name))


def resolve(catalog: Catalog, caller: Caller, name: str | None, aliases: Mapping[str, str]) -> Deployment:
    """The ModelDeployment that the caller means. ``aliases``: fleet-wide alias to ``namespace/name``. Raises ApiError."""
    admit(catalog, caller)
    if name is not None:
        found = _find(_lookup(catalog, caller), caller, name, aliases)
        if found is not None:
            return found
    available = usable(catalog, caller)
    if name is None:
        if len(available) == 1:
            return available[0]
        raise ApiError(400, f"the field model is missing; {_listed(catalog, available, caller)}", param="model")
    if not caller.known and len(available) < len(catalog.deployments):
        raise unauthorized()
    raise ApiError(
        404,
        f"the model {name[:200]!r} is not served here; {_listed(catalog, available, caller)}",
        param="model",
        code="model_not_found",
    )


def _lookup(catalog: Catalog, caller: Caller) -> Lookup:
    """Looks names up among the ModelDeployments that the caller may use, by the catalog's index: there may be thousands."""

    def lookup(step: int, name: str) -> list[Deployment]:
        return [one for one in catalog.named(name) if name in _STEPS[step](one) and caller.may_use(one)]

    return lookup


def _find(lookup: Lookup, caller: Caller, name: str, aliases: Mapping[str, str]) -> Deployment | None:
    for step in range(_ALIASES):
        matching = lookup(step, name)
        if matching:
            return _one(matching, caller, name, by_model=step >= _MODEL_STEP)
    mine = [one for one in lookup(_ALIASES, name) if not caller.known or one.namespace in caller.namespaces]
    if mine and caller.known:
        return _one(mine, caller, name, by_model=False)
    of_fleet = aliases.get(name)
    if of_fleet is not None:
        return next(iter(lookup(0, of_fleet)), None)
    return _one(mine, caller, name, by_model=False) if mine else None


def _one(matching: list[Deployment], caller: Caller, name: str, *, by_model: bool) -> Deployment:
    own = [deployment for deployment in matching if deployment.namespace in caller.namespaces]
    chosen = own or matching
    if len(chosen) == 1:
        return chosen[0]
    if by_model:
        return min(chosen, key=lambda one: (one.outlook is not Outlook.READY, one.created, one.full_name))
    names = ", ".join(deployment.full_name for deployment in chosen[:LISTED])
    raise ApiError(
        400, f"several models have the name {name[:200]!r}; use one of {names}", param="model", code="model_ambiguous"
    )


def _listed(catalog: Catalog, available: Sequence[Deployment], caller: Caller) -> str:
    if not available:
        return "no model is available to this key" if caller.known else "no model is deployed"
    lookup = _lookup(catalog, caller)
    names = [_shown_name(deployment, lookup, caller) for deployment in available[:LISTED]]
    more = len(available) - len(names)
    return "use " + ("one of " if len(available) > 1 else "") + ", ".join(names) + (f" and {more} more" if more else "")


def _shown_name(deployment: Deployment, lookup: Lookup, caller: Caller) -> str:
    """The shortest name that means this ModelDeployment to the caller."""
    try:
        found = _find(lookup, caller, deployment.name, {})
    except ApiError:
        found = None
    return deployment.name if found is deployment else deployment.full_name


def listing(catalog: Catalog, caller: Caller, aliases: Mapping[str, str]) -> list[dict[str, Any]]:
    """The entries of ``/v1/models``: names, then the aliases that the caller can use. Raises ApiError."""
    available = usable(catalog, caller)
    key = ("listing", caller.id if caller.known else "", frozenset(aliases.items()))
    return catalog.kept(key, lambda: _listing(catalog, available, caller, aliases), len)


def _listing(
    catalog: Catalog, available: Sequence[Deployment], caller: Caller, aliases: Mapping[str, str]
) -> list[dict[str, Any]]:
    shown = _of_each_in_turn(available, caller)
    lookup = _lookup(catalog, caller)
    entries = [_entry(_shown_name(deployment, lookup, caller), deployment) for deployment in shown]
    names = {entry["id"] for entry in entries}
    for alias in sorted({alias for deployment in shown for alias in deployment.aliases} | aliases.keys()):
        if len(entries) >= MAX_LISTED:
            break
        try:
            found = _find(lookup, caller, alias, aliases)
        except ApiError:
            continue
        if found is not None and alias not in names and alias not in found.gateway_names:
            entries.append(_entry(alias, found))
    return entries


def _of_each_in_turn(available: Sequence[Deployment], caller: Caller) -> Sequence[Deployment]:
    """At most MAX_LISTED of them, in their order."""
    if len(available) <= MAX_LISTED:
        return available
    counts: dict[str, int] = {}
    turns = {}
    for one in available:
        counts[one.namespace] = counts.get(one.namespace, 0) + 1
        turns[one.uid] = 0 if one.namespace in caller.namespaces else counts[one.namespace]
    chosen = {one.uid for one in sorted(available, key=lambda one: turns[one.uid])[:MAX_LISTED]}
    return [one for one in available if one.uid in chosen]


def described(name: str, deployment: Deployment) -> dict[str, Any]:
    """``GET /v1/models/{id}``."""
    return _entry(name, deployment)


def _entry(name: str, deployment: Deployment) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": deployment.created,
        "owned_by": "thunderfleet",
        "root": deployment.model,
        "parent": None,
        "max_model_len": deployment.context_tokens,
        "status": deployment.outlook.value,
    }
