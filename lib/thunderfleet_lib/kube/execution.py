"""Runs a command in a container, as ``kubectl exec`` does."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from thunderfleet_lib.kube.client import ApiError, Kube

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
OUTPUT, ERRORS, STATUS = 1, 2, 3
"""The channels of these protocols: the first byte of each message."""
LIMIT_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Ran:
    """How a command ended: its exit code, and what it printed."""

    code: int
    output: str
    error: str


async def run_in_pod(kube: Kube, namespace: str, pod: str, container: str, argv: Sequence[str], *, seconds: float) -> Ran:
    """Run a command without input. Raises ApiError, also when it takes longer or prints more than LIMIT_BYTES."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", word) for word in argv)]
    found: dict[int, bytearray] = {OUTPUT: bytearray(), ERRORS: bytearray(), STATUS: bytearray()}
    try:
        async with asyncio.timeout(seconds), kube.websocket(path, query, PROTOCOLS) as socket:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                found.get(message.data[0], bytearray()).extend(message.data[1:])
                if sum(map(len, found.values())) > LIMIT_BYTES:
                    raise ApiError(0, "TooLong", f"{argv[0]} in pod {pod} printed more than {LIMIT_BYTES} bytes")
    except TimeoutError:
        raise ApiError(0, "Timeout", f"{argv[0]} in pod {pod} did not end within {seconds:g} s") from None
    return Ran(_code(bytes(found[STATUS]), pod), *(found[one].decode("utf-8", "replace") for one in (OUTPUT, ERRORS)))


def _code(status: bytes, pod: str) -> int:
    """The exit code in the Status at the end. Raises ApiError if the command did not run."""
    try:
        ended = json.loads(status)
        if ended.get("status") == "Success":
            return 0
        causes = (ended.get("details") or {}).get("causes") or ()
        code = next((one["message"] for one in causes if one.get("reason") == "ExitCode"), None)
        if code is not None:
            return int(code)
        raise ApiError(0, "NotRun", f"the command did not run in pod {pod}: {ended.get('message') or 'no reason was given'}")
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        raise ApiError(0, "NotRun", f"the connection to pod {pod} ended before the command did") from None
