"""A fleet with the chart and the model installed, and how tests look at it."""

import ast
import contextlib
import http.client
import io
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlsplit

from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_operator.cli import main as program

from tests.support import yamltext
from tests.support.api import OURS, Api, path_of
from tests.support.logfiles import Secrets
from tests.support.waiting import PAUSE_SECONDS, WAIT_SECONDS, until

Json = dict[str, Any]
T = TypeVar("T")

CHART = Path(__file__).parents[2] / "charts" / "thunderfleet"
SYSTEM = "thunderfleet-system"
MODEL = "thunderfleet/tiny-qwen2"
PROMETHEUS_PORT = 9090
"""On a Linux machine of the default fleet, when test_monitoring has used it."""
NAMESPACES = "/api/v1/namespaces"
MANAGED = "app.kubernetes.io/managed-by=thunderfleet-operator"
CHILDREN = ("pods", "services", "configmaps", "secrets")

# Agents look for models often and measure nothing, because few tests need measurements and each takes processor time.
USUAL = ("agent.modelsIntervalSeconds=2", "agent.measure.enabled=false", "hub.enabled=false")
# For tests with measurements: they take a short time.
MEASURED = (
    "agent.measure.enabled=true",
    "agent.measure.gpu.seconds=4",
    "agent.measure.memory.seconds=4",
    "agent.measure.rdma.bytes=16777216",
)
QUICK: Json = {"promptTokens": 2, "generationTokens": 1}
"""A short benchmark."""
READY_SECONDS = 150.0
INSTALL_SECONDS = 180
COMMAND_SECONDS = 30.0
ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Json:
        found: Json = json.loads(self.body)
        return found


def condition(item: Json, kind: str) -> Json:
    """The condition ``kind`` of an object; empty when there is none yet."""
    found: list[Json] = item.get("status", {}).get("conditions", [])
    return next((entry for entry in found if entry["type"] == kind), {})


def _here(arguments: list[str]) -> tuple[int, str, str]:
    """Exit status, output and errors of ``thunderfleet-operator`` in this process."""
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        status = program(arguments)
    return status, said.getvalue(), complained.getvalue()


