"""Detects a group that should make progress but does not. Pure: it counts ticks, the caller has the clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunderfleet_runner import faults
from thunderfleet_runner.faults import Fault
from thunderfleet_runner.group.decide.attempts import Phase
from thunderfleet_runner.net.peers import Pulse

TICK_SECONDS = 0.5
STALL_SECONDS = 10.0
STALL_STEPS = 4.0
"""A group is stalled after this many times the expected duration of its step, if that is longer than STALL_SECONDS."""
STALL_UNKNOWN_SECONDS = 120.0
"""Minimum limit for a step that is larger than any before, and for the first steps, which compile kernels. A prompt's step of
2,048 tokens takes 17 s with a dense model of 123B parameters on two M3 Ultras."""
STALL_MOST_SECONDS = 900.0
"""Maximum limit. A step that was slow for another reason, such as a Mac that slept, does not raise the limit above this."""
STALL_LOADING_SECONDS = 120.0
STILL_SECONDS = 30.0
"""A group that makes no step for this long does not begin to serve, although the step may still end."""
PROBE_SECONDS = 2.0
"""How long a group over JACCL may make no step before its RDMA devices are probed, once."""

_STAGES = {
    Phase.LOADING: faults.Stage.LOAD,
    Phase.COMPARING: faults.Stage.CHECK,
    Phase.PROVING: faults.Stage.CHECK,
    Phase.READY: faults.Stage.SERVE,
    Phase.DRAINING: faults.Stage.SERVE,
}
"""Phases that are watched."""


@dataclass
class StallDetector:
    """Compares the ranks' step counts from tick to tick."""

    steps: Mapping[int, int] = field(default_factory=dict)
    still_ticks: int = 0

    def reset(self) -> None:
        """Progress was seen."""
        self.still_ticks = 0

    def tick(self, phase: Phase, pulses: Mapping[int, Pulse]) -> None:
        """One tick has passed; ``pulses`` are the latest of the attempt's ranks."""
        if phase not in _STAGES:
            self.still_ticks = 0
            return
        steps = {rank: pulse.steps for rank, pulse in pulses.items()}
        working = phase is Phase.LOADING or any(pulse.in_step for pulse in pulses.values())
        if steps != self.steps or not working:
            self.steps, self.still_ticks = steps, 0
        else:
            self.still_ticks += 1

    @property
    def still(self) -> bool:
        """Whether ranks that should work have completed no step for a while."""
        return self.still_ticks * TICK_SECONDS >= STILL_SECONDS

    @property
    def probe_due(self) -> bool:
        """Whether RDMA devices must be probed at this tick."""
        return self.still_ticks == round(PROBE_SECONDS / TICK_SECONDS)

    def stalled(self, phase: Phase, pulses: Mapping[int, Pulse]) -> tuple[int, Fault] | None:
        """The slowest rank and the fault, when the group has stalled."""
        limit = _limit(phase, pulses)
        if phase not in _STAGES or self.still_ticks * TICK_SECONDS <= limit:
            return None
        slowest = min(self.steps, key=lambda rank: self.steps[rank], default=0)
        return slowest, faults.stalled(limit, _STAGES[phase])


def _limit(phase: Phase, pulses: Mapping[int, Pulse]) -> float:
    if phase is Phase.LOADING:
        return STALL_LOADING_SECONDS
    working = [pulse for pulse in pulses.values() if pulse.in_step]
    expected = max((pulse.expected_step_seconds for pulse in working), default=0.0)
    known = all(pulse.step_known for pulse in working)
    return min(STALL_MOST_SECONDS, max(STALL_SECONDS if known else STALL_UNKNOWN_SECONDS, STALL_STEPS * expected))
