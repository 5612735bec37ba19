"""Totals of faults: injected, results and durations. ``Results`` keeps them in a file, so that a run can have many parts."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.chaos import culprit
from tests.chaos.clients import Outcome
from tests.chaos.culprit import Look, Names
from tests.chaos.plan import Action, Blow, Fault, Stage, Step, Target

Json = dict[str, Any]

FILE_LIMIT = 64 << 20
"""Bytes of a file of results; a fault takes some KiB."""


@dataclass
class Record:
    """Result of one step."""

    seed: int
    episode: int
    step: int
    macs: int
    shape: str
    plan: Step
    observed: str = ""
    """Stage that the group reported when the fault was injected."""
    injected: bool = False
    recovered: bool = False
    seconds: float | None = None
    """Seconds from the fault or its end until the group answered correctly; while draining, until everything was deleted."""
    explained: str = ""
    """The status when the group did not serve in time, or could not serve without what was lost."""
    writes: float = 0.0
    """Writes of our programs per second, at the median."""
    written: int = 0
    """Writes of our programs in all."""
    clients: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    """Responses of the bystander's clients."""
    errors: Counter[str] = field(default_factory=Counter)
    """Messages of error events in streams."""
    violations: list[str] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    """What a person saw from the fault until the recovery."""
    names: list[Names] = field(default_factory=list)
    """For each fault: who names it."""

    @property
    def where(self) -> str:
        return f"seed {self.seed}, episode {self.episode}, step {self.step}"

    @property
    def end(self) -> str:
        if self.violations:
            return "VIOLATION"
        if not self.injected:
            return "nothing to hit"
        return f"well after {self.seconds or 0.0:.1f} s" if self.recovered else "explained"

    def line(self) -> str:
        """What happened, as text."""
        asked = ", ".join(f"{count} {what}" for what, count in sorted(self.clients.items()))
        text = f"{self.where}: {self.macs} Macs, {self.shape}: {self.plan} [{self.observed}]: {self.end}"
        text += f"; {asked}" * bool(asked) + f"; {self.written} writes, {self.writes:.1f}/s"
        errors = [f"{count} x {what}" for what, count in self.errors.items()]
        named = [
            f"{one.fault}{' (nothing to see)' * (not one.symptom)} named by {one.after or 'nothing'}" for one in self.names
        ]
        return "\n    ".join([text, *errors, *named, *self.violations, *([self.explained] if self.explained else [])])

    def as_json(self) -> Json:
        blows = [
            {"action": blow.fault.action.value, "target": blow.fault.target.value, "rank": blow.rank}
            for blow in self.plan.blows
        ]
        counts = {"clients": dict(self.clients), "others": dict(self.others), "errors": dict(self.errors)}
        plan = {"stage": self.plan.stage.value, "blows": blows, "seconds": self.plan.seconds}
        seen = {"looks": [look.as_json() for look in self.looks], "names": [vars(one) for one in self.names]}
        return {**vars(self), **counts, **seen, "plan": plan}

    @classmethod
    def read(cls, found: Json) -> "Record":
        """The inverse of ``as_json``. Raises ValueError, TypeError or KeyError if ``found`` is something else."""
        plan = found["plan"]
        blows = [Blow(Fault(Action(blow["action"]), Target(blow["target"])), blow["rank"]) for blow in plan["blows"]]
        step = Step(Stage(plan["stage"]), tuple(blows), plan["seconds"])
        counts = {name: Counter[str](found[name]) for name in ("clients", "others", "errors")}
        looks = [Look.read(look) for look in found.get("looks", [])]
        seen = {"looks": looks, "names": [Names(**one) for one in found.get("names", [])]}
        return cls(**{**found, **counts, **seen, "plan": step})


@dataclass(frozen=True)
class Results:
    """A file with a JSON object per step. Episodes are appended whole, so that one that was interrupted is done again."""

    path: Path

    def read(self) -> list[Record]:
        """All records. Raises ValueError if the file holds something else."""
        if not self.path.exists():
            return []
        if self.path.stat().st_size > FILE_LIMIT:
            raise ValueError(f"{self.path} is larger than {FILE_LIMIT} bytes; start a new file")
        records = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                records.append(Record.read(json.loads(line)))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{self.path}, line {number} is no result of a fault ({error!r}); start a new file") from error
        return records

    def append(self, episode: Iterable[Record]) -> None:
        """Raises ValueError if the file would become too large."""
        text = "".join(json.dumps(record.as_json()) + "\n" for record in episode)
        if self.path.exists() and self.path.stat().st_size + len(text) > FILE_LIMIT:
            raise ValueError(f"{self.path} would become larger than {FILE_LIMIT} bytes; start a new file")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)


