"""What is wrong with the control plane itself, as a client of its API server can find out."""

import asyncio
from collections.abc import Mapping, Sequence

from thunderfleet_lib.kube import ApiError, Json, Kube, Part, silent_part
from thunderfleet_view.components import CONTROLLER_MANAGER, OPERATOR, SCHEDULER

LEASE_SECONDS = 5.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
SYSTEM = "kube-system"
OPERATOR_LEASE = "thunderfleet-operator"


async def trouble(kube: Kube) -> str:
    """Whether API server or etcd is the reason that requests fail, and what to do; "" if neither is, or if it is not known."""
    part = await silent_part(kube)
    if part is Part.API_SERVER:
        return f"the API server {kube.host} does not answer: check that it runs, and that this machine reaches it"
    if part is Part.ETCD:
        return f"etcd does not answer the API server {kube.host}: check that etcd runs, and that its disk is fast and has room"
    return ""


async def leases(kube: Kube, operators: Sequence[Json]) -> Mapping[str, Json]:
    """The Leases of scheduler, controller manager and operator, by component. One that cannot be read is left out.

    ``operators``: the operator's pods.
    """
    wanted = {SCHEDULER: (SYSTEM, SCHEDULER), CONTROLLER_MANAGER: (SYSTEM, CONTROLLER_MANAGER)}
    for pod in operators[:1]:
        wanted[OPERATOR] = (str(pod["metadata"].get("namespace")), OPERATOR_LEASE)
    paths = [LEASES.format(*at) for at in wanted.values()]
    found = await asyncio.gather(*(_read(kube, path) for path in paths))
    return {component: lease for component, lease in zip(wanted, found, strict=True) if lease is not None}


async def _read(kube: Kube, path: str) -> Json | None:
    try:
        return await kube.request("GET", path, seconds=LEASE_SECONDS)
    except ApiError:
        return None
