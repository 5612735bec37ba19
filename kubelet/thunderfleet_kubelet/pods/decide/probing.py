"""When probe results change the state of a probe: intervals and thresholds. Pure."""

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass
class ProbeCount:
    """Counts results in a row. ``verdict``: None until either threshold is reached."""

    success_threshold: int
    failure_threshold: int
    verdict: bool | None = None
    _last: bool | None = None
    _run: int = 0

    def add(self, success: bool) -> bool:
        """Counts one result; True if the verdict changed."""
        self._run = self._run + 1 if success == self._last else 1
        self._last = success
        if self._run < (self.success_threshold if success else self.failure_threshold) or self.verdict == success:
            return False
        self.verdict = success
        return True


@dataclass(frozen=True)
class ProbeSettings:
    """A probe's intervals (seconds) and thresholds, with the API's defaults."""

    delay: float
    period: float
    timeout: float
    success_threshold: int
    failure_threshold: int

    @classmethod
    def of(cls, probe: Json) -> "ProbeSettings":
        """The settings of a probe's spec."""
        return cls(
            delay=float(probe.get("initialDelaySeconds") or 0),
            period=float(probe.get("periodSeconds") or 10),
            timeout=float(probe.get("timeoutSeconds") or 1),
            success_threshold=int(probe.get("successThreshold") or 1),
            failure_threshold=int(probe.get("failureThreshold") or 3),
        )
