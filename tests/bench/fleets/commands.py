"""The commands that show a fleet, before the API server of 1,000 Macs: `thunderfleet status`, `topology` and `why`.

API server and etcd are real, and so are the commands, each a process of its own with a kubeconfig. One object of each kind is
written through the API server; all others are copies of it, put into etcd (``written``). No program of the fleet runs.
``python -m tests.bench.fleets.commands`` measures it alone.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from thunderfleet_agent.publish.publisher import LINKS, PROFILES
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import LinkEnd, ThunderboltLink, ThunderboltLinkSpec, link_name, ordered
from thunderfleet_crds.names import LABEL_DEPLOYMENT, LABEL_GROUP, LABEL_MANAGED_BY, LABEL_RANK, MANAGED_BY
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove
from thunderfleet_operator.decide.link_status import summary

from tests.bench.figures import Bound, Figure
from tests.bench.fleets import written
from tests.bench.fleets.scale import DEPLOYED, ROOT, Say, deployment
from tests.bench.fleets.written import GIB, SAMPLES, NotWritten, Sample, mac_name

Json = dict[str, Any]
MACS, DEPLOYMENTS, RANKS = 1000, 200, 4
REACH = 3
"""A Mac has cables to so many next ones, so three cables a Mac and six ports."""
SECONDS = 2.0
WAIT_SECONDS = 120.0
PODS = "/api/v1/namespaces/default/pods"
PORTS = "".join(f'  - {{a: "a:{port}", b: "b:{port}", speed: 80}}\n' for port in range(1, 2 * REACH + 1))
SIX = written.PAIR.partition("cables:")[0] + f"cables:\n{PORTS}"
"""Two Studios with a cable in each of their ports."""
CONDITIONS = ("ModelResolved", "Placed", "Bootstrapped", "Ready", "Benchmarked", "Verified")
LABELS = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_GROUP: "0"}


def cables(macs: int) -> Iterator[ThunderboltLinkSpec]:
    """Ports 1 to 3 of each Mac lead to ports 4 to 6 of the next three; the last Macs' to the first ones."""
    for number in range(macs):
        for step in range(1, REACH + 1):
            other = (number + step) % macs
            yield ordered(LinkEnd(node=mac_name(number), port=step), LinkEnd(node=mac_name(other), port=REACH + step))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(kinds: tuple[str, ...], now: str) -> list[Json]:
    message = "all ranks serve, and what they answer is what one Mac answers"
    return [
        {"type": kind, "status": "True", "reason": kind, "message": message, "lastTransitionTime": now, "observedGeneration": 1}
        for kind in kinds
    ]


def _macs_of(number: int) -> list[str]:
    """The Macs of a ModelDeployment."""
    return [mac_name(number * RANKS + rank) for rank in range(RANKS)]


def _links_of(number: int) -> list[str]:
    """The cables between them, one after the other."""
    first = number * RANKS
    ends = [(mac_name(first + rank), mac_name(first + rank + 1)) for rank in range(RANKS - 1)]
    return [link_name(ordered(LinkEnd(node=a, port=1), LinkEnd(node=b, port=REACH + 1))) for a, b in ends]


def _status(number: int, now: str) -> Json:
    """The status of a ModelDeployment that serves. Raises ValueError if it is none."""
    ranks = [
        {
            "rank": rank, "node": mac, "pod": f"chat-{number:03}-0-1-{rank}", "state": "Serving", "memoryBytes": 60 * GIB,
            "loadedBytes": 25 * GIB, "totalBytes": 25 * GIB,
        }
        for rank, mac in enumerate(_macs_of(number))
    ]  # fmt: skip
    group = {"index": 0, "epoch": 1, "state": "Ready", "endpoint": "https://192.0.2.1:8000/v1", "restarts": 0, "ranks": ranks}
    status = {
        "observedGeneration": 1, "readyReplicas": 1, "replicas": 1, "groups": [group], "transport": "JACCL",
        "conditions": _conditions(CONDITIONS, now), "endpoint": "https://192.0.2.1:8000/v1", "tokensPerSecond": "37.4",
    }  # fmt: skip
    found: Json = ModelDeployment.load({**deployment(f"chat-{number:03}"), "status": status}).dump()["status"]
    return found


def _pod(name: str, node: str) -> Json:
    environment = [{"name": f"THUNDERFLEET_{number}", "value": "v" * 40} for number in range(12)]
    container = {"name": "runner", "image": "thunderfleet/thunderfleet:0.1.0", "env": environment}
    spec = {"nodeName": node, "hostNetwork": True, "containers": [container], "automountServiceAccountToken": False}
    metadata = {"name": name, "namespace": "default", "labels": {**LABELS, LABEL_DEPLOYMENT: "sample", LABEL_RANK: "0"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "tolerations": [written.TAINT]}}


