"""Clients that follow no redirects.

A server that a program may contact could otherwise lead it to any other one, such as one on this machine, which that server
cannot reach itself. aiohttp follows redirects by default, and has no parameter for it when it opens a WebSocket.
"""

from types import SimpleNamespace

import aiohttp


class Redirected(aiohttp.ClientError):
    """The server has answered with a redirect."""


def refused() -> aiohttp.TraceConfig:
    """For ``trace_configs`` of a session: requests that are redirected raise Redirected instead."""
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_refuse)
    return trace


async def _refuse(session: aiohttp.ClientSession, context: SimpleNamespace, found: aiohttp.TraceRequestRedirectParams) -> None:
    found.response.close()
    raise Redirected(f"{found.url.host} answered with a redirect (HTTP {found.response.status}), which is not followed")
