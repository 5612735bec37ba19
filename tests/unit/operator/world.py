"""An API server in memory, as faithful as the operator needs, with a fleet, pods and groups that tests change."""

import copy
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_lib.kube import ApiError
from thunderfleet_operator.act.controllers.certificate import CertificateController
from thunderfleet_operator.act.controllers.link import LinkController
from thunderfleet_operator.act.controllers.mac import MacController
from thunderfleet_operator.act.drains import Drains
from thunderfleet_operator.act.events import About, manifest
from thunderfleet_operator.act.executor import Executor
from thunderfleet_operator.act.pacing import Pacing
from thunderfleet_operator.act.writer import Writer
from thunderfleet_operator.decide.deployment import Settings
from thunderfleet_operator.decide.manifests import PodSettings
from thunderfleet_operator.decide.placing.ports import PortSettings
from thunderfleet_operator.decide.routing.endpoints import RouterSettings
from thunderfleet_operator.decide.status.events import Occurrence
from thunderfleet_operator.decide.weights.manifests import NO_HUB
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.plans import Report
from thunderfleet_operator.observe.objects.proofs import Keyring
from thunderfleet_operator.observe.objects.routers import is_router
from thunderfleet_operator.placement import Question
from thunderfleet_operator.placement.questions import answer
from thunderfleet_operator.planning.answers import KnownAnswers
from thunderfleet_operator.reconcile import Reconciler
from thunderfleet_operator.reservations import Reservations
from thunderfleet_operator.scaling import ScalingMemory
from thunderfleet_operator.watch.cache import CACHED, DEPLOYMENTS, LINKS, NODEPROFILES, NODES, PODS, Cache, Collection

Json = dict[str, Any]
GIB = 2**30


class InlinePlanner:
    """Stands in for ``Planner``: answers every question at once, except while ``silent``."""

    def __init__(self) -> None:
        self._known: dict[str, KnownAnswers] = {}
        self.silent = False
        self.asked: list[Question] = []
        """The questions so far."""

    def answers(self, key: str) -> KnownAnswers:
        return self._known.setdefault(key, KnownAnswers(lambda: 0.0))

    def take_better(self, key: str) -> Mapping[int, str | None]:
        return self.answers(key).take_better()

    async def ask(self, key: str, questions: Mapping[int, Question]) -> bool:
        self.asked += questions.values()
        for group, question in questions.items() if not self.silent else ():
            self.answers(key).put(group, question, answer(question))
        return bool(questions) and not self.silent

    def keep(self, key: str, groups: Set[int]) -> None:
        self.answers(key).keep(groups)

    def in_line(self, key: str) -> bool:
        return False

    def round_over(self, key: str) -> None:
        return

    def forget(self, key: str) -> None:
        self._known.pop(key, None)


