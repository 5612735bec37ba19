"""What the agents and kubelets of a simulated fleet have written, put straight into etcd.

The API server takes minutes for what 5,000 Macs write; etcd takes seconds. One Mac and its cables are written through the API
server first, so that defaults, managed fields and versions are those of real objects. All others are copies of these.
"""

import asyncio
import base64
import json
import ssl
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from thunderfleet_agent.derive.profile import profile
from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.parsers import hardware, thunderbolt
from thunderfleet_agent.publish.publisher import LINKS, PROFILES, field_manager
from thunderfleet_crds.kinds.nodeprofile import NodeProfile, NodeProfileStatus
from thunderfleet_crds.kinds.thunderboltlink import Endpoint, LinkEnd, ThunderboltLink, ThunderboltLinkSpec, link_name, ordered
from thunderfleet_crds.meta.apimodel import ObjectMeta
from thunderfleet_lib.kube import Kube
from thunderfleet_lib.macnet import parse as network
from thunderfleet_lib.rdma import parse
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.recorded.folder import texts

from tests.bench import processes

Json = dict[str, Any]
RING = 4
"""Macs whose cables form a ring. A group of two Macs leaves two that have a cable."""
REPOSITORY = "org/large"
GIB = 2**30
MODEL_BYTES, MAC_BYTES = 100 * GIB, 72 * GIB
"""The model needs two Macs, and two Macs have room for one of it."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
TAINT = {"key": "thunderfleet.io/macos", "effect": "NoSchedule"}
TXN_PUTS = 100
"""etcd takes 128 operations in a transaction."""
PAIR = """
machines:
  - {name: a, model: Mac Studio (M3 Ultra), rdma: true}
  - {name: b, model: Mac Studio (M3 Ultra), rdma: true}
cables:
  - {a: "a:1", b: "b:2", speed: 80}
  - {a: "a:2", b: "b:1", speed: 80}
"""
SAMPLES = ("sample-a", "sample-b")


class NotWritten(RuntimeError):
    """etcd did not take the objects."""


def mac_name(number: int) -> str:
    """Name of a Mac."""
    return f"mac-{number:05}"


def address(number: int) -> str:
    """The address of a Mac's Node, where the load program answers for its leaders."""
    return f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}" if number else "127.64.255.254"


def _port_address(number: int, port: int) -> str:
    start = number * 8 + port * 4 - 3
    return f"10.{64 + (start >> 16)}.{start >> 8 & 255}.{start & 255}"


def cable(number: int, macs: int) -> ThunderboltLinkSpec:
    """The cable from a Mac's port 1 to port 2 of the next one in its ring. ``macs``: of the fleet, a multiple of RING."""
    first = number // RING * RING
    other = first + (number + 1 - first) % RING
    if not number < macs or macs % RING:
        raise ValueError(f"no Mac {number} of {macs}")
    return ordered(LinkEnd(node=mac_name(number), port=1), LinkEnd(node=mac_name(other), port=2))


def _status(fleet: str) -> NodeProfileStatus:
    """What the agent of the Mac ``a`` of a fleet publishes."""
    plan = plan_layout(parse_fleet(fleet), "namespaces")
    said = texts(plan, plan.machine("a"))
    info = "".join(text for name, text in said.items() if name.startswith("ibv_devinfo-v."))
    facts = Facts(
        thunderbolt=thunderbolt.parse(said["SPThunderboltDataType.json"]),
        hardware=hardware.parse_hardware(said["SPHardwareDataType.json"]),
        system=hardware.System("26.3", "25D125"),
        hardware_ports=network.parse_hardware_ports(said["hardwareports"]),
        services=network.parse_service_order(said["serviceorder"]),
        interfaces=network.parse_ifconfig(said["ifconfig"]),
        rdma_switch=True,
        rdma_devices=parse.parse_devices(said["ibv_devices"]),
        rdma_info=parse.parse_devinfo(info),
        models=(),
    )
    return profile(facts, datetime.now(UTC)).status


