"""One group after a round: what was decided, and the result."""

from dataclasses import dataclass

from thunderfleet_crds.kinds.modeldeployment import AvoidedLink, LostPlace

from thunderfleet_operator.decide.group.lifecycle import NextStep
from thunderfleet_operator.observe.objects.plans import GroupView, Report
from thunderfleet_operator.placement import Speed, Unplaceable


@dataclass(frozen=True, slots=True)
class Blocked:
    """What keeps a group or the Service from being created, such as a refusal of the API server."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """One group after a round."""

    view: GroupView
    """The group, with its pods and its plan as they are after the round's writes."""
    next: NextStep
    report: Report
    placed_now: bool = False
    outdated: bool = False
    """Whether its placement was made for an earlier spec."""
    unplaceable: Unplaceable | None = None
    planning: bool = False
    """Whether the planner is still looking for a place."""
    unknown: str | None = None
    """The cable whose first report the placement waits for."""
    blocked: Blocked | None = None
    fetching: str | None = None
    """What its Macs still have to fetch; None if they have the model."""
    predicted: Speed | None = None
    """Predicted speed of its placement; None if there is none, or too little is known."""
    better: str | None = None
    """A better placement, if there is one."""
    avoided: tuple[AvoidedLink, ...] = ()
    """Cables that corrupted data of the group."""
    lost: LostPlace | None = None
    """The placement that the group lost, if this round has placed it again."""
    waits: str | None = None
    """When the group goes back to a better placement; None if it has not lost its placement."""

    leaving: bool = False
    """Whether autoscaling is about to stop the group."""

    @property
    def wait(self) -> Unplaceable | Blocked | None:
        """Why it has no placement."""
        return self.unplaceable or self.blocked
