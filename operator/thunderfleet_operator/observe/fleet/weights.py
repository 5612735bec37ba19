"""The fleet for a ModelDeployment whose model is fetched: Macs with a model store count as if they had it, if it fits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modelcache import ModelCache, ModelCacheSpec
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment, ModelSource
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.vocabulary import Copies, CopyPhase
from thunderfleet_crds.weights.copies import CopyState
from thunderfleet_crds.weights.parts import files_for, numbers

from thunderfleet_operator.observe.fleet.builder import model_facts
from thunderfleet_operator.placement import Fleet, Mac, ModelFacts
from thunderfleet_operator.placement.units import gib

Profiles = Mapping[str, NodeProfile | None]


def snapshot(store: str, repository: str, commit: str) -> str:
    """The path of a model in a Mac's store."""
    return f"{store}/models--{repository.replace('/', '--')}/snapshots/{commit}"


def part_path(store: str, manifest: str) -> str:
    """The path of the part of a model that ranks of a Mac read."""
    return f"{store}/.thunderfleet/parts/{manifest}"


class PlacedRank(Protocol):
    """The fields of a rank that plans and placements have in common."""

    @property
    def node(self) -> str: ...
    @property
    def layers(self) -> tuple[int, int] | None: ...


def layers_of(rank: PlacedRank, count: int) -> frozenset[int]:
    """The layers of a rank, of a model with ``count`` layers."""
    return frozenset(range(*rank.layers) if rank.layers is not None else range(count))


@dataclass(frozen=True, slots=True)
class Need:
    """What a Mac needs of a model: all files, or those of some layers. Ranks read ``layers`` from the folder for parts."""

    whole: bool
    layers: frozenset[int] = frozenset()

    def __or__(self, other: "Need") -> "Need":
        return Need(self.whole or other.whole, self.layers | other.layers)


def needed_by(plans: Iterable[Plan], cache: ModelCache) -> dict[str, Need]:
    """What the Macs of plans need of a ModelCache, by Mac."""
    status = cache.status
    if status.commit is None or status.manifest is None:
        return {}
    known = snapshot("", cache.kept_as, status.commit), part_path("", status.manifest)
    found: dict[str, Need] = {}
    for plan in plans:
        if plan.namespace != cache.metadata.namespace or not plan.model_path.endswith(known):
            continue
        for rank in plan.ranks:
            found[rank.node] = found.get(rank.node, Need(False)) | need_of(rank, plan.model_path, cache)
    return found


def need_of(rank: PlacedRank, path: str, cache: ModelCache) -> Need:
    """What the Mac of a rank that reads the model of a ModelCache from ``path`` needs."""
    if not path.endswith(part_path("", cache.status.manifest or "")):
        return Need(True)
    return Need(rank.layers is None, layers_of(rank, layer_count(cache)))


def needed_files(cache: ModelCache, need: Need) -> frozenset[int]:
    """Numbers of the files that a Mac with this need must have."""
    count = cache.status.files or 0
    return frozenset(range(count)) if need.whole else files_for(cache.status.weight_files, need.layers, count)


def layer_count(cache: ModelCache) -> int:
    """The number of layers of a model."""
    model = cache.status.model
    return len(model.pipeline.layer_bytes) if model is not None and model.pipeline is not None else 0


def has_parts(cache: ModelCache) -> bool:
    """Whether Macs can have a part of the model."""
    return bool(cache.status.weight_files) and layer_count(cache) > 1


def resolved_from(spec: ModelCacheSpec) -> str:
    """What a commit was resolved from. If it changes, the commit is resolved again."""
    if spec.uri is not None:
        return f"{spec.uri} {spec.sha256}"
    secret = f" with {spec.token_secret}" if spec.token_secret else ""
    return f"{spec.repository}@{spec.revision}{secret}" + (f" to {spec.quantize.text}" if spec.quantize else "")