def _model() -> Json:
    return {
        "path": f"/models/{REPOSITORY}",
        "repository": REPOSITORY,
        "bytes": MODEL_BYTES,
        "complete": True,
        "layers": 40,
        "sizes": [{"worldSize": size, "tensorBytesPerRank": [MODEL_BYTES // size] * size} for size in (1, 2, 4)],
        "pipeline": {"layerBytes": [MODEL_BYTES // 40] * 40, "sharedBytes": 0},
        "kv": [{"bytesPerToken": 4096, "tensorSplit": True}] * 40,
        "sizedBy": "MLX",
    }


def profile_status(fleet: str = PAIR) -> Json:
    """The status of the sample's NodeProfile, with a model and what runs it. ``fleet``: the sample is its Mac ``a``."""
    runtime = {"mlxVersion": "0.32.4", "mlxLmVersion": "0.32.2", "backends": ["ring", "jaccl"]}
    return {**_status(fleet).dump(), "runtime": runtime, "models": [_model()]}


def endpoint(number: int, port: int, speed_mbps: int = 80_000) -> Endpoint:
    """An end of a cable as its agent reports it."""
    return _endpoint(mac_name(number), port, _port_address(number, port), speed_mbps)


def _endpoint(node: str, port: int, at: str, speed_mbps: int = 80_000) -> Endpoint:
    return Endpoint(
        node=node,
        port=port,
        interface=f"en{port + 1}",
        rdma_device=f"rdma_en{port + 1}",
        rdma_state="Active",
        address=at,
        speed_mbps=speed_mbps,
        sees_peer=True,
    )


async def report_end(kube: Kube, spec: ThunderboltLinkSpec, end: Endpoint) -> None:
    """Writes an end as its agent does."""
    name = link_name(spec)
    main = ThunderboltLink(metadata=ObjectMeta(name=name), spec=spec).dump()
    main.pop("status", None)
    await kube.apply(f"{LINKS}/{name}", main, field_manager(end.node))
    await report_end_again(kube, spec, end)


async def report_end_again(kube: Kube, spec: ThunderboltLinkSpec, end: Endpoint) -> None:
    """Writes what has changed about an end of a cable that is known."""
    name = link_name(spec)
    head = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ThunderboltLink", "metadata": {"name": name}}
    status = {**head, "status": {"endpoints": [end.dump()]}}
    await kube.apply(f"{LINKS}/{name}/status", status, field_manager(end.node))


def _node(name: str, at: str) -> Json:
    room = {"memory": str(MAC_BYTES), "cpu": "28", "pods": "110", "ephemeral-storage": "1Ti"}
    labels = {"kubernetes.io/os": "darwin", "kubernetes.io/arch": "arm64", "kubernetes.io/hostname": name}
    status = {
        "capacity": room,
        "allocatable": room,
        "addresses": [{"type": "InternalIP", "address": at}, {"type": "Hostname", "address": name}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [TAINT]},
        "status": status,
    }


def _lease(name: str) -> Json:
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True)
class Sample:
    """An object that the API server has, with what is replaced in it. ``key``: of etcd, up to the name."""

    key: str
    text: str

    def copy(self, name: str, words: Iterable[tuple[str, str]]) -> tuple[str, str]:
        """Key and value of an object like this one."""
        text = self.text
        for old, new in words:
            text = text.replace(old, new)
        item = json.loads(text)
        item["metadata"] |= {"name": name, "uid": str(uuid.uuid4())}
        return f"{self.key}/{name}", json.dumps(item, separators=(",", ":"))


async def samples(kube: Kube) -> tuple[Sample, ...]:
    """Node, Lease and NodeProfile of one Mac, and both kinds of cable: to the next Mac, and the one that closes a ring."""
    one, other = SAMPLES
    here, there = _port_address(0, 1), _port_address(0, 2)
    await kube.create("/api/v1/nodes", _node(one, address(0)))
    await kube.create(LEASES, _lease(one))
    whole = NodeProfile(metadata=ObjectMeta(name=one)).dump() | {"status": profile_status()}
    text = json.dumps(whole).replace("192.168.64.11", address(0))
    whole = json.loads(text.replace('10.64.1.1"', f'{here}"').replace('10.64.1.5"', f'{there}"'))
    main = {key: value for key, value in whole.items() if key != "status"}
    await kube.apply(f"{PROFILES}/{one}", main, field_manager(one))
    await kube.apply(f"{PROFILES}/{one}/status", whole, field_manager(one))
    specs = (
        ordered(LinkEnd(node=one, port=1), LinkEnd(node=other, port=2)),
        ordered(LinkEnd(node=one, port=2), LinkEnd(node=other, port=1)),
    )
    for spec in specs:
        for end in (spec.a, spec.b):
            at = here if end.node == one else there
            await report_end(kube, spec, _endpoint(end.node, end.port, at))
    paths = {
        "/registry/minions": f"/api/v1/nodes/{one}",
        "/registry/leases/kube-node-lease": f"{LEASES}/{one}",
        "/registry/thunderfleet.io/nodeprofiles": f"{PROFILES}/{one}",
    }
    links = [("/registry/thunderfleet.io/thunderboltlinks", f"{LINKS}/{link_name(spec)}") for spec in specs]
    found = []
    for key, path in (*paths.items(), *links):
        item = await kube.get(path)
        item["metadata"].pop("resourceVersion")
        if item["kind"] == "Node":
            # Without the taint of new Nodes, which only the controller manager would remove.
            item["spec"]["taints"] = [TAINT]
        found.append(Sample(key, json.dumps(item)))
        await kube.delete(path)
    return tuple(found)


def objects(kept: tuple[Sample, ...], macs: int) -> Iterator[tuple[str, str]]:
    """Keys and values of a whole fleet: a Node, a Lease, a NodeProfile and a cable for each Mac."""
    node, lease, about, forward, closing = kept
    one, other = SAMPLES
    here, there = _port_address(0, 1), _port_address(0, 2)
    for number in range(macs):
        name = mac_name(number)
        words = (
            (one, name),
            (f'"{address(0)}"', f'"{address(number + 1)}"'),
            (f'{here}"', f'{_port_address(number, 1)}"'),
            (f'{there}"', f'{_port_address(number, 2)}"'),
        )
        for sample in (node, lease, about):
            yield sample.copy(name, words)
        spec = cable(number, macs)
        sample = forward if spec.a.port == 1 else closing
        first, last = (int(end.node.rpartition("-")[2]) for end in (spec.a, spec.b))
        ends = ((here, _port_address(first, spec.a.port)), (there, _port_address(last, spec.b.port)))
        yield sample.copy(link_name(spec), ((one, spec.a.node), (other, spec.b.node), *ends))


def _etcd_url(cluster: Cluster) -> str:
    """The URL of the cluster's etcd, from its command line."""
    for process in processes.descendants(cluster.pid, processes.all_processes()):
        words = process.command.split()
        if words and Path(words[0]).name == "etcd":
            return next(word.partition("=")[2] for word in words if word.startswith("--listen-client-urls=")).split(",")[0]
    raise NotWritten("no etcd of the cluster runs")


async def put(cluster: Cluster, kept: Iterable[tuple[str, str]]) -> None:
    """Writes keys and values to the cluster's etcd, through its JSON gateway. Raises NotWritten."""
    pki = cluster.folder.pki
    context = ssl.create_default_context(cafile=str(pki / "etcd-ca.crt"))
    context.load_cert_chain(pki / "etcd-client.crt", pki / "etcd-client.key")
    url = urlsplit(_etcd_url(cluster))
    waiting: list[Json] = []

    async def send(session: aiohttp.ClientSession) -> None:
        async with session.post(f"https://{url.netloc}/v3/kv/txn", json={"success": waiting}, ssl=context) as answer:
            if answer.status != 200 or not (await answer.json()).get("succeeded"):
                raise NotWritten(f"etcd: HTTP {answer.status}: {(await answer.text())[:300]}")
        waiting.clear()

    async with aiohttp.ClientSession() as session:
        for key, value in kept:
            coded = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value.encode()).decode()}
            waiting.append({"requestPut": coded})
            if len(waiting) == TXN_PUTS:
                await send(session)
                await asyncio.sleep(0)
        if waiting:
            await send(session)
