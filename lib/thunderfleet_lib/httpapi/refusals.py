"""What the HTTP server refuses by itself, as errors of the API."""

from aiohttp import web

from thunderfleet_lib.httpapi.bodies import MAX_BODY
from thunderfleet_lib.httpapi.errors import ApiError

SHOWN = 200
"""Characters of a path that an error repeats."""


def refusal(error: web.HTTPException, request: web.Request, paths: str) -> ApiError:
    """The error of an unknown path, a wrong method or a body that is too large. ``paths``: those that exist, for clients."""
    path = request.path[:SHOWN]
    match error.status:
        case 404:
            sentence = f"{path} does not exist; use {paths}"
        case 405:
            sentence = f"{request.method} is not allowed on {path}"
        case 413:
            sentence = f"the body is larger than {MAX_BODY} bytes"
        case _:
            sentence = error.reason
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    return ApiError(error.status, sentence, headers=headers)