def totals(records: Sequence[Record]) -> Json:
    """Sums over records."""
    hit = [record for record in records if record.injected]
    times = [record.seconds for record in hit if record.recovered and record.seconds is not None]
    clients = sum((record.clients for record in records), Counter[str]())
    return {
        "planned": len(records),
        "injected": len(hit),
        "blows": sum(len(record.plan.blows) for record in hit),
        "recovered": sum(record.recovered for record in hit),
        "explained": sum(bool(record.explained) for record in hit),
        "violations": sum(bool(record.violations) for record in records),
        "medianSeconds": round(median(times), 2) if times else None,
        "worstSeconds": round(max(times), 2) if times else None,
        "writes": round(median(record.writes for record in hit), 2) if hit else None,
        "clients": dict(clients),
        "others": dict(sum((record.others for record in records), Counter[str]())),
        "wholePercent": round(100 * clients[Outcome.WHOLE.value] / clients.total(), 1) if clients else None,
    }


def _rows(records: Iterable[Record], by: Callable[[Record], Iterable[str]], order: Sequence[str]) -> list[str]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        for name in by(record):
            groups.setdefault(name, []).append(record)
    rows = []
    for name in sorted(groups, key=lambda name: order.index(name) if name in order else len(order)):
        hit = [record for record in groups[name] if record.injected]
        times = sorted(record.seconds for record in hit if record.recovered and record.seconds is not None)
        worst = max(hit, key=lambda record: record.seconds or 0.0, default=None)
        violations = sum(bool(record.violations) for record in groups[name])
        rows.append(
            f"{name:<26}{len(hit):>9}{sum(record.recovered for record in hit):>11}{violations:>12}"
            + (f"{median(times):>10.1f}{times[-1]:>9.1f}   {worst.where if worst else ''}" if times else "")
        )
    return rows


def table(records: Sequence[Record]) -> str:
    """The totals as text."""
    head = f"{'':<26}{'injected':>9}{'recovered':>11}{'violations':>12}{'median s':>10}{'worst s':>9}   worst at"
    faults = sorted({str(blow.fault) for record in records for blow in record.plan.blows})
    fleets = sorted({f"{record.macs} Macs" for record in records})
    shapes = sorted({record.shape for record in records})
    lines = [head, *_rows(records, lambda record: {str(blow.fault) for blow in record.plan.blows}, faults)]
    lines += [head, *_rows(records, lambda record: [record.plan.stage.value], [stage.value for stage in Stage])]
    lines += [head, *_rows(records, lambda record: [f"{record.macs} Macs"], fleets)]
    lines += [head, *_rows(records, lambda record: [record.shape], shapes)]
    lines += [head, *_rows(records, lambda record: ["all"], ["all"])]
    found = totals(records)
    asked = ", ".join(f"{count} {what}" for what, count in sorted(found["clients"].items()))
    other = ", ".join(f"{count} {what}" for what, count in sorted(found["others"].items()))
    missed, double = found["planned"] - found["injected"], found["blows"] - found["injected"]
    text = f"{found['planned']} faults planned, {missed} found nothing to hit; {double} with a second one"
    lines.append(f"{text}; {found['explained']} explained in status")
    lines.append(f"clients: {asked or 'none'}; {found['wholePercent']} % whole")
    lines.append(f"clients of the other deployment: {other or 'none'}")
    lines.append(f"writes of our programs per second: {found['writes']} (median over the faults of the median second)")
    lines.append(culprit.table(one for record in records for one in record.names))
    for record in records:
        if record.violations:
            lines.append(f"VIOLATION at {record.where} ({record.macs} Macs, {record.shape}; {record.plan}):")
            lines += [f"    {text}" for text in record.violations]
    return "\n".join(lines)
