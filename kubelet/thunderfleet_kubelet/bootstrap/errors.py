"""Why joining fails."""


class JoinError(Exception):
    """Joining is not possible; the message gives the reason and the fix."""


class UsageError(JoinError):
    """An argument of the command line is invalid."""
