"""Why a container cannot be created."""


class ContainerConfigError(Exception):
    """The container cannot be created from its spec; shown as CreateContainerConfigError."""


class ImageError(Exception):
    """The image cannot be used: ``reason`` and ``message`` of the Waiting state.

    ``wait``: seconds until the next try; the image's pull has recorded its own events. None: the usual back-off applies.
    """

    def __init__(self, reason: str, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.message, self.wait = reason, message, wait


class VolumeError(Exception):
    """A volume cannot be mounted now; shown as a FailedMount event."""


class StartFailed(Exception):
    """The shim could not be started."""
