"""What is wrong with the control plane itself, as a client of its API server can find out."""

from thunderfleet_lib.kube import Kube, Part, silent_part


async def trouble(kube: Kube) -> str:
    """Whether API server or etcd is the reason that requests fail, and what to do; "" if neither is, or if it is not known."""
    part = await silent_part(kube)
    return of_part(part, kube.host) if part is not None else ""


def of_part(part: Part, host: str) -> str:
    """That a part of the control plane does not answer, and what to do. ``host``: the URL of the API server."""
    if part is Part.API_SERVER:
        return f"the API server {host} does not answer: check that it runs, and that this machine reaches it"
    return f"etcd does not answer the API server {host}: check that etcd runs, and that its disk is fast and has room"
