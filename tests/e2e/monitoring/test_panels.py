"""Every query of every panel shows something on a fleet that is loaded, where what the panels are about happens.

Prometheus is the real program, with the configuration that the real prometheus-operator generates from the chart's PodMonitors.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from thunderfleet_controlplane.assets import MONITORING
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.programs import find_programs

from tests.support.line import MEASURED, PROMETHEUS_PORT, Deployment, Json, Line, chat, on_fleet
from tests.support.models.fetching import HUB_MACHINE, Copies, configure, start_hub, stop_server, store
from tests.support.monitoring.panels import generated, queries
from tests.support.monitoring.prometheusserver import Prometheus, started
from tests.support.waiting import until

pytestmark = pytest.mark.soak

MAC = "  - {{name: studio-{0}, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}}\n"
FLEET = f"""
machines:
  - {{name: linux-1, kind: linux}}
{"".join(MAC.format(number) for number in range(1, 5))}
cables:
  - {{a: "studio-1:1", b: "studio-2:1", speed: 80}}
  - {{a: "studio-3:1", b: "studio-4:1", speed: 80}}
"""
VALUES = (
    *MEASURED,
    "router.enabled=true",
    "operator.replicas=1",
    "agent.measure.spreadSeconds=0",
    "agent.measure.sockets.everySeconds=10",
)
ENDS = ("studio-3", "studio-4")
DESKS = {"models": ("studio-1", "studio-2"), "faults": ENDS}
CABLE = "studio-3:1"
SHOW_SECONDS = 240.0
FETCHED, SPOILED = "fresh/tiny", "spoiled/tiny"
PANIC = '{"panicString": "panic(cpu 1 caller 0x1): a test"}\n'
EMPTY = {
    "Thunderfleet / Fleet: Thermal pressure": "agents ask powermetrics as root on a real Mac only",
}
"""Panels that no run can fill, and why."""
REFUSAL = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refusal}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [thunderfleet.io], apiVersions: ["*"], operations: [UPDATE], resources: [modeldeployments/status]}
  validations: [{expression: "false", message: "refused by a test"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refusal}
spec: {policyName: refusal, validationActions: [Deny]}
"""


def prepare(cluster: Cluster) -> None:
    """A Mac whose kernel has panicked."""
    reports = cluster.machines[ENDS[1]].folder / "disk/Library/Logs/DiagnosticReports"
    reports.mkdir(parents=True)
    (reports / "panic-full-2026-03-01-120000.0002.panic").write_text(PANIC)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with on_fleet(FLEET, "panels", "", *VALUES, prepare=prepare) as found:
        for desk, macs in DESKS.items():
            found.kubectl("label", "node", *macs, f"desk={desk}")
        folder = found.cluster.machines[HUB_MACHINE].folder / "hub"
        tinymodel.make(folder / "model")
        tinymodel.make(folder / "other", layers=2)
        url = start_hub(found, {FETCHED: "model", SPOILED: "other"})
        values = tmp_path_factory.mktemp("hub") / "values.yaml"
        configure(found, values, {"hub": {"enabled": True, "endpoint": url}})
        yield found
        stop_server(found)


class Panels:
    """What panels have shown so far."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self.unseen = {query: title for query, title in queries().items() if title not in EMPTY}

    def look(self) -> None:
        for query in [query for query in self.unseen if self._prometheus.value(query)]:
            del self.unseen[query]

    def until_shown(self, *titles: str) -> None:
        """Waits until these panels (all, if none is named) have shown something."""
        known = set(queries().values())
        named = {f"Thunderfleet / {title}" for title in titles} or known
        assert named <= known

        def missing() -> dict[str, str]:
            self.look()
            return {query: title for query, title in self.unseen.items() if title in named}

        until(lambda: not missing(), f"{', '.join(titles)} show something", SHOW_SECONDS, describe=lambda: str(missing()))


@contextlib.contextmanager
def asked(ask: Callable[[], object]) -> Iterator[None]:
    """Asks again and again meanwhile."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.2):
            with contextlib.suppress(OSError):
                ask()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def deployed(line: Line, name: str, macs: int, **spec: object) -> Deployment:
    """A model on Macs of the desk with models."""
    nodes = {"min": macs, "max": macs, "selector": {"desk": "models"}}
    return line.deploy(name, nodes=nodes, parallelism="Pipeline", transport="Ring", **spec)


def with_keys(line: Line) -> Deployment:
    """A model on two Macs with two keys, of which one may use next to no tokens."""
    server = {"apiKeySecret": "keys", "apiKeys": [{"name": "ci", "tokensPerMinute": 1}]}
    # A rate needs several tokens.
    benchmark = {"promptTokens": 64, "generationTokens": 16}
    served = deployed(line, "served", 2, server=server, benchmark=benchmark)
    served.kubectl("create", "secret", "generic", "keys", "--from-literal=ci=sk-ci", "--from-literal=people=sk-people")
    return served


