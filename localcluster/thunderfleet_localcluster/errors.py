"""The one exception that the command line turns into a sentence and an exit code."""


class LocalClusterError(Exception):
    """Something that the user can understand and mend; ``usage`` tells bad input (exit code 2) from a failure (1)."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage
