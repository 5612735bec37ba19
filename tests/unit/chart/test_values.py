"""Values of the chart: each is described, and each invalid one is rejected with the allowed values."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import yamltext

Json = dict[str, Any]
Helm = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[Json]]


def properties(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}{name}", child
        yield from properties(child, f"{path}{name}.")


def leaves(values: Json, path: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{path}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")


def find(objects: list[Json], kind: str, name: str) -> Json:
    (found,) = (item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name)
    return found


def arguments(workload: Json) -> list[str]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return [*container["command"], *container["args"]]


EVERYTHING = Path(__file__).parent / "everything.yaml"
"""Every value, each different from its default."""
LINTED = {
    "defaults": (),
    "everything": ("--values", str(EVERYTHING)),
    "on Linux": ("--values", str(EVERYTHING), "--set", "operator.runtimeClassName="),
    "with names of one letter": ("--namespace", "n", "--set", "namespaceOverride=a,image.repository=i,image.tag=t"),
}


@pytest.mark.parametrize("extra", LINTED.values(), ids=LINTED)
def test_lint_has_nothing_to_say(helm: Helm, chart: Path, extra: tuple[str, ...]) -> None:
    done = helm("lint", "--strict", chart, *extra)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
    assert "[ERROR]" not in done.stdout


def test_schema_describes_every_value_and_allows_no_other(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text())
    described = dict(properties(schema))
    assert [path for path, child in described.items() if not child.get("description")] == []
    assert schema["additionalProperties"] is False
    for path in leaves(yamltext.load((chart / "values.yaml").read_text())):
        known = any(path == known or path.startswith(f"{known}.") for known in described)
        assert known, f"{path} stands in values.yaml and not in the schema"


def scalars(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The values that have no parts, by their path. Keys of maps with free keys count as values."""
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from scalars(child, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for number, child in enumerate(value):
            yield from scalars(child, f"{path}[{number}]")
    else:
        yield path, value


def test_the_values_of_the_tests_are_all_that_there_are(chart: Path) -> None:
    """A new value must be added to everything.yaml, so that the tests below notice if it has no effect."""
    default, everything = (yamltext.load(path.read_text()) for path in (chart / "values.yaml", EVERYTHING))
    described = [path for path, child in properties(json.loads((chart / "values.schema.json").read_text())) if path != "global"]
    known = set(leaves(everything))
    assert set(leaves(default)) <= known
    assert [path for path in described if path not in known and not path.endswith(".resources.limits")] == []
    same = [path for path, value in scalars(default) if dict(scalars(everything)).get(path) == value]
    # What must be true for others to have an effect, and tolerations and rights that are there by default.
    switches = {"dashboard.enabled", "agent.measure.enabled", "router.page.enabled"}
    assert [path for path in same if path not in switches and not path.startswith(("operator.tol", "agent.tol"))] == []


@pytest.fixture(scope="module")
def whole(helm: Helm, chart: Path) -> str:
    """The objects of a release with all values of the tests."""
    done = helm("template", "thunderfleet", chart, "--values", EVERYTHING)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_value_is_in_the_objects(whole: str) -> None:
    """A value without an effect would be documented, accepted, and ignored."""
    wanted = [(path, value) for path, value in scalars(yamltext.load(EVERYTHING.read_text())) if not isinstance(value, bool)]
    assert len(wanted) > 90
    assert [path for path, value in wanted if str(value) not in whole] == []


SWITCHES = (
    "operator.reserveObjects",
    *(f"agent.measure.{name}" for name in ("enabled", "gpu.enabled", "memory.enabled", "sockets.enabled", "rdma.enabled")),
    *(f"router.{name}" for name in ("enabled", "page.enabled", "anonymousWake")),
    *(f"{name}.enabled" for name in ("hub", "dashboard", "alerts", "podMonitors")),
)


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_changes_the_objects(helm: Helm, chart: Path, whole: str, switch: str) -> None:
    other = not dict(scalars(yamltext.load(EVERYTHING.read_text())))[switch]
    done = helm("template", "thunderfleet", chart, "--values", EVERYTHING, "--set", f"{switch}={str(other).lower()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout != whole


def test_the_switches_are_all_that_there_are(chart: Path) -> None:
    default = scalars(yamltext.load((chart / "values.yaml").read_text()))
    booleans = {path for path, value in default if isinstance(value, bool) and ".securityContext." not in path}
    assert booleans == set(SWITCHES)


def test_every_value_has_a_comment(chart: Path) -> None:
    lines = (chart / "values.yaml").read_text().splitlines()
    described = dict(properties(json.loads((chart / "values.schema.json").read_text())))
    for number, line in enumerate(lines):
        match = re.match(r"^( {2})(\w+):", line)
        if match:
            before = lines[number - 1].strip()
            assert before.startswith("#"), f"line {number + 1}: {line.strip()} has no comment"
    assert described


REFUSED = [
    # By the schema: what is wrong, where, and what is allowed.
    (["operator.replicas=0"], "at '/operator/replicas': minimum: got 0, want 1"),
    (["operator.replicas=6"], "at '/operator/replicas': maximum: got 6, want 5"),
    (["operator.replicas=two"], "at '/operator/replicas': got string, want integer"),
    (["operator.runtimeClassName=linux"], "at '/operator/runtimeClassName': value must be one of '', 'macos'"),
    (["operator.logLevel=loud"], "at '/operator/logLevel': value must be one of 'debug', 'info', 'warning', 'error'"),
    (["agent.logLevel=loud"], "at '/agent/logLevel': value must be one of"),
    (["operator.metricsPort=80"], "at '/operator/metricsPort': minimum: got 80, want 1,024"),
    (["operator.ports.first=many"], "at '/operator/ports/first': got string, want integer"),
    (["operator.ports=null"], "at '/operator': missing property 'ports'"),
    (["operator=null"], "missing property 'operator'"),
    (["agent.port=70000"], "at '/agent/port': maximum: got 70,000, want 65,535"),
    (["agent.intervalSeconds=1"], "at '/agent/intervalSeconds': minimum: got 1, want 2"),
    (["agent.modelsIntervalSeconds=1"], "at '/agent/modelsIntervalSeconds': minimum: got 1, want 2"),
    (["agent.modelFolders=/models"], "at '/agent/modelFolders': got string, want array"),
    (["agent.modelFolders={/a,/a}"], "at '/agent/modelFolders': items at 0 and 1 are equal"),
    (["agent.measure.gpu.everySeconds=1"], "at '/agent/measure/gpu/everySeconds': minimum: got 1, want 10"),
    (["agent.measure.sockets.streams=17"], "at '/agent/measure/sockets/streams': maximum: got 17, want 16"),
    (["agent.measure.rdma.transport=Socket"], "at '/agent/measure/rdma/transport': value must be one of 'RDMA', 'Ring'"),
    (["image.pullPolicy=Sometimes"], "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"),
    (["image.tag=1"], "at '/image/tag': got number, want string"),
    (["operator.replica=2"], "at '/operator': additional properties 'replica' not allowed"),
    (["operater.replicas=2"], "additional properties 'operater' not allowed"),
    (["agent.resources.request.cpu=1"], "at '/agent/resources': additional properties 'request' not allowed"),
    (["alerts.groupNotReadyMinutes=0"], "at '/alerts/groupNotReadyMinutes': minimum: got 0, want 1"),
    (["dashboard.enabled=perhaps"], "at '/dashboard/enabled': got string, want boolean"),
    (["dashboard.labels.a=1"], "at '/dashboard/labels/a': got number, want string"),
    # By the template's checks: whole sentences.
    (
        ["image.repository=Thunderfleet"],
        'image.repository "Thunderfleet" is not an image name: use [registry/]path in lower case',
    ),
    (["image.repository="], 'image.repository "" is not an image name'),
    (["image.repository=registry:5000/fleet:1.0"], "contains a tag: set image.tag instead"),
    (["image.tag=a b"], 'image.tag "a b" is not a tag: use at most 128 letters, digits'),
    (["agent.modelFolders={models}"], 'agent.modelFolders: "models" is not an absolute path: start it with /'),
    (["agent.modelFolders={/models/../etc}"], '"/models/../etc" is not an absolute path: start it with /'),
    (["agent.modelFolders={/}"], '"/" is not an absolute path: start it with /'),
    (["operator.ports.first=20999", "operator.ports.last=20000"], "operator.ports: first (20999) is greater than last (20000)"),
    (["operator.ports.last=20000"], "operator.ports: 20000 to 20000 are too few ports for one rank: use at least 2"),
    (["operator.ringPorts.last=21010"], "operator.ringPorts: 21000 to 21010 are too few ports for one rank: use at least 64"),
    (
        ["operator.ringPorts.last=50000"],
        "operator.ringPorts: 21000 to 50000 overlap the ephemeral ports of macOS: use ports below 49152",
    ),
    (["operator.ports.last=21500"], "operator.ports and operator.ringPorts both use port 21000 of a Mac: use different ports"),
    (["agent.port=20500"], "operator.ports and agent.port both use port 20500 of a Mac"),
    (["agent.port=9441"], "agent.metricsPort and agent.port both use port 9441 of a Mac"),
    (["agent.metricsPort=10250"], "agent.metricsPort and the kubelet's port both use port 10250 of a Mac"),
    (["router.enabled=true", "router.port=9441"], "agent.metricsPort and router.port both use port 9441 of a Mac"),
    (
        ["router.enabled=true", "operator.demandPort=null"],
        "operator.demandPort is not set: routers report requests there; use a port such as 9402",
    ),
    (["uris.privateHosts={a.example.com}"], 'uris.privateHosts: "a.example.com" is not in uris.hosts: add it there'),
    (["uris.certificateAuthorities=x"], "uris.certificateAuthorities has no certificate in PEM"),
    (["operator.metricsPort=10250"], "operator.metricsPort and the kubelet's port both use port 10250 of a Linux node"),
    (
        ["router.enabled=true", "operator.demandPort=9401"],
        "operator.demandPort and operator.metricsPort both use port 9401 of a Linux node",
    ),
    (
        ["router.enabled=true", "router.linuxReplicas=1", "router.port=9402"],
        "operator.demandPort and router.port both use port 9402 of a Linux node: use different ports",
    ),
    (["agent.modelStore=/Users/Shared/models/store"], "of agent.modelFolders contains the other"),
    (["agent.modelStore=/Users/Shared"], '"/Users/Shared" and "/Users/Shared/models" of agent.modelFolders contains the other'),
    (["agent.modelStore=/Users/Shared/models"], '"/Users/Shared/models" is also in agent.modelFolders'),
    (["operator.podLabels.team=a b"], 'operator.podLabels: "a b" is not the value of a label: use at most 63 letters'),
    (["commonLabels.bad key=x"], 'commonLabels: "bad key" is not the key of a label: use [domain/]name'),
    (["router.nodeSelector.pool=-a"], 'router.nodeSelector: "-a" is not the value of a label'),
    (["dashboard.labels.folder=My Macs"], 'dashboard.labels: "My Macs" is not the value of a label'),
    (["operator.extraEnv[0].name=POD_NAME"], "operator.extraEnv: the chart sets POD_NAME itself: use another name"),
    (["agent.extraEnv[0].name=A B"], 'agent.extraEnv: "A B" is not the name of a variable: use letters'),
    (["agent.resources.limits.memory=lots"], 'agent.resources.limits: "lots" is not a quantity of memory: use a number'),
    (["operator.resources.requests.memory=1GB"], 'operator.resources.requests: "1GB" is not a quantity of memory'),
    (["router.tls.secretName=Not_Valid"], '"Not_Valid" is not the name of a Secret: use lower-case letters'),
    (["imagePullSecrets[0].name=My Secret"], '"My Secret" is not the name of a Secret'),
    (
        ["operator.runtimeClassName=macos", "operator.metricsPort=9440"],
        "agent.port and operator.metricsPort both use port 9440 of a Mac",
    ),
]


@pytest.mark.parametrize(("values", "sentence"), REFUSED, ids=[" ".join(values) for values, _ in REFUSED])
def test_bad_values_are_refused_with_a_sentence(helm: Helm, chart: Path, values: list[str], sentence: str) -> None:
    sets = [word for value in values for word in ("--set", value)]
    done = helm("template", "thunderfleet", chart, *sets)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_all_problems_are_reported_together(helm: Helm, chart: Path) -> None:
    done = helm("template", "thunderfleet", chart, "--set", "image.tag=a b,agent.port=20500,operator.ringPorts.last=50000")
    assert done.stderr.count("\n- ") == 3


def test_odd_values_that_work(render: Render) -> None:
    # On Linux nodes ports of Macs are free, and the other way round.
    assert render(
        "--set", "operator.metricsPort=9440,router.enabled=true,router.port=9402,agent.modelStore=/Users/Shared/models2"
    )
    assert render("--set-json", 'operator.resources={"limits": {"cpu": 1.5, "memory": 268435456, "example.com/gpu": "0"}}')
    assert render("--set-string", "commonLabels.example\\.com/empty=,operator.nodeSelector.a=1")
    objects = render(
        "--set",
        "image.repository=registry.example.com:5000/a/b_c,image.tag=v1.0_x,operator.replicas=1,operator.runtimeClassName=macos",
        "--set",
        r"agent.modelFolders={/Volumes/My Models: fast,/a\,b}",
        "--set",
        "dashboard.enabled=false,agent.resources.requests=null",
    )
    agent = find(objects, "DaemonSet", "thunderfleet-agent")
    assert [word for word in arguments(agent) if word.startswith("--model-folder")] == [
        "--model-folder=/Volumes/My Models: fast",
        "--model-folder=/a,b",
    ]
    operator = find(objects, "Deployment", "thunderfleet-operator")["spec"]["template"]["spec"]
    assert operator["containers"][0]["image"] == "registry.example.com:5000/a/b_c:v1.0_x"
    assert operator["runtimeClassName"] == "macos"
    assert "nodeSelector" not in operator
    assert not [item for item in objects if item["kind"] == "ConfigMap"]


def test_hosts_of_uris_reach_the_operator(render: Render) -> None:
    assert not [word for word in arguments(find(render(), "Deployment", "thunderfleet-operator")) if word.startswith("--uri")]
    pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    sets = ("--set", "uris.hosts={a.example.com,10.0.0.1:8443},uris.privateHosts={10.0.0.1:8443}")
    objects = render(*sets, "--set-string", f"uris.certificateAuthorities={pem}")
    operator = find(objects, "Deployment", "thunderfleet-operator")
    assert [word for word in arguments(operator) if word.startswith("--uri")] == [
        "--uri-host=a.example.com",
        "--uri-host=10.0.0.1:8443",
        "--uri-private-host=10.0.0.1:8443",
        f"--uri-certificate-authorities={pem}",
    ]


def test_alerts_only_when_asked_for(render: Render) -> None:
    assert not [item for item in render() if item["kind"] == "PrometheusRule"]
    rule = find(render("--set", "alerts.enabled=true,alerts.labels.release=prometheus"), "PrometheusRule", "thunderfleet")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    for alert in rule["spec"]["groups"][0]["rules"]:
        assert {"summary", "description"} == set(alert["annotations"])
        assert alert["for"]


def test_notes_name_the_label_command(helm: Helm, chart: Path) -> None:
    done = helm("install", "mine", chart, "--namespace", "fleet", "--dry-run=client", "--set", "agent.modelFolders={/m}")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:\n", 1)[1]
    assert "kubectl label namespace fleet pod-security.kubernetes.io/enforce=privileged" in notes
    assert "helm test mine --namespace fleet" in notes
    assert "<organization>/<name> in /m:" in notes
