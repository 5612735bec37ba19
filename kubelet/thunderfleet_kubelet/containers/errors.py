"""Why a container cannot be created."""


class ContainerConfigError(Exception):
    """The spec cannot be carried out; shown as CreateContainerConfigError."""


class ImageError(Exception):
    """The image cannot be used: ``reason`` and ``message`` of the Waiting state.

    ``wait``: when to ask again (seconds), and the image's pull has recorded its own events; None: with the usual back-off.
    """

    def __init__(self, reason: str, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.message, self.wait = reason, message, wait


class VolumeError(Exception):
    """A volume cannot be mounted now; shown as a FailedMount event."""


class StartFailed(Exception):
    """The shim could not be started."""
