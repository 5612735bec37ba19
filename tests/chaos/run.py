"""Carries out a plan: deploys, injects faults, undoes them, and checks the cluster after each one."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import quote

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.models import tinymodel

from tests.chaos import checks, culprit, faults, judge, stages
from tests.chaos.clients import Clients, Outcome, Question
from tests.chaos.culprit import Channel, Culprit
from tests.chaos.looks import Bystander, Eye, Writes, most_frequent, per_second
from tests.chaos.person import Person
from tests.chaos.plan import START, Action, Episode, Stage, Step, Target
from tests.chaos.report import Record
from tests.chaos.stages import Passed, Subject, wait_for
from tests.support.api import Api
from tests.support.line import CHILDREN, MANAGED, MODEL, QUICK, Deployment, Line, condition
from tests.support.monitoring.prometheusserver import Prometheus
from tests.support.waiting import NotInTimeError

RECOVER_SECONDS = 300.0
NOTICE_SECONDS = 120.0
"""Within this time the control plane reports a Mac that stays away as not Ready."""
SETTLE_SECONDS = 120.0
GONE_SECONDS = 180.0
REFERENCE_SECONDS = 180.0
WATCH_SECONDS = 0.5
STEADY_ANSWERS, STEADY_SECONDS = 12, 120.0
"""Whole answers that the clients still get after the group serves again, and the limit for that."""
PROMPTS = (
    ("What does model 17 say to rank?", 200),
    (tinymodel.MESSAGES[0]["content"], tinymodel.TOKENS),
    ("What does switch 71 say to Mac?", 200),
)
"""Prompts with long answers in which the best two logits of one process differ by at least 9e-3."""
SHORT = ("Who is rank 0?", 20)

# One process of mlx-lm for all prompts, because starting it takes longest.
ALONE = """
import json, pathlib, sys
from thunderfleet_localcluster.models.reference import greedy
print(json.dumps([greedy(pathlib.Path(sys.argv[1]), prompt, tokens) for prompt, tokens in json.loads(sys.argv[2])]))
"""


def references(model: Path, prompts: Sequence[tuple[str, int]]) -> list[Question]:
    """The answers of a single mlx-lm process."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(model), json.dumps(prompts)],
        capture_output=True,
        text=True,
        timeout=REFERENCE_SECONDS,
        check=True,
    )
    answers = json.loads(done.stdout.splitlines()[-1])
    return [Question(prompt, tokens, tuple(ids)) for (prompt, tokens), ids in zip(prompts, answers, strict=True)]


