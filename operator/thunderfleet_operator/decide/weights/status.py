"""What the status of a ModelCache shows."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from thunderfleet_crds.kinds.modelcache import Assignment, ModelCache, ModelCacheSpec, ModelCacheStatus, QuantizedFrom
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.meta.conditions import find_condition, set_condition
from thunderfleet_crds.meta.fields import binary_size
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.uris import host_of
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, CopyPhase, CopySource
from thunderfleet_crds.weights.copies import MacCopy
from thunderfleet_crds.weights.parts import numbers
from thunderfleet_crds.weights.quantization import conversion_id
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.decide.status.progress import ACTION_REQUIRED, NOT_STALLED, SEE_STALLED
from thunderfleet_operator.decide.status.verdict import MESSAGE_LENGTH, Verdict, joined
from thunderfleet_operator.decide.weights import quantizing
from thunderfleet_operator.observe.fleet.weights import layers_of_copy
from thunderfleet_operator.observe.objects.nodes import Node

ENDED = frozenset((CopyPhase.COMPLETE, CopyPhase.PART))
"""Phases in which a Mac has all files that it needs."""
LISTED = 4
"""Copies that a summary names."""
FAULT_SECONDS = 600.0
"""A fault that a user may have to fix makes a ModelCache Stalled after this long."""
FAULT_ATTEMPTS = 6
"""Pods that fail within that time. A failure after hours of work does not predict the next one."""
WORKING = frozenset(
    (
        Reason.RESOLVING,
        Reason.QUANTIZING,
        Reason.FETCHING,
        Reason.NOTHING_TO_FETCH,
        Reason.RATE_LIMITED,
    )
)


def duration(seconds: int) -> str:
    """A duration as text."""
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h {seconds % 3600 // 60} min"


def rate(bytes_per_second: int) -> str:
    """A rate as text."""
    return f"{bytes_per_second / 1e6:.1f} MB/s" if bytes_per_second >= 100_000 else f"{bytes_per_second / 1e3:.1f} kB/s"


def server_of(spec: ModelCacheSpec) -> str:
    """The server that pods request the model from, in words."""
    return host_of(spec.uri) if spec.uri is not None else "the hub"


def progress(copy: MacCopy, server: str = "the hub") -> str:
    """One copy in words. ``server``: whom pods ask."""
    if copy.phase in ENDED:
        return f"{copy.node} has it" if copy.phase is CopyPhase.COMPLETE else f"{copy.node} has layers {copy.layers or ''}"
    share = copy.bytes_done * 100 // copy.bytes if copy.bytes else 0
    parts = [f"{copy.node} {share} % of {binary_size(copy.bytes)}"]
    if copy.phase is CopyPhase.QUANTIZING:
        parts = [f"being quantized on {copy.node}, {share} % of {binary_size(copy.bytes)}"]
    if copy.source is CopySource.PEER and copy.peer:
        parts.append(f"from {copy.peer}" + (f" over {copy.link}" if copy.link else " over the LAN"))
    elif copy.source is CopySource.HUB and copy.phase is not CopyPhase.QUANTIZING:
        parts.append(f"from {server}")
    if copy.bytes_per_second:
        parts.append(rate(copy.bytes_per_second))
    if copy.seconds_left is not None:
        parts.append(f"{duration(copy.seconds_left)} left")
    if copy.message:
        parts.append(copy.message)
    return ", ".join(parts)


def summary(copies: Sequence[MacCopy], server: str = "the hub") -> str:
    """The copies that have not ended, in words. ``server``: whom pods ask."""
    moving = [copy for copy in copies if copy.phase not in ENDED]
    more = [f"and {len(moving) - LISTED} more Macs"] if len(moving) > LISTED else []
    return joined([*(progress(copy, server) for copy in moving[:LISTED]), *more])


def short(copies: Sequence[MacCopy]) -> str | None:
    """The progress of all copies together, for a column."""
    total, done = sum(copy.bytes for copy in copies), sum(copy.bytes_done for copy in copies)
    if not total or all(copy.phase in ENDED for copy in copies):
        return None
    together = sum(copy.bytes_per_second or 0 for copy in copies)
    speed = f" {rate(together)}" if together else ""
    left = max((copy.seconds_left for copy in copies if copy.seconds_left is not None), default=None)
    return f"{done * 100 // total}% of {binary_size(total)}{speed}" + (f" {duration(left)} left" if left is not None else "")


def _conversion(source: QuantizedFrom, name: str, profiles: Mapping[str, NodeProfile | None]) -> tuple[MacCopy, ...]:
    """What the agent reports of a conversion on its Mac."""
    if source.node is None:
        return ()
    profile = profiles.get(source.node)
    known = next((one for one in (profile.status.copies if profile is not None else ()) if one.manifest == name), None)
    if known is None:
        return (MacCopy(node=source.node, phase=CopyPhase.QUANTIZING, bytes=source.bytes, message="the pod starts"),)
    shared = {field: getattr(known, field) for field in MacCopy.model_fields if field != "node"}
    return (MacCopy(node=source.node, **shared),)


def _copies(
    cache: ModelCache, status: ModelCacheStatus, nodes: Mapping[str, Node], profiles: Mapping[str, NodeProfile | None]
) -> tuple[MacCopy, ...]:
    found = []
    made_from, quantize = status.quantized_from, cache.spec.quantize
    if made_from is not None and quantize is not None and status.manifest is None:
        return _conversion(made_from, conversion_id(made_from.manifest, quantize), profiles)
    again_at = quantizing.made_again_at(made_from, nodes.get(made_from.node or "")) if made_from is not None else None
    for assigned in status.assignments:
        profile, node = profiles.get(assigned.node), nodes.get(assigned.node)
        reported = profile.status.copies if profile is not None else ()
        known = next((one for one in reported if one.manifest == status.manifest), None)
        if known is None:
            copy = MacCopy(node=assigned.node, bytes=_bytes(status, assigned), source=assigned.source)
        else:
            shared = {name: getattr(known, name) for name in MacCopy.model_fields if name != "node"}
            copy = MacCopy(node=assigned.node, **shared)
        if copy.phase in ENDED and not _is_ended(assigned, copy):
            # The agent has not yet read that its Mac needs more files.
            copy = copy.model_copy(update={"phase": CopyPhase.WAITING, "bytes": max(copy.bytes, _bytes(status, assigned))})
        if copy.phase not in ENDED:
            copy = copy.model_copy(update=_waits(status, assigned.source, copy, node, profile))
            if (
                made_from is not None
                and again_at is not None
                and copy.node != made_from.node
                and copy.reason == Reason.NO_SOURCE
            ):
                only = f"waiting for {made_from.node}, which has the only copy and cannot be reached"
                then = f"if that persists, the repository is quantized again at {again_at:%H:%M:%S} UTC"
                copy = copy.model_copy(update={"message": f"{only}; {then}"})
        found.append(copy)
    return tuple(found)


def _is_ended(assigned: Assignment, copy: MacCopy) -> bool:
    """Whether a Mac has all files that it needs, in the folder that its ranks read."""
    if assigned.files is None and copy.phase is not CopyPhase.COMPLETE:
        return False
    return numbers(assigned.layers or "") <= layers_of_copy(copy)


def _bytes(status: ModelCacheStatus, assigned: Assignment) -> int:
    """Bytes of the files that a Mac needs."""
    files = numbers(assigned.files) if assigned.files else None
    left_out = sum(one.bytes for one in status.weight_files if files is not None and one.file not in files)
    return max(0, (status.bytes or 0) - left_out)


def _waits(
    status: ModelCacheStatus, source: CopySource, copy: MacCopy, node: Node | None, profile: NodeProfile | None
) -> dict[str, object]:
    """Returns what a copy waits for, in cases that the agent of the Mac cannot detect."""
    store = profile.status.store if profile is not None else None
    if node is None or not node.ready:
        return {"message": "waiting for the Mac, which is not Ready", "bytes_per_second": None, "seconds_left": None}
    if store is None:
        return {"message": "waiting for the agent of the Mac, which reports no model store (chart value agent.modelStore)"}
    if store.problem:
        return {"reason": Reason.NO_MAC_TO_FETCH, "message": f"the model store cannot be used: {store.problem}"}
    download, hub = status.download, next((one.node for one in status.assignments if one.source is CopySource.HUB), None)
    if source is CopySource.PEER and copy.reason == Reason.NO_SOURCE and hub is not None:
        part = next((one.files for one in status.assignments if one.node == hub), None)
        what = "downloads the model" if part is None else "first downloads the files that it needs itself"
        return {"reason": None, "message": f"waiting for {hub}, which {what}"}
    if source is CopySource.HUB and download is not None and download.reason is not None and copy.reason is None:
        when = f"; next attempt at {download.next_time:%H:%M:%S} UTC" if download.next_time else ""
        return {"reason": download.reason, "message": f"{download.message}{when}"[:MESSAGE_LENGTH]}
    return {}


def _resolved(cache: ModelCache, status: ModelCacheStatus, nodes: Mapping[str, Node], macs: Sequence[MacCopy]) -> Verdict:
    what, whom = f"{cache.spec.repository}, revision {cache.spec.revision}", server_of(cache.spec)
    if cache.spec.uri is not None:
        what = f"{cache.spec.uri} with the hash {cache.spec.sha256}"
    source, quantize = status.quantized_from, cache.spec.quantize
    if source is not None and quantize is not None:
        what += f", commit {source.commit}"
        if status.manifest is not None:
            size, by = binary_size(status.bytes or 0), f"mlx-lm {source.mlx_lm}" if source.mlx_lm else "mlx-lm"
            done = f"{what}, was quantized to {quantize.text} by {by}: {status.files} files, {size}"
            return Verdict(True, Reason.QUANTIZED, done)
        if status.download is None or status.download.reason is None:
            now = summary(macs) or "no pod has started yet"
            return Verdict(False, Reason.QUANTIZING, f"{what}, to {quantize.text}: {now}")
    if status.commit is not None and status.manifest is not None:
        size = binary_size(status.bytes or 0)
        known = what if cache.spec.uri is not None else f"{what} is commit {status.commit}"
        return Verdict(True, Reason.RESOLVED, f"{known}: {status.files} files, {size}")
    download = status.download
    if download is not None and download.reason is not None:
        when = f"; next attempt at {download.next_time:%H:%M:%S} UTC" if download.next_time else ""
        return Verdict(False, download.reason, f"{download.message}{when}")
    if not any(node.mac and node.ready and node.schedulable for node in nodes.values()):
        return Verdict(
            False, Reason.NO_MAC_TO_FETCH, f"{what}: no Mac is Ready and schedulable, so no pod can read from {whom}"
        )
    return Verdict(False, Reason.RESOLVING, f"{what}: a pod reads its commit, files and sizes from {whom}")


def _fetched(status: ModelCacheStatus, resolved: Verdict, macs: Sequence[MacCopy], server: str) -> Verdict:
    if status.commit is None:
        # `kubectl get mc -o wide` shows this message alone.
        return Verdict(False, Reason.NOT_RESOLVED, f"{resolved.reason}: {resolved.message}")
    if not macs:
        return Verdict(
            False,
            Reason.NOTHING_TO_FETCH,
            "no Mac fetches the model: no group needs it, and spec.copies "
            "is 0, or no Mac that matches spec.nodeSelector has room for it",
        )
    if all(copy.phase in ENDED for copy in macs):
        return Verdict(True, Reason.FETCHED, f"on {', '.join(map(_where, macs))}")
    reason = next((copy.reason for copy in macs if copy.reason and copy.phase not in ENDED), None)
    return Verdict(False, reason or Reason.FETCHING, summary(macs, server))


def _stalled(cache: ModelCache, status: ModelCacheStatus, resolved: Verdict, fetched: Verdict, now: datetime) -> Verdict:
    """Whether a user must change something: at once, or if the same fault has lasted for a while."""
    fault = resolved if resolved.status is not True else fetched
    if fault.status is True or fault.reason in WORKING:
        return NOT_STALLED
    if fault.reason not in ACTION_REQUIRED:
        known = find_condition(cache.status.conditions, ConditionType.STALLED)
        same = known is not None and known.observed_generation == cache.metadata.generation
        before = same and known is not None and known.status is ConditionStatus.TRUE
        working = find_condition(cache.status.conditions, ConditionType.RECONCILING)
        lasts = working is not None and working.status is ConditionStatus.TRUE
        age = age_seconds(working.last_transition_time, now) if working is not None and lasts else 0.0
        download = status.download
        few = (
            download is not None
            and download.node is not None
            and download.reason == fault.reason
            and download.attempts < FAULT_ATTEMPTS
        )
        if not before and (few or age < FAULT_SECONDS):
            return NOT_STALLED
    return Verdict(True, fault.reason, fault.message)


def _reconciling(resolved: Verdict, fetched: Verdict, *, stalled: bool) -> Verdict:
    if stalled:
        return SEE_STALLED
    if fetched.status is True or (resolved.status is True and fetched.reason == Reason.NOTHING_TO_FETCH):
        return Verdict(False, fetched.reason, fetched.message)
    kind = ConditionType.RESOLVED if resolved.status is not True else ConditionType.FETCHED
    return Verdict(True, Reason.PROGRESSING, f"see condition {kind}")


def _where(copy: MacCopy) -> str:
    return f"{copy.node} (layers {copy.layers})" if copy.phase is CopyPhase.PART else copy.node


def complete(
    cache: ModelCache,
    status: ModelCacheStatus,
    nodes: Mapping[str, Node],
    profiles: Mapping[str, NodeProfile | None],
    now: datetime,
) -> ModelCacheStatus:
    """``status`` with copies, progress and conditions."""
    macs = _copies(cache, status, nodes, profiles)
    there = sum(copy.phase in ENDED for copy in macs)
    found = cache.status.conditions
    resolved = _resolved(cache, status, nodes, macs)
    fetched = _fetched(status, resolved, macs, server_of(cache.spec))
    stalled = _stalled(cache, status, resolved, fetched, now)
    verdicts = {
        ConditionType.RESOLVED: resolved,
        ConditionType.FETCHED: fetched,
        ConditionType.RECONCILING: _reconciling(resolved, fetched, stalled=stalled.status is True),
        ConditionType.STALLED: stalled,
    }
    for kind, verdict in verdicts.items():
        message = verdict.message[:MESSAGE_LENGTH]
        found = set_condition(
            found, kind, verdict.status, verdict.reason, message, now=now, observed_generation=cache.metadata.generation
        )
    return status.model_copy(
        update={
            "observed_generation": cache.metadata.generation,
            "macs": macs,
            "size": binary_size(status.bytes) if status.bytes is not None else None,
            "copies": f"{there}/{len(macs)}" if status.commit is not None else None,
            "progress": short(macs),
            "conditions": found,
        }
    )
