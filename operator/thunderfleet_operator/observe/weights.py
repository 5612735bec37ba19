"""The fleet for a ModelDeployment whose model is fetched: Macs with a model store count as if they had it, if it fits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from thunderfleet_crds.modelcache import ModelCache
from thunderfleet_crds.modeldeployment import ModelDeployment
from thunderfleet_crds.nodeprofile import NodeProfile
from thunderfleet_crds.vocabulary import CopyPhase

from thunderfleet_operator.observe.fleet import model_facts
from thunderfleet_operator.placement import Fleet, Mac, ModelFacts
from thunderfleet_operator.placement.units import gib

Profiles = Mapping[str, NodeProfile | None]


def snapshot(store: str, repository: str, commit: str) -> str:
    """The path of a model in a Mac's store."""
    return f"{store}/models--{repository.replace('/', '--')}/snapshots/{commit}"


def resolved_from(repository: str, revision: str, secret: str | None) -> str:
    """What a commit was resolved from: if it changes, it is resolved again."""
    return f"{repository}@{revision}" + (f" with {secret}" if secret else "")


def is_resolved(cache: ModelCache) -> bool:
    """Whether the files of what the spec names are known."""
    spec, status = cache.spec, cache.status
    known = status.resolved_from == resolved_from(spec.repository, spec.revision, spec.token_secret)
    return known and None not in (status.commit, status.manifest, status.model)


def of_deployment(caches: Mapping[str, ModelCache | None], deployment: ModelDeployment) -> ModelCache | None:
    """The ModelCache with the weights: its own one, or one of the namespace for the same."""
    meta, model = deployment.metadata, deployment.spec.model
    if model.repository is None:
        return None
    there = [cache for cache in caches.values() if cache is not None and cache.metadata.namespace == meta.namespace]
    living = [cache for cache in there if cache.metadata.deletion_timestamp is None]
    for cache in living:
        if any(owner.controller and owner.uid == meta.uid for owner in cache.metadata.owner_references):
            return cache
    same = (model.repository, model.revision, model.token_secret)
    return next((one for one in living if (one.spec.repository, one.spec.revision, one.spec.token_secret) == same), None)


def copy_phase(profile: NodeProfile | None, manifest: str | None) -> CopyPhase | None:
    """How far a Mac has a model; None if its agent does not report it."""
    copies = profile.status.copies if profile is not None else ()
    return next((copy.phase for copy in copies if copy.manifest == manifest), None)


def bytes_done(profile: NodeProfile | None, manifest: str | None) -> int:
    """How much of a model a Mac has."""
    copies = profile.status.copies if profile is not None else ()
    return next((copy.bytes_done for copy in copies if copy.manifest == manifest), 0)


@dataclass(frozen=True, slots=True)
class Weights:
    """The model of a ModelDeployment as far as it is fetched. ``cache`` None: nothing is."""

    cache: ModelCache | None = None
    missing: Mapping[str, str] | None = None
    """By Mac without all files, the path at which the model will be."""

    def waits_for(self, nodes: Mapping[str, str]) -> tuple[str, ...]:
        """The Macs of a plan (by name, the path of its model) whose files have not arrived."""
        return tuple(name for name, path in nodes.items() if self.missing is not None and self.missing.get(name) == path)


class WeightsFleets:
    """Adds what is fetched to fleets. The same fleet as before as long as nothing that counts has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Fleet, object, Fleet, Weights]] = {}

    def forget(self, key: str) -> None:
        """Drops what is kept for a ModelDeployment."""
        self._known.pop(key, None)

    def of(self, key: str, fleet: Fleet, profiles: Profiles, cache: ModelCache | None) -> tuple[Fleet, Weights]:
        """The fleet with the model of ``cache`` on each Mac that can fetch it, and what is missing where."""
        if cache is None or not is_resolved(cache):
            self.forget(key)
            return fleet, Weights(cache)
        status = cache.status
        here = {
            name: (copy_phase(profiles.get(name), status.manifest), bytes_done(profiles.get(name), status.manifest))
            for name, mac in fleet.macs.items()
            if mac.store
        }
        complete = frozenset(name for name, (phase, _) in here.items() if phase is CopyPhase.COMPLETE)
        # Progress changes no placement: only that a copy has started, so that its disk counts as taken by it.
        started = frozenset(name for name, (_, done) in here.items() if done)
        about = (status.commit, status.manifest, status.model, complete, started)
        known = self._known.get(key)
        if known is not None and known[0] is fleet and known[1] == about:
            return known[2], replace(known[3], cache=cache)
        facts = model_facts(status.model) if status.model is not None else ModelFacts("")
        made: dict[str, ModelFacts] = {}
        macs, missing = [], dict[str, str]()
        for name in here:
            mac = fleet.macs[name]
            path = snapshot(mac.store, cache.spec.repository, status.commit or "")
            one = made.setdefault(path, replace(facts, path=path, repository=cache.spec.repository, revision=None))
            macs.append(_with_model(mac, one, status.bytes or 0, complete=name in complete, started=name in started))
            if name not in complete:
                missing[name] = path
        found, weights = fleet.changed(macs), Weights(cache, missing)
        self._known[key] = fleet, about, found, weights
        return found, weights


def _with_model(mac: Mac, facts: ModelFacts, size: int, *, complete: bool, started: bool) -> Mac:
    others = tuple(model for model in mac.models if model.path != facts.path)
    if complete:
        return replace(mac, models=(*others, facts), absent_bytes=0)
    has_other = any(model.repository == facts.repository and model.complete and model.sized for model in others)
    if not started and mac.store_bytes < size:
        problem = f"its disk has room for {gib(mac.store_bytes)} of {gib(size)}; free some, or delete a ModelCache"
        return replace(mac, models=(*others, replace(facts, complete=False, problem=problem)))
    return replace(mac, models=(*others, facts), absent_bytes=0 if has_other else size)
