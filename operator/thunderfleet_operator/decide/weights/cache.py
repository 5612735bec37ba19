"""One round for one ModelCache: which Macs need the model, and which pods read from the hub.

A fleet downloads a model once: one Mac downloads, and others copy from it. The message of a pod that has ended has the cause.
A failure is retried later: at the time that the hub names, or with growing pauses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.kinds.modelcache import Assignment, Download, ModelCacheStatus
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import CopyPhase, CopySource
from thunderfleet_crds.weights.parts import ranges
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.decide.status.progress import ACTION_REQUIRED
from thunderfleet_operator.decide.weights import quantizing, status
from thunderfleet_operator.decide.weights.manifests import NewPod
from thunderfleet_operator.decide.weights.uplink import download_order
from thunderfleet_operator.observe.fleet.weights import (
    Need,
    bytes_done,
    copy_phase,
    is_quantized_now,
    is_resolved,
    layers_there,
    needed_files,
    origin,
    resolved_from,
)
from thunderfleet_operator.observe.objects.fetchpods import FetchPod, Task
from thunderfleet_operator.observe.observed import ObservedCache

RETRY = Backoff(10.0, 600.0)
SLOW_SECONDS = 300.0
"""Pause after a refusal that only a user, such as the repository's author, can resolve."""
START_SECONDS = 120.0
"""A pod that has not started after this time is created on another Mac."""
RECHECK_SECONDS = 15.0
LOST_SECONDS = 60.0
NO_SOURCE_SECONDS = 60.0
"""A Mac that has reached no other one with the model for this long downloads it from the hub."""


@dataclass(frozen=True, slots=True)
class CacheDecision:
    """What a round does."""

    status: ModelCacheStatus
    create: NewPod | None = None
    delete: tuple[FetchPod, ...] = ()
    recheck_seconds: float | None = None


def decide(observed: ObservedCache) -> CacheDecision:
    """One round."""
    cache = observed.cache
    pods = [pod for pod in observed.pods if pod.cache_uid == cache.metadata.uid]
    decision = _next(observed, pods)
    shown = status.complete(observed.cache, decision.status, observed.nodes, observed.profiles, observed.now)
    return replace(decision, status=shown)


def _next(observed: ObservedCache, pods: Sequence[FetchPod]) -> CacheDecision:
    if is_quantized_now(observed.cache):
        return _quantizing(observed, pods)
    return _downloaded(observed, pods) if is_resolved(observed.cache) else _resolving(observed, pods)


# --- Macs ------------------------------------------------------------------------------------------------------------


def _usable(observed: ObservedCache, name: str) -> bool:
    """Whether a pod can run on a Mac."""
    node, profile = observed.nodes.get(name), observed.profiles.get(name)
    return node is not None and node.mac and node.ready and node.schedulable and profile is not None


def _free(observed: ObservedCache, name: str) -> int:
    profile = observed.profiles.get(name)
    store = profile.status.store if profile is not None else None
    return store.free_bytes if store is not None and not store.problem else -1


def _done(observed: ObservedCache, name: str) -> int:
    return bytes_done(observed.profiles.get(name), observed.cache.status.manifest)


def _is_complete(observed: ObservedCache, name: str) -> bool:
    return copy_phase(observed.profiles.get(name), observed.cache.status.manifest) is CopyPhase.COMPLETE


def _selected(observed: ObservedCache, name: str) -> bool:
    node, wanted = observed.nodes[name], observed.cache.spec.node_selector
    return node.mac and all((node.labels or {}).get(key) == value for key, value in wanted.items())


def _fits(observed: ObservedCache, name: str) -> bool:
    return _done(observed, name) > 0 or _free(observed, name) >= (observed.cache.status.bytes or 0)


def _layers(observed: ObservedCache, name: str) -> frozenset[int]:
    return layers_there(observed.profiles.get(name), observed.cache.status.manifest)


def _has_files(observed: ObservedCache, name: str, need: Need) -> bool:
    """Whether a Mac has all files that it needs."""
    return _is_complete(observed, name) or (not need.whole and need.layers <= _layers(observed, name))


