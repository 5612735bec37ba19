"""When an idle group continues its longest passage again. Pure."""

from dataclasses import dataclass, replace

EVERY_SECONDS = 3600.0
SLEPT_SECONDS = 30.0
"""If the wall clock has advanced by this much more than the monotonic clock, which stops during sleep, the Mac has slept. A
wall clock that was set counts as sleep too, which does no harm."""


@dataclass(frozen=True)
class Rechecks:
    """``monotonic`` and ``wall``: the clocks at the last check, in seconds."""

    monotonic: float
    wall: float
    checked: float | None = None
    """When the last check ended, by the monotonic clock; at first, when the group began."""
    connections: str = ""
    """Identifies the connections of the group's cables; empty while it is not known."""
    disturbed: bool = False
    """Whether the Mac has slept or a cable was interrupted since."""
    canaries: int = 0
    """Number of short passages checked."""

    def at(self, monotonic: float, wall: float, connections: str = "") -> "Rechecks":
        """The state at a later time."""
        slept = wall - self.wall - (monotonic - self.monotonic) > SLEPT_SECONDS
        interrupted = bool(self.connections and connections) and connections != self.connections
        checked = self.monotonic if self.checked is None else self.checked
        return replace(
            self,
            monotonic=monotonic,
            wall=wall,
            checked=checked,
            connections=connections or self.connections,
            disturbed=self.disturbed or slept or interrupted,
        )

    @property
    def due(self) -> bool:
        """Whether the longest passage is due: after a sleep, an interruption, or an hour after the last time."""
        return (
            self.disturbed or self.monotonic - (self.checked if self.checked is not None else self.monotonic) >= EVERY_SECONDS
        )

    def done(self) -> "Rechecks":
        """The longest passage was checked."""
        return replace(self, checked=self.monotonic, disturbed=False)

    def sung(self) -> "Rechecks":
        """A short passage was checked."""
        return replace(self, canaries=self.canaries + 1)
