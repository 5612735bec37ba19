"""One operator before the API server of 1,000 and of 5,000 Macs: start, memory, changes, quiet, 200 groups at once.

API server, etcd, scheduler and operator are real; the Macs are simulated (``written``, ``fleetload``). The controller manager
is off: it would mark Nodes as lost whose Leases are renewed as seldom as two cores allow for 5,000. So this removes what
belonged to a deleted ModelDeployment itself.
"""

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from thunderfleet_agent.publish.publisher import LINKS, PROFILES
from thunderfleet_crds.exchange.mounts import PLAN_KEY
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.thunderboltlink import link_name
from thunderfleet_crds.names import LABEL_MANAGED_BY, MANAGED_BY
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove

from tests.bench import processes
from tests.bench.figures import Bound, Figure
from tests.bench.fleets import written
from tests.bench.fleets.written import MAC_BYTES, cable, endpoint, report_end_again

Json = dict[str, Any]
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """A fleet. ``lease_seconds``: between two renewals of a Lease. ``start``: bound of each start in seconds."""

    macs: int
    lease_seconds: float
    start: float
    memory: float | None = None
    """Bound in MB."""

    @property
    def about(self) -> str:
        """For notes."""
        return f"{self.macs} Macs and cables, {DEPLOYMENTS} ModelDeployments, a Lease each {self.lease_seconds:.0f} s"


