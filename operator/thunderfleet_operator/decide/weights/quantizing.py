"""The rounds of a ModelCache whose repository is quantized, until the result is known. Pure.

One pod on one Mac does everything, and leaves the files for the agent there. If the pod is ended, it is created again on the
same Mac, where it continues. It is created on another Mac only if the disk is too small, or if the Mac does not start it, for
example because a group has taken its memory.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.kinds.modelcache import ModelCache, ModelCacheSpec, QuantizedFrom
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.meta.fields import binary_size
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import CopyPhase

from thunderfleet_operator.decide.weights.uplink import download_order
from thunderfleet_operator.observe.fleet.weights import bytes_done, copy_phase, origin
from thunderfleet_operator.observe.objects.fetchpods import FetchPod, Task
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.observed import ObservedCache

LOST_SECONDS = 300.0
"""Quantized files that no Mac has had for this long are made again,"""
AGAIN_BYTES_PER_SECOND = 50 * 10**6
"""but if the Mac that has them is not Ready, the operator waits as long as making them again probably takes. This is the
assumed rate of downloading and converting, in bytes of the repository per second."""
RESERVE_BYTES = 2**30
SHARD_BYTES = 5 * 2**30
"""mlx-lm writes weights in files of this size, and has the tensors of one in memory."""
_ARRIVING = (CopyPhase.COPYING, CopyPhase.CHECKING, CopyPhase.COMPLETE)


def source_of(found: FetchResult) -> QuantizedFrom | None:
    """What to quantize, from the result of the pod that resolves; None if it has no such result."""
    if found.commit is None or found.manifest is None or not found.quantized_bytes:
        return None
    return QuantizedFrom(commit=found.commit, manifest=found.manifest, bytes=found.bytes, quantized_bytes=found.quantized_bytes)


def arguments(cache: ModelCache, source: QuantizedFrom) -> tuple[str, ...]:
    """The arguments of the pod that quantizes."""
    what = (*origin(cache.spec), "--commit", source.commit, "--manifest", source.manifest)
    return (*what, *how(cache))


def revision(spec: ModelCacheSpec) -> tuple[str, ...]:
    """The arguments with what is resolved; empty for a URI, whose hash is its version."""
    return () if spec.uri is not None else ("--revision", spec.revision)


def how(cache: ModelCache) -> tuple[str, ...]:
    """The arguments with the settings; empty if nothing is quantized."""
    wanted = cache.spec.quantize
    return () if wanted is None else ("--bits", str(wanted.bits), "--group-size", str(wanted.group_size))


def needed_bytes(source: QuantizedFrom) -> int:
    """Disk that the pod needs."""
    return source.bytes + source.quantized_bytes + RESERVE_BYTES


def memory_bytes(source: QuantizedFrom) -> int:
    """Memory that the pod requests: the largest file that it writes, and what the programs need."""
    return min(source.quantized_bytes, SHARD_BYTES) + RESERVE_BYTES


def mine(cache: ModelCache, pods: Sequence[FetchPod]) -> list[FetchPod]:
    """The pods that quantize for the spec."""
    source = cache.status.quantized_from
    wanted = arguments(cache, source) if source is not None else ()
    return [pod for pod in pods if pod.task is Task.QUANTIZE and pod.arguments == wanted and not pod.terminating]


def choose(observed: ObservedCache, source: QuantizedFrom, usable: Sequence[str]) -> str | None:
    """The Mac for the next pod; None if none has room.

    The Mac of the last pod continues. Otherwise, of the Macs with enough disk and memory, one is preferred that has not failed
    to start the last pod, then one that has the repository, then the one with the fastest connection.
    """
    download = observed.cache.status.download
    moves = download is not None and download.node == source.node and download.reason == Reason.DISK_FULL
    if source.node in usable and not moves:
        return source.node
    avoided = source.node if moves else None
    able = [name for name in with_disk(observed, source, usable) if name != avoided and _has_memory(observed, name, source)]
    stuck = download.node if download is not None and source.node is None else None
    order = {name: (name == stuck, *download_order(name, observed.profiles.get(name), source.manifest)) for name in able}
    return min(able, key=lambda name: order[name], default=None)


def with_disk(observed: ObservedCache, source: QuantizedFrom, usable: Sequence[str]) -> list[str]:
    """The Macs whose disks have room."""
    return [name for name in usable if _room(observed.profiles.get(name), source)]


def _has_memory(observed: ObservedCache, name: str, source: QuantizedFrom) -> bool:
    """Whether the scheduler would start the pod."""
    free = observed.free_memory.get(name)
    return free is None or free >= memory_bytes(source)


def _room(profile: NodeProfile | None, source: QuantizedFrom) -> bool:
    store = profile.status.store if profile is not None else None
    if store is None or store.problem:
        return False
    return store.free_bytes + bytes_done(profile, source.manifest) >= needed_bytes(source)


def keeper(observed: ObservedCache, complete: Sequence[str]) -> str | None:
    """The Mac that quantized the model, as long as none of the others that need it is in ``complete``."""
    source = observed.cache.status.quantized_from
    if source is None or source.node not in observed.nodes or any(name != source.node for name in complete):
        return None
    return source.node


def lost_since(observed: ObservedCache, *, given: bool) -> datetime | None:
    """Since when no Mac that is Ready has the files. ``given``: whether Macs other than the one that made them have them."""
    source = observed.cache.status.quantized_from
    if source is None or given:
        return None
    node, profile = observed.nodes.get(source.node or ""), observed.profiles.get(source.node or "")
    digest = observed.cache.status.manifest
    arriving = copy_phase(profile, digest) in _ARRIVING or bytes_done(profile, digest) > 0
    return None if node is not None and node.ready and arriving else source.lost_since or observed.now


def made_again_at(source: QuantizedFrom, node: Node | None) -> datetime | None:
    """When the files have to be made again; None if they are not lost. ``node``: of the Mac that has made them."""
    if source.lost_since is None:
        return None
    returns = node is not None and not node.ready
    seconds = max(LOST_SECONDS, source.bytes / AGAIN_BYTES_PER_SECOND) if returns else LOST_SECONDS
    return source.lost_since + timedelta(seconds=seconds)


def no_room(source: QuantizedFrom, *, disk: bool) -> dict[str, object]:
    """The fields of ``status.download`` if no Mac has room. Without a time, so that the same fields are not written again.

    ``disk``: whether a Mac has enough of it, so that memory is what is missing.
    """
    if disk:
        message = (
            f"no Ready Mac with enough disk space has {binary_size(memory_bytes(source))} of memory for a pod; stop a "
            "group, or wait until one stops"
        )
        return {"reason": Reason.NO_MAC_TO_FETCH, "message": message}
    message = (
        f"no Ready Mac has {binary_size(needed_bytes(source))} of disk space for the repository and the quantized files in its "
        "model store; free disk space on a Mac"
    )
    return {"reason": Reason.NO_MAC_TO_FETCH, "message": message}
