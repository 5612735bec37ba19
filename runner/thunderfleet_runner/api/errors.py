"""Errors of the HTTP API; the router uses them too. Pure."""

from thunderfleet_lib.httpapi.errors import ApiError, refused

__all__ = ["ApiError", "refused"]