@dataclass
class Line:
    """A cluster with the chart installed, and its objects. Every wait is for a condition and has a limit."""

    cluster: Cluster
    deployments: list["Deployment"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = Api(self.cluster, COMMAND_SECONDS)
        self.secrets = Secrets(self.api)

    @property
    def macs(self) -> list[str]:
        return [name for name, machine in self.cluster.machines.items() if machine.kind == "mac"]

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self.cluster.kubectl(*arguments, text=text, seconds=COMMAND_SECONDS).stdout

    def json(self, *arguments: str) -> Json:
        """What kubectl prints as JSON. Raises LocalClusterError."""
        verb, *words = arguments
        if verb == "get" and (path := path_of(*words)):
            # Without kubectl, which takes many times as long.
            if (item := self.api.get(path)) is None:
                raise LocalClusterError(f"there is no {' '.join(words)}")
            return item
        found: Json = json.loads(self.kubectl(*arguments, "-o", "json"))
        return found

    def items(self, *arguments: str) -> list[Json]:
        """The items that ``kubectl get`` with these arguments shows."""
        if path := path_of(*arguments):
            return self.api.items(path)
        found: list[Json] = self.json("get", *arguments)["items"]
        return found

    def run(self, machine: str, *argv: str, seconds: float = COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
        """Runs a command on a machine of the fleet."""
        return self.cluster.machines[machine].run(argv, seconds=seconds)

    def api_server(self, machine: str, action: Literal["cut", "restore"]) -> None:
        """Takes the API server out of a machine's routes, or back in; everything else is still reached. Needs namespaces."""
        server = urlsplit(yamltext.load(self.cluster.folder.inner_kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
        way = ("to", str(server.hostname), "ipproto", "tcp", "dport", str(server.port))
        rule = ("ip", "rule", "add" if action == "cut" else "del", *way, "unreachable")
        done = self.run(machine, *rule)
        if done.returncode:
            raise LocalClusterError(f"{machine}: {' '.join(rule)}: {done.stderr}")

    def request(
        self,
        url: str,
        body: Json | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
        trust: ssl.SSLContext | None = None,
    ) -> Answer:
        """Sends one request through the cluster's proxy. An HTTP error is an answer; raises OSError when there is none.

        ``trust``: for HTTPS.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
        proxies = urllib.request.ProxyHandler({"http": self.cluster.proxy, "https": self.cluster.proxy})
        opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=trust))
        try:
            with opener.open(sent, timeout=seconds) as answer:
                return Answer(answer.status, answer.read().decode(), dict(answer.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(), dict(error.headers))
        except http.client.HTTPException as error:
            raise OSError(f"{url}: {error!r}") from error

    def deploy(self, name: str, **spec: object) -> "Deployment":
        """Applies one in a new namespace. ``spec`` overrides the default: the tiny model on two Macs with a short benchmark."""
        unique = f"{name}-{uuid.uuid4().hex[:6]}"
        self.api.send("POST", NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}})
        found = Deployment(self, unique, unique)
        self.deployments.append(found)
        usual = {"model": {"repository": MODEL}, "nodes": {"min": 2}, "recovery": {"backoffSeconds": 1}, "benchmark": QUICK}
        found.apply({**usual, **spec})
        return found

    def plan(self, manifest: Json, *, of_image: bool = False) -> tuple[int, Json]:
        """Exit status and output of ``thunderfleet-operator plan`` for a ModelDeployment on the cluster's present state.

        ``of_image``: by the program in the image, which takes a second of processor time to start; else in this process.
        """
        with tempfile.TemporaryDirectory() as folder:
            fleet, wanted = Path(folder, "fleet.yaml"), Path(folder, "deployment.yaml")
            fleet.write_text(self.kubectl("get", "nodes,np,tbl,md,mc,pods", "-A", "-o", "yaml"))
            wanted.write_text(yamltext.dump(manifest))
            arguments = ["plan", "--fleet", str(fleet), "--deployment", str(wanted), "-o", "json"]
            status, said, complained = self._program(arguments) if of_image else _here(arguments)
        assert status in (0, 3), complained
        return status, json.loads(said)

    def _program(self, arguments: list[str]) -> tuple[int, str, str]:
        command = [str(self.cluster.image_folder / "bin" / "thunderfleet-operator"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
        return done.returncode, done.stdout, done.stderr

    def forget(self, deployment: "Deployment") -> None:
        """Deletes a deployment and its namespace, and waits until nothing of it is left. Does nothing the second time."""
        if deployment not in self.deployments:
            return
        self.deployments.remove(deployment)
        self.secrets.look(deployment.namespace)
        self.api.send("DELETE", deployment.path)
        until(lambda: not deployment.left(), f"{deployment.name} is gone", describe=lambda: "\n".join(deployment.left()))
        self.api.send("DELETE", f"{NAMESPACES}/{deployment.namespace}")

    def ready_machines(self) -> bool:
        """Whether every Node is Ready."""
        return all(condition(node, "Ready").get("status") == "True" for node in self.api.items("/api/v1/nodes"))

    def report(self) -> str:
        """State and logs that help to find the cause of a failed test."""
        parts: list[str] = []

        def add(title: str, *arguments: str) -> None:
            with contextlib.suppress(LocalClusterError):
                done = self.cluster.kubectl(*arguments, seconds=COMMAND_SECONDS, check=False)
                parts.append(f"--- {title}\n{done.stdout or done.stderr}")

        conditions = "{range .items[*]}{.metadata.name}: {.spec.taints} {.status.conditions}{'\\n'}{end}"
        add("conditions of Nodes", "get", "nodes", "-o", f"jsonpath={conditions}")
        renewed = "custom-columns=NODE:.metadata.name,RENEWED:.spec.renewTime"
        add("Leases of Nodes", "get", "leases", "-n", "kube-node-lease", "-o", renewed)
        add("pods and deployments", "get", "md,pods", "-A", "-o", "wide")
        for deployment in self.deployments:
            add(f"describe {deployment.name}", "describe", "md", deployment.name, "-n", deployment.namespace)
            selector = f"thunderfleet.io/deployment={deployment.name}"
            logs = ("logs", "-n", deployment.namespace, "-l", selector, "--tail=25", "--prefix")
            add(f"logs of {deployment.name}", *logs)
        operator = ("logs", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator", "--tail=20", "--prefix")
        add("the operator", *operator)
        return "\n".join(parts)


@dataclass
class Deployment:
    """One ModelDeployment under test."""

    line: Line
    namespace: str
    name: str

    def apply(self, spec: Mapping[str, object]) -> None:
        self.line.api.apply(self.path, manifest(self.namespace, self.name, spec))

    def patch(self, spec: Mapping[str, object]) -> None:
        self.line.api.patch(self.path, {"spec": spec})

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return self.line.kubectl("-n", self.namespace, *arguments, text=text)

    @property
    def path(self) -> str:
        """Its path at the API server."""
        return f"{OURS}/namespaces/{self.namespace}/modeldeployments/{self.name}"

    def get(self) -> Json:
        found = self.line.api.get(self.path)
        assert found is not None, f"there is no ModelDeployment {self.namespace}/{self.name}"
        return found

    @property
    def status(self) -> Json:
        found: Json = self.get().get("status", {})
        return found

    def group(self, index: int = 0) -> Json:
        groups: list[Json] = self.status.get("groups", [])
        return groups[index] if index < len(groups) else {}

    @property
    def state(self) -> str:
        return str(self.group().get("state", ""))

    def ranks(self) -> list[Json]:
        found: list[Json] = self.group().get("ranks", [])
        return found

    @property
    def endpoint(self) -> str:
        """The URL that clients use; while nothing is Ready, that of the first group."""
        status = self.status
        return str(status.get("endpoint") or status["groups"][0]["endpoint"])

    def conditions(self) -> str:
        """The conditions as text, one a line."""
        found = self.status.get("conditions", [])
        return "\n".join(f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in found)

    def is_ready(self) -> bool:
        """Whether it is Ready with the newest spec."""
        item = self.get()
        ready = condition(item, "Ready")
        return ready.get("status") == "True" and ready.get("observedGeneration") == item["metadata"]["generation"]

    def until(
        self, holds: Callable[[], T | None], goal: str, seconds: float = WAIT_SECONDS, *, pause: float = PAUSE_SECONDS
    ) -> T:
        """Like the shared ``until``; a failure shows the deployment's conditions."""
        return until(holds, f"{self.name}: {goal}", seconds, pause=pause, describe=self.conditions)

    def until_ready(self) -> "Deployment":
        self.until(self.is_ready, "Ready", READY_SECONDS)
        return self

    def answers(self) -> bool:
        """Whether it answers a request. Status may still show what was before a failure."""
        try:
            return self.ask("?", 1).status == 200
        except OSError:
            return False

    def serves(self) -> bool:
        """Whether it is Ready and answers."""
        return self.is_ready() and self.answers()

    def until_condition(self, kind: str, status: str, reason: str = "", seconds: float = WAIT_SECONDS, says: str = "") -> Json:
        """Waits for a condition about the newest spec whose message contains ``says``, and returns it."""

        def holds() -> Json | None:
            item = self.get()
            found = condition(item, kind)
            now = found.get("observedGeneration") == item["metadata"]["generation"]
            same = found.get("status") == status and reason in ("", found.get("reason")) and says in found.get("message", "")
            return found if now and same else None

        found = self.until(holds, " ".join(filter(None, (f"{kind}={status}", reason, says))), seconds)
        assert found is not None
        return found

    def stream(self, prompt: str, tokens: int) -> tuple[str, list[int]]:
        """Text and token ids of one streamed chat completion; every event must be whole, and the last one [DONE]."""
        answer = self.line.request(f"{self.endpoint}/chat/completions", chat(prompt, tokens, stream=True))
        assert (answer.status, answer.headers["Content-Type"].split(";")[0]) == (200, "text/event-stream"), answer.body
        events = [line.removeprefix("data: ") for line in answer.body.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", answer.body
        choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        return text, [token for choice in choices for token in choice.get("token_ids") or []]

    def ask(self, prompt: str, tokens: int, key: str | None = None) -> Answer:
        """One chat completion that is not streamed, with token ids."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return self.line.request(f"{self.endpoint}/chat/completions", chat(prompt, tokens), headers)

    def tokens(self, prompt: str, tokens: int) -> list[int]:
        """The token ids of a successful response."""
        answer = self.ask(prompt, tokens)
        assert answer.status == 200, answer.body
        found: list[int] = answer.json["choices"][0]["token_ids"]
        return found

    def warnings(self) -> list[str]:
        """The Events of type Warning in its namespace, as text."""
        found = self.line.api.items(f"/api/v1/namespaces/{self.namespace}/events")
        return [
            f"{one['involvedObject']['name']}: {one['reason']}: {one['message']}" for one in found if one["type"] == "Warning"
        ]

    def children(self) -> list[Json]:
        """The objects that the operator made for it."""
        path = f"/api/v1/namespaces/{self.namespace}/{{}}?labelSelector={quote(MANAGED)}"
        return [item for plural in CHILDREN for item in self.line.api.items(path.format(plural))]

    def ports(self) -> set[tuple[str, int]]:
        """Machine and port of every listener in its plans."""
        found: set[tuple[str, int]] = set()
        for item in self.line.items("configmaps", "-n", self.namespace, "-l", MANAGED):
            for rank in json.loads(item["data"]["plan.json"])["ranks"]:
                ports = [rank["gatewayPort"], rank["controlPort"], *rank.get("ringPorts", [])]
                found |= {(rank["node"], port) for port in ports}
        return found

    def seen(self) -> tuple[list[str], set[tuple[str, int]]]:
        """Its processes on all Macs (shims, supervisors, ranks), and every listening port of every Mac."""
        processes: list[str] = []
        listening: set[tuple[str, int]] = set()
        for name in self.line.macs:
            ran = self.line.run(name, sys.executable, "-I", "-S", "-c", LOOK, self.name)
            assert ran.returncode == 0, ran.stderr
            found = ast.literal_eval(ran.stdout)
            processes += [f"{name}: {command}" for command in found["processes"]]
            listening |= {(name, port) for port in found["ports"]}
        return processes, listening

    def left(self, ports: Collection[tuple[str, int]] = ()) -> list[str]:
        """Its remaining child objects; when there are none, its remaining processes and listeners on ``ports``."""
        if objects := [f"{item['kind']} {item['metadata']['name']}" for item in self.children()]:
            return objects
        # Only now, because it starts a process on every Mac.
        processes, listening = self.seen()
        return [*processes, *(f"{machine}: port {port}" for machine, port in sorted(listening & set(ports)))]


Deploy = Callable[..., Deployment]
"""Applies a ModelDeployment with a name and spec; deletes it after the test."""
Alone = Callable[..., list[int]]
"""The token ids that one process of mlx-lm answers to a prompt: prompt, tokens and layers of the model."""

# Run on a machine: processes that name the deployment in their command or in their pod's name, and listening TCP ports.
# It starts on every Mac whenever a deployment is deleted, and with json it would take twice as long.
LOOK = """
import os, sys
name, processes, ports = sys.argv[1], [], set()
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        command = open(f"/proc/{pid}/cmdline").read().replace("\\0", " ")
        environment = open(f"/proc/{pid}/environ", errors="replace").read().split("\\0")
        state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        continue
    mine = any(entry.startswith(f"POD_NAME={name}-") for entry in environment) or f"/{name}-" in command
    if mine and state != "Z" and int(pid) != os.getpid():
        processes.append(f"{pid} {state} {command}")
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if state == "0A":
            ports.add(int(local.rpartition(":")[2], 16))
print(ascii({"processes": processes, "ports": sorted(ports)}))
"""


def manifest(namespace: str, name: str, spec: Mapping[str, object]) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelDeployment", "metadata": metadata, "spec": spec}


def chat(prompt: str, tokens: int, **more: object) -> Json:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "return_token_ids": True,
        **more,
    }


def install(cluster: Cluster, *values: str) -> None:
    """Installs the chart and the model as a user does. ``values``: chart values, as ``key=value``."""
    tinymodel.make(cluster.models / MODEL)
    cluster.kubectl("create", "namespace", SYSTEM)
    cluster.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=privileged")
    cluster.helm(
        *("install", "thunderfleet", str(CHART), "--namespace", SYSTEM, "--wait", "--timeout", f"{INSTALL_SECONDS}s"),
        *("--set", ",".join((f"agent.modelFolders={{{cluster.models}}}", *USUAL, *values))),
        seconds=INSTALL_SECONDS + 30,
    )


def discovered(line: Line, ends: int = 2) -> bool:
    """Whether every Mac reports the size of the model, and ``ends`` ends of every cable's link see the other one."""
    profiles = {item["metadata"]["name"]: item.get("status", {}) for item in line.api.items(f"{OURS}/nodeprofiles")}
    cables = sum(len(machine.cables) for machine in line.cluster.machines.values()) // 2
    links = line.api.items(f"{OURS}/thunderboltlinks")
    whole = [link for link in links if len(link.get("status", {}).get("endpoints", [])) >= ends]
    sized = [mac for mac in line.macs if any(m.get("sizedBy") for m in profiles.get(mac, {}).get("models", []))]
    return sized == line.macs and len(whole) == cables


@contextlib.contextmanager
def on_fleet(
    fleet: str | None,
    name: str,
    variable: str = "",
    *values: str,
    ends: int = 2,
    audit: bool = False,
    prepare: Callable[[Cluster], Iterable[str] | None] | None = None,
) -> Iterator[Line]:
    """Starts a cluster of ``fleet`` (None: the default fleet), installs the chart and the model, and removes it at the end.

    When the environment's ``variable`` names a running cluster, uses that and leaves it running. ``values``: chart values, as
    ``key=value``. ``ends``: how many ends of every cable must see the other one before the tests start. ``audit`` writes the
    API server's audit log. ``prepare`` is called before the chart is installed, and may return more values.
    """
    with contextlib.ExitStack() as stack:
        if existing := os.environ.get(variable):
            cluster = Cluster.attach(existing)
        else:
            cluster = Cluster.start(fleet, name=f"e2e-{name}-{os.getpid()}", audit=audit)
            stack.callback(remove, cluster.folder, everything=True)
            stack.callback(cluster.stop)
            install(cluster, *values, *((prepare(cluster) if prepare else None) or ()))
        found = Line(cluster)
        goal, known = "the agents know their Macs", lambda: discovered(found, ends)
        until(known, goal, INSTALL_SECONDS, describe=lambda: found.kubectl("get", "np,tbl"))
        yield found
        # A cluster that was started here is removed with everything in it.
        for deployment in list(found.deployments) if existing else ():
            found.forget(deployment)
