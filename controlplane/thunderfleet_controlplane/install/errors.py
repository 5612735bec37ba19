"""The error that ends an installation."""


class InstallError(Exception):
    """A step is not possible; the message names the reason and what to do. ``usage``: the command line is wrong."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage
