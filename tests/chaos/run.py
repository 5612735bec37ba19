"""Carries out a plan: deploys, injects faults, undoes them, and checks the cluster after each one."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.models import tinymodel

from tests.chaos import checks, faults, stages
from tests.chaos.clients import Clients, Outcome, Question, Result
from tests.chaos.looks import Eye
from tests.chaos.plan import BESIDE, START, Episode, Stage, Step, Target
from tests.chaos.report import Record
from tests.chaos.stages import Passed, Subject, wait_for
from tests.support.api import Api
from tests.support.line import MODEL, Deployment, Line, condition, on_fleet
from tests.support.waiting import NotInTimeError

MACS = 4
FLEET = "\n".join(
    [
        "machines:",
        "  - {name: linux-1, kind: linux}",
        "  - {name: linux-2, kind: linux}",
        *(f"  - {{name: mac-{n}, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}}"
          for n in range(1, MACS + 1)),
        "cables:",
        # Every Mac with every other: each end takes the next port of its Mac.
        *(f'  - {{a: "mac-{a}:{b - 1}", b: "mac-{b}:{a}"}}' for a in range(1, MACS + 1) for b in range(a + 1, MACS + 1)),
    ]
)  # fmt: skip

CLUSTER = "THUNDERFLEET_CHAOS_CLUSTER"
"""Environment variable: name of a cluster of this fleet that runs already, with the chart and the model."""
RECOVER_SECONDS = 300.0
SETTLE_SECONDS = 120.0
GONE_SECONDS = 180.0
REFERENCE_SECONDS = 180.0
PROMPTS = (
    ("What does model 17 say to rank?", 200),
    (tinymodel.DEMO_MESSAGES[0]["content"], tinymodel.DEMO_TOKENS),
    ("What does switch 71 say to Mac?", 200),
)
"""Prompts with long answers in which the best two logits of one process differ by at least 9e-3."""
SHORT = ("Who is rank 0?", 20)


@contextlib.contextmanager
def cluster() -> Iterator[Line]:
    """A cluster of four fully connected Macs with JACCL, or the running cluster that CLUSTER names."""
    if existing := os.environ.get(CLUSTER):
        faults.mend(Line(Cluster.attach(existing)))
    with on_fleet(FLEET, "chaos", CLUSTER) as line:
        yield line


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


def _judge(results: Iterable[Result], record: Record, gateway_hit: bool, beside: bool) -> None:
    """Adds the clients' wrong responses to the record. ``beside``: the fault did not hit the group."""
    for result in results:
        if result.outcome is Outcome.ERROR_EVENT:
            record.errors[result.detail] += 1
            if beside:
                record.violations.append(f"a client: a stream ended though the group was not hit: {result.detail}")
        elif result.outcome is Outcome.WRONG or (result.outcome is Outcome.CUT and not gateway_hit):
            record.violations.append(f"a client: {result.outcome.value}: {result.detail}")