def _satisfied(observed: ObservedCache, name: str, need: Need) -> bool:
    """Whether a Mac has all files that it needs, in the folder that its ranks read."""
    return _has_files(observed, name, need) and need.layers <= _layers(observed, name)


def _files(observed: ObservedCache, need: Need) -> frozenset[int]:
    return needed_files(observed.cache, need)


def holders(observed: ObservedCache) -> dict[str, Need]:
    """What each Mac needs: the Macs that need the model or a part of it, and as many others as the spec requests."""
    spec, before = observed.cache.spec, {one.node for one in observed.cache.status.assignments}
    found = {name: need for name, need in observed.needed.items() if name in observed.nodes}
    chosen = {name for name, need in found.items() if need.whole}
    candidates = [
        name
        for name in observed.nodes
        if _selected(observed, name) and _free(observed, name) >= 0 and (name in before or _fits(observed, name))
    ]
    count = spec.copies if spec.copies is not None else len(candidates) if spec.node_selector else 1

    def order(name: str) -> tuple[object, ...]:
        ready = observed.nodes[name].ready
        return (not _is_complete(observed, name), not ready, name not in before, -_free(observed, name), name)

    for name in sorted(candidates, key=order):
        if len(chosen) >= count:
            break
        chosen.add(name)
        found[name] = found.get(name, Need(True)) | Need(True)
    complete = [name for name in found if observed.nodes[name].ready and _is_complete(observed, name)]
    made_on = quantizing.keeper(observed, complete)
    if made_on is not None:
        found[made_on] = found.get(made_on, Need(True)) | Need(True)
    return dict(sorted(found.items()))


def _given(observed: ObservedCache, name: str, files: frozenset[int]) -> bool:
    """Whether Macs that are Ready, other than this one, have these files together."""
    left, seen = files, set[frozenset[int]]()
    if not left:
        return True
    for other in observed.nodes:
        if other == name or not observed.nodes[other].ready:
            continue
        if _is_complete(observed, other):
            return True
        layers = _layers(observed, other)
        if layers and layers not in seen:
            seen.add(layers)
            left -= _files(observed, Need(False, layers))
            if not left:
                return True
    return False


def _lacked(observed: ObservedCache, name: str, need: Need) -> frozenset[int]:
    """The files that a Mac needs, without those of the layers that it has."""
    layers = _layers(observed, name)
    return _files(observed, need) - (_files(observed, Need(False, layers)) if layers else frozenset())


def _no_source_since(observed: ObservedCache, name: str, need: Need) -> datetime | None:
    """Since when a Mac has reached no other Mac that has the model; None if it has reached one, or if no Mac has it.

    A Mac that downloads the model for this reason does not search for other Macs, so the time stays as it is.
    """
    profile, status = observed.profiles.get(name), observed.cache.status
    copies = profile.status.copies if profile is not None else ()
    assigned = next((one for one in status.assignments if one.node == name), None)
    before = assigned.no_source_since if assigned is not None else None
    downloads = assigned is not None and assigned.source is CopySource.HUB and before is not None
    if not downloads and not any(copy.manifest == status.manifest and copy.reason == Reason.NO_SOURCE for copy in copies):
        return None
    return before or observed.now if _given(observed, name, _lacked(observed, name, need)) else None


def _has_no_source(observed: ObservedCache, name: str, need: Need) -> bool:
    since = _no_source_since(observed, name, need)
    return since is not None and age_seconds(since, observed.now) >= NO_SOURCE_SECONDS


def _source(observed: ObservedCache, needs: Mapping[str, Need]) -> str | None:
    """The Mac that downloads from the hub; None if none has to, or none can.

    One Mac at a time downloads, so that others can copy from it. A Mac that has started continues. Otherwise the Mac with most
    of the files is chosen, then the one with the fastest connection.
    """
    missing = [
        name
        for name, need in needs.items()
        if not _has_files(observed, name, need)
        and (not _given(observed, name, _lacked(observed, name, need)) or _has_no_source(observed, name, need))
    ]
    made_from = observed.cache.status.quantized_from
    if made_from is not None:
        # Its agent takes over what the pod has left there; no hub has these files.
        return made_from.node if made_from.node in missing else None
    before = {one.node for one in observed.cache.status.assignments if one.source is CopySource.HUB}
    able = [name for name in missing if _usable(observed, name) and _free(observed, name) >= 0]
    manifest = observed.cache.status.manifest
    order = {name: (name not in before, *download_order(name, observed.profiles.get(name), manifest)) for name in able}
    return min(able, key=lambda name: order[name], default=None)


