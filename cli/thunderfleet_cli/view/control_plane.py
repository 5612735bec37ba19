"""What is wrong with the control plane itself, as a client of its API server can find out."""

from thunderfleet_lib.kube import Kube, of_part, silent_part


async def trouble(kube: Kube) -> str:
    """Whether API server or etcd is the reason that requests fail, and what to do; "" if neither is, or if it is not known."""
    part = await silent_part(kube)
    return of_part(part, kube.host) if part is not None else ""
