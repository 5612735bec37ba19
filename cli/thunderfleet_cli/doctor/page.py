"""The result as text and as JSON. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from thunderfleet_cli.doctor.checks.check import THIS_MAC, Check, State, shown
from thunderfleet_cli.doctor.checks.security import PATHS
from thunderfleet_cli.doctor.host import Repaired


def as_values(checks: Sequence[Check], repairs: Sequence[Repaired]) -> dict[str, Any]:
    """``checks`` (subject, name, state, finding, reason, fix) and ``repairs`` (name, ran, undo, and failure or null)."""
    return {
        "checks": [
            {
                "subject": check.subject,
                "name": check.name,
                "state": check.state.value,
                "finding": check.finding,
                "reason": check.reason or None,
                "fix": check.fix or None,
            }
            for check in checks
        ],
        "repairs": [
            {
                "name": one.name,
                "ran": shown(one.repair.commands, PATHS),
                "undo": shown(one.repair.undo, PATHS),
                "failure": one.failure or None,
            }
            for one in repairs
        ],
    }


def as_text(checks: Sequence[Check], repairs: Sequence[Repaired], fixing: bool) -> str:
    """The result as text: checks by subject, repairs, commands for other Macs, and the number of checks in each state."""
    lines: list[str] = []
    for subject, group in groupby(checks, lambda check: check.subject):
        lines.append(subject)
        for check in group:
            reason = f"{check.reason}: " if check.reason and check.state is not State.OK else ""
            lines.append(f"  {check.state.value:<8}{check.name:<26}{reason}{check.finding}")
            if check.fix and check.state is not State.OK and check.subject == THIS_MAC:
                lines.append(f"{'':<10}fix: {check.fix}")
    lines += _repaired(repairs)
    if fixing:
        lines += _elsewhere(checks)
    numbers = Counter(check.state for check in checks)
    lines.append(", ".join(f"{numbers[state]} {state.value}" for state in State))
    return "\n".join(lines) + "\n"


def _repaired(repairs: Sequence[Repaired]) -> Iterator[str]:
    for one in repairs:
        if one.failure:
            yield f"not repaired: {one.name}: {one.failure}"
        else:
            yield f"repaired: {one.name}: {shown(one.repair.commands, PATHS)}"
        if one.ran:
            yield f"{'':<10}undo: {shown(one.repair.undo, PATHS)}"


def _elsewhere(checks: Sequence[Check]) -> Iterator[str]:
    for check in checks:
        if check.fix and check.state is not State.OK and check.subject != THIS_MAC:
            yield f"for {check.subject} ({check.name}): {check.fix}"