@dataclass
class Runner:
    """Runs episodes on one fleet. ``say`` is called with a line per step.

    ``prometheus``: has the alerts that a user sees. ``look``: a fault that is undone lasts until ``why``, the live page and
    an alert have named what was hit, but at most this many seconds longer than planned.
    """

    line: Line
    say: Callable[[str], None]
    prometheus: Prometheus | None = None
    look: float = 0.0
    bystander: Bystander = field(init=False)

    def __post_init__(self) -> None:
        self.api = Api(self.line.cluster)
        self.writes = Writes(self.line.cluster.logs / "audit.log")
        *self.questions, self.short = references(self.line.cluster.models / MODEL, (*PROMPTS, SHORT))

    def run(self, seed: int, episodes: Iterable[Episode]) -> Iterator[list[Record]]:
        """Yields the records of every episode as it completes."""
        other = self.line.deploy("bystander", nodes={"min": 1, "max": 1}, benchmark=QUICK).until_ready()
        with Eye(self.api, other.namespace, other.name) as eye:
            self.bystander = Bystander(other, eye)
            for episode in episodes:
                yield list(self._episode(seed, episode))
        self.line.forget(other)

    def _episode(self, seed: int, episode: Episode) -> Iterator[Record]:
        wait_for(self._all_take_pods, "all machines are Ready and take pods", RECOVER_SECONDS)
        start = episode.steps[0].stage
        benchmark = any(step.stage is Stage.BENCHMARK for step in episode.steps)
        held, slowed = stages.prepare(self.line, episode.shape, start) if start in START else ([], False)
        deployment = None
        try:
            deployment = self.line.deploy(f"chaos-{seed}-{episode.number}", **stages.spec(episode.shape, benchmark))
            with Eye(self.api, deployment.namespace, deployment.name) as eye:
                subject = Subject(self.line, self.api, episode.shape, deployment, eye, held, slowed)
                try:
                    for number, step in enumerate(episode.steps):
                        record = Record(seed, episode.number, number, episode.macs, str(episode.shape), step)
                        self.writes.begin()
                        self._step(subject, step, record)
                        events = self.writes.events()
                        counts = per_second(events)
                        record.writes, record.written = median(counts), sum(counts)
                        record.violations += [f"{text}: {most_frequent(events)}" for text in judge.busy(counts)]
                        self.say(record.line())
                        yield record
                        if record.violations or (record.explained and not record.recovered):
                            self.say(self.line.report())
                            break
                finally:
                    stages.release(subject)
        finally:
            if deployment is None:
                for name in held:
                    self.line.cluster.machines[name].thaw_kubelet()
            else:
                self._clear(deployment)

    def _all_take_pods(self) -> bool:
        """Whether no fault of the last deployment has left a taint: kubelets may be frozen before the next one is placed."""
        taints = (taint["key"] for node in self.api.items("/api/v1/nodes") for taint in node["spec"].get("taints") or [])
        return self.line.ready_machines() and not any(key.startswith("node.kubernetes.io/") for key in taints)

    def _clear(self, deployment: Deployment) -> None:
        """Deletes the deployment, in whatever state the faults left it."""
        wait_for(lambda: self.api.get("/version"), "the API server answers", RECOVER_SECONDS)
        with contextlib.suppress(NotInTimeError):
            self.line.forget(deployment)

    # --- one fault ---

    def _step(self, subject: Subject, step: Step, record: Record) -> None:
        def clients_of(eye: Eye) -> Clients:
            return Clients(self.line.cluster.proxy, lambda: eye.endpoint, MODEL, self.questions, self.short)

        clients, others = clients_of(subject.eye), clients_of(self.bystander.eye)
        try:
            leader = faults.Leader.find(self.line)
            record.observed = stages.reach(subject, step.stage, clients)
            self._bystander_serves()
        except Passed as passed:
            record.observed = str(passed)
            stages.release(subject)
            clients.stop()
            return
        except (NotInTimeError, LocalClusterError) as error:
            record.violations.append(f"{step.stage.value} was not reached: {error}; {subject.deployment.conditions()}")
            clients.stop()
            return
        touched = judge.touched(step, subject.nodes, self.bystander.node)
        before = self.bystander.look()
        others.start(streaming=0, whole=1)
        asked = len(clients.results)
        with Person(self.line, subject.deployment.namespace, subject.deployment.name, self.prometheus) as person:
            hits, culprits = self._inject(subject, step, leader)
            record.injected = bool(hits)
            clients.long = False
            try:
                self._survive(subject, step, record, hits, clients, partial(self._looked, person, culprits))
            except (NotInTimeError, LocalClusterError) as error:
                record.violations.append(f"after the fault: {error}")
            finally:
                record.violations += clients.stop() + others.stop()
        person.look_back()
        noticed = any(result.outcome is not Outcome.WHOLE for result in clients.results[asked:])
        record.looks, record.names = person.seen, culprit.names(culprits, person.seen, noticed)
        record.clients, record.others = clients.counts(), others.counts()
        judge.answers(clients.results, step, record)
        judge.update(clients.results[asked:], step, record)
        if not touched:
            judge.untouched(others.results, record)
            record.violations += checks.disturbed(before, self.bystander.look())
        if step.stage is not Stage.DRAINING and record.recovered:
            self._settled(subject, record)
        record.violations += sorted(subject.eye.mixtures)
        subject.eye.mixtures.clear()

    def _inject(self, subject: Subject, step: Step, leader: faults.Leader) -> tuple[list[faults.Hit], list[Culprit]]:
        hits: list[faults.Hit] = []
        culprits: list[Culprit] = []
        nodes, pods = subject.nodes, subject.pods()
        try:
            for blow in step.blows:
                neighbor = nodes[(blow.rank + 1) % len(nodes)]
                at = faults.Place(self.line, subject.deployment.name, nodes[blow.rank], neighbor, leader)
                if hit := faults.inject(blow.fault, at):
                    hits.append(hit)
                    pod = pods.get(at.node, "")
                    if found := culprit.culprit(blow.fault, at.node, neighbor, blow.rank, pod):
                        culprits.append(found)
        except BaseException:
            _undo(hits)
            raise
        return hits, culprits

    def _looked(self, person: Person, culprits: Sequence[Culprit]) -> None:
        """Lets a fault last until a user could read everywhere what was hit."""
        deadline = time.monotonic() + self.look
        while time.monotonic() < deadline and not person.knows(culprits, (Channel.WHY, Channel.PAGE, Channel.ALERT)):
            threading.Event().wait(WATCH_SECONDS)

    def _survive(
        self,
        subject: Subject,
        step: Step,
        record: Record,
        hits: Sequence[faults.Hit],
        clients: Clients,
        looked: Callable[[], None],
    ) -> None:
        """Waits until the fault is over and the deployment is well again, or gone."""
        if step.does(Action.LOSE):
            self._lost(subject, step, record, hits, clients, looked)
            return
        began = self._outlast(subject, step, hits, clients, looked)
        if step.stage is Stage.DRAINING:
            self._gone(subject, record, began)
        else:
            self._recovered(subject, record, began)
            self._steady(clients, record)

    def _outlast(
        self, subject: Subject, step: Step, hits: Sequence[faults.Hit], clients: Clients, looked: Callable[[], None]
    ) -> float:
        """Waits for the duration of the fault, then undoes it. Returns when (monotonic seconds) recovery can start."""
        began = time.monotonic()
        try:
            stages.release(subject)
            if not clients.started:
                clients.start(streaming=1, whole=1)
            if any(hit.undo for hit in hits) and not step.does(Action.UPDATE):
                # The length of the fault, not a wait.
                threading.Event().wait(step.seconds)
                looked()
        finally:
            if _undo(hits):
                began = time.monotonic()
        return began

    def _lost(
        self,
        subject: Subject,
        step: Step,
        record: Record,
        hits: Sequence[faults.Hit],
        clients: Clients,
        looked: Callable[[], None],
    ) -> None:
        """What is lost comes back only when the deployment serves without it, or shows in status what is missing."""
        began = time.monotonic()
        try:
            stages.release(subject)
            if not clients.started:
                clients.start(streaming=1, whole=1)
            if any(blow.fault.target is not Target.CABLE for blow in step.blows):
                away = hits[0].machine
                wait_for(lambda: not self._ready(away), f"the Node {away} is not Ready", NOTICE_SECONDS)
            self._placed_or_explained(subject, record, hits, began)
            looked()
        finally:
            _undo(hits)
        if not record.recovered and record.explained:
            self._recovered(subject, record, time.monotonic())
        wait_for(self.line.ready_machines, "all machines are Ready", RECOVER_SECONDS)
        self._steady(clients, record)

    def _ready(self, node: str) -> bool:
        found = self.api.get(f"/api/v1/nodes/{node}")
        return found is not None and condition(found, "Ready").get("status") == "True"

    def _placed_or_explained(self, subject: Subject, record: Record, hits: Sequence[faults.Hit], began: float) -> None:
        names = {name for hit in hits for name in hit.names}

        def over() -> bool:
            if self._serves(subject, record):
                record.recovered, record.seconds = True, time.monotonic() - began
                return True
            text = checks.explains(subject.eye.status, checks.TROUBLE)
            record.explained = text if any(name in text for name in names) else ""
            return bool(record.explained)

        try:
            wait_for(over, "it serves elsewhere, or status shows what is lost", RECOVER_SECONDS)
        except NotInTimeError:
            conditions = json.dumps(subject.eye.status.get("conditions", []))
            record.violations.append(f"neither serves nor names one of {sorted(names)} and what to do: {conditions}")

    def _steady(self, clients: Clients, record: Record) -> None:
        """Waits until the clients have got whole answers after the recovery."""
        if not record.recovered:
            return
        wanted = clients.whole() + STEADY_ANSWERS
        try:
            wait_for(lambda: clients.whole() >= wanted, "the clients get whole answers", STEADY_SECONDS)
        except NotInTimeError:
            last = [f"{result.outcome.value}: {result.detail}" for result in clients.results[-5:]]
            record.violations.append(f"serves, but clients do not get {STEADY_ANSWERS} whole answers; the last: {last}")

    def _bystander_serves(self) -> None:
        """Waits until the bystander serves, also after a fault that hit its Mac."""
        wait_for(lambda: self.bystander.deployment.is_ready() and self.bystander.eye.endpoint, "the bystander is Ready")

    def _serves(self, subject: Subject, record: Record) -> bool:
        deployment = subject.deployment
        path = f"/apis/thunderfleet.io/v1alpha1/namespaces/{deployment.namespace}/modeldeployments/{deployment.name}"
        item = self.api.get(path)
        if item is None:
            record.violations.append("the ModelDeployment is gone")
            return True
        ready = condition(item, "Ready")
        subject.eye.status = item.get("status", {})
        if ready.get("status") != "True" or ready.get("observedGeneration") != item["metadata"]["generation"]:
            return False
        subject.eye.endpoint = item["status"]["endpoint"]
        asked = Clients(self.line.cluster.proxy, lambda: subject.eye.endpoint, MODEL, [], self.short)
        result = asked.ask(self.short)
        if result.outcome is Outcome.WRONG:
            record.violations.append(f"after the fault: {result.detail}")
            return True
        return result.outcome is Outcome.WHOLE

    def _recovered(self, subject: Subject, record: Record, began: float) -> None:
        try:
            wait_for(lambda: self._serves(subject, record), "the deployment serves", RECOVER_SECONDS)
        except NotInTimeError:
            record.explained = checks.explains(subject.eye.status)
            if not record.explained:
                conditions = json.dumps(subject.eye.status.get("conditions", []))
                record.violations.append(
                    f"the deployment does not serve within {RECOVER_SECONDS:.0f} s, and status does not give the reason: "
                    f"{conditions}"
                )
            return
        record.recovered = True
        record.seconds = time.monotonic() - began

    def _settled(self, subject: Subject, record: Record) -> None:
        """Waits until nothing is duplicated, lost or orphaned after the recovery."""
        wrong: list[str] = []

        def settled() -> bool:
            plan = subject.plan()
            if plan is None:
                wrong[:] = ["the plan of the epoch in status does not exist"]
                return False
            nodes = [rank["node"] for rank in plan["ranks"]]
            children = subject.deployment.children()
            seen, listening = subject.deployment.seen()
            other = self.bystander.deployment.ports()
            wrong[:] = [
                *checks.objects(children, plan["epoch"], subject.shape.ranks),
                *checks.processes(seen, nodes),
                *checks.ports(listening - other, plan),
                *self._unaccounted(),
            ]
            return not wrong

        try:
            wait_for(settled, "objects, processes and ports match the plan", SETTLE_SECONDS)
        except NotInTimeError:
            record.violations += wrong or ["what is left could not be read"]

    def _unaccounted(self) -> list[str]:
        """Processes, folders and objects that belong to nothing that exists, and cluster components that do not run."""
        censuses = {}
        for name, machine in self.line.cluster.machines.items():
            root, limit = str(machine.folder / "kubelet"), str(checks.TEMPORARY)
            ran = machine.run((sys.executable, "-S", "-c", checks.CENSUS, root, limit))
            if ran.returncode:
                raise LocalClusterError(f"{name}: {ran.stderr}")
            censuses[name] = checks.census(ran.stdout)
        components = self.line.cluster.status()["components"]
        ended = [f"{item['name']} has ended ({item['end']})" for item in components if not item["pid"]]
        managed = [item for plural in CHILDREN for item in self.api.items(f"/api/v1/{plural}?labelSelector={quote(MANAGED)}")]
        namespaces = {deployment.namespace for deployment in self.line.deployments}
        accounts = checks.accounts(censuses, self.api.items("/api/v1/pods"))
        return ended + accounts + checks.strays(managed, namespaces)

    def _gone(self, subject: Subject, record: Record, began: float) -> None:
        """Waits until no object, process or port of the deployment is left."""
        left: list[str] = []

        def gone() -> bool:
            self.api.get("/version")
            other = self.bystander.deployment.ports()
            seen, listening = subject.deployment.seen()
            children = subject.deployment.children()
            left[:] = [f"{child['kind']} {child['metadata']['name']} is left" for child in children]
            left.extend(seen)
            left.extend(self._unaccounted())
            left.extend(f"{machine}: port {port}" for machine, port in sorted(listening - other) if port in checks.PORTS)
            return not left

        try:
            wait_for(gone, "nothing is left", GONE_SECONDS)
        except NotInTimeError:
            record.violations += left or ["the API server did not answer, so what is left is unknown"]
            return
        record.recovered, record.seconds = True, time.monotonic() - began


def _undo(hits: Sequence[faults.Hit]) -> bool:
    """Undoes faults, the last one first. Returns whether there was anything to undo."""
    with contextlib.ExitStack() as stack:
        for hit in hits:
            if hit.undo:
                stack.callback(hit.undo)
        # Leaving the block calls all of them, also when one fails.
    return any(hit.undo for hit in hits)
