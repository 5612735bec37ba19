"""Errors of the HTTP API in the formats of OpenAI and Anthropic. Pure."""

from collections.abc import Mapping
from typing import Any

ANTHROPIC_PATH = "/v1/messages"
"""Paths that begin with this answer in Anthropic's format."""

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


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


def anthropic(error: ApiError) -> dict[str, Any]:
    """The JSON body of an error in Anthropic's format."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def of_path(error: ApiError, path: str) -> dict[str, Any]:
    """The JSON body of an error, in the format of the path's clients."""
    return anthropic(error) if path.startswith(ANTHROPIC_PATH) else error.body()
