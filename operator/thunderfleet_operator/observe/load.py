"""The load of a ModelDeployment during the last minutes.

Only in memory: after a restart of the operator, nothing is scaled down before a whole window has been seen again. The clock is
monotonic, in seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from thunderfleet_crds.exchange.plan import Plan

BUCKET_SECONDS = 2.0
"""Samples that are closer together are merged into one, which has their lowest and their highest value."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The lowest and highest number of groups that were needed from ``since`` on."""

    since: float
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Load:
    """Samples, the oldest first. ``with_sample`` returns the next value."""

    samples: tuple[Sample, ...] = ()
    seen_since: float | None = None
    """Since when there are samples without a gap."""
    draining_since: float | None = None
    """Since when groups are about to be stopped."""

    def with_sample(self, needed: int | None, now: float, keep_seconds: float) -> "Load":
        """The value after ``needed`` groups were needed. None: the number is not known, so earlier samples no longer count."""
        if needed is None:
            return Load(draining_since=self.draining_since)
        last = self.samples[-1] if self.samples else None
        if last is not None and now - last.since < BUCKET_SECONDS:
            new = Sample(last.since, min(last.lowest, needed), max(last.highest, needed))
            kept = self.samples[:-1]
        else:
            new, kept = Sample(now, needed, needed), self.samples
        recent = tuple(sample for sample in kept if now - sample.since <= keep_seconds)
        return Load((*recent, new), now if self.seen_since is None else self.seen_since, self.draining_since)

    def with_draining(self, draining: bool, now: float) -> "Load":
        """The value while groups are about to be stopped, or not."""
        since = (now if self.draining_since is None else self.draining_since) if draining else None
        return Load(self.samples, self.seen_since, since)

    def lowest(self, seconds: float, now: float) -> int | None:
        """The lowest number within the last ``seconds``; None if it has not been seen for so long."""
        return min((sample.lowest for sample in self._within(seconds, now)), default=None)

    def highest(self, seconds: float, now: float) -> int | None:
        """The highest number within the last ``seconds``; None if it has not been seen for so long."""
        return max((sample.highest for sample in self._within(seconds, now)), default=None)

    def _within(self, seconds: float, now: float) -> Iterable[Sample]:
        if self.seen_since is None or now - self.seen_since < seconds:
            return ()
        return (sample for sample in self.samples if now - sample.since <= seconds)


@dataclass(frozen=True, slots=True)
class Asked:
    """What routers report of one ModelDeployment together. Seconds are ages."""

    waiting: int = 0
    """Requests that wait in routers."""
    wake_seconds: float | None = None
    """Seconds since the last request that may wake it; None if there was none."""
    idle_seconds: float | None = None
    """Seconds since the last request; None if no router has had one."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What is known of the requests to one ModelDeployment. ``now``: monotonic, as in ``load``."""

    load: Load = Load()
    asked: Asked = Asked()
    now: float = 0.0
    alive_seconds: float = 0.0
    """Seconds since the operator first read the ModelDeployment, or since it was last woken. Earlier requests are not known."""
    can_wake: bool = True
    """Whether there are routers, which can wake it."""
    yields_to: str | None = None
    """The ModelDeployment (``namespace/name``) for which it is stopped."""
    reserved: tuple[Plan, ...] = ()
    """Plans whose memory is kept free for the ModelDeployment whose turn it is."""


NO_SIGNALS = Signals()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ModelDeployment that could make room."""

    name: str
    """``namespace/name``."""
    uid: str
    groups: tuple[int, ...]
    """Indexes of its groups."""
    in_flight: int | None
    """Requests in progress in all of its groups; None if it is not known."""
    idle_seconds: float
    ready_seconds: float
    """Seconds for which all of its groups have served."""
    plans: tuple[Plan, ...] = ()
    """Plans of its groups."""