# --- pods ------------------------------------------------------------------------------------------------------------


def _due(observed: ObservedCache) -> float | None:
    """Seconds until the next pod may be made; None if it may be made now."""
    download = observed.cache.status.download
    until = download.next_time if download is not None else None
    if until is None or until <= observed.now:
        return None
    # A time further away was written while a clock was wrong.
    return min((until - observed.now).total_seconds(), RETRY.limit * 6)


def _failed(observed: ObservedCache, pod: FetchPod) -> Download:
    """What is known about downloads after a pod has failed."""
    before = observed.cache.status.download or Download()
    found = FetchResult.parse(pod.message)
    reason = found.reason if found is not None else Reason.DOWNLOAD_FAILED
    last = (pod.message or pod.waits).strip().splitlines()[-1:] or ["no output"]
    text = found.message if found is not None else f"pod {pod.name} on {pod.node} failed: {last[0][:500]}"
    wait = RETRY.seconds(before.attempts + 1)
    if found is not None and found.retry_seconds is not None:
        wait = max(5.0, float(found.retry_seconds))
    elif reason in ACTION_REQUIRED:
        wait = SLOW_SECONDS
    until = observed.now + timedelta(seconds=wait)
    return Download(node=pod.node, attempts=before.attempts + 1, next_time=until, reason=reason, message=text)


def _still(observed: ObservedCache) -> Download | None:
    """``status.download``, without a refusal by the chart's values that have changed since."""
    download = observed.cache.status.download
    by_values = download is not None and download.reason == Reason.HOST_NOT_ALLOWED and download.next_time is None
    return None if by_values and observed.not_allowed is None else download


def _stuck(observed: ObservedCache, pod: FetchPod) -> bool:
    """Whether a pod will not start soon, or its Mac is away."""
    node = observed.nodes.get(pod.node)
    return node is None or (not node.ready and not pod.ended) or pod.waiting_seconds(observed.now) > START_SECONDS


def _resolving(observed: ObservedCache, pods: Sequence[FetchPod]) -> CacheDecision:
    cache = observed.cache
    spec, before = cache.spec, cache.status
    known = resolved_from(spec)
    if before.resolved_from != known:
        # The spec has changed, so what is known about the last attempt does not apply.
        before = before.model_copy(update={"download": None, "resolved_from": known, "commit": None, "manifest": None})
        before = before.model_copy(update={"model": None, "files": None, "bytes": None, "assignments": (), "macs": ()})
        before = before.model_copy(update={"weight_files": (), "no_parts": "", "quantized_from": None})
        observed = replace(observed, cache=cache.model_copy(update={"status": before}))
    wanted = (*origin(spec), *quantizing.revision(spec), *quantizing.how(cache))
    mine = [pod for pod in pods if pod.task is Task.RESOLVE and pod.arguments == wanted and not pod.terminating]
    old = tuple(pod for pod in pods if pod not in mine and not pod.terminating)
    ended = next((pod for pod in mine if pod.ended), None)
    if ended is not None:
        return _resolved(observed, ended, (*old, ended))
    if mine:
        stuck = tuple(pod for pod in mine if _stuck(observed, pod))
        if stuck:
            failed = before.model_copy(update={"download": _failed(observed, stuck[0])})
            return CacheDecision(failed, None, (*old, *stuck), RETRY.first)
        return CacheDecision(before, None, old, RECHECK_SECONDS)
    why = observed.not_allowed
    if why is not None:
        return CacheDecision(before.model_copy(update={"download": why}), None, old)
    before = before.model_copy(update={"download": _still(observed)})
    observed = replace(observed, cache=cache.model_copy(update={"status": before}))
    wait = _due(observed)
    if wait is not None:
        return CacheDecision(before, None, old, wait)
    able = [name for name in observed.nodes if _usable(observed, name)]
    failed_on = before.download.node if before.download is not None else None
    node = min(
        able, key=lambda name: (name == failed_on, not _selected(observed, name), -_free(observed, name), name), default=None
    )
    if node is None:
        return CacheDecision(before, None, old, RECHECK_SECONDS)
    attempt = before.download.attempts if before.download is not None else 0
    return CacheDecision(before, NewPod(Task.RESOLVE, node, attempt), old, RECHECK_SECONDS)