def origin(spec: ModelCacheSpec) -> tuple[str, ...]:
    """The arguments of a pod with the place of the model."""
    if spec.uri is not None:
        return "--uri", spec.uri, "--sha256", spec.sha256 or ""
    return "--repository", spec.repository or ""


def is_resolved(cache: ModelCache) -> bool:
    """Whether the files of what the spec names are known."""
    status = cache.status
    known = status.resolved_from == resolved_from(cache.spec)
    return known and None not in (status.commit, status.manifest, status.model)


def is_quantized_now(cache: ModelCache) -> bool:
    """Whether the repository is known, and has to be quantized first."""
    status = cache.status
    known = status.resolved_from == resolved_from(cache.spec)
    return known and status.quantized_from is not None and status.manifest is None


def source_of(about: ModelSource | ModelCacheSpec) -> tuple[object, ...]:
    """What a ModelCache and a ModelDeployment have in common if one has the model of the other."""
    return about.repository, about.uri, about.sha256, about.revision, about.token_secret, about.quantize


def of_deployment(caches: Mapping[str, ModelCache | None], deployment: ModelDeployment) -> ModelCache | None:
    """The ModelCache with the weights: its own one, or one of the namespace for the same."""
    meta, model = deployment.metadata, deployment.spec.model
    if model.path is not None:
        return None
    there = [cache for cache in caches.values() if cache is not None and cache.metadata.namespace == meta.namespace]
    living = [cache for cache in there if cache.metadata.deletion_timestamp is None]
    for cache in living:
        if any(owner.controller and owner.uid == meta.uid for owner in cache.metadata.owner_references):
            return cache
    return next((one for one in living if source_of(one.spec) == source_of(model)), None)


def copy_phase(profile: NodeProfile | None, manifest: str | None) -> CopyPhase | None:
    """The copy of a model on a Mac; None if its agent does not report one."""
    copies = profile.status.copies if profile is not None else ()
    return next((copy.phase for copy in copies if copy.manifest == manifest), None)


def bytes_done(profile: NodeProfile | None, manifest: str | None) -> int:
    """How much of a model a Mac has."""
    copies = profile.status.copies if profile is not None else ()
    return next((copy.bytes_done for copy in copies if copy.manifest == manifest), 0)


def layers_there(profile: NodeProfile | None, manifest: str | None) -> frozenset[int]:
    """The layers in a Mac's folder for the part of a model."""
    copies = profile.status.copies if profile is not None else ()
    return next((layers_of_copy(copy) for copy in copies if copy.manifest == manifest), frozenset())


def layers_of_copy(copy: CopyState) -> frozenset[int]:
    """The layers that an agent reports of a copy; none if they are no ranges of numbers."""
    try:
        return numbers(copy.layers or "")
    except ValueError:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Weights:
    """The model of a ModelDeployment as far as it is fetched. ``cache`` None: nothing is."""

    cache: ModelCache | None = None
    missing: Mapping[str, str] | None = None
    """By Mac without all files, the path at which the whole model will be."""
    parts: Mapping[str, tuple[str, frozenset[int]]] = field(default_factory=dict)
    """By Mac, the path of its part of the model, and the layers that are in it."""

    def waits_for(self, path: str, ranks: Iterable[PlacedRank]) -> tuple[str, ...]:
        """The Macs of ranks that read a model from ``path``, and whose files have not arrived."""
        return tuple(rank.node for rank in ranks if self._waits_for(rank, path))

    def _waits_for(self, rank: PlacedRank, path: str) -> bool:
        if self.missing is not None and self.missing.get(rank.node) == path:
            return True
        part, there = self.parts.get(rank.node, ("", frozenset[int]()))
        return self.cache is not None and part == path and not layers_of(rank, layer_count(self.cache)) <= there


