"""Runs commands of macOS, and repairs."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from thunderfleet_lib.host.hostcmd import Failure, Host, Output

from thunderfleet_cli.doctor.checks.check import Argv, Check, Repair, State
from thunderfleet_cli.doctor.checks.security import FIREWALL_FOLDER

REPAIR_SECONDS = 20.0


@dataclass(frozen=True)
class Repaired:
    """A repair that was tried. ``failure``: why it did not succeed; empty if it did."""

    name: str
    repair: Repair
    failure: str = ""
    ran: bool = False
    """Whether all its commands succeeded, so that they may have changed something."""


def mac() -> Host:
    """This Mac. The firewall's folder is the last of PATH, behind the commands of a recorded Mac."""
    return Host([*map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep)), Path(FIREWALL_FOLDER)])


async def ask(host: Host, questions: Mapping[Argv, float]) -> dict[Argv, Output | Failure]:
    """Runs all commands at once and returns their output. ``questions``: the time limit of each command in seconds."""
    answers = await asyncio.gather(*(host.run(argv, seconds) for argv, seconds in questions.items()))
    return dict(zip(questions, answers, strict=True))


async def repair(host: Host, checks: Sequence[Check]) -> list[Repaired]:
    """Repairs one check after the other."""
    tried = [(one.name, one.repair, await _run(host, one.repair)) for one in checks if one.repair is not None]
    return [Repaired(name, wanted, failure, ran=not failure) for name, wanted, failure in tried]


async def _run(host: Host, wanted: Repair) -> str:
    """Why a repair did not succeed. Undoes its commands that succeeded before."""
    for number, argv in enumerate(wanted.commands):
        answer = await host.run(argv, REPAIR_SECONDS)
        if isinstance(answer, Failure):
            if number:
                for undo in wanted.undo:
                    await host.run(undo, REPAIR_SECONDS)
            return str(answer)
    return ""


def judged(tried: Repaired, after: Check) -> Repaired:
    """``tried``, with a failure if the check still finds the problem: some commands refuse with exit code 0."""
    if tried.failure or after.state is State.OK:
        return tried
    return replace(tried, failure=f"the commands succeeded, but the check still finds: {after.finding}")