def _resolved(observed: ObservedCache, pod: FetchPod, delete: tuple[FetchPod, ...]) -> CacheDecision:
    before, found = observed.cache.status, FetchResult.parse(pod.message)
    spec = observed.cache.spec
    accepted = spec.token_secret if found is not None and found.token_used else None
    expected, source = Reason.RESOLVED, None
    if spec.quantize is not None and found is not None:
        source = quantizing.source_of(found) if pod.task is Task.RESOLVE else before.quantized_from
        expected = Reason.RESOLVED if pod.task is Task.RESOLVE else Reason.QUANTIZED
        if source is not None and pod.task is Task.QUANTIZE:
            source = source.model_copy(update={"node": pod.node, "mlx_lm": found.mlx_lm or None, "lost_since": None})
    useful = found is not None and (found.model is not None if pod.task is Task.QUANTIZE or spec.quantize is None else source)
    other = spec.uri is not None and found is not None and found.commit != spec.sha256
    if pod.phase != "Succeeded" or found is None or found.reason != expected or not useful or other:
        failed = _failed(observed, pod)
        return CacheDecision(before.model_copy(update={"download": failed}), None, delete, 1.0)
    if source is not None and pod.task is Task.RESOLVE:
        known = before.model_copy(update={"quantized_from": source, "token_accepted": accepted, "download": None})
        return CacheDecision(known, None, delete, 0.5)
    known = before.model_copy(
        update={
            "quantized_from": source,
            "commit": found.commit,
            "manifest": found.manifest,
            "files": found.files,
            "bytes": found.bytes,
            "model": found.model,
            "weight_files": found.weight_files,
            "no_parts": found.no_parts,
            "token_accepted": accepted,
            "download": None,
        }
    )
    return CacheDecision(known, None, delete, 0.5)


def _quantizing(observed: ObservedCache, pods: Sequence[FetchPod]) -> CacheDecision:
    before, mine = observed.cache.status, quantizing.mine(observed.cache, pods)
    source = before.quantized_from
    if source is None:
        return CacheDecision(before)
    old = tuple(pod for pod in pods if pod not in mine and not pod.terminating)
    ended = next((pod for pod in mine if pod.ended), None)
    if ended is not None:
        return _resolved(observed, ended, (*old, ended))
    stuck = tuple(pod for pod in mine if _stuck(observed, pod))
    if stuck:
        elsewhere = source.model_copy(update={"node": None})
        failed = before.model_copy(update={"download": _failed(observed, stuck[0]), "quantized_from": elsewhere})
        return CacheDecision(failed, None, (*old, *stuck), RETRY.first)
    wait = _due(observed)
    if mine or wait is not None:
        return CacheDecision(before, None, old, RECHECK_SECONDS if mine else wait)
    able = [name for name in observed.nodes if _usable(observed, name) and _free(observed, name) >= 0]
    node = quantizing.choose(observed, source, able)
    if node is None:
        attempts = before.download.attempts if before.download is not None else 0
        disk = bool(quantizing.with_disk(observed, source, able))
        why = Download(attempts=attempts, **quantizing.no_room(source, disk=disk))
        return CacheDecision(before.model_copy(update={"download": why}), None, old, RECHECK_SECONDS)
    # While a pod runs, its progress is shown instead of why the last one failed.
    download = before.download.model_copy(update={"reason": None, "message": ""}) if before.download is not None else None
    at = source.model_copy(update={"node": node})
    known = before.model_copy(update={"quantized_from": at, "download": download})
    attempt = before.download.attempts if before.download is not None else 0
    return CacheDecision(known, NewPod(Task.QUANTIZE, node, attempt, _store(observed, node)), old, RECHECK_SECONDS)


