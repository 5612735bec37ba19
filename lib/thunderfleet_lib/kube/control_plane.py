"""Which part of the control plane does not answer."""

import asyncio
from enum import StrEnum

from thunderfleet_lib.kube.client import ApiError, Kube

PROBE_SECONDS = 4.0
"""The API server gives etcd two seconds."""


class Part(StrEnum):
    """A part of the control plane."""

    API_SERVER = "API server"
    ETCD = "etcd"


async def silent_part(kube: Kube, seconds: float = PROBE_SECONDS) -> Part | None:
    """Requests the health of the API server; None if it is healthy, or does not answer the question."""
    try:
        await kube.request("GET", "/livez", seconds=seconds)
    except ApiError as error:
        if error.unanswered:
            return Part.API_SERVER
        # A list of its checks.
        return Part.ETCD if "[-]etcd" in error.message else None
    return None


def of_part(part: Part, host: str) -> str:
    """The message that a part of the control plane does not answer, and what to do. ``host``: the URL of the API server."""
    if part is Part.API_SERVER:
        return f"the API server {host} does not answer: check that it runs, and that this machine reaches it"
    return f"etcd does not answer the API server {host}: check that etcd runs, and that its disk is fast and has room"


class Silence:
    """Finds out whether a part of the control plane is silent. A busy one answers at least one of two requests in a row."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._before: tuple[Part | None, int] = (None, 0)

    async def ask(self) -> Part | None:
        """Checks once more. Returns the part that was silent this time and the time before, or None."""
        part = await silent_part(self._kube)
        before, self._before = self._before, (part, self._kube.clock.responses if part is Part.API_SERVER else 0)
        return part if part is not None and before == self._before else None

    async def wait(self, seconds: float) -> Part:
        """Checks again, ``seconds`` after each answer, until a part is silent."""
        while True:
            part = await self.ask()
            if part is not None:
                return part
            await asyncio.sleep(seconds)
