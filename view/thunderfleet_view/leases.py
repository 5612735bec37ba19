"""Reads the Leases by which components of the control plane show that they work."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_view.components import CONTROLLER_MANAGER, LEASE, OPERATOR, SCHEDULER

LEASE_SECONDS: Final = 5.0
PATH: Final = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
SYSTEM: Final = "kube-system"


async def read_leases(kube: Kube, operators: Sequence[Json]) -> Mapping[str, Json]:
    """The Leases of scheduler, controller manager and operator, by component. One that cannot be read is left out.

    ``operators``: the operator's pods.
    """
    wanted = {SCHEDULER: (SYSTEM, SCHEDULER), CONTROLLER_MANAGER: (SYSTEM, CONTROLLER_MANAGER)}
    for pod in operators[:1]:
        wanted[OPERATOR] = (str(pod["metadata"].get("namespace")), LEASE)
    paths = [PATH.format(*at) for at in wanted.values()]
    found = await asyncio.gather(*(_read(kube, path) for path in paths))
    return {component: lease for component, lease in zip(wanted, found, strict=True) if lease is not None}


async def _read(kube: Kube, path: str) -> Json | None:
    try:
        return await kube.request("GET", path, seconds=LEASE_SECONDS)
    except ApiError:
        return None
