"""What a thousand agents write, before one operator on a real API server: its start-up, its memory, a change to its summary.

The Nodes, NodeProfiles and ThunderboltLinks are what the agents of a thousand recorded Studios in one ring would have written;
no kubelet runs, and the controller manager is off, which would call such Nodes lost.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_agent.derive.profile import profile
from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.parsers import hardware, thunderbolt
from thunderfleet_agent.publish.publisher import LINKS, PROFILES, field_manager
from thunderfleet_crds.apimodel import ObjectMeta
from thunderfleet_crds.nodeprofile import NodeProfile, NodeProfileStatus
from thunderfleet_crds.thunderboltlink import Endpoint, LinkEnd, ThunderboltLink, ThunderboltLinkSpec, link_name, ordered
from thunderfleet_lib.kube import Kube
from thunderfleet_lib.macnet import parse as network
from thunderfleet_lib.rdma import parse
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.recorded.folder import texts

from tests.bench import processes
from tests.bench.figures import Bound, Figure

MACS = 1000
CHANGES = 10
AT_ONCE = 24
WAIT_SECONDS = 300.0
POLL_SECONDS = 0.02
# A port other than that of an operator that already runs on this machine.
METRICS_PORT = 9499
ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "thunderfleet-system"
PAIR = """
machines:
  - {name: a, model: Mac Studio (M3 Ultra), rdma: true}
  - {name: b, model: Mac Studio (M3 Ultra), rdma: true}
cables:
  - {a: "a:1", b: "b:2", speed: 80}
  - {a: "a:2", b: "b:1", speed: 80}
