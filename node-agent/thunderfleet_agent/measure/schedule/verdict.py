"""What the condition BenchmarksFresh says. Pure, and without a time that runs, so that it is written when something changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thunderfleet_crds.reasons import Reason

from thunderfleet_agent.derive.profile import Verdict
from thunderfleet_agent.measure.schedule.due import History, stale
from thunderfleet_agent.measure.schedule.probes import Key, Probe
from thunderfleet_agent.measure.schedule.results import Trouble
from thunderfleet_agent.measure.schedule.settings import Settings

SHOWN = 3


def verdict(
    settings: Settings,
    wanted: Sequence[Probe],
    history: Mapping[Key, History],
    troubles: Mapping[Key, Trouble],
    closed: Mapping[Key, str],
    notes: Sequence[str],
    now: float,
) -> Verdict:
    """True when everything that is to be measured has been, lately enough; else the reason, and when it is tried next."""
    if not settings.enabled:
        return Verdict(False, Reason.DISABLED, "measuring is switched off (agent.measure.enabled)")
    old = [probe for probe in wanted if stale(probe, history.get(probe.key, History()), now)]
    aside = "".join(f"; RDMA is not measured: {note}" for note in notes[:SHOWN])
    failed = [probe.key for probe in old if probe.key in troubles]
    if failed:
        said = [f"{key}: {troubles[key].why}; next try at {troubles[key].again:%H:%M:%S}Z" for key in failed[:SHOWN]]
        more = f"; and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
        return Verdict(False, Reason.PROBE_FAILED, "; ".join(said) + more + aside)
    shut = [probe.key for probe in old if probe.key in closed]
    if shut:
        more = f" and {len(shut) - 1} more" if len(shut) > 1 else ""
        return Verdict(False, Reason.IN_USE, f"{shut[0]}{more} wait: {closed[shut[0]]}{aside}")
    if old:
        names = ", ".join(str(probe.key) for probe in old[:SHOWN])
        more = f" and {len(old) - SHOWN} more" if len(old) > SHOWN else ""
        return Verdict(False, Reason.NOT_MEASURED, f"not measured yet, or too long ago: {names}{more}{aside}")
    if not wanted:
        return Verdict(False, Reason.DISABLED, "every probe is switched off (agent.measure)")
    return Verdict(True, Reason.FRESH, f"{len(wanted)} probes have fresh results{aside}")