def spoil(line: Line) -> None:
    """A Mac whose file of weights is other than it was, from which another one copies."""
    copies = Copies(line, "spoiled", SPOILED)
    copies.keep(1)
    copies.until_on(1)
    (holder,) = [one["node"] for one in copies.status()["macs"] if one["phase"] == "Complete"]
    largest = max((store(line, holder) / "models--spoiled--tiny/blobs").iterdir(), key=lambda blob: blob.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(b"\xff" * 4096)
    copies.keep(2)


def quarantine(line: Line) -> Deployment:
    """A model on Macs of which one's RDMA has an error that only a reboot ends."""
    line.cluster.jaccl(ENDS[1], [{"at": "completion_queue"}])
    return line.deploy("wired", nodes={"min": 2, "max": 2, "selector": {"desk": "faults"}}, transport="JACCL")


def break_things(line: Line, stack: contextlib.ExitStack) -> None:
    """Faults that no group of the desk with models notices, until ``stack`` is closed."""
    stack.callback(line.forget, line.deploy("huge", nodes={"min": 9}))
    line.cluster.damage("fail", ENDS[0], "ifconfig")
    stack.callback(line.cluster.damage, "mend", ENDS[0], "ifconfig")
    line.cluster.cable("pull", CABLE)
    stack.callback(line.cluster.cable, "plug", CABLE)
    line.cluster.rdma("hang", ENDS[1])


def test_every_query_of_every_panel_shows_something(line: Line, tmp_path: Path) -> None:
    programs = find_programs(lambda event: None, MONITORING)

    def configuration(server: str, folder: Path) -> Json:
        return generated(line, server, folder, "operator", "agent", "runner", "router")

    with started(line, programs, configuration, tmp_path, PROMETHEUS_PORT) as prometheus:
        panels = Panels(prometheus)
        panels.until_shown("Cables: Measured", "Cables: Measured of negotiated")
        panels.until_shown("Fleet: Last kernel panic")
        served, scaled = with_keys(line), deployed(line, "scaled", 1, autoscaling={"maxReplicas": 2})
        asleep = {"minReplicas": 0, "maxReplicas": 1, "scaleToZeroAfterSeconds": 3}
        deployed(line, "sleeper", 1, autoscaling=asleep)
        served.until_ready()
        scaled.until_ready()
        panels.until_shown("ModelDeployment: Benchmark", "ModelDeployment: Autoscaling", "ModelDeployment: Asleep")
        own = str(served.group()["endpoint"])
        router = served.until(lambda: served.status.get("endpoints"), "it has routers")[0]["url"]

        def ask() -> None:
            """At a router with both keys, and at the group itself, which knows the same keys."""
            for url, key in ((router, "sk-people"), (router, "sk-ci"), (own, "sk-people")):
                body = (
                    {**chat("Where are you?", 4), "model": f"{served.namespace}/{served.name}"}
                    if url == router
                    else chat("Who?", 4)
                )
                line.request(f"{url}/chat/completions", body, {"Authorization": f"Bearer {key}"}, seconds=30)

        with asked(ask):
            router_panels = (
                "Requests",
                "Time to first byte",
                "Tokens",
                "Refused by limits of keys",
                "Retries",
                "Reports of demand",
            )
            panels.until_shown(*(f"Serving: {title}" for title in router_panels))
            fetched = Copies(line, "fetched", FETCHED)
            fetched.keep(2)
            fetched.until_on(2)
            panels.until_shown("Operator and control plane: Copies of weights")
            spoil(line)
            panels.until_shown("Operator and control plane: Wrong bytes")
            wired = quarantine(line)
            panels.until_shown("Fleet: Quarantined")
            line.forget(wired)
            with contextlib.ExitStack() as stack:
                break_things(line, stack)
                panels.until_shown(
                    *("Fleet: Not Ready since", "Fleet: Conditions that are not True"),
                    *("Cables: Changes", "Operator and control plane: Failures of commands"),
                )
            line.kubectl("apply", "-f", "-", text=REFUSAL)
            try:
                scaled.patch({"autoscaling": {"minReplicas": 2}})
                panels.until_shown("Operator and control plane: Reconcile errors")
            finally:
                line.kubectl("delete", "-f", "-", text=REFUSAL)
            first, second = (rank["node"] for rank in served.ranks())
            line.run(first, "pkill", "-KILL", "-f", "thunderfleet_runner.intake")
            panels.until_shown("Group: Exits of the intake")
            line.run(second, "pkill", "-KILL", "-f", "thunderfleet_runner.rank")
            panels.until_shown(
                *("Serving: Failed requests", "Group: Failures", "ModelDeployment: First cause of the last failure")
            )
            panels.until_shown()
        health = {rule["name"]: rule["health"] for group in prometheus.get("rules")["groups"] for rule in group["rules"]}
        assert len(health) > 20 and set(health.values()) == {"ok"}


def test_what_is_said_to_be_empty_is_a_panel() -> None:
    assert set(EMPTY) <= set(queries().values())
