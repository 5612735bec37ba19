"""The error that the command line prints as a message with an exit code."""


class LocalClusterError(Exception):
    """A failure that the user can understand and fix. ``usage``: invalid input (exit code 2), else a failure (1)."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage
