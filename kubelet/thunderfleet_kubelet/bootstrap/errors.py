"""Why joining fails."""


class JoinError(Exception):
    """Joining is not possible; the message says why and what to do."""


class UsageError(JoinError):
    """An argument of the command line is invalid."""