@dataclass
class Runner:
    """``say`` is called with a line per step."""

    line: Line
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.api = Api(self.line.cluster)
        *self.questions, self.short = references(self.line.cluster.models / MODEL, (*PROMPTS, SHORT))

    def run(self, seed: int, episodes: Iterable[Episode]) -> Iterator[Record]:
        """Yields the record of every step as it completes."""
        for episode in episodes:
            yield from self._episode(seed, episode)

    def _episode(self, seed: int, episode: Episode) -> Iterator[Record]:
        wait_for(self.line.ready_machines, "all machines are Ready", RECOVER_SECONDS)
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
                        record = Record(seed, episode.number, number, str(episode.shape), step)
                        self._step(subject, step, record)
                        self.say(record.line())
                        yield record
                        if record.violations or record.explained:
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

    def _clear(self, deployment: Deployment) -> None:
        """Deletes the deployment, in whatever state the faults left it."""
        wait_for(lambda: self.api.get("/version"), "the API server answers", RECOVER_SECONDS)
        with contextlib.suppress(NotInTimeError):
            self.line.forget(deployment)

    # --- one fault ---

    def _step(self, subject: Subject, step: Step, record: Record) -> None:
        clients = Clients(self.line.cluster.proxy, lambda: subject.eye.endpoint, MODEL, self.questions)
        try:
            leader = faults.Leader.find(self.line)
            record.observed = stages.reach(subject, step.stage, clients)
        except Passed as passed:
            record.observed = str(passed)
            stages.release(subject)
            clients.stop()
            return
        except (NotInTimeError, LocalClusterError) as error:
            record.violations.append(f"{step.stage.value} was not reached: {error}; {subject.deployment.conditions()}")
            clients.stop()
            return
        nodes = subject.nodes
        gateway_hit = step.rank == 0 and step.fault.target in (Target.SUPERVISOR, Target.MAC)
        plan = subject.plan() if step.stage is Stage.DRAINING else None
        hit = faults.inject(
            self.line, step, subject.deployment.name, nodes[step.rank], nodes[(step.rank + 1) % len(nodes)], leader
        )
        record.injected = hit is not None
        began = self._outlast(subject, step, hit, clients)
        if step.stage is Stage.DRAINING:
            self._gone(subject, record, plan, began)
        else:
            self._recovered(subject, record, began)
        record.violations += clients.stop()
        record.clients = clients.counts()
        # A drain ends the streams that do not finish within its grace period.
        _judge(clients.results, record, gateway_hit, beside=step.fault.target in BESIDE and step.stage is Stage.STREAMS)
        if step.stage is not Stage.DRAINING and record.recovered:
            self._settled(subject, record)
        record.violations += sorted(subject.eye.mixtures)
        subject.eye.mixtures.clear()

    def _outlast(self, subject: Subject, step: Step, hit: faults.Hit | None, clients: Clients) -> float:
        """Waits for the duration of the fault, then undoes it. Returns when (monotonic seconds) recovery can start."""
        began = time.monotonic()
        undo = hit.undo if hit else None
        try:
            stages.release(subject)
            if not clients.started:
                clients.start(streaming=1, whole=1)
            if undo:
                # The length of the fault, not a wait.
                threading.Event().wait(step.seconds)
        finally:
            if undo:
                undo()
                began = time.monotonic()
        return began

    def _serves(self, subject: Subject, record: Record) -> bool:
        deployment = subject.deployment
        path = f"/apis/thunderfleet.io/v1alpha1/namespaces/{deployment.namespace}/modeldeployments/{deployment.name}"
        item = self.api.get(path)
        if item is None:
            record.violations.append("the ModelDeployment is gone")
            return True
        ready = condition(item, "Ready")
        if ready.get("status") != "True" or ready.get("observedGeneration") != item["metadata"]["generation"]:
            return False
        subject.eye.status = item["status"]
        subject.eye.endpoint = item["status"]["endpoint"]
        asked = Clients(self.line.cluster.proxy, lambda: subject.eye.endpoint, MODEL, [self.short])
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
                    f"the deployment does not serve within {RECOVER_SECONDS:.0f} s, and status does not say why: {conditions}"
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
            wrong[:] = [
                *checks.objects(children, plan["epoch"], subject.shape.ranks),
                *checks.processes(seen, nodes),
                *checks.ports(listening, plan),
                *self._unaccounted(),
            ]
            return not wrong

        try:
            wait_for(settled, "objects, processes and ports match the plan", SETTLE_SECONDS)
        except NotInTimeError:
            record.violations += wrong

    def _unaccounted(self) -> list[str]:
        """Processes on any machine that belong to no existing object, and cluster components that do not run."""
        censuses = {}
        for name, machine in self.line.cluster.machines.items():
            ran = machine.run((sys.executable, "-S", "-c", checks.CENSUS))
            if ran.returncode:
                raise LocalClusterError(f"{name}: {ran.stderr}")
            found = json.loads(ran.stdout)
            censuses[name] = checks.Census(found["kubelets"], tuple(found["pods"]), tuple(found["orphans"]))
        components = self.line.cluster.status()["components"]
        ended = [f"{item['name']} has ended ({item['end']})" for item in components if not item["pid"]]
        return ended + checks.accounts(censuses, self.api.items("/api/v1/pods"))

    def _gone(self, subject: Subject, record: Record, plan: dict[str, object] | None, began: float) -> None:
        """Waits until no object, process or port of the deployment is left."""
        left: list[str] = []

        def gone() -> bool:
            self.api.get("/version")
            seen, listening = subject.deployment.seen()
            children = subject.deployment.children()
            left[:] = [f"{child['kind']} {child['metadata']['name']} is left" for child in children]
            left.extend(seen)
            left.extend(self._unaccounted())
            left.extend(f"{machine}: port {port}" for machine, port in sorted(listening) if port in checks.PORTS)
            return not left

        try:
            wait_for(gone, "nothing is left", GONE_SECONDS)
        except NotInTimeError:
            record.violations += left or ["the API server did not answer, so what is left is unknown"]
            return
        record.recovered, record.seconds = True, time.monotonic() - began
