"""Limits of keys: requests in flight, tokens per minute, wakes. Each router applies them separately. Pure: times are arguments.

Tokens are known when an answer ends, so they are taken from the bucket afterwards: it can be in debt, and until the debt is
refilled, new requests are refused.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from thunderfleet_crds.exchange.routing import KeyLimits

MAX_CALLERS = 4096
"""Callers with a state. The least recently used is dropped, unless it has requests in flight."""
WAKES_PER_MINUTE = 12
"""Wakes that one key may cause."""
WAITING_PER_CALLER = 256
STALLED_PER_CALLER = 64
"""Requests of one caller whose clients do not read."""
RECEIVING_PER_CALLER = 256
"""Requests of one caller whose bodies are being received."""
BODY_BYTES = 256 * 1024 * 1024
"""Maximum bytes of all bodies that wait or are sent to groups."""
BODY_BYTES_PER_CALLER = 64 * 1024 * 1024


class Exceeded(Exception):
    """A limit is reached; ``retry_after`` is in seconds."""

    def __init__(self, message: str, code: str, retry_after: int) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


@dataclass(slots=True)
class Bucket:
    """Refills with ``per_minute`` evenly, up to that number."""

    per_minute: float
    level: float
    at: float

    def refill(self, now: float) -> None:
        self.level = min(self.per_minute, self.level + max(now - self.at, 0.0) * self.per_minute / 60)
        self.at = now

    def seconds_until(self, wanted: float) -> int:
        """Seconds until the bucket has that many tokens."""
        return max(1, math.ceil((wanted - self.level) * 60 / self.per_minute))


@dataclass(slots=True)
class _State:
    in_flight: int = 0
    tokens: Bucket | None = None


class CallerLimits:
    """Current usage of each caller with limits, which is a key at one ModelDeployment, and wakes of each key or address.

    Callers without limits have no state: a client with many addresses could make the router drop what keys have used.
    """

    def __init__(self) -> None:
        self._states: OrderedDict[str, _State] = OrderedDict()
        self._wakes: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def enter(self, caller: str, limits: KeyLimits, now: float) -> None:
        """Counts a request; call ``leave`` when it ends. Raises Exceeded."""
        if not _limited(limits):
            return
        state = self._state(caller)
        most = limits.requests_in_flight
        if most is not None and state.in_flight >= most:
            raise Exceeded(f"this key has {state.in_flight} requests in flight; its limit is {most}", "requests_in_flight", 1)
        bucket = self._tokens(state, limits, now)
        if bucket is not None and bucket.level <= 0:
            text = f"this key has used its {limits.tokens_per_minute} tokens per minute"
            raise Exceeded(text, "tokens_per_minute", bucket.seconds_until(1))
        state.in_flight += 1

    def leave(self, caller: str, limits: KeyLimits, tokens: int, now: float) -> None:
        """Records that the request has ended and how many tokens it used."""
        if not _limited(limits):
            return
        state = self._state(caller)
        state.in_flight = max(0, state.in_flight - 1)
        bucket = self._tokens(state, limits, now)
        if bucket is not None:
            bucket.level -= tokens

    def wake(self, caller: str, now: float) -> None:
        """Counts a wake. Raises Exceeded."""
        bucket = self._wakes.setdefault(caller, Bucket(WAKES_PER_MINUTE, WAKES_PER_MINUTE, now))
        self._wakes.move_to_end(caller)
        if len(self._wakes) > MAX_CALLERS:
            self._wakes.popitem(last=False)
        bucket.refill(now)
        if bucket.level < 1:
            text = f"this key has woken {WAKES_PER_MINUTE} models in a minute, which is its limit"
            raise Exceeded(text, "wakes_per_minute", bucket.seconds_until(1))
        bucket.level -= 1

    def _state(self, caller: str) -> _State:
        state = self._states.setdefault(caller, _State())
        self._states.move_to_end(caller)
        if len(self._states) > MAX_CALLERS:
            idle = next((name for name, one in self._states.items() if not one.in_flight and one is not state), None)
            if idle is not None:
                del self._states[idle]
        return state

    def _tokens(self, state: _State, limits: KeyLimits, now: float) -> Bucket | None:
        most = limits.tokens_per_minute
        if most is None:
            state.tokens = None
            return None
        if state.tokens is None or state.tokens.per_minute != most:
            state.tokens = Bucket(most, most, now)
        state.tokens.refill(now)
        return state.tokens


def _limited(limits: KeyLimits) -> bool:
    return limits.requests_in_flight is not None or limits.tokens_per_minute is not None