def _running(now: str) -> Json:
    ran = {"name": "runner", "ready": True, "restartCount": 0, "started": True, "image": "i", "imageID": "i"}
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running", "startTime": now, "containerStatuses": [{**ran, "state": {"running": {"startedAt": now}}}],
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
    }  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """What the API server made of one object of each kind."""

    macs: tuple[Sample, ...]
    """Node, Lease, NodeProfile."""
    link: Json
    deployment: Json
    pod: Json


async def _one(kube: Kube, collection: str, body: Json, status: Json) -> Json:
    """An object as the API server has it, which is deleted again."""
    path = f"{collection}/{body['metadata']['name']}"
    await kube.create(collection, body)
    await kube.patch(f"{path}/status", {"status": status}, manager="thunderfleet-operator")
    item = await kube.get(path)
    await kube.delete(path, grace_seconds=0)
    return item


async def samples(kube: Kube) -> Samples:
    """Writes one object of each kind through the API server, and deletes it."""
    kept, now = await written.samples(kube), _now()
    link, sample = json.loads(kept[3].text), deployment("sample")
    made = await _one(kube, DEPLOYED, sample, _status(0, now))
    pod = await _one(kube, PODS, _pod("sample", SAMPLES[0]), _running(now))
    return Samples(kept[:3], link, made, pod)


def _profile() -> NodeProfile:
    """What the agent of any Mac publishes."""
    head = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "NodeProfile", "metadata": {"name": SAMPLES[0]}}
    return NodeProfile.load({**head, "status": written.profile_status(SIX)})


def _copy(item: Json, name: str, **parts: Any) -> str:
    metadata = {key: value for key, value in item["metadata"].items() if key not in ("resourceVersion", "deletionTimestamp")}
    metadata |= {"name": name, "uid": str(uuid.uuid4()), **parts.pop("metadata", {})}
    return json.dumps({**item, **parts, "metadata": metadata}, separators=(",", ":"))


def _of_macs(kept: Samples, macs: int, deployments: int) -> Iterator[tuple[str, str]]:
    (node, lease, profile), status = kept.macs, written.profile_status(SIX)
    for number in range(macs):
        name, at = mac_name(number), number // RANKS
        words = ((SAMPLES[0], name), (f'"{written.address(0)}"', f'"{written.address(number + 1)}"'))
        yield node.copy(name, words)
        yield lease.copy(name, words)
        key, text = profile.copy(name, words)
        used = [link for link in _links_of(at) if f"{name}." in link]
        group = {"name": f"default/chat-{at:03}-0", "epoch": 1, "nodes": _macs_of(at), "links": used}
        item = json.loads(text)
        item["status"] = {**status, "groups": [group] if at < deployments else []}
        yield key, json.dumps(item, separators=(",", ":"))


def _of_links(kept: Samples, macs: int, now: datetime) -> Iterator[tuple[str, str]]:
    stamp, profile = now.strftime("%Y-%m-%dT%H:%M:%SZ"), _profile()
    for spec in cables(macs):
        name, ends = link_name(spec), (spec.a, spec.b)
        pairs = (ends, ends[::-1])
        measured = [
            {
                "from": one.node, "to": other.node, "transport": transport, "throughputMbps": 38_000, "rttMicroseconds": 14,
                "jitterMicroseconds": 2, "payloadBytes": 1 << 20, "measuredAt": stamp,
            }
            for one, other in pairs
            for transport in ("Socket", "RDMA")
        ]  # fmt: skip
        seen = [written.endpoint(int(end.node.rpartition("-")[2]), end.port).dump() for end in ends]
        item = {**kept.link, "spec": spec.dump(), "status": {"endpoints": seen, "measurements": measured}}
        # The operator's part, as it computes it.
        item["status"] |= summary(ThunderboltLink.load(item), {end.node: profile for end in ends}, now)
        yield f"/registry/thunderfleet.io/thunderboltlinks/{name}", _copy(item, name)


def objects(kept: Samples, macs: int, deployments: int) -> Iterator[tuple[str, str]]:
    """Keys and values of the whole fleet. Every ModelDeployment serves."""
    now = datetime.now(UTC)
    yield from _of_macs(kept, macs, deployments)
    yield from _of_links(kept, macs, now)
    for number in range(deployments):
        name = f"chat-{number:03}"
        status = _status(number, _now())
        yield f"/registry/thunderfleet.io/modeldeployments/default/{name}", _copy(kept.deployment, name, status=status)
        for rank, mac in enumerate(_macs_of(number)):
            pod, labels = f"{name}-0-1-{rank}", {**LABELS, LABEL_DEPLOYMENT: name, LABEL_RANK: str(rank)}
            spec = {**kept.pod["spec"], "nodeName": mac}
            yield f"/registry/pods/default/{pod}", _copy(kept.pod, pod, spec=spec, metadata={"labels": labels})


