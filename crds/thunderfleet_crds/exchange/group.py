"""The state of a running group: the response of rank 0's supervisor to ``GET /v1/state`` on its control port.

The operator polls it over mutual TLS with the keys of the group and copies it into ``ModelDeployment.status``. Times are
RFC 3339 in UTC.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from thunderfleet_crds.exchange.plan import KnownWeights, RecordedAnswer
from thunderfleet_crds.vocabulary import ConditionStatus, FaultClass, ReportedGroupPhase, ReportedRankPhase

STATE_PATH = "/v1/state"
"""``GET``: rank 0 responds with a GroupState, any other rank with 421 and the address of rank 0.

With ``?wait=SECONDS&phase=PHASE&attempt=N`` the response comes as soon as the group leaves that phase or attempt, and after
that many seconds (at most WAIT_LIMIT_SECONDS) in any case. So a failure shorter than the polling interval is not missed.
With ``&connections=TEXT`` (at most CONNECTIONS_CHARACTERS) the operator sends what identifies the connections of the group's
cables. When the text changes, a cable was interrupted, and rank 0 checks the group's answers again while it is idle.
"""
WAIT_LIMIT_SECONDS = 30.0
CONNECTIONS_CHARACTERS = 64
DRAIN_PATH = "/v1/drain"
"""``POST`` to rank 0: admits no new requests, lets running ones finish within the grace period, then stops all ranks."""

TERMINATION_LOG = "/dev/termination-log"
"""Path of the termination message of a supervisor, relative to the mount point of the container's sandbox."""


class _Value(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


@dataclass(frozen=True)
class LastWords:
    """The termination message of a supervisor's container: why it exited without serving its state."""

    fault: FaultClass
    reason: str
    message: str

    @property
    def text(self) -> str:
        return f"{self.reason} ({self.fault}): {self.message}"

    @classmethod
    def parse(cls, text: str) -> "LastWords | None":
        """The value of a ``text``; None for anything else, such as the end of a log."""
        found = re.fullmatch(r"([A-Z][A-Za-z0-9]{0,63}) \((\w+)\): (.+)", text.strip())
        if found is None or found[2] not in {fault.value for fault in FaultClass}:
            return None
        return cls(FaultClass(found[2]), found[1], found[3])


class Failure(_Value):
    """A failure, described by its first cause. ``echoes``: later reports of other ranks that follow from it."""

    fault: FaultClass
    reason: str
    """One of ``reasons.Reason``."""
    message: str
    rank: int | None = None
    node: str | None = None
    attempt: int = 0
    at: datetime
    echoes: tuple[str, ...] = ()
    peer: int | None = None
    """The other rank, if the failure is that of the connection to it."""


class RankReport(_Value):
    """The state of one rank."""

    rank: int
    node: str
    phase: ReportedRankPhase
    message: str = ""
    loaded_bytes: int = 0
    total_bytes: int = 0
    loaded_layers: int = 0
    peak_memory_bytes: int = 0


class BenchmarkReport(_Value):
    """Result of a benchmark of the serving group. Rates are in tokens per second."""

    prefill_tokens_per_second: float
    decode_tokens_per_second: float | None = None
    """None when there are too few tokens or too little time to compute a rate."""
    time_to_first_token_microseconds: int
    prompt_tokens: int
    generation_tokens: int
    peak_memory_bytes: tuple[int, ...] = ()
    """Peak memory of each rank since its process started. Only rank 0's, or empty, while the other ranks have not reported
    theirs."""
    all_reduce_megabytes_per_second: float | None = None
    all_reduce_microseconds: int | None = None
    measured_at: datetime
    ran: str = ""
    """Human-readable description of the benchmark."""
    mlx_version: str | None = None
    """None from a runner of an earlier version."""
    mlx_lm_version: str | None = None


class VerifiedReport(_Value):
    """Whether the group has passed the checks of its plan: True, False, or Unknown while they run."""

    status: ConditionStatus
    reason: str
    """One of ``reasons.Reason``."""
    message: str
    digest: str = ""
    """Of the model's files."""
    lengths: tuple[int, ...] = ()
    """Lengths in tokens of the passages that a group with these files has ever continued, as far as is known."""
    weights: tuple[KnownWeights, ...] = ()
    """Copies of the model on the group's Macs whose weights are hashed."""
    recorded: RecordedAnswer | None = None
    """The answer to the test prompt, once it is known what it depends on."""


class GroupState(_Value):
    """The state of a group."""

    uid: str
    index: int
    epoch: int
    phase: ReportedGroupPhase
    message: str = ""
    """One sentence: what the group waits for, or what a user must do."""
    attempt: int = 0
    """Number of attempts in this epoch. A rank that leaves during the checks starts no new attempt."""
    recoveries: int = 0
    """Number of times that the group was re-formed after a failure in this epoch."""
    ready_since: datetime | None = None
    failure: Failure | None = None
    """The most recent failure, kept after the group has recovered."""
    ranks: tuple[RankReport, ...] = ()
    requests: int | None = None
    """Number of requests that rank 0 works on; None from a runner of an earlier version."""
    in_flight: int | None = None
    """Number of requests that run or wait at the gateway; None from a runner of an earlier version."""
    idle_seconds: float | None = None
    """Seconds since the gateway last had a request, or since it began to serve; None from a runner of an earlier version."""
    benchmark: BenchmarkReport | None = None
    verified: VerifiedReport | None = None
    """None from a runner of an earlier version."""
    runner_version: str | None = None
    """Version of the runner; None from one of an earlier version."""
    intake: str = ""
    """What is wrong with the intake, rank 0's process that tokenizes requests; empty if nothing is."""
