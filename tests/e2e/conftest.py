"""Control planes for the end-to-end tests. All are real, and starting one takes seconds, so tests share them.

``control_plane`` has no Nodes; it serves tests of the API server alone. ``line`` is the default fleet with the chart installed
and a model on every Mac's disk. A file of tests that needs another fleet overrides ``line`` with ``desk`` or ``on_fleet``.
With ``THUNDERFLEET_E2E_CLUSTER=name`` the tests use a running cluster and leave it running.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar, cast

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove
from thunderfleet_localcluster.models import tinymodel

from tests.support.kubelets import Fleet, fleet_of
from tests.support.line import ANSWER_SECONDS, Alone, Deploy, Deployment, Line, on_fleet
from tests.support.suite.order import group_of

# A fleet has at least one machine; nothing runs on this one.
IDLE_FLEET = "machines: [{name: idle-1, kind: linux}]\n"
KUBELETS = """
machines:
  - {name: kube-mac, model: Mac Studio (M3 Ultra), memory: 96 GB}
  - {name: kube-linux, kind: linux}
  - {name: disk-mac, model: Mac Studio (M3 Ultra), memory: 96 GB}
"""
DESK = """
machines:
  - {name: linux-1, kind: linux}
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
cables:
  - {a: "studio-1:1", b: "studio-2:1", speed: 80}
"""

NEXT = pytest.StashKey[pytest.Item | None]()
FLEET = pytest.StashKey[tuple[Line | Cluster, contextlib.ExitStack]]()
Running = TypeVar("Running", Line, Cluster)


@contextlib.contextmanager
def started(fleet: str, name: str, join: bool = True) -> Iterator[Cluster]:
    """A cluster of ``fleet`` with nothing installed; without Nodes unless machines ``join``."""
    cluster = Cluster.start(fleet, name=f"e2e-{name}-{os.getpid()}", join=join)
    try:
        yield cluster
    finally:
        cluster.stop()
        remove(cluster.folder, everything=True)


def shared(
    request: pytest.FixtureRequest, starts: Callable[[], contextlib.AbstractContextManager[Running]]
) -> Iterator[Running]:
    """A fleet for all files of one group (tests/support/suite/order.py): the last of them removes it."""
    stash = request.session.stash
    if FLEET not in stash:
        with contextlib.ExitStack() as stack:
            running = stack.enter_context(starts())
            stash[FLEET] = running, stack.pop_all()
    found, fleet = stash[FLEET]
    yield cast(Running, found)
    # Nothing, if the run was interrupted.
    following = stash.get(NEXT, None)
    if following is None or group_of(following.nodeid) != group_of(request.node.nodeid):
        del stash[FLEET]
        fleet.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tells ``shared`` which test comes next."""
    item.session.stash[NEXT] = nextitem


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Removes the fleet that an interrupted run left."""
    if FLEET in session.stash:
        session.stash[FLEET][1].close()
        del session.stash[FLEET]


@pytest.fixture(scope="module")
def control_plane(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster without Nodes: for what the API server alone decides."""
    yield from shared(request, lambda: started(IDLE_FLEET, "idle", join=False))


@pytest.fixture(scope="module")
def kubelets(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two Macs and a Linux machine with nothing installed."""
    yield from shared(request, lambda: started(KUBELETS, "kubelets"))


@pytest.fixture(scope="module")
def fleet(kubelets: Cluster) -> Fleet:
    """These kubelets with the pods of the tests of the kubelet, which all their files share."""
    return fleet_of(kubelets)


@pytest.fixture(scope="module")
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    """The whole line, up and installed, on the default fleet."""
    yield from shared(request, lambda: on_fleet(None, "line", "THUNDERFLEET_E2E_CLUSTER"))


@pytest.fixture(scope="module")
def desk(request: pytest.FixtureRequest) -> Iterator[Line]:
    """Two Macs, one Thunderbolt 5 cable with a recorded JACCL, and a LAN."""
    yield from shared(request, lambda: on_fleet(DESK, "desk", "THUNDERFLEET_E2E_DESK", "operator.replicas=1"))


@pytest.fixture
def deploy(line: Line) -> Iterator[Deploy]:
    """Applies ModelDeployments and deletes them after the test."""
    made: list[Deployment] = []

    def deployed(name: str, **spec: object) -> Deployment:
        made.append(line.deploy(name, **spec))
        return made[-1]

    yield deployed
    for deployment in made:
        line.forget(deployment)


@pytest.fixture(scope="module")
def the_pair(line: Line) -> Deployment:
    """A pipeline over two Macs and TCP, which all tests on the fleet share because starting one takes seconds."""
    if known := next((one for one in line.deployments if one.name.startswith("pair-")), None):
        return known
    recovery = {"backoffSeconds": 1, "failback": "Never"}
    return line.deploy("pair", parallelism="Pipeline", transport="Ring", benchmark={}, recovery=recovery)


@pytest.fixture
def pair(the_pair: Deployment) -> Deployment:
    """The shared deployment, Ready when the test starts."""
    return the_pair.until_ready()


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The token ids that one process of mlx-lm answers to a prompt. Every copy of the model has the same weights.

    Workers of one run share the answers: each is a file in the folder of the run.
    """
    own = tmp_path_factory.getbasetemp()
    # Without workers, the folder above has the files of other runs.
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def ask(prompt: str, tokens: int, layers: int = tinymodel.LAYERS) -> list[int]:
        asked = hashlib.sha256(json.dumps([prompt, tokens, layers]).encode()).hexdigest()
        known = folder / f"alone-{asked}.json"
        if not known.exists():
            model = tmp_path_factory.mktemp("model")
            tinymodel.make(model, layers=layers)
            command = [sys.executable, "-m", "thunderfleet_localcluster.models.reference", str(model), prompt]
            done = subprocess.run(
                [*command, "--tokens", str(tokens)], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
            )
            assert done.returncode == 0, done.stderr
            # In one step, as another worker may look meanwhile.
            (model / "answer.json").write_text(done.stdout)
            (model / "answer.json").replace(known)
        found: list[int] = json.loads(known.read_text())
        return found

    return ask


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the state of the cluster to the report of a failed test."""
    report = yield
    line = getattr(item, "funcargs", {}).get("line")
    if report.failed and isinstance(line, Line):
        report.sections.append(("the line", line.report()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the tables that tests recorded as their property ``table``."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties if report.when == "call" else ():
            if name == "table":
                terminalreporter.write(f"\n{text}")
