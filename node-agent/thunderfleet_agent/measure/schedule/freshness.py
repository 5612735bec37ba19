"""Condition BenchmarksFresh. Pure. The message contains no running time, so that it is written only when something changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from thunderfleet_crds.reasons import Reason

from thunderfleet_agent.derive.condition import ConditionValue
from thunderfleet_agent.measure.schedule.due import History, stale
from thunderfleet_agent.measure.schedule.probes import Key, Probe
from thunderfleet_agent.measure.schedule.settings import MeasureSettings

# At most this many probes are named.
SHOWN = 3


@dataclass(frozen=True)
class ProbeFailure:
    """Why a probe failed, and when it runs again (wall clock, for display)."""

    why: str
    again: datetime


def benchmarks_fresh(
    settings: MeasureSettings,
    wanted: Sequence[Probe],
    history: Mapping[Key, History],
    failures: Mapping[Key, ProbeFailure],
    blocked: Mapping[Key, str],
    notes: Sequence[str],
    now: float,
) -> ConditionValue:
    """True if every due probe has a result that is recent enough; otherwise why not, and when a failed probe runs again."""
    if not settings.enabled:
        return ConditionValue(False, Reason.DISABLED, "benchmarks are disabled (chart value agent.measure.enabled)")
    if not wanted:
        return ConditionValue(False, Reason.DISABLED, "every benchmark is disabled (chart value agent.measure)")
    rdma = "".join(f"; RDMA is not measured: {note}" for note in notes[:SHOWN])
    old = [probe.key for probe in wanted if stale(probe, history.get(probe.key, History()), now)]
    if failed := [key for key in old if key in failures]:
        text = "; ".join(
            f"{key}: {failures[key].why}; next attempt at {failures[key].again:%H:%M:%S}Z" for key in failed[:SHOWN]
        )
        return ConditionValue(False, Reason.BENCHMARK_FAILED, f"{text}{_more(failed, SHOWN, '; and ')}{rdma}")
    if waiting := [key for key in old if key in blocked]:
        return ConditionValue(
            False, Reason.IN_USE, f"waiting: {waiting[0]}{_more(waiting, 1, ' and ')}: {blocked[waiting[0]]}{rdma}"
        )
    if old:
        names = ", ".join(str(key) for key in old[:SHOWN])
        return ConditionValue(False, Reason.NOT_MEASURED, f"no recent result: {names}{_more(old, SHOWN, ' and ')}{rdma}")
    return ConditionValue(True, Reason.FRESH, f"every benchmark has a recent result ({len(wanted)} of {len(wanted)}){rdma}")


def _more(keys: Sequence[Key], shown: int, joint: str) -> str:
    return f"{joint}{len(keys) - shown} more" if len(keys) > shown else ""
