"""What a running group says of itself: the answer of rank 0's supervisor to ``GET /v1/state`` on its control port.

The operator polls it (mutual TLS with the group's keys) and copies it into ``ModelDeployment.status``. Times are RFC 3339
in UTC.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from thunderfleet_crds.vocabulary import FaultClass, ReportedGroupPhase, ReportedRankPhase

STATE_PATH = "/v1/state"
"""``GET``: a GroupState from rank 0, of any other rank 421 with rank 0's address.

With ``?wait=SECONDS&phase=PHASE&attempt=N`` the answer comes as soon as the group is in another phase or attempt than that, and
after that many seconds (WAIT_LIMIT_SECONDS at most) in any case: a failure that is over within a poll's interval is seen too.
"""
WAIT_LIMIT_SECONDS = 30.0
DRAIN_PATH = "/v1/drain"
"""``POST`` to rank 0: admit nothing new, let running requests end within their grace, then stop every rank."""

TERMINATION_LOG = "/dev/termination-log"
"""Where a supervisor leaves its last words, as every container may; below the sandbox's mount point."""


class _Value(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


@dataclass(frozen=True)
class LastWords:
    """Why a supervisor ended that could not serve its state: its container's termination message."""

    fault: FaultClass
    reason: str
    message: str

    @property
    def text(self) -> str:
        return f"{self.reason} ({self.fault}): {self.message}"

    @classmethod
    def parse(cls, text: str) -> "LastWords | None":
        """None for what is no ``text`` of these: a program's log, or nothing."""
        found = re.fullmatch(r"([A-Z][A-Za-z0-9]{0,63}) \((\w+)\): (.+)", text.strip())
        if found is None or found[2] not in {fault.value for fault in FaultClass}:
            return None
        return cls(FaultClass(found[2]), found[1], found[3])


class Failure(_Value):
    """The first cause of a failure; what the other ranks said after it stands in ``echoes``."""

    fault: FaultClass
    reason: str
    """CamelCase, stable."""
    message: str
    rank: int | None = None
    node: str | None = None
    attempt: int = 0
    at: datetime
    echoes: tuple[str, ...] = ()


class RankReport(_Value):
    rank: int
    node: str
    phase: ReportedRankPhase
    message: str = ""
    loaded_bytes: int = 0
    total_bytes: int = 0
    loaded_layers: int = 0
    peak_memory_bytes: int = 0


class BenchmarkReport(_Value):
    """What a benchmark through the served path gave. Rates are tokens per second."""

    prefill_tokens_per_second: float
    decode_tokens_per_second: float | None = None
    """None when too few tokens, or too little time, say nothing of a rate."""
    time_to_first_token_microseconds: int
    prompt_tokens: int
    generation_tokens: int
    peak_memory_bytes: tuple[int, ...] = ()
    """Of every rank, by rank, since its process began; of rank 0 alone, or of none, when the others have not said theirs."""
    all_reduce_megabytes_per_second: float | None = None
    all_reduce_microseconds: int | None = None
    measured_at: datetime
    ran: str = ""
    """What was run, in words."""


class GroupState(_Value):
    uid: str
    index: int
    epoch: int
    phase: ReportedGroupPhase
    message: str = ""
    """One sentence: what is waited for, or what a person must do."""
    attempt: int = 0
    """Attempts of this epoch. A member that leaves during the checks is waited for again, which costs none."""
    recoveries: int = 0
    """Times a formed group failed and was formed anew within this epoch."""
    ready_since: datetime | None = None
    failure: Failure | None = None
    """The last failure, kept after the group has come back."""
    ranks: tuple[RankReport, ...] = ()
    benchmark: BenchmarkReport | None = None