"""


class NotInTime(RuntimeError):
    """A wait reached its limit."""


def _status() -> NodeProfileStatus:
    """What the agent of a Studio with two cables publishes."""
    plan = plan_layout(parse_fleet(PAIR), "namespaces")
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


def _name(number: int) -> str:
    return f"mac-{number % MACS:04}"


def _spec(number: int) -> ThunderboltLinkSpec:
    """The cable from a Mac's port 1 to the next Mac's port 2."""
    return ordered(LinkEnd(node=_name(number), port=1), LinkEnd(node=_name(number + 1), port=2))


def _endpoint(status: NodeProfileStatus, node: str, port: int, sees: bool = True) -> Endpoint:
    """An end as its agent reports it."""
    device = next(d for d in (status.rdma.devices if status.rdma else ()) if d.interface == f"en{port + 1}")
    return Endpoint(
        node=node,
        port=port,
        interface=f"en{port + 1}",
        rdma_device=device.name,
        rdma_state=device.state,
        address="10.64.1.1",
        speed_mbps=80_000,
        sees_peer=sees,
    )


async def _all(work: Iterable[Awaitable[object]]) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(task: Awaitable[object]) -> None:
        async with limit:
            await task

    await asyncio.gather(*(one(task) for task in work))


async def _mac(kube: Kube, number: int, status: NodeProfileStatus) -> None:
    name = _name(number)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": "darwin"}}}
    await kube.create("/api/v1/nodes", {**node, "status": {"conditions": [ready]}})
    whole = NodeProfile(metadata=ObjectMeta(name=name), status=status).dump()
    manager = field_manager(name)
    main = {key: value for key, value in whole.items() if key != "status"}
    await kube.apply(f"{PROFILES}/{name}", main, manager)
    await kube.apply(f"{PROFILES}/{name}/status", whole, manager)


async def _say(kube: Kube, spec: ThunderboltLinkSpec, endpoint: Endpoint) -> None:
    name, manager = link_name(spec), field_manager(endpoint.node)
    main = ThunderboltLink(metadata=ObjectMeta(name=name), spec=spec).dump()
    main.pop("status", None)
    await kube.apply(f"{LINKS}/{name}", main, manager)
    head = {"apiVersion": main["apiVersion"], "kind": main["kind"], "metadata": {"name": name}}
    await kube.apply(f"{LINKS}/{name}/status", {**head, "status": {"endpoints": [endpoint.dump()]}}, manager)


async def _link(kube: Kube, number: int, status: NodeProfileStatus) -> None:
    spec = _spec(number)
    for end in (spec.a, spec.b):
        await _say(kube, spec, _endpoint(status, end.node, end.port))


async def _until(holds: Callable[[], Awaitable[bool]], what: str, pause: float) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not await holds():
        if time.monotonic() > deadline:
            raise NotInTime(f"{what}: not within {WAIT_SECONDS:.0f} s")
        await asyncio.sleep(pause)


async def _measure(kubeconfig: Path, logs: Path, say: Callable[[str], None]) -> list[Figure]:
    status = _status()
    async with await Kube.connect(kubeconfig) as kube:
        began = time.monotonic()
        await _all(_mac(kube, number, status) for number in range(MACS))
        await _all(_link(kube, number, status) for number in range(MACS))
        say(f"{MACS} Macs and as many cables written in {time.monotonic() - began:.0f} s")
        program = "import sys; from thunderfleet_operator.cli import main; sys.exit(main())"
        run = ("run", "--kubeconfig", str(kubeconfig), "--metrics-port", str(METRICS_PORT))
        command = [sys.executable, "-c", program, *run]
        began = time.monotonic()
        with (logs / "operator.log").open("wb") as log:
            operator = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:

            async def summarised() -> bool:
                if operator.returncode is not None:
                    said = (logs / "operator.log").read_text(errors="replace").strip()[-500:]
                    raise NotInTime(f"the operator ended with {operator.returncode}: {said}")
                items, _ = await kube.list(LINKS)
                return all(item.get("status", {}).get("rdma") for item in items)

            await _until(summarised, "all cables summarised", 0.5)
            started = time.monotonic() - began
            taken = processes.usage(operator.pid)
            if taken is None:
                raise NotInTime("the operator's memory is read from /proc, which this machine does not have")
            samples = [await _change(kube, number * 17, status) for number in range(CHANGES)]
        finally:
            with contextlib.suppress(ProcessLookupError):
                operator.terminate()
            try:
                await asyncio.wait_for(operator.wait(), 10)
            except TimeoutError:
                operator.kill()
                await operator.wait()
    about = f"{MACS} Macs, {MACS} cables"
    return [
        Figure("operator-1000-start", "s", (started,), note=f"process start to the last of {MACS} summaries written"),
        Figure(
            "operator-1000-memory",
            "MB",
            (taken.rss / 1e6,),
            bound=Bound("<=", 170),
            note=f"RSS, {about}; {taken.cpu_seconds:.0f} s of a core so far",
        ),
        Figure("operator-1000-change", "ms", tuple(samples), note=f"an end's change to its link's summary, {about}"),
    ]


async def _change(kube: Kube, number: int, status: NodeProfileStatus) -> float:
    """Milliseconds from an agent's write (its end reports half the speed) to the link's summary with that speed."""
    spec = _spec(number)
    slow = _endpoint(status, spec.a.node, spec.a.port).model_copy(update={"speed_mbps": 40_000})
    began = time.perf_counter()
    await _say(kube, spec, slow)

    async def reported() -> bool:
        found = await kube.get(f"{LINKS}/{link_name(spec)}")
        return bool(found["status"].get("rdma") == "BelowThunderbolt5")

    await _until(reported, f"the change of {link_name(spec)}", POLL_SECONDS)
    return (time.perf_counter() - began) * 1000


def thousand(say: Callable[[str], None]) -> list[Figure]:
    """Runs on its own control plane, which it stops afterwards. Raises NotInTime, LocalClusterError."""
    fleet = "machines:\n  - {name: idle-1, kind: linux}\n"
    cluster = Cluster.start(fleet, name=f"bench-thousand-{os.getpid()}", join=False)
    try:
        cluster.component("kube-controller-manager", "off")
        crds = [part for file in sorted((ROOT / "crds").glob("*.yaml")) for part in ("-f", str(file))]
        cluster.kubectl("apply", "--server-side", *crds)
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        cluster.kubectl("create", "namespace", NAMESPACE)
        return asyncio.run(_measure(cluster.kubeconfig, cluster.logs, say))
    finally:
        cluster.stop()
        remove(cluster.folder, everything=True)
