"""The weights of a planned ModelDeployment: which Macs have them, the free disk of the others, and what would be fetched."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from thunderfleet_crds.modelcache import ModelCache
from thunderfleet_crds.modeldeployment import ModelDeployment
from thunderfleet_crds.nodeprofile import NodeProfile
from thunderfleet_crds.vocabulary import CopyPhase, CopySource

from thunderfleet_operator.decide.weights.uplink import download_order
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.weights import Weights, WeightsFleets, is_resolved, of_deployment
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
    """The fleet as the operator sees it: Macs with room for a model that is fetched count as if they had it."""
    meta = deployment.metadata
    cache = of_deployment(index.caches, deployment)
    return WeightsFleets().of(f"{meta.namespace}/{meta.name}", fleet, index.profiles, cache, deployment.spec.model.copies)


def weights_report(
    index: Index, deployment: ModelDeployment, weights: Weights, placed: Iterable[Placement]
) -> WeightsReport | None:
    """None for a folder, and if no Mac has a model store."""
    repository, cache = deployment.spec.model.repository, weights.cache
    known = cache if cache is not None and is_resolved(cache) else None
    stores = {name: one for name, one in index.profiles.items() if one is not None and one.status.store is not None}
    if repository is None or not stores:
        return None
    needed = {name for found in placed for name in weights.waits_for(found.model_path, found.ranks)} & stores.keys()
    macs = [_mac(name, one, repository, known) for name, one in sorted(stores.items())]
    hub = _downloads(stores, needed, known)
    return WeightsReport(
        model_cache=f"{cache.metadata.namespace}/{cache.metadata.name}" if cache is not None else None,
        commit=known.status.commit if known is not None else None,
        bytes=known.status.bytes if known is not None else None,
        macs=tuple(_fetching(mac, known, hub) if mac.node in needed else mac for mac in macs),
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


def _downloads(stores: dict[str, NodeProfile], needed: Iterable[str], known: ModelCache | None) -> str | None:
    """The Mac that would read from the hub; None if another one can give the files."""
    if known is None:
        return None
    manifest = known.status.manifest
    complete = any(
        copy.manifest == manifest and copy.phase is CopyPhase.COMPLETE for one in stores.values() for copy in one.status.copies
    )
    order = {name: download_order(name, stores[name], manifest) for name in needed}
    return None if complete or not order else min(order, key=lambda name: order[name])


def _fetching(mac: MacWeightsReport, known: ModelCache | None, hub: str | None) -> MacWeightsReport:
    size = (known.status.bytes or 0) if known is not None else 0
    source = CopySource.HUB if mac.node == hub else CopySource.PEER
    return mac.model_copy(update={"fetch_bytes": max(0, size - mac.present_bytes), "source": source})
