"""When an idle group is asked about its longest passage again. Pure."""

from dataclasses import dataclass, replace

EVERY_SECONDS = 3600.0
SLEPT_SECONDS = 30.0
"""How far the wall clock runs ahead of the monotonic one, which stands still while a Mac sleeps, until the Mac has slept. A
clock that was set counts too, which does no harm."""


@dataclass(frozen=True)
class Rechecks:
    """``monotonic`` and ``wall``: the clocks at the last look, in seconds."""

    monotonic: float
    wall: float
    checked: float | None = None
    """When the last check ended, by the monotonic clock; at first, when the group began."""
    slept: bool = False
    """Whether the Mac has slept since."""
    canaries: int = 0
    """Number of short passages asked."""

    def at(self, monotonic: float, wall: float) -> "Rechecks":
        """At a later look."""
        slept = wall - self.wall - (monotonic - self.monotonic) > SLEPT_SECONDS
        checked = self.monotonic if self.checked is None else self.checked
        return replace(self, monotonic=monotonic, wall=wall, checked=checked, slept=self.slept or slept)

    @property
    def due(self) -> bool:
        """Whether the longest passage is due: after a sleep, or an hour after the last time."""
        return self.slept or self.monotonic - (self.checked if self.checked is not None else self.monotonic) >= EVERY_SECONDS

    def done(self) -> "Rechecks":
        """The longest passage was asked."""
        return replace(self, checked=self.monotonic, slept=False)

    def sung(self) -> "Rechecks":
        """A short passage was asked."""
        return replace(self, canaries=self.canaries + 1)
