"""Whether a rank's process is alive, by its heartbeats."""

import time

from thunderfleet_runner import protocol
from thunderfleet_runner.faults import Stage
from thunderfleet_runner.net import peers

TICK_SECONDS = 0.5
SILENT_TICKS = 6
"""A serving rank that sends nothing for this many ticks (3 s) is frozen. Ticks are counted instead of seconds, because if this
process was itself suspended, seconds have passed for both."""
SILENT_TICKS_LOADING = 60
"""While loading, libraries hold the interpreter lock for seconds at a time."""


class Heartbeats:
    """One rank's heartbeats, from when its group has formed until the process exits.

    During MLX's init the rank holds the interpreter lock and sends none; init has a time limit of its own. Counting begins
    before the first heartbeat, because a small model serves before it is due, and the rank may freeze then.
    """

    def __init__(self) -> None:
        self.last: protocol.Heartbeat | None = None
        self._beating = False
        self._received_at = 0.0
        self._silent_ticks = 0

    def start(self) -> None:
        """A new process starts."""
        self.last, self._beating, self._silent_ticks = None, False, 0

    def stop(self) -> None:
        """No heartbeat is expected any more."""
        self._beating = False

    def received(self, message: protocol.FromRank) -> None:
        """Any message shows that the process is alive."""
        self._received_at, self._silent_ticks = time.monotonic(), 0
        if not isinstance(message, protocol.Gather | protocol.Log):
            self._beating = True
        if isinstance(message, protocol.Heartbeat):
            self.last = message

    def tick(self, stage: Stage) -> float | None:
        """One tick has passed. Returns, once, how many seconds the process has been silent when it counts as frozen."""
        if not self._beating:
            return None
        self._silent_ticks += 1
        limit = SILENT_TICKS if stage is Stage.SERVE else SILENT_TICKS_LOADING
        if self._silent_ticks <= limit:
            return None
        self._beating = False
        return limit * TICK_SECONDS

    @property
    def age(self) -> float:
        """Seconds since the last message; 0 when none is expected."""
        return time.monotonic() - self._received_at if self._beating else 0.0

    def pulse(self, attempt: int) -> peers.Pulse:
        """The progress of the rank's work, for the leader."""
        beat = self.last
        if beat is None:
            return peers.Pulse(attempt=attempt)
        return peers.Pulse(
            attempt=attempt,
            steps=beat.steps,
            in_step=beat.in_step,
            expected_step_seconds=beat.expected_step_seconds,
            step_known=beat.step_known,
            heartbeat_age_seconds=round(self.age, 1),
            peak_memory_bytes=beat.peak_memory_bytes,
        )
