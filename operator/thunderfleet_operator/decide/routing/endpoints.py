"""The URLs of routers, and the Service that leads to them."""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_crds.kinds.modeldeployment import MAX_ENDPOINTS, ModelDeployment, RouterEndpoint
from thunderfleet_crds.names import ANNOTATION_HASH, MANAGED_BY

from thunderfleet_operator.observe.objects.routers import Router

SLICE_ENDPOINTS = 100
"""The most endpoints of an EndpointSlice, as the control plane makes them."""
SERVICE_PORT, SERVICE_TLS_PORT = 80, 443


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """The chart's values for routers. ``url``: the URL at which clients outside the cluster reach them, if there is one.

    ``namespace``: of the release.
    """

    namespace: str
    port: int
    tls: bool = False
    url: str | None = None


def url(router: Router, settings: RouterSettings) -> str:
    """The base URL of a router's API."""
    host = f"[{router.address}]" if ":" in router.address else router.address
    return f"{'https' if settings.tls else 'http'}://{host}:{settings.port}/v1"


def endpoints(routers: Iterable[Router], settings: RouterSettings, near: Collection[str]) -> tuple[RouterEndpoint, ...]:
    """All routers, those on the Nodes ``near`` first."""
    ordered = sorted(routers, key=lambda router: (router.node not in near, router.node, router.address))
    found = {url(router, settings): router.node for router in ordered}
    return tuple(RouterEndpoint(url=one, node=node) for one, node in found.items())[:MAX_ENDPOINTS]


def endpoint_slice(
    deployment: ModelDeployment, owner: dict[str, Any], routers: Sequence[Router], settings: RouterSettings
) -> dict[str, Any]:
    """The EndpointSlice of a ModelDeployment's Service. No controller makes one for a Service without a selector.

    Its name contains a digest of the UID, so that no other object has the same name by chance. A slice holds addresses of one
    family, so it has those of the family that most routers have.
    """
    meta = deployment.metadata
    digest = hashlib.sha256(str(meta.uid).encode()).hexdigest()[:10]
    six = [router for router in routers if ":" in router.address]
    four = [router for router in routers if router not in six]
    chosen = six if len(six) > len(four) else four
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{meta.name}-routers-{digest}{'-ipv6' if chosen is six else ''}",
            "namespace": meta.namespace,
            "labels": {"kubernetes.io/service-name": meta.name, "endpointslice.kubernetes.io/managed-by": MANAGED_BY},
            "ownerReferences": [owner],
        },
        "addressType": "IPv6" if chosen is six else "IPv4",
        "endpoints": [
            {"addresses": [router.address], "conditions": {"ready": True}, "nodeName": router.node}
            for router in sorted(chosen, key=lambda router: (router.node, router.address))[:SLICE_ENDPOINTS]
        ],
        "ports": [{"name": _port_name(settings), "port": settings.port, "protocol": "TCP"}],
    }


def has(found: object, wanted: object) -> bool:
    """Whether an object has everything in a manifest; lists and selectors are compared whole.

    The API server adds fields, and omits empty values or returns null for them.
    """
    if isinstance(wanted, dict):
        if not isinstance(found, dict) or found.get("selector", wanted.get("selector")) != wanted.get("selector"):
            return False
        return all(has(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        found = found or []
        return isinstance(found, list) and len(found) == len(wanted) and all(map(has, found, wanted))
    return found == wanted


def has_slice(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether an EndpointSlice has everything in a manifest. Items of a list have neither version nor kind."""
    return has(found, {name: value for name, value in wanted.items() if name not in ("apiVersion", "kind")})


def is_headless(spec: dict[str, Any]) -> bool:
    """Whether a Service has no address. An apply without an address does not change that."""
    return spec.get("clusterIP") == "None"


def has_service(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether the spec of a Service has everything in a manifest, and an address only if the manifest does."""
    return has(found, wanted) and is_headless(found) == is_headless(wanted)


def _port_name(settings: RouterSettings) -> str:
    """The name of the port, which must be the same in Service and EndpointSlice."""
    return "https" if settings.tls else "http"


def service(manifest: dict[str, Any], settings: RouterSettings) -> dict[str, Any]:
    """The Service of groups as one that leads to routers: port 80, or 443 with TLS, of an address of the cluster."""
    port = SERVICE_TLS_PORT if settings.tls else SERVICE_PORT
    ports = [{"name": _port_name(settings), "port": port, "targetPort": port, "protocol": "TCP"}]
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "annotations"}
    found = {**manifest, "metadata": metadata, "spec": {"type": "ClusterIP", "ports": ports}}
    text = json.dumps(found, sort_keys=True)
    metadata["annotations"] = {ANNOTATION_HASH: hashlib.sha256(text.encode()).hexdigest()[:16]}
    return found