SIZES = (Size(1000, 10, 10, 250), Size(5000, 60, 60))
DEPLOYMENTS = 200
A_MINUTE = 20
MINUTES = 3
QUIET_SECONDS = 60.0
CHANGED_MEANWHILE = 20
"""Cables that change while no operator runs."""
SETTLE_SECONDS = 5.0
"""Seconds without a change of any object that the operator writes, before its own count of writes is read; and so many seconds
more without a change or a write until it counts as done."""
WAIT_SECONDS = 600.0
# Ports other than those of an operator that already runs on this machine.
METRICS_PORT, DEMAND_PORT = 9499, 9498
ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "thunderfleet-system"
DEPLOYED = "/apis/thunderfleet.io/v1alpha1/namespaces/default/modeldeployments"
OF_GROUPS = tuple(f"/api/v1/namespaces/default/{kind}" for kind in ("pods", "configmaps", "secrets"))
WRITTEN = (
    *(LINKS, PROFILES, DEPLOYED, "/api/v1/namespaces/default/events", *OF_GROUPS),
    *("/api/v1/namespaces/default/services", "/apis/thunderfleet.io/v1alpha1/namespaces/default/modelcaches"),
)
"""The collections that the operator writes, Leases left out."""
OURS = {"labelSelector": f"{LABEL_MANAGED_BY}={MANAGED_BY}"}
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "macos"},
    "handler": "macos",
    "scheduling": {
        "nodeSelector": {"kubernetes.io/os": "darwin"},
        "tolerations": [{"key": "thunderfleet.io/macos", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
"""As the chart installs it, for pods that only Macs run."""
FEW_BOUND, MOST_BOUND = Bound("<=", 500), Bound("<=", 2000)


class NotInTime(RuntimeError):
    """A wait reached its limit, or the operator ended."""


def deployment(name: str) -> Json:
    """One group of two Macs."""
    spec = {"model": {"repository": written.REPOSITORY}, "nodes": {"min": 2, "max": 2}}
    return {
        "apiVersion": "thunderfleet.io/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def condition(item: Json, kind: str) -> str:
    """The status of a condition; "" without it."""
    found = (one["status"] for one in item.get("status", {}).get("conditions", ()) if one["type"] == kind)
    return next(found, "")


def _placed(item: Json) -> bool:
    return condition(item, "Placed") == "True"


def percentile(samples: Iterable[float], percent: float) -> float:
    """The smallest sample that is not less than so many percent of all."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _named(items: Iterable[Json]) -> dict[str, Json]:
    return {item["metadata"]["name"]: item for item in items}


def _versions(items: Mapping[str, Json]) -> dict[str, str]:
    return {name: item["metadata"]["resourceVersion"] for name, item in items.items()}


class Seen:
    """The newest objects of a collection, from a watch: polling would disturb what is measured."""

    def __init__(self, kube: Kube, path: str) -> None:
        self._kube, self._path = kube, path
        self.items: dict[str, Json] = {}
        self.changed_at = time.monotonic()
        """When the last change arrived."""
        self._wake = asyncio.Condition()

    async def run(self) -> None:
        """Follows the collection until cancelled."""
        while True:
            items, version = await self._kube.list(self._path)
            before, self.items = self.items, _named(items)
            # A list after a broken watch that shows the same objects is no change.
            await self._told(changed=_versions(before) != _versions(self.items))
            with contextlib.suppress(ApiError):
                async for kind, item in self._kube.watch(self._path, version):
                    if kind == "DELETED":
                        self.items.pop(item["metadata"]["name"], None)
                    elif kind in ("ADDED", "MODIFIED"):
                        self.items[item["metadata"]["name"]] = item
                    await self._told(changed=kind != "BOOKMARK")

    async def _told(self, *, changed: bool) -> None:
        if changed:
            self.changed_at = time.monotonic()
        async with self._wake:
            self._wake.notify_all()

    async def until(self, holds: Callable[[dict[str, Json]], bool], what: str) -> None:
        """Waits until the objects are as wanted. Raises NotInTime."""
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._wake:
                await self._wake.wait_for(lambda: holds(self.items))
        except TimeoutError:
            raise NotInTime(f"{what}: not within {WAIT_SECONDS:.0f} s") from None


class Operator:
    """The process of the operator."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, began: float) -> None:
        self._process, self._log = process, log
        self.began = began
        """Monotonic."""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, kubeconfig: Path, log: Path) -> AsyncIterator["Operator"]:
        """Starts it, and always ends it."""
        program = "import sys; from thunderfleet_operator.cli import main; sys.exit(main())"
        ports = ("--metrics-port", str(METRICS_PORT), "--demand-port", str(DEMAND_PORT))
        command = [sys.executable, "-c", program, "run", "--kubeconfig", str(kubeconfig), *ports]
        began = time.monotonic()
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            yield cls(process, log, began)
        finally:
            await _ended(process)

    def check(self) -> None:
        """Raises NotInTime if it has ended."""
        if self._process.returncode is not None:
            raise NotInTime(f"the operator ended with {self._process.returncode}: {_last(self._log)}")

    async def ended(self, load: asyncio.subprocess.Process, log: Path) -> None:
        """Waits until it or the load ends, and raises NotInTime."""
        both = {asyncio.create_task(process.wait()) for process in (self._process, load)}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in both:
                waiting.cancel()
        self.check()
        raise NotInTime(f"the load ended with {load.returncode}: {_last(log)}")

    def usage(self) -> processes.Usage:
        """Memory and processor time. Raises NotInTime."""
        self.check()
        found = processes.usage(self._process.pid)
        if found is None:
            raise NotInTime("the operator's memory is read from /proc, which this machine does not have")
        return found

    async def writes(self) -> Counter[str]:
        """How often it has written what, Leases left out, as it counts itself."""
        self.check()
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=aiohttp.ClientTimeout(30)) as answer,
        ):
            text = await answer.text()
        found = Counter[str]()
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name == "thunderfleet_operator_api_writes" else ():
                if sample.name.endswith("_total"):
                    found[" ".join(sample.labels.values())] += int(sample.value)
        return found


def _last(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-500:]


async def _unless(
    measuring: Coroutine[Any, Any, T], ended: Coroutine[Any, Any, None], watches: Iterable[asyncio.Task[None]]
) -> T:
    """What a measurement returns, unless a program or a watch that it needs ends before."""
    tasks = asyncio.create_task(measuring), asyncio.create_task(ended)
    try:
        await asyncio.wait({*tasks, *watches}, return_when=asyncio.FIRST_COMPLETED)
        for needed in (tasks[1], *watches):
            if needed.done() and not tasks[0].done():
                await needed
        return await tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ended(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 15)
    except TimeoutError:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def _load(kubeconfig: Path, size: Size, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The simulated Macs' programs."""
    command = [sys.executable, "-m", "tests.bench.fleets.fleetload", str(kubeconfig), str(size.macs), str(size.lease_seconds)]
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=file, cwd=ROOT)
    try:
        assert process.stdout is not None
        if not await asyncio.wait_for(process.stdout.readline(), 60):
            raise NotInTime(f"the load did not begin: {_last(log)}")
        yield process
    finally:
        await _ended(process)


class Fleet:
    """A running control plane with the objects of a fleet, and what is measured on it."""

    def __init__(self, kube: Kube, size: Size, operator: Operator, seen: Mapping[str, Seen], say: Say) -> None:
        self._kube, self._size, self._operator, self._say = kube, size, operator, say
        self._seen, self._links, self._deployed = seen.values(), seen[LINKS], seen[DEPLOYED]

    async def figures(self) -> list[Figure]:
        """All that one life of the operator shows."""
        found = [*await self.started(), await self.quiet()]
        return [*found, *await self.at_once(), *await self.changes(), self.memory()]

    async def started(self) -> list[Figure]:
        """From the operator's first start in this cluster to the last status of a cable, and until all groups serve too."""

        def summarised(items: dict[str, Json]) -> bool:
            return len(items) >= self._size.macs and all(item.get("status", {}).get("rdma") for item in items.values())

        def served(items: dict[str, Json]) -> bool:
            return len(items) >= DEPLOYMENTS and all(condition(item, "Ready") == "True" for item in items.values())

        await self._links.until(summarised, "all cables summarised")
        summaries = time.monotonic() - self._operator.began
        await self._deployed.until(served, "all groups serve")
        groups = time.monotonic() - self._operator.began
        last = await self._done() - self._operator.began
        used = self._operator.usage()
        took = f"last summary {summaries:.1f} s, last group Ready {groups:.1f} s, last change {last:.1f} s"
        self._say(f"{took}; {used.cpu_seconds:.0f} s of a core")
        bound, about = Bound("<=", self._size.start), self._size.about
        return [
            self._figure("start", "s", (max(summaries, groups),), bound, f"process start to all groups Ready; {took}; {about}"),
            self._figure("start cables", "s", (summaries,), bound, f"process start to the last status of a cable; {about}"),
        ]

    async def _done(self) -> float:
        """Waits until the operator has nothing left to write; the time of the last change of what it writes (monotonic).

        Watches see the changes: each page of the operator's metrics costs it a part of what is measured. So its own count of
        writes, which has those that change nothing as well, is read only when no object has changed for a while.
        """
        limit = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < limit:
            since = self._changed_at
            if (left := since + SETTLE_SECONDS - time.monotonic()) > 0:
                self._operator.check()
                await asyncio.sleep(left)
                continue
            counted = await self._operator.writes()
            await asyncio.sleep(SETTLE_SECONDS)
            if await self._operator.writes() == counted and self._changed_at == since:
                return since
        raise NotInTime(f"the operator still writes after {WAIT_SECONDS:.0f} s")

    @property
    def _changed_at(self) -> float:
        return max(seen.changed_at for seen in self._seen)

    def memory(self) -> Figure:
        """After all that was done."""
        used = self._operator.usage()
        bound = Bound("<=", self._size.memory) if self._size.memory is not None else None
        note = f"RSS at the end; {used.cpu_seconds:.0f} s of a core so far; {self._size.about}"
        return self._figure("memory", "MB", (used.rss / 1e6,), bound, note)

    async def quiet(self) -> Figure:
        """Objects that change while nobody changes any, Leases left out."""
        await self._done()
        before, counted = await self._written(), await self._operator.writes()
        await asyncio.sleep(QUIET_SECONDS)
        changed = {path for path, version in (await self._written()).items() if before.get(path) != version}
        more = await self._operator.writes() - counted
        for what in (*sorted(changed)[:10], *(f"{count} × {what}" for what, count in more.items())):
            self._say(f"written while quiet: {what}")
        note = f"over {QUIET_SECONDS:.0f} s: objects with another version, or writes that the operator counts; Leases left out"
        return self._figure("quiet writes", "", (float(max(len(changed), more.total())),), Bound("<=", 0), note)

    async def _written(self) -> dict[str, str]:
        found = dict[str, str]()
        for path in WRITTEN:
            items, _ = await self._kube.list(path)
            found |= {f"{path}/{name}": version for name, version in _versions(_named(items)).items()}
        return found

    async def at_once(self) -> list[Figure]:
        """As many groups again, applied at once: what they take of one another, and how soon all have a place."""
        names = [f"burst-{number:03}" for number in range(DEPLOYMENTS)]
        began = time.monotonic()
        await asyncio.gather(*(self._kube.create(DEPLOYED, deployment(name)) for name in names))
        await self._deployed.until(lambda items: all(_placed(items.get(name, {})) for name in names), "all placed")
        seconds = time.monotonic() - began
        plans = await self._plans()
        twice = _taken_twice(plans)
        self._say(f"{DEPLOYMENTS} groups placed in {seconds:.1f} s; {len(plans)} plans, {len(twice)} Macs or ports taken twice")
        for what in twice[:10]:
            self._say(f"taken twice: {what}")
        await self._done()
        about = f"{DEPLOYMENTS} groups applied beside {DEPLOYMENTS} others"
        figures = [
            self._figure("at once", "s", (seconds,), None, f"{about}: all placed"),
            self._figure("taken twice", "", (float(len(twice)),), Bound("<=", 0), f"{about}: memory of Macs, ports and epochs"),
        ]
        for name in names:
            await self._remove(name)
        await self._done()
        return figures

    async def _plans(self) -> list[Plan]:
        items, _ = await self._kube.list("/api/v1/namespaces/default/configmaps", **OURS)
        return [Plan.model_validate_json(item["data"][PLAN_KEY]) for item in items if PLAN_KEY in item.get("data", {})]

    async def _remove(self, name: str) -> None:
        """Deletes a ModelDeployment and, in place of the garbage collector, what belongs to it."""
        await self._kube.delete(f"{DEPLOYED}/{name}")
        for path in OF_GROUPS:
            items, _ = await self._kube.list(path, labelSelector=f"thunderfleet.io/deployment={name}")
            for item in items:
                await self._kube.delete(f"{path}/{item['metadata']['name']}", grace_seconds=0)

    async def changes(self) -> list[Figure]:
        """Changes at their rate, of a cable and of the ModelDeployments in turn, each to the status that follows from it."""
        cables, places = list[float](), list[float]()
        taken = {rank.node for plan in await self._plans() for rank in plan.ranks}
        specs = [cable(number, self._size.macs) for number in range(self._size.macs)]
        free = [number for number, spec in enumerate(specs) if not {spec.a.node, spec.b.node} & taken]
        before = self._operator.usage().cpu_seconds
        began = due = time.monotonic()
        for number in range(A_MINUTE * MINUTES // 2):
            cables.append(await self._changed(free[number * 17 % len(free)], number))
            due += 60 / A_MINUTE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            places.append(await self._applied(f"change-{number:03}"))
            due += 60 / A_MINUTE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        share = 100 * (self._operator.usage().cpu_seconds - before) / (time.monotonic() - began)
        about = f"of {len(cables)}, {A_MINUTE} changes a minute, operator {share:.0f} % of a core; {self._size.about}"
        what = {"change": ("an end's change to its link's status", cables), "apply": ("apply to placed", places)}
        figures = []
        for name, (text, samples) in what.items():
            figures.append(self._figure(f"{name} median", "ms", (percentile(samples, 50),), FEW_BOUND, f"{text}; {about}"))
            figures.append(self._figure(f"{name} p99", "ms", (percentile(samples, 99),), MOST_BOUND, f"{text}; {about}"))
        return figures

    async def _changed(self, number: int, turn: int) -> float:
        """Milliseconds from an agent's write (its end has another speed) to the status that shows it."""
        spec = cable(number, self._size.macs)
        name, mac = link_name(spec), int(spec.a.node.rpartition("-")[2])
        slow = self._links.items[name]["status"]["rdma"] == "Usable"
        end = endpoint(mac, spec.a.port, 40_000 if slow else 80_000)
        wanted = "BelowThunderbolt5" if slow else "Usable"
        began = time.perf_counter()
        await report_end_again(self._kube, spec, end)
        await self._links.until(lambda items: items[name]["status"].get("rdma") == wanted, f"change {turn} of {name}")
        return (time.perf_counter() - began) * 1000

    async def changed_meanwhile(self) -> dict[str, str]:
        """Changes of cables while no operator runs: the status that each is to get, by name."""
        wanted = dict[str, str]()
        for number in range(0, self._size.macs, self._size.macs // CHANGED_MEANWHILE):
            spec = cable(number, self._size.macs)
            slow = self._links.items[link_name(spec)]["status"]["rdma"] == "Usable"
            mac = int(spec.a.node.rpartition("-")[2])
            await report_end_again(self._kube, spec, endpoint(mac, spec.a.port, 40_000 if slow else 80_000))
            wanted[link_name(spec)] = "BelowThunderbolt5" if slow else "Usable"
        return wanted

    async def restarted(self, changed: dict[str, str]) -> Figure:
        """From the operator's start to the last status, where all groups serve and some cables have changed meanwhile."""

        def follows(items: dict[str, Json]) -> bool:
            return all(items[name]["status"].get("rdma") == wanted for name, wanted in changed.items())

        await self._links.until(follows, "the changes while no operator ran")
        last = await self._done() - self._operator.began
        used = self._operator.usage()
        self._say(f"restarted: last change {last:.1f} s; {used.cpu_seconds:.0f} s of a core")
        after = "process start to last change of what the operator writes"
        note = f"{after}, all groups placed before, {len(changed)} cables changed; {self._size.about}"
        return self._figure("restart", "s", (last,), Bound("<=", self._size.start), note)

    async def _applied(self, name: str) -> float:
        """Milliseconds from an apply to a place. The ModelDeployment is deleted afterwards."""
        began = time.perf_counter()
        await self._kube.create(DEPLOYED, deployment(name))
        await self._deployed.until(lambda items: _placed(items.get(name, {})), f"{name} placed")
        took = (time.perf_counter() - began) * 1000
        await self._remove(name)
        return took

    def _figure(self, name: str, unit: str, samples: tuple[float, ...], bound: Bound | None, note: str) -> Figure:
        return Figure(f"operator-{self._size.macs} {name}", unit, samples, bound=bound, note=note)


def _taken_twice(plans: Iterable[Plan]) -> list[str]:
    """The Macs with more memory reserved than they have, and ports that two ranks of a Mac have."""
    memory, ports = Counter[str](), Counter[str]()
    for plan in plans:
        for rank in plan.ranks:
            memory[rank.node] += rank.memory_bytes
            for port in (rank.control_port, rank.gateway_port):
                ports[f"port {port} of {rank.node}"] += 1 if port else 0
    full = [f"memory of {node}" for node, size in memory.items() if size > MAC_BYTES]
    return full + [port for port, ranks in ports.items() if ranks > 1]


async def _measure(cluster: Cluster, size: Size, say: Say) -> list[Figure]:
    async with await Kube.connect(cluster.kubeconfig) as kube:
        began = time.monotonic()
        samples = await written.samples(kube)
        # The objects of a transaction have one resourceVersion: a watch that begins again there misses the rest of them.
        cluster.component("kube-scheduler", "off")
        await written.put(cluster, written.objects(samples, size.macs))
        cluster.component("kube-scheduler", "on")
        say(f"{size.macs} Macs and as many cables written to etcd in {time.monotonic() - began:.0f} s")
        names = [f"chat-{number:03}" for number in range(DEPLOYMENTS)]
        await asyncio.gather(*(kube.create(DEPLOYED, deployment(name)) for name in names))
        seen = {path: Seen(kube, path) for path in WRITTEN}
        watches = [asyncio.create_task(one.run()) for one in seen.values()]
        try:
            await seen[LINKS].until(lambda items: len(items) == size.macs, "all cables seen")
            logs, log = cluster.logs, cluster.logs / "load.log"
            # One load for both operators: groups go on while none runs.
            async with _load(cluster.kubeconfig, size, log) as load:
                async with Operator.running(cluster.kubeconfig, logs / "operator.log") as operator:
                    fleet = Fleet(kube, size, operator, seen, say)
                    figures = await _unless(fleet.figures(), operator.ended(load, log), watches)
                changed = await fleet.changed_meanwhile()
                async with Operator.running(cluster.kubeconfig, logs / "operator-again.log") as operator:
                    again = Fleet(kube, size, operator, seen, say).restarted(changed)
                    return [*figures, await _unless(again, operator.ended(load, log), watches)]
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)


def _at(size: Size, say: Say) -> list[Figure]:
    """Runs on its own control plane, which it stops afterwards. Raises NotInTime, NotWritten, LocalClusterError."""
    fleet = "machines:\n  - {name: idle-1, kind: linux}\n"
    cluster = Cluster.start(fleet, name=f"bench-scale-{os.getpid()}", join=False, network="loopback")
    try:
        crds = [part for file in sorted((ROOT / "crds").glob("*.yaml")) for part in ("-f", str(file))]
        cluster.kubectl("apply", "--server-side", *crds)
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        cluster.kubectl("create", "namespace", NAMESPACE)
        cluster.kubectl("apply", "-f", "-", text=json.dumps(RUNTIME_CLASS))
        cluster.component("kube-controller-manager", "off")
        return asyncio.run(_measure(cluster, size, say))
    except NotInTime:
        # The logs are removed with the cluster.
        for log in sorted(cluster.logs.glob("operator*.log")):
            say(f"{log.name} ended with: {_last(log)}")
        raise
    finally:
        cluster.stop()
        remove(cluster.folder, everything=True)


def figures(say: Say, sizes: Iterable[Size] = SIZES) -> list[Figure]:
    """All sizes, one after the other. Raises NotInTime, NotWritten, LocalClusterError."""
    return [figure for size in sizes for figure in _at(size, say)]


if __name__ == "__main__":
    import signal

    from tests.bench.figures import table

    # What was started is stopped on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [size for size in SIZES if not sys.argv[1:] or str(size.macs) in sys.argv[1:]]
    print(table(figures(lambda text: print(text, file=sys.stderr, flush=True), chosen)))
