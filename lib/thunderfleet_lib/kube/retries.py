"""How long to wait after a failed request to the API server. Pure but for the jitter."""

from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.kube.client import ApiError

REFUSED = Backoff(0.5, 10.0, jitter=0.3)
UNANSWERED = Backoff(0.5, 2.0, jitter=0.3)
"""Short: a Mac may boot minutes before the API server, and must notice at once that it answers.

A request that gets no answer costs the API server nothing.
"""


class Retries:
    """Counts the failures in a row of one kind of request."""

    def __init__(self) -> None:
        self._failures = 0
        self._unanswered = False

    def succeeded(self) -> None:
        """The next failure is the first one."""
        self._failures = 0

    def seconds(self, error: ApiError) -> float:
        """The wait after ``error``, in seconds.

        The first refusal after silence is the first failure: an API server that has just started refuses all users until it has
        read its roles, which takes less than a second.
        """
        if error.unanswered != self._unanswered:
            self._failures, self._unanswered = 0, error.unanswered
        self._failures += 1
        return (UNANSWERED if error.unanswered else REFUSED).jittered(self._failures)
