"""Single-use tokens that open a session."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

TOKEN_SECONDS: Final = 600.0
"""How long a token may be exchanged."""
SESSION_SECONDS: Final = 43200.0
"""How long a session lasts."""
MAX_SESSIONS: Final = 8


class Sessions:
    """``clock``: seconds, such as ``time.monotonic``. Only digests are kept."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens: dict[bytes, float] = {}
        self._sessions: dict[bytes, float] = {}

    def new_token(self) -> str:
        """A token for one session. It replaces earlier unused tokens."""
        token = secrets.token_urlsafe(32)
        self._tokens = {_digest(token): self._clock() + TOKEN_SECONDS}
        return token

    def exchange(self, token: str) -> str | None:
        """A session for a token; None if the token is unknown, used or too old."""
        until = self._tokens.pop(_digest(token), None)
        if until is None or self._clock() > until:
            return None
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = self._clock() + SESSION_SECONDS
        return session

    def valid(self, session: str) -> bool:
        """Whether a session is open."""
        given, now = _digest(session), self._clock()
        return any([hmac.compare_digest(given, known) and now <= until for known, until in self._sessions.items()])


def _digest(secret: str) -> bytes:
    # Digests of equal length: the time of a comparison does not depend on the secret.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
