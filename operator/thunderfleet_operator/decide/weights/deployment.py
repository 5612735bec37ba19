"""The ModelCache of a ModelDeployment: whether it needs one, and what the status reports about it."""

from dataclasses import dataclass

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, Copies
from thunderfleet_crds.weights.copies import MacCopy
from thunderfleet_lib.modelstore.manifest import InvalidManifest, check_repository

from thunderfleet_operator.decide.manifests import Manifest
from thunderfleet_operator.decide.placing.model import Resolution, listed
from thunderfleet_operator.decide.placing.request import request
from thunderfleet_operator.decide.weights import manifests
from thunderfleet_operator.decide.weights.manifests import HubSettings
from thunderfleet_operator.decide.weights.status import server_of, short, summary
from thunderfleet_operator.observe.fleet.weights import Weights, has_parts, is_quantized_now, is_resolved, source_of
from thunderfleet_operator.placement import Fleet, Mac
from thunderfleet_operator.placement.eligibility import wanted_model

_UNKNOWN_PARTS = (
    "an earlier version of Thunderfleet resolved the model and did not record the layers in its files; delete the ModelCache "
    "to resolve the model again (the Macs keep the files)"
)


@dataclass(frozen=True, slots=True)
class Needed:
    """What to do about the ModelCache. ``apply``: to create it, or to make it follow the spec.

    ``coming``: text with the reason why the model will be fetched, before there is a ModelCache.
    """

    apply: Manifest | None = None
    coming: Resolution | None = None


def needed(
    deployment: ModelDeployment, fleet: Fleet, weights: Weights, hub: HubSettings, *, found: bool, unplaced: bool, taken: bool
) -> Needed:
    """Whether to create or change the ModelCache.

    ``found``: whether a Mac has the model already. ``unplaced``: whether a group has no place. ``taken``: whether another
    ModelCache has the ModelDeployment's name.
    """
    model, cache = deployment.spec.model, weights.cache
    if model.uri is None and (model.repository is None or not hub.enabled or not _may_be_fetched(model.repository)):
        return Needed()
    own = cache is not None and any(owner.uid == deployment.metadata.uid for owner in cache.metadata.owner_references)
    if cache is not None and own:
        if source_of(cache.spec) == source_of(model):
            return Needed()
        return Needed(manifests.model_cache(deployment, cache.metadata.name))
    # First what is known without reading all Macs.
    if cache is not None or not deployment.wanted_groups or (found and not unplaced):
        return Needed()
    if not _reported(fleet):
        return Needed(coming=_awaited(fleet))
    asked = request(deployment.spec)
    lacking = any(mac.store and not any(one.complete for one in wanted_model(mac, asked)) for mac in fleet.macs.values())
    if not lacking:
        return Needed()
    name = manifests.cache_name(deployment, taken=taken)
    return Needed(manifests.model_cache(deployment, name), _created(f"ModelCache {name}"))


def _may_be_fetched(repository: str) -> bool:
    try:
        check_repository(repository)
    except InvalidManifest:
        return False
    return True


def _has_reported(mac: Mac) -> bool:
    return mac.profiled and bool(mac.store or mac.models)


def _reported(fleet: Fleet) -> bool:
    """Whether all Macs that are Ready have reported their models."""
    up = [mac for mac in fleet.macs.values() if mac.ready]
    return any(mac.store for mac in up) and all(map(_has_reported, up))


def _awaited(fleet: Fleet) -> Resolution | None:
    """Which Macs must report their models before it is clear that the model must be fetched."""
    up = [mac for mac in fleet.macs.values() if mac.ready]
    silent = sorted(mac.name for mac in up if not _has_reported(mac))
    # If none of them has a model store, the model will not be fetched.
    if not silent or not any(mac.store or not mac.profiled for mac in up):
        return None
    text = f"no Mac that has reported its models has this model; it is fetched if {listed(silent)} {{}} not have it either"
    return Resolution(False, Reason.RESOLVING, text.format("does" if len(silent) == 1 else "do"))


def _created(name: str) -> Resolution:
    return Resolution(False, Reason.RESOLVING, f"{name} was created; no Mac has the model, so it is fetched")


def waits(weights: Weights, plan: Plan | None) -> tuple[str, ...]:
    """The Macs of a plan whose files have not arrived."""
    return weights.waits_for(plan.model_path, plan.ranks) if plan is not None else ()


def copies_of(weights: Weights, nodes: tuple[str, ...]) -> tuple[MacCopy, ...]:
    """The copies on these Macs, as the ModelCache shows them."""
    return tuple(copy for copy in weights.cache.status.macs if copy.node in nodes) if weights.cache is not None else ()


def waiting_message(weights: Weights, nodes: tuple[str, ...]) -> str:
    """What a group waits for on these Macs."""
    known = copies_of(weights, nodes)
    there = {copy.node for copy in known}
    rest = [name for name in nodes if name not in there]
    server = server_of(weights.cache.spec) if weights.cache is not None else "the hub"
    parts = [summary(known, server), f"{', '.join(rest)} will fetch it" if rest else ""]
    return "fetching the model: " + "; ".join(part for part in parts if part)


def resolution(
    weights: Weights, found: Resolution, copies: Copies = Copies.WHOLE, coming: Resolution | None = None
) -> Resolution:
    """The condition ModelResolved of a ModelDeployment with a ModelCache. ``found``: without it. ``copies``: of its spec.

    ``coming``: see ``Needed``.
    """
    cache = weights.cache
    if cache is None and coming is not None and not found.found:
        return coming
    if cache is None or (found.found and found.reason == Reason.FOUND and weights.missing is None):
        return found
    resolved = find_condition(cache.status.conditions, ConditionType.RESOLVED)
    name = f"ModelCache {cache.metadata.name}"
    if is_resolved(cache):
        message = resolved.message if resolved is not None else f"commit {cache.status.commit}"
        if copies is Copies.SHARD and not has_parts(cache):
            why = cache.status.no_parts or _UNKNOWN_PARTS
            message += f"; each Mac fetches all files although spec.model.copies is Shard: {why}"
        return Resolution(True, Reason.RESOLVED, f"{name}: {message}")
    if found.found:
        return found
    if resolved is None or resolved.reason == Reason.RESOLVED:
        return _created(name)
    stalled = find_condition(cache.status.conditions, ConditionType.STALLED)
    stuck = stalled is not None and stalled.status is ConditionStatus.TRUE
    return Resolution(False, resolved.reason, f"{name}: {resolved.message}", stuck)


def shown(weights: Weights) -> dict[str, object]:
    """The fields of the status of a ModelDeployment that are about its weights."""
    cache = weights.cache
    if cache is None or not (is_resolved(cache) or is_quantized_now(cache)):
        return {}
    made_from = cache.status.quantized_from
    commit = made_from.commit if made_from is not None else cache.status.commit
    return {"commit": commit, "copies": cache.status.macs[:256], "weights": short(cache.status.macs)}
