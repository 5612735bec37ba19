"""Events, as objects of the API server."""

import hashlib
from datetime import UTC, datetime
from typing import Any

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.names import API_VERSION

from thunderfleet_operator.decide.status.events import Occurrence

About = ModelDeployment | NodeProfile | ThunderboltLink
REPORTER = "thunderfleet-operator"


def manifest(about: About, occurrence: Occurrence, instance: str) -> dict[str, Any]:
    """An Event about an object. Its name differs with text and time.

    Events about cluster-scoped objects are in the namespace `default`, where `kubectl describe` finds them.
    """
    meta = about.metadata
    now = datetime.now(UTC)
    digest = hashlib.sha256(f"{occurrence}{now.isoformat()}{meta.uid}".encode()).hexdigest()[:16]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta.name[:230]}.{digest}", "namespace": meta.namespace or "default"},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": about.kind,
            "name": meta.name,
            **({"namespace": meta.namespace} if meta.namespace else {}),
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
        "type": "Warning" if occurrence.warning else "Normal",
        "reason": occurrence.reason,
        "message": occurrence.message[:1000],
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