class World:
    """Objects by path with their resourceVersions, a cache without delay, and the reports of groups.

    It stands in for two clients of the operator: ``Kube`` and ``GroupClient``.
    """

    def __init__(self) -> None:
        self.cache = Cache()
        self.objects: dict[str, Json] = {}
        self.applied: dict[str, Json] = {}
        self.version = 0
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.writes: list[tuple[str, str]] = []
        self.reads: list[str] = []
        """Paths of objects that were read past the cache."""
        self.host = "https://192.168.64.1:6443"
        self.refuse: Callable[[str, str], ApiError | None] = lambda verb, path: None
        self.reports: dict[int, tuple[int, Report]] = {}
        self.drained: list[tuple[int, int]] = []
        self.listened: dict[int, Any] = {}
        self.events: list[Json] = []
        """The Events that were created."""
        self.changes: list[tuple[Collection, str, Json | None, Json | None]] = []
        """What the writer reported."""
        self.metrics = Metrics()
        self.is_leading = True
        self.term = 1
        """The number of the term while it leads."""
        self.keys = Keyring(b"k" * 32)
        """The operator's keys; set it and call ``restarted`` to lose or to rotate them."""
        self.routers: RouterSettings | None = None
        """Settings of routers; set it and call ``restarted``."""
        self.hub = NO_HUB
        """Settings of the hub; set it and call ``restarted``."""
        self.pace = 0.0
        """Seconds between two writes of progress; set it and call ``restarted``."""
        self.reconciler = self.restarted()

    def restarted(self, client: Any = None) -> Reconciler:
        """A new operator process over the same API server. ``client`` of the groups: in place of the reports kept here."""
        kube: Any = self
        groups: Any = client or self
        settings = Settings(PodSettings("thunderfleet/thunderfleet:test"), PortSettings(), self.routers, self.hub)
        self.scaling = ScalingMemory(lambda: self.now.timestamp())
        self.yielding: list[str] = []
        self.index = Index(self.cache, lambda: self.keys)
        writer = Writer(kube, self.cache, self.metrics, self.leads, self.changed, self.happened)
        self.links = LinkController(self.index, writer, lambda: self.now, lambda: None)
        self.certificates = CertificateController(kube, self.index, writer, lambda: self.now)
        self.macs = MacController(self.index, writer, lambda: self.now)
        drains = Drains(groups, lambda: self.now.timestamp())
        self.unchecked: list[str] = []
        """ModelDeployments whose Secrets are to be checked later."""
        executor = Executor(
            *(writer, groups, self.macs, drains, self.metrics, settings.pods, lambda: self.keys),
            later=self.unchecked.append,
            pacing=Pacing(self.pace, lambda: self.now.timestamp()),
        )
        self.executor = executor
        self.reservations = Reservations(self.refill)
        self.planner = InlinePlanner()
        planner: Any = self.planner
        self.reconciler = Reconciler(
            self.index,
            groups,
            drains,
            executor,
            settings,
            planner,
            lambda: self.now,
            lambda: self.now.timestamp(),
            self.scaling,
            self.yielding.append,
            reservations=self.reservations,
        )
        self.writer = writer
        return self.reconciler

    def leads(self) -> int:
        """The number of this replica's term, 0 while it does not lead."""
        return self.term if self.is_leading else 0

    def changed(self, collection: Collection, key: str, before: Json | None, after: Json | None) -> None:
        self.changes.append((collection, key, before, after))

    def happened(self, about: About, occurrence: Occurrence) -> None:
        self.events.append(manifest(about, occurrence, "operator-0"))

    async def refill(self) -> None:
        """Lists everything once more."""
        for path, item in self.objects.items():
            meta = item["metadata"]
            for collection in CACHED:
                if path == collection.item(meta.get("namespace"), meta["name"]):
                    self.cache[collection].put(copy.deepcopy(item))

    # --- Kube ---

    def _stamp(self, item: Json) -> Json:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(item)

    def _check(self, verb: str, path: str) -> None:
        error = self.refuse(verb, path)
        if error is not None:
            raise error
        self.writes.append((verb, path))

    async def apply(self, path: str, body: Json, manager: str, *, force: bool = True) -> Json:
        assert len(manager.encode()) <= 128 and force
        self._check("apply", path)
        status = path.endswith("/status")
        path = path.removesuffix("/status")
        item = self.objects.get(path)
        uid = body["metadata"].get("uid")
        if uid is not None and (item is None or item["metadata"]["uid"] != uid):
            raise ApiError(409, "Conflict", f"{path}: the UID is another one")
        if item is None:
            if status:
                raise ApiError(404, "NotFound", f"{path} not found")
            item = {"metadata": {"uid": f"uid-{self.version}"}}
            self.objects[path] = item
        before = copy.deepcopy(item)
        if status:
            self._apply_status(path, item, copy.deepcopy(body["status"]))
        else:
            new = {k: copy.deepcopy(v) for k, v in body.items() if k != "metadata"}
            if "/services/" in path:
                new["spec"] = _served_spec(item.get("spec", {}), new["spec"], self.applied.get(path, {}))
                self.applied[path] = copy.deepcopy(body["spec"])
            if "/endpointslices/" in path:
                new["endpoints"] = new["endpoints"] or None
            item.update(new)
            item["metadata"].update(copy.deepcopy(body["metadata"]))
        return copy.deepcopy(item) if item == before else self._stamp(item)

    def _apply_status(self, path: str, item: Json, told: Json) -> None:
        """Like server-side apply: fields that this manager applied before and now leaves out are removed."""
        status = item.setdefault("status", {})
        ours = {
            condition["type"] for condition in (*self.applied.get(path, {}).get("conditions", ()), *told.get("conditions", ()))
        }
        conditions = [c for c in status.get("conditions", ()) if c["type"] not in ours] + told.get("conditions", [])
        for key in self.applied.get(path, {}):
            status.pop(key, None)
        status.update(told)
        if conditions:
            status["conditions"] = sorted(conditions, key=lambda condition: str(condition["type"]))
        self.applied[path] = copy.deepcopy(told)

    async def create(self, path: str, body: Json) -> Json:
        if path.endswith("/events"):
            self._check("create", path)
            self.events.append(body)
            return body
        name = f"{path}/{body['metadata']['name']}"
        self._check("create", name)
        if name in self.objects:
            kind = path.rpartition("/")[2]
            raise ApiError(409, "AlreadyExists", f'{kind} "{body["metadata"]["name"]}" already exists')
        item = copy.deepcopy(body)
        item["metadata"]["uid"] = f"uid-{self.version}"
        self.objects[name] = item
        return self._stamp(item)

    async def patch(self, path: str, body: Any, content: str = "", manager: str | None = None) -> Json:
        self._check("patch", path)
        if path.endswith("/approval"):
            return self._approve(path.removesuffix("/approval"), body)
        item = self.objects[path.removesuffix("/status")]
        if "/services/" in path:
            assert item["metadata"]["uid"] == body["metadata"]["uid"]
            item["spec"].update(copy.deepcopy(body["spec"]))
            return self._stamp(item)
        assert body[0]["op"] == "test" and body[1]["op"] == "remove"
        del item["status"]["endpoints"][int(body[1]["path"].rsplit("/", 1)[1])]
        return self._stamp(item)

    def _approve(self, path: str, body: Json) -> Json:
        if path not in self.objects:
            raise ApiError(404, "NotFound", f"{path} not found")
        item = self.objects[path]
        if item["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", f"{path} has been modified")
        item["status"] = copy.deepcopy(body["status"])
        return self._stamp(item)

    async def get_or_none(self, path: str) -> Json | None:
        self.reads.append(path)
        return copy.deepcopy(self.objects.get(path))

    async def delete(self, path: str, *, uid: str | None = None, **_: Any) -> Json | None:
        self._check("delete", path)
        item = self.objects.get(path)
        if item is None or (uid is not None and item["metadata"]["uid"] != uid):
            return None
        if "/pods/" in path:
            item["metadata"]["deletionTimestamp"] = self.now.isoformat()
            return self._stamp(item)
        if "/configmaps/" in path:
            self._collect_garbage(item["metadata"]["uid"])
        return self.objects.pop(path)

    def _collect_garbage(self, uid: str) -> None:
        """Like the garbage collector, for what belongs to a ConfigMap."""
        for path, item in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", ())):
                del self.objects[path]

    # --- GroupClient ---

    def listen(self, key: str, plans: Any, connections: Any = None) -> None:
        self.listened = dict(plans)
        self.connections = dict(connections or {})

    def first_answers_in(self, key: str) -> float:
        return 0.0

    def drain(self, key: str, index: int, epoch: int) -> None:
        self.drained.append((index, epoch))

    def heard_of(self, index: int, epoch: int, state: GroupState | None, silent: float = 0.0) -> None:
        self.reports[index] = (epoch, Report(state, silent))

    def report(self, key: str, index: int, epoch: int) -> Report:
        at, report = self.reports.get(index, (0, Report()))
        if report.state is not None and report.state.ready_since is not None:
            report = replace(report, phase_seconds=(self.now - report.state.ready_since).total_seconds())
        return report if at == epoch else Report()

    # --- actions of users and other programs ---

    def put(self, collection: Any, item: Json) -> None:
        self.version += 1
        item = copy.deepcopy(item)
        item["metadata"].setdefault("uid", f"uid-{self.version}")
        item["metadata"]["resourceVersion"] = str(self.version)
        path = collection.item(item["metadata"].get("namespace"), item["metadata"]["name"])
        self.objects[path] = item
        self.cache[collection].put(copy.deepcopy(item))

    def change(self, collection: Any, key: str, change: Callable[[Json], None]) -> None:
        namespace, _, name = key.rpartition("/")
        item = self.objects[collection.item(namespace or None, name)]
        change(item)
        self.cache[collection].put(self._stamp(item))

    def remove(self, collection: Any, key: str) -> None:
        namespace, _, name = key.rpartition("/")
        item = self.objects.pop(collection.item(namespace or None, name))
        self.version += 1
        self.cache[collection].drop({**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}})

    def mac(self, name: str, address: str, memory: int, *, model: Json | None = None, ready: bool = True) -> None:
        self.put(
            NODES,
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/os": "darwin"}},
                "spec": {"taints": [{"key": "thunderfleet.io/macos", "effect": "NoSchedule"}]},
                "status": {
                    "allocatable": {"memory": str(memory)},
                    "addresses": [{"type": "InternalIP", "address": address}],
                    "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                },
            },
        )
        status = {
            "runtime": {"mlxVersion": "0.32.4", "backends": ["ring"]},
            "models": [model if model is not None else tiny_model()],
        }
        self.put(NODEPROFILES, {"metadata": {"name": name}, "status": status})

    def cable(self, a: str, b: str, a_address: str = "169.254.1.1", b_address: str = "169.254.1.2") -> None:
        self.put(
            LINKS,
            {
                "metadata": {"name": f"{a}.tb1--{b}.tb1"},
                "spec": {"a": {"node": a, "port": 1}, "b": {"node": b, "port": 1}},
                "status": {
                    "endpoints": [
                        {"node": a, "port": 1, "address": a_address, "speedMbps": 80000, "seesPeer": True},
                        {"node": b, "port": 1, "address": b_address, "speedMbps": 80000, "seesPeer": True},
                    ]
                },
            },
        )

    def deploy(self, **spec: Any) -> str:
        body = {"model": {"repository": "org/tiny"}, **spec}
        self.put(DEPLOYMENTS, {"metadata": {"name": "md", "namespace": "ns", "uid": "uid-md", "generation": 1}, "spec": body})
        return "ns/md"

    def edit(self, **spec: Any) -> None:
        def change(item: Json) -> None:
            item["spec"].update(spec)
            item["metadata"]["generation"] += 1

        self.change(DEPLOYMENTS, "ns/md", change)

    @property
    def md(self) -> ModelDeployment:
        return ModelDeployment.load(self.cache[DEPLOYMENTS].items["ns/md"])

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(c for c in self.md.status.conditions if c.type == kind)
        return found.status.value, found.reason, found.message

    def pods(self) -> dict[str, Json]:
        """Those that are no routers."""
        return {item["metadata"]["name"]: item for item in self.cache[PODS] if not is_router(item)}

    def run_pods(self) -> None:
        """Every pod that does not terminate starts to run on its Node."""
        for name, pod in list(self.pods().items()):
            if pod["metadata"].get("deletionTimestamp"):
                continue

            def start(item: Json) -> None:
                terms = item["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                item["spec"]["nodeName"] = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
                running = {"name": "runner", "restartCount": 0, "state": {"running": {}}}
                item["status"] = {"phase": "Running", "containerStatuses": [running]}

            self.change(PODS, f"ns/{name}", start)

    def end_pods(self) -> None:
        """Terminating pods end."""
        for name, pod in list(self.pods().items()):
            if pod["metadata"].get("deletionTimestamp"):
                self.remove(PODS, f"ns/{name}")

    def say(self, phase: str, epoch: int, index: int = 0, **more: Any) -> None:
        ranks = [
            {"rank": r.rank, "node": r.node, "phase": "Serving" if phase == "Ready" else "Joined"}
            for g in self.md.status.groups
            if g.index == index
            for r in g.ranks
        ]
        told = {"uid": "uid-md", "index": index, "epoch": epoch, "phase": phase, "ranks": ranks, **more}
        if phase == "Ready":
            told.setdefault("readySince", self.now)
        self.heard_of(index, epoch, GroupState.model_validate(told))

    async def serve(self, epoch: int = 1) -> None:
        """Places the group of the deployment, and lets it report that it is Ready."""
        await self.round()
        self.run_pods()
        self.say("Ready", epoch)
        await self.round()

    async def serve_two_groups(self) -> None:
        """Deploys two groups of one Mac each, which are Ready."""
        self.mac("big-1", "10.0.0.8", 64 * GIB)
        self.deploy(replicas=2, nodes={"max": 1})
        await self.round()
        self.run_pods()
        for index in (0, 1):
            self.say("Ready", 1, index)
        await self.round()
        assert [(group.epoch, group.state.value) for group in self.md.status.groups] == [(1, "Ready"), (1, "Ready")]

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def versions(self) -> dict[str, str]:
        return {path: item["metadata"]["resourceVersion"] for path, item in self.objects.items()}

    async def round(self) -> float | None:
        return await self.reconciler.deployment("ns/md")


def _served_spec(before: Json, applied: Json, previous: Json) -> Json:
    """The spec of a Service after an apply, as a real API server answers. ``previous``: what was applied before.

    Fields and ports that the manifest does not name stay if another manager has set them, such as one that created the Service.
    The type ExternalName has no address. An empty selector is removed.
    """
    kept = {key: before[key] for key in ("clusterIP", "selector") if key in before and applied.get("type") != "ExternalName"}
    ours = [port["port"] for port in (*applied.get("ports", ()), *previous.get("ports", ()))]
    others = [port for port in before.get("ports", ()) if port["port"] not in ours]
    if others:
        applied = {**applied, "ports": [*others, *applied.get("ports", ())]}
    return {key: value for key, value in (kept | applied).items() if value or not isinstance(value, dict)}


def tiny_model(size: int = 8 * GIB, path: str = "/models/org/tiny") -> Json:
    return {
        "path": path,
        "repository": "org/tiny",
        "bytes": size,
        "complete": True,
        "layers": 4,
        "sizes": [{"worldSize": w, "tensorBytesPerRank": [size // w] * w} for w in (1, 2)],
        "pipeline": {"layerBytes": [size // 4] * 4, "sharedBytes": 0},
        "kv": [{"bytesPerToken": 16, "tensorSplit": True}] * 4,
        "sizedBy": "MLX",
    }
