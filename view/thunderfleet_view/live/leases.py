"""Reads the objects by which programs show that they work: Leases, and the pods of agents."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

from thunderfleet_crds import names
from thunderfleet_lib.kube import ApiError, Json, Kube

from thunderfleet_view.components import CONTROLLER_MANAGER, LEASE, OPERATOR, SCHEDULER, SLOW_SECONDS, slow_part
from thunderfleet_view.facts import CHART, LABEL_COMPONENT, Signs

LEASE_SECONDS: Final = 5.0
FOLDER: Final = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
SYSTEM: Final = "kube-system"
NODE_LEASES: Final = "kube-node-lease"
DAEMON_SETS: Final = "/apis/apps/v1/{}daemonsets"
PODS: Final = "/api/v1/{}pods"
AGENTS: Final = {"labelSelector": f"{names.LABEL_NAME}={CHART},{LABEL_COMPONENT}=agent"}
PAGE: Final = 5000
"""Objects of one page of a list. The API server has the first page in its cache, and reads the others from etcd: eight times as
slow."""


def folder(path: str, namespace: str | None) -> str:
    """The path of a collection such as PODS in a namespace; None for all namespaces."""
    return path.format(f"namespaces/{namespace}/" if namespace is not None else "")


async def read_signs(kube: Kube, operators: Sequence[Json], release: str | None = None) -> Signs:
    """Reads Leases and, if agents are not ready, their pods.

    ``operators``: the operator's pods. ``release``: the namespace of the agents, for users without rights in all namespaces.
    """
    (leases, slow), kubelets, agents = await asyncio.gather(_leases(kube, operators), _kubelets(kube), _agents(kube, release))
    return Signs(leases=leases, kubelets=kubelets, agents=agents, now=kube.clock.now, slow=slow)


async def _leases(kube: Kube, operators: Sequence[Json]) -> tuple[Mapping[str, Json], Mapping[str, float]]:
    """The Leases of scheduler, controller manager and operator, by component, and which part of the control plane is slow."""
    wanted = {SCHEDULER: (SYSTEM, SCHEDULER), CONTROLLER_MANAGER: (SYSTEM, CONTROLLER_MANAGER)}
    for pod in operators[:1]:
        wanted[OPERATOR] = (str(pod["metadata"].get("namespace")), LEASE)
    paths = [f"{FOLDER.format(namespace)}/{name}" for namespace, name in wanted.values()]
    read = await asyncio.gather(*(_timed(kube, path) for path in paths))
    found = {component: lease for component, (lease, _) in zip(wanted, read, strict=True) if lease is not None}
    quickest = min(seconds for _, seconds in read)
    if quickest <= SLOW_SECONDS or not found:
        return found, {}
    # This check does not involve etcd.
    _, ping = await _timed(kube, "/livez/ping")
    return found, {slow_part(ping): quickest}


async def _timed(kube: Kube, path: str) -> tuple[Json | None, float]:
    began = time.monotonic()
    try:
        found: Json | None = await kube.request("GET", path, seconds=LEASE_SECONDS)
    except ApiError:
        found = None
    return found, time.monotonic() - began


async def _kubelets(kube: Kube) -> Mapping[str, Json]:
    try:
        async with asyncio.timeout(LEASE_SECONDS):
            found, _ = await kube.list(FOLDER.format(NODE_LEASES), limit=PAGE)
    except (ApiError, TimeoutError):
        return {}
    return {str(lease["metadata"]["name"]): lease for lease in found}


async def _agents(kube: Kube, release: str | None) -> Sequence[Json]:
    """The pods of agents. Those of a large fleet are read only if some are not ready."""
    try:
        async with asyncio.timeout(LEASE_SECONDS):
            sets, _ = await kube.list(folder(DAEMON_SETS, release), **AGENTS)
            if not any((one.get("status") or {}).get("numberUnavailable") for one in sets):
                return ()
            return (await kube.list(folder(PODS, release), **AGENTS))[0]
    except (ApiError, TimeoutError):
        return ()