class WeightsFleets:
    """Adds what is fetched to fleets. The same fleet as before as long as nothing that counts has changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Fleet, object, Fleet, Weights]] = {}

    def forget(self, key: str) -> None:
        """Drops what is kept for a ModelDeployment."""
        self._known.pop(key, None)

    def of(
        self, key: str, fleet: Fleet, profiles: Profiles, cache: ModelCache | None, copies: Copies = Copies.WHOLE
    ) -> tuple[Fleet, Weights]:
        """The fleet with the model of ``cache`` on each Mac that can fetch it, and what is missing where."""
        if cache is None or not is_resolved(cache):
            self.forget(key)
            return fleet, Weights(cache)
        shard = copies is Copies.SHARD and has_parts(cache)
        status = cache.status
        here = {name: _state(profiles.get(name), status.manifest) for name, mac in fleet.macs.items() if mac.store}
        # The progress of a copy does not affect placements; its start does, because disk space is reserved for it then.
        about = (status.commit, status.manifest, status.model, shard, tuple(sorted(here.items())))
        known = self._known.get(key)
        if known is not None and known[0] is fleet and known[1] == about:
            return known[2], replace(known[3], cache=cache)
        facts = model_facts(status.model) if status.model is not None else ModelFacts("")
        made: dict[str, ModelFacts] = {}
        macs, missing, parts = [], dict[str, str](), dict[str, tuple[str, frozenset[int]]]()
        for name, state in here.items():
            mac = fleet.macs[name]
            path = snapshot(mac.store, cache.kept_as, status.commit or "")
            part = part_path(mac.store, status.manifest or "")
            # Of both: a group that was placed before spec.model.copies changed keeps the path of its plan.
            parts[name] = part, layers_there(profiles.get(name), status.manifest)
            if not state.complete:
                missing[name] = path
            path = part if shard else path
            one = made.setdefault(path, replace(facts, path=path, repository=cache.kept_as, revision=None))
            there = 0 if shard else state.part_bytes
            macs.append(_with_model(mac, one, _room(cache, mac, shard=shard) - there, state, extends=there > 0))
        found, weights = fleet.changed(macs), Weights(cache, missing, parts)
        self._known[key] = fleet, about, found, weights
        return found, weights


@dataclass(frozen=True, slots=True, order=True)
class _State:
    """What placement reads of a Mac's copy. ``part_bytes``: of a part that is there."""

    complete: bool
    started: bool
    part_bytes: int
    layers: str


def _state(profile: NodeProfile | None, manifest: str | None) -> _State:
    copies = profile.status.copies if profile is not None else ()
    copy = next((copy for copy in copies if copy.manifest == manifest), None)
    if copy is None:
        return _State(False, False, 0, "")
    part = copy.bytes_done if copy.phase is CopyPhase.PART else 0
    return _State(copy.phase is CopyPhase.COMPLETE, copy.bytes_done > 0, part, copy.layers or "")


def _room(cache: ModelCache, mac: Mac, *, shard: bool) -> int:
    """Bytes of disk that a Mac without any file needs.

    A part is at most as large as the part of the model that fits into the Mac's memory, plus a file at each end that is needed
    only partly, plus the files that are not weights.
    """
    whole = cache.status.bytes or 0
    if not shard:
        return whole
    files = [one.bytes for one in cache.status.weight_files]
    return min(whole, mac.allocatable_bytes + 2 * max(files) + max(0, whole - sum(files)))


def _with_model(mac: Mac, facts: ModelFacts, size: int, state: _State, *, extends: bool) -> Mac:
    """``size``: bytes of disk that it still needs; ``extends``: to a part that is there, of which no copy has started."""
    others = tuple(model for model in mac.models if model.path != facts.path)
    if state.complete:
        return replace(mac, models=(*others, facts), absent_bytes=0)
    has_other = any(model.repository == facts.repository and model.complete and model.sized for model in others)
    if (extends or not state.started) and mac.store_bytes < size:
        problem = f"its disk has room for {gib(mac.store_bytes)} of {gib(size)}; free some, or delete a ModelCache"
        return replace(mac, models=(*others, replace(facts, complete=False, problem=problem)))
    return replace(mac, models=(*others, facts), absent_bytes=0 if has_other else max(0, facts.bytes - state.part_bytes))
