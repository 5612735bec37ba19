"""The example of a HorizontalPodAutoscaler, with the real controller and a stand-in for the adapter of external metrics."""

import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from thunderfleet_lib.net import tls

from tests.e2e.routing.test_router import ONE_MAC, ROUTERS, ask, routers, upgrade
from tests.support.line import Deployment, Line
from tests.support.monitoring.externalmetrics import GROUP_VERSION
from tests.support.waiting import until

pytestmark = pytest.mark.soak

Json = dict[str, Any]

EXAMPLE = Path(__file__).parents[3] / "examples" / "outside" / "hpa.yaml"
NAME, PORT = "external-metrics", 10444
CLIENTS = 6
"""More than the four requests for each group that the example allows, and at most as many as two groups are for."""
SCALED_SECONDS = 240.0
"""The controller looks every 15 seconds; a group takes a while to load and to drain."""


@pytest.fixture(scope="module")
def line(desk: Line) -> Iterator[Line]:
    """With routers: one URL for clients, whichever groups there are."""
    upgrade(desk, "router.enabled=true")
    yield desk
    upgrade(desk, "router.enabled=false")
    until(lambda: not desk.items("pods", "-n", "thunderfleet-system", "-l", ROUTERS), "the routers are gone")


@dataclass
class Clients:
    """Clients of a router that ask all the time."""

    line: Line
    url: str
    model: str
    answered: int = 0
    lost: list[str] = field(default_factory=list)
    ends: list[threading.Event] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> None:
        self.start(1)

    def __exit__(self, *error: object) -> None:
        self.leave(0)

    def start(self, count: int) -> None:
        for _ in range(count):
            end = threading.Event()
            thread = threading.Thread(target=self._ask, args=(end,), daemon=True)
            self.ends.append(end)
            self.threads.append(thread)
            thread.start()

    def leave(self, count: int) -> None:
        """Ends all but ``count`` clients, each after its answer."""
        for end, thread in zip(self.ends[count:], self.threads[count:], strict=True):
            end.set()
            thread.join(SCALED_SECONDS)
            assert not thread.is_alive()

    def _ask(self, end: threading.Event) -> None:
        while not end.is_set():
            try:
                answer = ask(self.line, self.url, self.model)
                why = "" if answer.status == 200 else f"{answer.status} {answer.body[:300]}"
            except OSError as error:
                why = repr(error)
            with self.lock:
                self.answered += not why
                self.lost += [why] if why else []


@dataclass
class Adapter:
    """The stand-in, which reads the metrics of the groups that status names."""

    line: Line
    folder: Path

    def look_at(self, served: Deployment) -> None:
        urls = [
            f"{group['endpoint'].removesuffix('/v1')}/metrics" for group in served.status.get("groups", []) if serves(group)
        ]
        (self.folder / "targets.new").write_text("\n".join(urls))
        (self.folder / "targets.new").rename(self.folder / "targets")

    def log(self) -> str:
        return "\n".join((self.folder / "log").read_text().splitlines()[-5:])


def serves(group: Json) -> bool:
    return group.get("state") == "Ready" and "endpoint" in group


def front(address: str) -> list[Json]:
    """How the API server reaches it. A local cluster has no addresses of Services, so an ExternalName is the way."""
    group, version = GROUP_VERSION.split("/")
    service = {"type": "ExternalName", "externalName": address, "ports": [{"port": PORT}]}
    spec = {
        "group": group,
        "version": version,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"name": NAME, "namespace": "kube-system", "port": PORT},
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME, "namespace": "kube-system"}, "spec": service},
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{group}"},
            "spec": spec,
        },
    ]


