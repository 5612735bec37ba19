"""Errors of the HTTP API in OpenAI's format. Pure."""

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """An error response: an HTTP status and OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}


def refused(param: str | None, sentence: str, code: str | None = None) -> ApiError:
    """Status 400 for a field of the request, or for the whole body when ``param`` is None."""
    return ApiError(400, sentence, param=param, code=code)