async def _count(kube: Kube, path: str) -> int:
    """How many objects a collection has; -1 if the API server has not yet read what is in etcd."""
    try:
        return len((await kube.list_keys(path))[0])
    except ApiError as error:
        if error.status != 504:
            raise
        return -1


async def _filled(cluster: Cluster, say: Say) -> None:
    """Puts the fleet into etcd, and waits until the API server shows all of it. Raises NotWritten."""
    async with await Kube.connect(cluster.kubeconfig) as kube:
        began = time.monotonic()
        kept = list(objects(await samples(kube), MACS, DEPLOYMENTS))
        # The objects of a transaction have one resourceVersion: a watch that begins again there misses the rest of them.
        cluster.component("kube-scheduler", "off")
        await written.put(cluster, kept)
        wanted = {PROFILES: MACS, LINKS: MACS * REACH, DEPLOYED: DEPLOYMENTS, PODS: DEPLOYMENTS * RANKS}
        limit = time.monotonic() + WAIT_SECONDS
        for path, count in wanted.items():
            while (found := await _count(kube, path)) != count:
                if time.monotonic() > limit:
                    raise NotWritten(f"the API server shows {found} of {count} at {path}")
                await asyncio.sleep(0.2)
        size = sum(len(text) for _, text in kept) / 1e6
        say(f"{len(kept)} objects, {size:.0f} MB, written to etcd in {time.monotonic() - began:.0f} s")


def _processor() -> float:
    """Processor time of the commands that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(cluster: Cluster, words: tuple[str, ...], expected: Callable[[str], bool]) -> float:
    """Seconds of a command from its start to its end. Raises NotWritten if it does not show the fleet."""
    command = [sys.executable, "-m", "thunderfleet_cli", *words, "--kubeconfig", str(cluster.kubeconfig)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS, stdin=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    if done.returncode or not expected(done.stdout):
        raise NotWritten(f"{' '.join(words)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    return seconds


def _measured(cluster: Cluster, repeats: int, say: Say) -> list[Figure]:
    last = f"chat-{DEPLOYMENTS - 1:03}"
    commands: dict[tuple[str, ...], Callable[[str], bool]] = {
        ("status",): lambda text: f"{MACS * REACH} of {MACS * REACH} without a problem" in text and last in text,
        ("topology",): lambda text: text.count(mac_name(MACS - 1)) > REACH,
        ("topology", "-o", "svg"): lambda text: text.rstrip().endswith("</svg>") and mac_name(MACS - 1) in text,
        ("why", last): lambda text: mac_name(DEPLOYMENTS * RANKS - 1) in text,
    }
    figures = []
    for words, expected in commands.items():
        # The first one also waits for pages that no program has read before.
        _run(cluster, words, expected)
        spent = _processor()
        seconds = tuple(_run(cluster, words, expected) for _ in range(repeats))
        spent = (_processor() - spent) / repeats
        name = f"thunderfleet {' '.join(words)}"
        say(f"{name}: {', '.join(f'{one:.2f}' for one in seconds)} s; processor time {spent:.2f} s")
        how = f"median of {repeats}, process start to end, {spent:.1f} s of them processor time"
        note = f"{how}; {MACS} Macs, {MACS * REACH} cables, {DEPLOYMENTS} ModelDeployments"
        figures.append(Figure(name, "s", seconds, bound=Bound("<=", SECONDS), note=note))
    return figures


def figures(say: Say, repeats: int = 5) -> list[Figure]:
    """Runs on its own control plane, which it stops afterwards. Raises NotWritten, LocalClusterError."""
    fleet = "machines:\n  - {name: idle-1, kind: linux}\n"
    cluster = Cluster.start(fleet, name=f"bench-commands-{os.getpid()}", join=False, network="loopback")
    try:
        crds = [part for file in sorted((ROOT / "crds").glob("*.yaml")) for part in ("-f", str(file))]
        cluster.kubectl("apply", "--server-side", *crds)
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        # It would end the pods of Macs whose Leases nobody renews.
        cluster.component("kube-controller-manager", "off")
        asyncio.run(_filled(cluster, say))
        return _measured(cluster, repeats, say)
    finally:
        cluster.stop()
        remove(cluster.folder, everything=True)


if __name__ == "__main__":
    import signal

    from tests.bench.figures import table

    # What was started is stopped on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(table(figures(lambda text: print(text, file=sys.stderr, flush=True))))