@pytest.fixture
def adapter(line: Line, tmp_path: Path) -> Iterator[Adapter]:
    machine = next(entry for entry in line.cluster.machines.values() if entry.kind == "linux")
    key, name, now = tls.new_key(), tls.subject(NAME), datetime.now(UTC)
    built = tls.build_certificate(
        name, key.public_key(), tls.Issuer(name, key), tls.Validity(now - timedelta(days=1), now + timedelta(days=1)),
        ca=True, key_usages=("digital_signature", "key_cert_sign"), extended_usages=(tls.SERVER_AUTH,),
        alternative_names=[str(machine.address)],
    )  # fmt: skip
    (tmp_path / "tls.crt").write_bytes(tls.certificate_pem(built))
    (tmp_path / "tls.key").write_bytes(tls.key_pem(key))
    (tmp_path / "targets").touch()
    program = [sys.executable, "-m", "tests.support.monitoring.externalmetrics", str(tmp_path), str(machine.address), str(PORT)]
    root, pid = Path(__file__).parents[3], tmp_path / "pid"
    command = f"cd {root}; {shlex.join(program)} >{tmp_path / 'log'} 2>&1 & echo $! >{pid}"
    started = machine.run(["sh", "-c", command])
    assert started.returncode == 0, started.stderr
    objects = yaml.safe_dump_all(front(str(machine.address)))
    try:
        line.kubectl("apply", "-f", "-", text=objects)
        found = Adapter(line, tmp_path)
        registered = "apiservice/v1beta1.external.metrics.k8s.io"
        until(
            lambda: (
                "True" in line.kubectl("get", registered, "-o", "jsonpath={.status.conditions[?(@.type=='Available')].status}")
            ),
            "the API server reaches the stand-in",
            describe=lambda: line.kubectl("get", registered, "-o", "yaml") + found.log(),
        )
        yield found
    finally:
        line.kubectl("delete", "--ignore-not-found", "-f", "-", text=objects)
        machine.run(["kill", pid.read_text().strip()])


@contextmanager
def scaled_by_example(served: Deployment) -> Iterator[str]:
    """The example for this ModelDeployment, without the ten minutes before it scales down."""
    wanted: Json = yaml.safe_load(EXAMPLE.read_text())
    wanted["metadata"]["name"] = wanted["spec"]["scaleTargetRef"]["name"] = served.name
    (metric,) = wanted["spec"]["metrics"]
    metric["external"]["metric"]["selector"]["matchLabels"] = {"deployment": served.name}
    assert (wanted["spec"]["minReplicas"], wanted["spec"]["maxReplicas"]) == (1, 2)
    wanted["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
    served.kubectl("apply", "-f", "-", text=yaml.safe_dump(wanted))
    try:
        yield f"hpa/{served.name}"
    finally:
        served.kubectl("delete", "hpa", served.name)


def test_the_number_of_groups_follows_the_requests_and_none_is_lost(line: Line, adapter: Adapter) -> None:
    served = line.deploy("scaled", **ONE_MAC).until_ready()
    name = f"{served.namespace}/{served.name}"
    url = routers(served)[0]
    until(lambda: ask(line, url, name).status == 200, "the router serves it")
    clients = Clients(line, url, name)

    def groups(count: int) -> bool:
        adapter.look_at(served)
        status = served.status
        ready = [group for group in status.get("groups", []) if serves(group)]
        return len(ready) == len(status.get("groups", [])) == status.get("replicas") == count

    with scaled_by_example(served) as hpa, clients:

        def state() -> str:
            return "\n".join((served.kubectl("describe", hpa), served.conditions(), adapter.log(), str(clients.lost[:3])))

        def says(replicas: int) -> bool:
            adapter.look_at(served)
            found = line.json("get", hpa, "-n", served.namespace)["status"]
            active = {one["type"]: one["status"] for one in found.get("conditions", [])}
            known = (found.get("currentReplicas"), found.get("desiredReplicas"), active.get("ScalingActive"))
            return known == (replicas, replicas, "True")

        until(lambda: says(1), "the controller knows the metric", SCALED_SECONDS, describe=state)
        clients.start(CLIENTS - 1)
        until(lambda: groups(2), "a second group serves", SCALED_SECONDS, describe=state)
        until(lambda: says(2), "the controller is content with two", SCALED_SECONDS, describe=state)
        used = {group["endpoint"] for group in served.status["groups"]}
        assert len(used) == 2
        clients.leave(1)
        until(lambda: groups(1), "one group is left", SCALED_SECONDS, describe=state)
        until(lambda: says(1), "the controller is content with one", SCALED_SECONDS, describe=state)
        answered = clients.answered
        until(lambda: clients.answered > answered + 2, "clients are still answered", describe=state)
    assert clients.lost == []
    print(f"{clients.answered} requests answered while the number of groups went from 1 to 2 and back", file=sys.stderr)
    line.forget(served)
