"""Reads the network settings of this Mac, and carries out what is decided. Every command has a time limit."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from thunderfleet_lib.host.hostcmd import Failure
from thunderfleet_lib.macnet import decide, record
from thunderfleet_lib.macnet.decide import Goal
from thunderfleet_lib.macnet.observe import COMMAND_SECONDS, Run, Unreadable, read
from thunderfleet_lib.macnet.switch import Decision, Reach
from thunderfleet_lib.macnet.values import Network, Record

UNDO_ROUNDS: Final = 10


@dataclass(frozen=True)
class Round:
    """What one round did. ``failures``: commands that failed."""

    decision: Decision
    failures: tuple[str, ...] = ()


class Keeper:
    """Maintains the settings of the Thunderbolt ports. ``path``: the file of the record."""

    def __init__(self, run: Run, path: Path) -> None:
        self._run, self._path = run, path
        self._network: Network | None = None
        """The network as it was last read."""
        self.problem = ""
        """Why the record of an earlier run is not used."""
        try:
            self.record = record.load(path)
        except (OSError, ValueError) as error:
            # The names of our services show that they are ours, so they are found without the record.
            self.record, self.problem = Record(), str(error)

    @property
    def ports(self) -> tuple[str, ...]:
        """The Thunderbolt ports that were read last, by name."""
        return tuple(port.name for port in self._network.ports) if self._network else ()

    @property
    def undecided(self) -> bool:
        """Whether ports are in a bridge, or a switch is watched, or it is not known yet."""
        return self._network is None or bool(self._network.members) or self.record.trial

    def round(self, goal: Goal, reach: Reach) -> Round:
        """Decide on one step, and take it. Raises Unreadable and OSError (the record cannot be written)."""
        try:
            network = self._network = read(self._run, goal.server)
        except Unreadable:
            # A switch that has failed is undone even if the settings cannot be read now.
            if self._network is None or not self.record.trial:
                raise
            network, reach = self._network, replace(reach, answers=False, steady_seconds=0.0)
        decision = decide.next_step(network, self.record, goal, reach)
        if decision.record != self.record:
            record.save(self._path, decision.record)
            self.record = decision.record
        failures = [str(said) for argv in decision.commands if isinstance(said := self._run(argv, COMMAND_SECONDS), Failure)]
        return Round(decision, tuple(failures))


def undo(run: Run, path: Path) -> tuple[str, ...]:
    """Undo the changes in the record in ``path``; what could not be undone, as sentences.

    Raises OSError if the record cannot be written.
    """
    keeper = Keeper(run, path)
    failures: tuple[str, ...] = ("the settings were not read",)
    for _ in range(UNDO_ROUNDS):
        try:
            done = keeper.round(Goal("", managed=False), Reach(answers=True))
        except Unreadable as error:
            failures = (str(error),)
            continue
        if not done.decision.commands and keeper.record == Record():
            return ()
        failures = done.failures or tuple(" ".join(argv) for argv in done.decision.commands)
    return failures
