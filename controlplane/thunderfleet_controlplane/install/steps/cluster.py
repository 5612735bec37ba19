"""Requests to the API server: objects that joining needs, Nodes, bootstrap tokens."""

import asyncio
import contextlib
import secrets
import string
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from thunderfleet_crds.names import ANNOTATION_BACKUP
from thunderfleet_lib.csr.rules import CONTROL_PLANE_LABEL
from thunderfleet_lib.kube import ApiError, Kube

from thunderfleet_controlplane.balancer.servers import CONFIG_MAP
from thunderfleet_controlplane.components import joining_objects
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.tokens import bootstrap_token

MANAGER = "thunderfleet-init"
READY_SECONDS = 180.0
NODE_SECONDS = 120.0
POLL_SECONDS = 0.3
REQUEST_SECONDS = 5
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
OWN_TOKEN_HOURS = 1
JOIN_TOKEN_HOURS = 24
SYSTEM_NAMESPACE = "thunderfleet-system"


def connect(layout: HostLayout, server: str) -> Kube:
    """A client with the administrator's certificate."""
    admin = layout.pki.pair("admin")
    return Kube.with_files(server, layout.pki.ca, certificate=admin.certificate, key=admin.key)


async def until_ready(kube: Kube, describe: Callable[[], str]) -> None:
    """Wait until the API server is ready and has the namespaces. Raises InstallError with the text of ``describe``."""

    async def problem() -> str:
        await kube.request("GET", "/readyz", seconds=REQUEST_SECONDS)
        for namespace in ("kube-system", "kube-public"):
            if await kube.get_or_none(f"/api/v1/namespaces/{namespace}") is None:
                return f"the namespace {namespace} does not exist yet"
        return ""

    await until(problem, READY_SECONDS, "the API server is not ready", describe)


async def until(problem: Callable[[], Any], seconds: float, what: str, describe: Callable[[], str]) -> None:
    """Wait until ``problem`` returns an empty text. Raises InstallError with its last text and that of ``describe``."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            text = str(await problem())
        except ApiError as error:
            text = str(error)
        if not text:
            return
        if time.monotonic() > deadline:
            raise InstallError(f"after {seconds:.0f} s {what}: {text}\n{describe()}")
        await asyncio.sleep(POLL_SECONDS)


async def put_objects(kube: Kube, name: str, server: str, ca_pem: bytes) -> None:
    """Create or update the objects that joining needs. Raises InstallError."""
    for path, body in joining_objects(name, server, ca_pem):

        async def problem(path: str = path, body: dict[str, Any] = body) -> str:
            await kube.apply(f"{path}/{body['metadata']['name']}", body, MANAGER)
            return ""

        await until(problem, NODE_SECONDS, f"{body['kind']} {body['metadata']['name']} cannot be created", lambda: "")


async def put_node(kube: Kube, name: str) -> None:
    """Create this Mac's Node, or label it: only a Node with this label may have an address of the API server."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {CONTROL_PLANE_LABEL: ""}}}
    await kube.apply(f"{NODES}/{name}", body, MANAGER)


async def put_backup_time(kube: Kube, name: str, when: str) -> None:
    """Record the time of the backup on this Mac's Node; the operator exports it for an alert."""
    await kube.patch(f"{NODES}/{name}", {"metadata": {"annotations": {ANNOTATION_BACKUP: when}}})


def is_ready(node: dict[str, Any]) -> bool:
    """Whether a Node is Ready."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _renewed(lease: dict[str, Any] | None, since: datetime) -> bool:
    """Whether a Lease was renewed after ``since``; both times are from the clock of this Mac."""
    try:
        return datetime.fromisoformat(str(((lease or {}).get("spec") or {}).get("renewTime"))) > since
    except ValueError:
        return False


async def until_node_ready(kube: Kube, name: str, since: datetime, describe: Callable[[], str]) -> None:
    """Wait until a Node is Ready, and its kubelet has renewed its Lease after ``since``. Raises InstallError.

    A starting kubelet writes the Node's status before it renews the Lease, so the status is not from an earlier kubelet.
    """

    async def problem() -> str:
        # The Lease first: the Node that is read after it is not older than the renewal.
        lease = await kube.get_or_none(f"{LEASES}/{name}")
        node = await kube.get_or_none(f"{NODES}/{name}")
        if node is None:
            return "it does not exist"
        if not _renewed(lease, since):
            return "its kubelet has not renewed its Lease"
        if is_ready(node):
            return ""
        conditions = (node.get("status") or {}).get("conditions") or []
        return next((str(one.get("message")) for one in conditions if one["type"] == "Ready"), "its kubelet has not reported")

    await until(problem, NODE_SECONDS, f"Node {name} is not Ready", describe)


async def put_api_server(kube: Kube, node: str, where: str, *, alone: bool) -> None:
    """Publish the address of a Mac's API server. ``alone``: there is no other API server."""
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP.rpartition("/")[2], "namespace": "kube-system"},
        "data": {node: where},
    }
    # One field manager for each Mac, which owns and replaces only its own line.
    await kube.apply(CONFIG_MAP, body, f"{MANAGER}-{node}")
    if alone:
        known = (await kube.get(CONFIG_MAP)).get("data") or {}
        await forget_api_servers(kube, [name for name in known if name != node])


async def forget_api_servers(kube: Kube, nodes: Iterable[str]) -> None:
    """Remove the published addresses of Macs' API servers."""
    if gone := dict.fromkeys(nodes):
        await kube.patch(CONFIG_MAP, {"data": gone})


async def put_namespace(kube: Kube) -> None:
    """Create the namespace of the chart: agents and runners use the host's network and folders."""
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": SYSTEM_NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
    }
    await kube.apply(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}", body, MANAGER)


async def forget_unfinished_release(kube: Kube) -> None:
    """Delete the record of a helm process that was killed: it blocks every later one. The created objects stay."""
    releases = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"
    unfinished = "owner=helm,name=thunderfleet,status in (pending-install,pending-upgrade,pending-rollback)"
    found = await kube.request("GET", releases, query={"labelSelector": unfinished})
    for release in found.get("items", ()):
        await kube.delete(f"{releases}/{release['metadata']['name']}")


async def make_token(kube: Kube, description: str, hours: int, node: str | None = None) -> str:
    """Create a bootstrap token; ``node``: the only Node that may join with it."""
    alphabet = string.ascii_lowercase + string.digits
    identifier, secret = ("".join(secrets.choice(alphabet) for _ in range(length)) for length in (6, 16))
    expires = (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
    await kube.create(SECRETS, bootstrap_token(identifier, secret, expires, description, node))
    return f"{identifier}.{secret}"


async def remove_token(kube: Kube, token: str) -> None:
    """Delete a bootstrap token; one that cannot be deleted expires."""
    with contextlib.suppress(ApiError):
        await kube.delete(f"{SECRETS}/bootstrap-token-{token.split('.')[0]}")


async def remove_node(kube: Kube, name: str) -> None:
    """Delete a Node; its kubelet then ends all pods."""
    await kube.delete(f"{NODES}/{name}")