def _kept(observed: ObservedCache, known: ModelCacheStatus) -> ModelCacheStatus:
    """``known``, with what is known about the files of a quantized model, or without them if they are lost."""
    source = known.quantized_from
    if source is None:
        return known
    given = _given(observed, source.node or "", _files(observed, Need(True)))
    source = source.model_copy(update={"lost_since": quantizing.lost_since(observed, given=given)})
    known = known.model_copy(update={"quantized_from": source})
    again_at = quantizing.made_again_at(source, observed.nodes.get(source.node or ""))
    if again_at is None or observed.now < again_at:
        return known
    again = {"commit": None, "manifest": None, "model": None, "files": None, "bytes": None, "assignments": ()}
    fresh = source.model_copy(update={"node": None, "lost_since": None})
    return known.model_copy(update={**again, "weight_files": (), "no_parts": "", "quantized_from": fresh})


def _store(observed: ObservedCache, name: str) -> str:
    profile = observed.profiles.get(name)
    return profile.status.store.folder if profile is not None and profile.status.store is not None else ""


def _assignment(observed: ObservedCache, name: str, need: Need, *, hub: bool) -> Assignment:
    return Assignment(
        node=name,
        source=CopySource.HUB if hub else CopySource.PEER,
        no_source_since=_no_source_since(observed, name, need),
        layers=ranges(need.layers) if need.layers else None,
        files=None if need.whole else ranges(_files(observed, need)),
    )


def _downloaded(observed: ObservedCache, pods: Sequence[FetchPod]) -> CacheDecision:
    cache, before = observed.cache, observed.cache.status
    needs = holders(observed)
    source = _source(observed, needs)
    assignments = tuple(_assignment(observed, name, need, hub=name == source) for name, need in needs.items())
    known = _kept(observed, before.model_copy(update={"assignments": assignments, "download": _still(observed)}))
    if known.quantized_from is not None:
        ending = tuple(pod for pod in pods if not pod.terminating)
        waiting = known.quantized_from.lost_since or any(not _satisfied(observed, name, need) for name, need in needs.items())
        return CacheDecision(known, None, ending, RECHECK_SECONDS if waiting else None)
    files = next((one.files for one in assignments if one.node == source), None)
    what = (*origin(cache.spec), "--commit", before.commit, "--manifest", before.manifest)
    wanted = (*what, "--files", files) if files is not None else what
    mine = [
        pod
        for pod in pods
        if pod.task is Task.DOWNLOAD and pod.arguments == wanted and pod.node == source and not pod.terminating
    ]
    old = tuple(pod for pod in pods if pod not in mine and not pod.terminating)
    ended = next((pod for pod in mine if pod.ended), None)
    if ended is not None and ended.phase != "Succeeded":
        failed = _failed(observed, ended)
        return CacheDecision(known.model_copy(update={"download": failed}), None, (*old, ended), 1.0)
    stuck = tuple(pod for pod in mine if _stuck(observed, pod))
    if stuck:
        failed = _failed(observed, stuck[0])
        return CacheDecision(known.model_copy(update={"download": failed}), None, (*old, *stuck), RETRY.first)
    if source is None:
        waiting = any(not _satisfied(observed, name, need) for name, need in needs.items())
        return CacheDecision(known.model_copy(update={"download": None}), None, old, RECHECK_SECONDS if waiting else None)
    if ended is not None:
        # The agent's report that the copy is complete may be on its way; if files were lost, another pod fetches them.
        lost = ended.created is None or age_seconds(ended.created, observed.now) > LOST_SECONDS
        return CacheDecision(known, None, (*old, ended) if lost else old, RECHECK_SECONDS)
    if mine:
        return CacheDecision(known, None, old, RECHECK_SECONDS)
    wait = _due(observed)
    if wait is not None:
        return CacheDecision(known, None, old, wait)
    if observed.not_allowed is not None:
        return CacheDecision(known.model_copy(update={"download": observed.not_allowed}), None, old)
    attempt = before.download.attempts if before.download is not None else 0
    new = NewPod(Task.DOWNLOAD, source, attempt, _store(observed, source), files)
    return CacheDecision(known, new, old, RECHECK_SECONDS)
