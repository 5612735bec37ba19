"""Totals of a run of the fault suite: injected faults, results and durations."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.chaos.plan import Stage, Step


@dataclass
class Record:
    """Result of one step."""

    seed: int
    episode: int
    step: int
    shape: str
    plan: Step
    observed: str = ""
    """Stage that the group reported when the fault was injected."""
    injected: bool = False
    recovered: bool = False
    seconds: float | None = None
    """Seconds from the fault or its end until the group answered correctly; while draining, until everything was deleted."""
    explained: str = ""
    """The status when the group did not serve in time."""
    clients: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Messages of error events in streams."""
    violations: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"seed {self.seed}, episode {self.episode}, step {self.step}"

    @property
    def end(self) -> str:
        if not self.injected:
            return "nothing to hit"
        if self.violations:
            return "VIOLATION"
        return f"well after {self.seconds:.1f} s" if self.recovered else "explained"

    def line(self) -> str:
        asked = ", ".join(f"{count} {what}" for what, count in sorted(self.clients.items()))
        text = f"{self.where}: {self.shape}: {self.plan} [{self.observed}]: {self.end}" + (f"; {asked}" if asked else "")
        errors = [f"{count} x {what}" for what, count in self.errors.items()]
        return "\n    ".join([text, *errors, *self.violations, *([self.explained] if self.explained else [])])


def as_json(records: Sequence[Record], seconds: float) -> dict[str, Any]:
    """The whole run as JSON."""
    steps = [
        {
            "seed": record.seed,
            "episode": record.episode,
            "step": record.step,
            "shape": record.shape,
            "stage": record.plan.stage.value,
            "fault": str(record.plan.fault),
            "rank": record.plan.rank,
            "faultSeconds": record.plan.seconds,
            "observed": record.observed,
            "injected": record.injected,
            "recovered": record.recovered,
            "seconds": record.seconds,
            "explained": record.explained,
            "clients": dict(record.clients),
            "errors": dict(record.errors),
            "violations": record.violations,
        }
        for record in records
    ]
    hit = [record for record in records if record.injected]
    times = [record.seconds for record in hit if record.recovered and record.seconds is not None]
    totals = {
        "planned": len(records),
        "injected": len(hit),
        "recovered": sum(record.recovered for record in hit),
        "explained": sum(bool(record.explained) for record in hit),
        "violations": sum(bool(record.violations) for record in records),
        "medianSeconds": round(median(times), 2) if times else None,
        "worstSeconds": round(max(times), 2) if times else None,
        "clients": dict(sum((record.clients for record in records), Counter[str]())),
        "runSeconds": round(seconds, 1),
    }
    return {"totals": totals, "steps": steps}


def _rows(records: Iterable[Record], by: Callable[[Record], str], order: Sequence[str]) -> list[str]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(by(record), []).append(record)
    rows = []
    for name in sorted(groups, key=lambda name: order.index(name) if name in order else len(order)):
        hit = [record for record in groups[name] if record.injected]
        times = sorted(record.seconds for record in hit if record.recovered and record.seconds is not None)
        worst = max(hit, key=lambda record: record.seconds or 0.0, default=None)
        rows.append(
            f"{name:<22}{len(hit):>9}{sum(record.recovered for record in hit):>11}{sum(bool(r.violations) for r in hit):>12}"
            + (f"{median(times):>10.1f}{times[-1]:>9.1f}   {worst.where if worst else ''}" if times else "")
        )
    return rows


def table(records: Sequence[Record], seconds: float) -> str:
    """The totals as text."""
    head = f"{'':<22}{'injected':>9}{'recovered':>11}{'violations':>12}{'median s':>10}{'worst s':>9}   worst at"
    stages = [stage.value for stage in Stage]
    faults = sorted({str(record.plan.fault) for record in records})
    shapes = sorted({record.shape for record in records})
    lines = [head, *_rows(records, lambda record: str(record.plan.fault), faults)]
    lines += [head, *_rows(records, lambda record: record.plan.stage.value, stages)]
    lines += [head, *_rows(records, lambda record: record.shape, shapes)]
    lines += [head, *_rows(records, lambda record: "all", ["all"])]
    totals = as_json(records, seconds)["totals"]
    asked = ", ".join(f"{count} {what}" for what, count in sorted(totals["clients"].items()))
    lines.append(f"{totals['planned']} faults planned, {totals['planned'] - totals['injected']} found nothing to hit; "
                 f"{totals['explained']} not served in time and explained in status; clients: {asked or 'none'}; "
                 f"{seconds / 60:.1f} min")  # fmt: skip
    for record in records:
        if record.violations:
            lines.append(f"VIOLATION at {record.where} ({record.shape}; {record.plan}):")
            lines += [f"    {text}" for text in record.violations]
    return "\n".join(lines)
