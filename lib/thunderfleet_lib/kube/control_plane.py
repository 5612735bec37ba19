"""Which part of the control plane does not answer."""

from enum import StrEnum

from thunderfleet_lib.kube.client import ApiError, Kube

PROBE_SECONDS = 4.0
"""The API server gives etcd two seconds."""


class Part(StrEnum):
    """A part of the control plane, as people call it."""

    API_SERVER = "API server"
    ETCD = "etcd"


async def silent_part(kube: Kube, seconds: float = PROBE_SECONDS) -> Part | None:
    """Asks the API server how it is; None if it is well, or does not say."""
    try:
        await kube.request("GET", "/livez", seconds=seconds)
    except ApiError as error:
        if error.unanswered:
            return Part.API_SERVER
        # A list of its checks.
        return Part.ETCD if "[-]etcd" in error.message else None
    return None
