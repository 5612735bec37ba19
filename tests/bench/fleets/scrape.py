"""The operator's scrape on a large fleet, without a cluster: how long it takes and how many series it has.

``python -m tests.bench.fleets.scrape`` measures it alone.
"""

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import generate_latest
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.object_metrics import ObjectMetrics, Objects
from thunderfleet_operator.observe.objects.nodes import Node

from tests.bench.figures import Bound, Figure, table

MACS, CABLES, DEPLOYMENTS = 1_000, 3_000, 200
TIME = "2026-03-01T12:00:00Z"
API = {"apiVersion": "thunderfleet.io/v1alpha1"}
MAC_CONDITIONS = ("Ready", "RDMAReady", "BridgeFree", "InventoryComplete", "Reachable", "Quarantined")
DEPLOYMENT_CONDITIONS = ("ModelResolved", "Placed", "Bootstrapped", "Ready", "Verified", "Degraded")
Say = Callable[[str], None]


def _conditions(kinds: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"type": kind, "status": "True", "reason": kind, "lastTransitionTime": TIME} for kind in kinds]


def _object(kind: str, metadata: dict[str, str], **more: Any) -> dict[str, Any]:
    return {**API, "kind": kind, "metadata": metadata, **more}


def _profile(number: int) -> NodeProfile:
    status = {
        "hardware": {"gpuMemoryLimitBytes": 2**38},
        "groups": [{"name": f"team/chat-{number % DEPLOYMENTS}-0", "epoch": 1, "links": []}],
        "conditions": _conditions(MAC_CONDITIONS),
        "lastPanic": {"time": TIME},
    }
    return NodeProfile.load(_object("NodeProfile", {"name": f"mac-{number}"}, status=status))


def _link(number: int) -> ThunderboltLink:
    a, b, port = f"mac-{number % MACS}", f"mac-{(number + 1 + number // MACS) % MACS}", number // MACS + 1
    pairs = [(a, b), (b, a)]
    measured = [
        {"from": one, "to": other, "transport": transport, "throughputMbps": 60_000, "measuredAt": TIME}
        for one, other in pairs
        for transport in ("Socket", "RDMA")
    ]
    status = {
        "endpoints": [{"node": one, "port": port, "speedMbps": 80_000} for one in (a, b)],
        "measurements": measured,
        "conditions": _conditions(("Connected", "RDMACapable")),
    }
    spec = {"a": {"node": a, "port": port}, "b": {"node": b, "port": port}}
    name = f"{a}.tb{port}--{b}.tb{port}"
    return ThunderboltLink.load(_object("ThunderboltLink", {"name": name}, spec=spec, status=status))


def _deployment(number: int) -> ModelDeployment:
    failure = {"class": "Retry", "reason": "PeerLost", "node": "mac-1", "link": "mac-1.tb1--mac-2.tb1", "time": TIME}
    groups = [
        {
            "index": index,
            "state": "Ready",
            "restarts": 1,
            "ranks": [{"rank": rank, "node": f"mac-{(number * 4 + rank) % MACS}", "memoryBytes": 2**36} for rank in range(4)],
            "lastFailure": failure,
        }
        for index in range(2)
    ]
    status = {
        "groups": groups,
        "conditions": _conditions(DEPLOYMENT_CONDITIONS),
        "readyReplicas": 2,
        "benchmark": {"decodeTokensPerSecond": "21.9"},
        "autoscaling": {"replicas": 2, "lastScaleTime": TIME},
    }
    spec = {"model": {"repository": "nobody/tiny"}, "replicas": 2, "autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
    metadata = {"name": f"chat-{number}", "namespace": "team"}
    return ModelDeployment.load(_object("ModelDeployment", metadata, spec=spec, status=status))


def figures(repeats: int, say: Say) -> list[Figure]:
    """Seconds and series of one scrape of the leader."""
    say(f"making {MACS} Macs, {CABLES} cables and {DEPLOYMENTS} ModelDeployments")
    objects = Objects(
        [_deployment(number) for number in range(DEPLOYMENTS)],
        [_link(number) for number in range(CABLES)],
        [_profile(number) for number in range(MACS)],
        [Node(f"mac-{number}", True, labels={"kubernetes.io/os": "darwin"}) for number in range(MACS)],
        {f"team/chat-{number}": 2 for number in range(DEPLOYMENTS)},
    )
    registry = Metrics().registry
    samples, text = [], b""
    for _ in range(max(repeats, 3)):
        # The first page of a process: later ones keep what has not changed.
        shown = ObjectMetrics(lambda: objects, lambda: True)
        started = time.perf_counter()
        text = generate_latest(registry) + shown.page()
        samples.append(time.perf_counter() - started)
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    fleet = f"{MACS} Macs, {CABLES} cables, {DEPLOYMENTS} ModelDeployments of two groups with autoscaling"
    return [
        Figure("operator scrape", "s", tuple(samples), bound=Bound("<=", 1.0), note=fleet),
        Figure("operator series", "series", (float(series),), bound=Bound("<=", 60_000), note=f"{len(text) / 1e6:.1f} MB"),
    ]


if __name__ == "__main__":
    print(table(figures(5, print)))
