"""Reads the objects of a cluster. Names the objects that the user may not read, with the missing right."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from thunderfleet_crds import names
from thunderfleet_lib.kube import ApiError, Json, Kube, Silence, of_part
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_view.facts import CHART, LABEL_COMPONENT, Picture
from thunderfleet_view.live.leases import PAGE, read_signs

from thunderfleet_cli.connection import Connection
from thunderfleet_cli.view.control_plane import trouble

T = TypeVar("T")

SECONDS = 30.0
PATIENT_SECONDS, AGAIN_SECONDS = 3.0, 2.0
"""If not all objects have been read after the first time, the API server is checked, and then again at intervals of the
second."""
OURS = f"/apis/{names.GROUP}/{names.VERSION}"
METRICS = "/apis/metrics.k8s.io/v1beta1"
OPERATOR = f"{names.LABEL_NAME}={CHART},{LABEL_COMPONENT}=operator"
RUNNERS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
CLUSTER = ("nodes", "profiles", "links", "operators")
NAMESPACED = ("deployments", "pods", "events", "caches", "everyPod", "plans")
RESOURCES: Mapping[str, str] = {
    "nodes": "nodes",
    "profiles": f"{names.NODEPROFILE_PLURAL}.{names.GROUP}",
    "links": f"{names.THUNDERBOLTLINK_PLURAL}.{names.GROUP}",
    "deployments": f"{names.MODELDEPLOYMENT_PLURAL}.{names.GROUP}",
    "pods": "pods",
    "operators": "pods",
    "events": "events",
    "usage": "nodes.metrics.k8s.io",
    "caches": f"{names.MODELCACHE_PLURAL}.{names.GROUP}",
    "everyPod": "pods",
    "plans": "configmaps",
}
"""Names of the kinds that are read, for `kubectl auth can-i list`."""


def request_of(kind: str, namespace: str | None) -> tuple[str, dict[str, object]]:
    """The API path and the query of a part of a Picture. ``namespace``: None for all."""
    within = f"/namespaces/{namespace}" if namespace else ""
    paths: Mapping[str, tuple[str, dict[str, object]]] = {
        "nodes": ("/api/v1/nodes", {}),
        "profiles": (f"{OURS}/{names.NODEPROFILE_PLURAL}", {}),
        "links": (f"{OURS}/{names.THUNDERBOLTLINK_PLURAL}", {}),
        "deployments": (f"{OURS}{within}/{names.MODELDEPLOYMENT_PLURAL}", {}),
        "pods": (f"/api/v1{within}/pods", {"labelSelector": RUNNERS}),
        "operators": ("/api/v1/pods", {"labelSelector": OPERATOR}),
        "events": (f"/api/v1{within}/events", {}),
        "usage": (f"{METRICS}/nodes", {}),
        "caches": (f"{OURS}{within}/{names.MODELCACHE_PLURAL}", {}),
        "everyPod": (f"/api/v1{within}/pods", {}),
        "plans": (f"/api/v1{within}/configmaps", {"labelSelector": RUNNERS}),
    }
    return paths[kind]


def why_unread(kind: str, namespace: str | None, error: ApiError) -> str:
    """The missing kinds of objects, and how to get the right to read them."""
    resource = RESOURCES[kind]
    if error.status == 404:
        absent = "install the chart (docs/install.md)" if names.GROUP in resource else "install what serves it"
        if kind == "usage":
            absent = "install metrics-server"
        return f"the cluster has no {resource}: {absent}"
    if error.status in (401, 403):
        where = f"in namespace {namespace}" if namespace and kind in NAMESPACED else "in all namespaces"
        if kind in ("nodes", "profiles", "links", "usage"):
            where = "in the cluster"
        scope = f"-n {namespace}" if namespace and kind in NAMESPACED else "-A"
        return f"you are not allowed to list {resource} {where}: check with `kubectl auth can-i list {resource} {scope}`"
    if kind == "usage" and error.status == 503:
        return "metrics-server does not answer: check its pods with `kubectl get pods -n kube-system`"
    return f"cannot list {resource}: {error}"


async def _read(kube: Kube, kind: str, namespace: str | None) -> Sequence[Json] | ApiError:
    path, query = request_of(kind, namespace)
    try:
        return (await kube.list(path, limit=PAGE, **query))[0]
    except ApiError as error:
        return error


async def read_lists(
    connection: Connection, kinds: Sequence[str], namespace: str | None
) -> tuple[Mapping[str, Sequence[Json]], Mapping[str, str]]:
    """Lists by kind, and why other kinds could not be read. Raises LocalClusterError if none could be read in time."""
    async with await connection.kube() as kube:
        return await _lists(kube, kinds, namespace)


async def _lists(
    kube: Kube, kinds: Sequence[str], namespace: str | None
) -> tuple[Mapping[str, Sequence[Json]], Mapping[str, str]]:
    try:
        async with asyncio.timeout(SECONDS):
            answers = await _unless_silent(kube, asyncio.gather(*(_read(kube, kind, namespace) for kind in kinds)))
    except TimeoutError:
        said = await trouble(kube) or f"the API server {kube.host} did not answer within {SECONDS:g} s"
        raise LocalClusterError(said) from None
    found = {kind: answer for kind, answer in zip(kinds, answers, strict=True) if not isinstance(answer, ApiError)}
    errors = {kind: answer for kind, answer in zip(kinds, answers, strict=True) if isinstance(answer, ApiError)}
    unread = {kind: why_unread(kind, namespace, error) for kind, error in errors.items()}
    failed = [error for error in errors.values() if error.transient]
    if failed and (not found or any(error.unanswered for error in failed)):
        said = await trouble(kube)
        raise LocalClusterError(f"{said}; {next(iter(unread.values()))}" if said else next(iter(unread.values())))
    if errors and not found:
        raise LocalClusterError(next(iter(unread.values())))
    return found, unread


async def _unless_silent(kube: Kube, reading: Awaitable[T]) -> T:
    """Waits for ``reading``. Raises LocalClusterError as soon as a part of the control plane certainly does not answer."""
    work, watch = asyncio.ensure_future(reading), asyncio.create_task(_silence(kube))
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise LocalClusterError(watch.result())
        return work.result()
    finally:
        for task in (work, watch):
            task.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def _silence(kube: Kube) -> str:
    """Which part of the control plane does not answer, once it has not answered twice in a row.

    A busy API server answers other requests meanwhile.
    """
    await asyncio.sleep(PATIENT_SECONDS)
    return of_part(await Silence(kube).wait(AGAIN_SECONDS), kube.host)


async def picture(connection: Connection, namespace: str | None, *, events: bool = False) -> Picture:
    """The objects of the cluster. ``namespace``: None for all. Raises LocalClusterError."""
    kinds = (*CLUSTER, "deployments", "pods", *(("events",) if events else ()))
    async with await connection.kube() as kube:
        found, unread = await _lists(kube, kinds, namespace)
        if "deployments" in unread:
            raise LocalClusterError(unread["deployments"])
        signs = await read_signs(kube, found.get("operators", ()))
    about: dict[str, Any] = {**found, **vars(signs)}
    return Picture(namespace=namespace, unread=unread, **about)
