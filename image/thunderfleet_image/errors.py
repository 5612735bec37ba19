"""Errors that users can fix."""


class ImageError(Exception):
    """The image cannot be built; the message names the reason and what to do."""
