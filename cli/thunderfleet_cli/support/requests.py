"""Which objects and logs ``thunderfleet support`` collects. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunderfleet_crds import names
from thunderfleet_crds.exchange.routing import LABEL_ROUTES

Json = Mapping[str, Any]

OURS = f"/apis/{names.GROUP}/{names.VERSION}"
CHART = "thunderfleet"
"""Label app.kubernetes.io/name of the chart's pods."""


@dataclass(frozen=True)
class ObjectRequest:
    """A collection: its file name in the archive, its API path, and a label selector."""

    name: str
    path: str
    selector: str = ""


@dataclass(frozen=True)
class LogRequest:
    """The log of a container; ``previous``: of its run before the last restart."""

    namespace: str
    pod: str
    container: str
    previous: bool

    @property
    def name(self) -> str:
        """File name in the archive."""
        return f"{self.namespace}/{self.pod}/{self.container}{'.previous' if self.previous else ''}.log"

    @property
    def path(self) -> str:
        """API path."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}/log"


# No Secrets: they are never read.
OBJECTS: Sequence[ObjectRequest] = (
    ObjectRequest("nodes", "/api/v1/nodes"),
    ObjectRequest("nodeprofiles", f"{OURS}/nodeprofiles"),
    ObjectRequest("thunderboltlinks", f"{OURS}/thunderboltlinks"),
    ObjectRequest("modeldeployments", f"{OURS}/modeldeployments"),
    ObjectRequest("modelcaches", f"{OURS}/modelcaches"),
    ObjectRequest("pods", "/api/v1/pods"),
    ObjectRequest("services", "/api/v1/services"),
    ObjectRequest("events", "/api/v1/events"),
    # Without the documents of routers, which are about API keys.
    ObjectRequest("plans", "/api/v1/configmaps", f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},!{LABEL_ROUTES}"),
    ObjectRequest("deployments", "/apis/apps/v1/deployments"),
    ObjectRequest("daemonsets", "/apis/apps/v1/daemonsets"),
    ObjectRequest("leases", "/apis/coordination.k8s.io/v1/leases"),
    ObjectRequest("namespaces", "/api/v1/namespaces"),
    ObjectRequest("runtimeclasses", "/apis/node.k8s.io/v1/runtimeclasses"),
    ObjectRequest("certificatesigningrequests", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
    ObjectRequest("customresourcedefinitions", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
)


def is_ours(pod: Json) -> bool:
    """Whether a pod belongs to Thunderfleet: a program of the chart, or a rank of a group."""
    labels = pod["metadata"].get("labels") or {}
    return labels.get(names.LABEL_NAME) == CHART or labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY


def pod_logs(pods: Sequence[Json]) -> list[LogRequest]:
    """Logs of our pods' containers; of restarted containers also the log before the last restart."""
    found = []
    for pod in pods:
        if not is_ours(pod):
            continue
        metadata, status = pod["metadata"], pod.get("status") or {}
        for state in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
            restarted = int(state.get("restartCount") or 0) > 0
            for previous in (False, True) if restarted else (False,):
                found.append(LogRequest(metadata["namespace"], metadata["name"], state["name"], previous))
    return found


def trimmed(item: Json) -> Json:
    """An object without its largest fields: schemas of CRDs, and certificates with their requests."""
    spec = item.get("spec") or {}
    if "versions" in spec:
        versions = [{key: value for key, value in version.items() if key != "schema"} for version in spec["versions"]]
        return {**item, "spec": {**spec, "versions": versions}}
    if "request" in spec and "signerName" in spec:
        return {
            **item,
            "spec": {key: value for key, value in spec.items() if key != "request"},
            "status": {key: value for key, value in (item.get("status") or {}).items() if key != "certificate"},
        }
    return item
