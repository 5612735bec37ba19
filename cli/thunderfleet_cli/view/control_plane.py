"""Problems of the control plane that a client of its API server can detect."""

from thunderfleet_lib.kube import Kube, of_part, silent_part


async def trouble(kube: Kube) -> str:
    """Whether requests fail because of the API server or etcd, and what to do; "" if neither is the cause, or if unknown."""
    part = await silent_part(kube)
    return of_part(part, kube.host) if part is not None else ""
