"""The weights of a planned ModelDeployment: which Macs have them, the free disk of the others, and what would be fetched."""

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_crds.weights.parts import bytes_for

from thunderfleet_operator.decide.weights.uplink import download_order
from thunderfleet_operator.observe.fleet.weights import (
    Need,
    Weights,
    WeightsFleets,
    copy_phase,
    is_resolved,
    layers_there,
    need_of,
    needed_files,
    of_deployment,
)
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.placement import Fleet, Placement


class _Report(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class MacWeightsReport(_Report):
    """The model store of one Mac."""

    node: str
    present_bytes: int = Field(description="Bytes of the model in the Mac's model store.")
    free_bytes: int = Field(description="Bytes that the store has room for.")
    fetch_bytes: int = Field(default=0, description="Bytes that the Mac would fetch for this placement.")
    source: CopySource | None = Field(
        default=None, description="Where they would come from: Hub, or Peer (another Mac); null if nothing would be fetched."
    )
    problem: str | None = Field(default=None, description="Why the model store cannot be used.")


class WeightsReport(_Report):
    """The model in the Macs' model stores."""

    model_cache: str | None = Field(
        default=None, description="namespace/name of the ModelCache that the ModelDeployment uses; null if it has none."
    )
    commit: str | None = Field(default=None, description="Commit of the repository; null until the ModelCache is resolved.")
    bytes: int | None = Field(default=None, description="Size of the files; null until the ModelCache is resolved.")
    macs: tuple[MacWeightsReport, ...] = ()


def with_weights(index: Index, deployment: ModelDeployment, fleet: Fleet) -> tuple[Fleet, Weights]:
    """The fleet as the operator reads it: Macs with room for a model that is fetched count as if they had it."""
    meta = deployment.metadata
    cache = of_deployment(index.caches, deployment)
    return WeightsFleets().of(f"{meta.namespace}/{meta.name}", fleet, index.profiles, cache, deployment.spec.model.copies)


def weights_report(
    index: Index, deployment: ModelDeployment, weights: Weights, placed: Iterable[Placement]
) -> WeightsReport | None:
    """None for a folder, and if no Mac has a model store."""
    repository, cache = deployment.spec.model.kept_as, weights.cache
    known = cache if cache is not None and is_resolved(cache) else None
    stores = {name: one for name, one in index.profiles.items() if one is not None and one.status.store is not None}
    if repository is None or not stores:
        return None
    needs = _needs(weights, placed, stores)
    macs = [_mac(name, one, repository, known) for name, one in sorted(stores.items())]
    sources = _sources(stores, needs, known) if known is not None else {}
    return WeightsReport(
        model_cache=f"{cache.metadata.namespace}/{cache.metadata.name}" if cache is not None else None,
        commit=known.status.commit if known is not None else None,
        bytes=known.status.bytes if known is not None else None,
        macs=tuple(_fetching(mac, stores, needs, sources, known) if known is not None else mac for mac in macs),
    )


def _mac(name: str, profile: NodeProfile, repository: str, known: ModelCache | None) -> MacWeightsReport:
    store = profile.status.store
    copies = [
        copy.bytes_done
        for copy in profile.status.copies
        if (copy.manifest == known.status.manifest if known is not None else copy.repository == repository)
    ]
    return MacWeightsReport(
        node=name,
        present_bytes=max(copies, default=0),
        free_bytes=store.free_bytes if store is not None else 0,
        problem=store.problem if store is not None else None,
    )


def _needs(weights: Weights, placed: Iterable[Placement], stores: Mapping[str, NodeProfile]) -> dict[str, Need]:
    """What the Macs without all their files need, by Mac."""
    found: dict[str, Need] = {}
    for one in placed:
        waiting = set(weights.waits_for(one.model_path, one.ranks)) & stores.keys()
        for rank in one.ranks:
            if rank.node in waiting and weights.cache is not None:
                need = need_of(rank, one.model_path, weights.cache)
                found[rank.node] = found.get(rank.node, Need(False)) | need
    return found


def _held(profile: NodeProfile, known: ModelCache) -> frozenset[int]:
    """Numbers of the files that a Mac has, as far as it reports which."""
    if copy_phase(profile, known.status.manifest) is CopyPhase.COMPLETE:
        return needed_files(known, Need(True))
    layers = layers_there(profile, known.status.manifest)
    return needed_files(known, Need(False, layers)) if layers else frozenset()


def _sources(stores: Mapping[str, NodeProfile], needs: Mapping[str, Need], known: ModelCache) -> dict[str, CopySource]:
    """The source of each Mac's files. One Mac after the other downloads from the hub what no Mac has."""
    held = frozenset[int]().union(*(_held(profile, known) for profile in stores.values()))
    found = {}
    for name in sorted(needs, key=lambda name: download_order(name, stores[name], known.status.manifest)):
        files = needed_files(known, needs[name])
        found[name] = CopySource.PEER if files <= held else CopySource.HUB
        held |= files
    return found


def _fetching(
    mac: MacWeightsReport,
    stores: Mapping[str, NodeProfile],
    needs: Mapping[str, Need],
    sources: Mapping[str, CopySource],
    known: ModelCache,
) -> MacWeightsReport:
    need = needs.get(mac.node)
    if need is None:
        return mac
    status, held = known.status, _held(stores[mac.node], known)
    left = needed_files(known, need) - held
    weights = sum(one.bytes for one in status.weight_files if one.file in left)
    size = (status.bytes or 0) if need.whole else bytes_for(status.weight_files, need.layers, status.bytes or 0)
    # A Mac with a part of the model also has the files that are not weights.
    fetched = weights if held else max(0, size - mac.present_bytes)
    return mac.model_copy(update={"fetch_bytes": fetched, "source": sources[mac.node]})
