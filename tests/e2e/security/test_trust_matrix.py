"""Every cell of ``tests/support/trust.py``: each identity tries each action on a real cluster, with real credentials.

The requests to the API server are dry runs, so they change nothing. The summary of the run shows the tables as they were found.
"""

import asyncio
import base64
import contextlib
import http.client
import json
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from thunderfleet_agent.peers import identity
from thunderfleet_agent.peers.dial import NODE_HEADER
from thunderfleet_crds.exchange.plan import GROUP_TLS_NAME
from thunderfleet_kubelet.bootstrap.certificate_work import new_key, signing_request
from thunderfleet_lib.csr.names import SERVING_SIGNER
from thunderfleet_lib.host.hostcmd import Host
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.models import tinymodel

from tests.support import yamltext
from tests.support.api import OURS
from tests.support.line import PROMETHEUS_PORT, SYSTEM, Deployment, Line
from tests.support.network.https import client_context
from tests.support.network.proxy import proxy_headers
from tests.support.trust import API, CALLERS, IDENTITIES, PORTS, Action, Knock, grid
from tests.support.waiting import until

Json = dict[str, Any]
Cells = dict[str, dict[str, str]]
"""Row and column to what was found; what fits no word of the table is shown as status and message."""

AT_ONCE = 8
SECONDS = 30.0
ROUNDS_SECONDS = 180.0
"""For two rounds of all questions, on a slow machine too."""
PROMPT = tinymodel.MESSAGES[0]["content"]
API_KEY = "matrix-api-key"
OTHER_KEYS = {"alice": "open sesame", "bob": "12345"}
"""In the same Secret."""
ACTIONS = [action for actions in API.values() for action in actions]
KNOCKS = [knock for knocks in PORTS.values() for knock in knocks]
LOCAL_ONLY = ("etcd", "scheduler", "controllers")


# --- identities --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: str
    key: str


@dataclass(frozen=True)
class Credentials:
    """A bearer token, or a certificate, or neither."""

    token: str = ""
    pair: Pair | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@dataclass
class Subject:
    """What the cells are about: the cluster, a group that runs in namespace A, another namespace, and all credentials."""

    line: Line
    group: Deployment
    keyed: Deployment
    other_namespace: str
    words: dict[str, str] = field(default_factory=dict)
    who: dict[str, Credentials] = field(default_factory=dict)
    callers: dict[str, Credentials] = field(default_factory=dict)

    @property
    def cluster(self) -> Cluster:
        return self.line.cluster

    def filled(self, text: str) -> str:
        for word in ("port", "otherport"):
            text = text.replace(f'"${word}"', self.words[word])
        return Template(text).substitute(self.words)


def account(line: Line, namespace: str, name: str, role: str) -> str:
    """A token of a new service account with a role in its namespace."""
    line.kubectl("create", "serviceaccount", name, "-n", namespace)
    line.kubectl("create", "rolebinding", name, role, f"--serviceaccount={namespace}:{name}", "-n", namespace)
    return line.kubectl("create", "token", name, "-n", namespace).strip()


def pod_token(line: Line, account: str, pod: Json) -> str:
    """A token as the pod has it: bound to the pod, and so to its node."""
    metadata = pod["metadata"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={metadata['name']}", f"--bound-object-uid={metadata['uid']}")
    return line.kubectl("create", "token", account, "-n", metadata["namespace"], *bound).strip()


def kubelet_pair(cluster: Cluster, mac: str) -> Pair:
    text = (cluster.machines[mac].folder / "kubelet" / "identity" / "client.pem").read_text()
    return Pair(text, "")


def agent_pair(cluster: Cluster, mac: str, pod: Json) -> Pair:
    """The certificate of a Mac's agent, which root on that Mac can read."""
    folder = cluster.machines[mac].folder / "kubelet" / "pods" / pod["metadata"]["uid"] / "empty" / "state"
    return Pair((folder / identity.CERTIFICATE).read_text(), (folder / identity.KEY).read_text())


def forged_pair(folder: Path) -> Pair:
    """What anybody can make: a certificate with the authority of all agents, whose key is public."""
    asyncio.run(identity.make(Host(), folder))
    return Pair((folder / identity.CERTIFICATE).read_text(), (folder / identity.KEY).read_text())


def waiting_pod(namespace: str, name: str) -> Json:
    """A pod that no node takes."""
    spec = {"nodeSelector": {"example.com/none": "here"}, "containers": [{"name": "main", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def pending_request(name: str, signer: str) -> Json:
    """A request for a certificate that no approver decides about: of another signer, or not of a kubelet."""
    spec = {"request": _csr("studio-1"), "signerName": signer, "usages": ["server auth"]}
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": spec,
    }


def _csr(node: str) -> str:
    return base64.b64encode(signing_request(new_key(), node)).decode()


AUTHOR: Json = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "matrix-author"},
    "rules": [{"apiGroups": ["thunderfleet.io"], "resources": ["modeldeployments", "modeldeployments/status"], "verbs": ["*"]}],
}


def pods_of(line: Line, component: str) -> list[Json]:
    """The pods of the operator or of the agents."""
    return line.items("pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/component={component}")


def find_words(subject: Subject) -> dict[str, str]:
    """The values of the placeholders: names of objects as this cluster has them."""
    line, group = subject.line, subject.group
    first, second = group.ranks()
    agents = {pod["spec"]["nodeName"]: pod["metadata"] for pod in pods_of(line, "agent")}
    links = [item["spec"] | {"name": item["metadata"]["name"]} for item in line.api.items(f"{OURS}/thunderboltlinks")]
    (link,) = [one for one in links if {one["a"]["node"], one["b"]["node"]} == {first["node"], second["node"]}]
    ports = {end["node"]: str(end["port"]) for end in (link["a"], link["b"])}
    children = {child["kind"]: child["metadata"]["name"] for child in group.children()}
    return {
        "a": group.namespace,
        "b": subject.other_namespace,
        "system": SYSTEM,
        "mac": first["node"],
        "other": second["node"],
        "md": group.name,
        "pod": first["pod"],
        "otherpod": second["pod"],
        "runner": subject.keyed.ranks()[0]["pod"],
        "plan": children["ConfigMap"],
        "key": children["Secret"],
        "image": subject.cluster.image,
        "agent": agents[first["node"]]["name"],
        "agent_uid": agents[first["node"]]["uid"],
        "otheragent": agents[second["node"]]["name"],
        "otheragent_uid": agents[second["node"]]["uid"],
        "link": link["name"],
        "port": ports[first["node"]],
        "otherport": ports[second["node"]],
        "csr": _csr(first["node"]),
        "othercsr": _csr(second["node"]),
    }


def find_credentials(subject: Subject, folder: Path) -> None:
    line, words, a = subject.line, subject.words, subject.group.namespace
    config = yamltext.load(subject.cluster.kubeconfig.read_text())["users"][0]["user"]
    admin = Pair(*(base64.b64decode(config[f"client-{part}-data"]).decode() for part in ("certificate", "key")))
    agent = line.json("get", "pod", words["agent"], "-n", SYSTEM)
    (operator, *_) = pods_of(line, "operator")
    line.kubectl("apply", "-n", a, "-f", "-", text=yamltext.dump(AUTHOR))
    subject.who = {
        "nobody": Credentials(),
        "admin": Credentials(pair=admin),
        "edit": Credentials(account(line, a, "matrix-edit", "--clusterrole=edit")),
        "view": Credentials(account(line, a, "matrix-view", "--clusterrole=view")),
        "author": Credentials(account(line, a, "matrix-author", "--role=matrix-author")),
        "pod": Credentials(line.kubectl("create", "token", "default", "-n", a).strip()),
        "system": Credentials(account(line, SYSTEM, "matrix-edit", "--clusterrole=edit")),
        "operator": Credentials(pod_token(line, "thunderfleet-operator", operator)),
        "agent": Credentials(pod_token(line, "thunderfleet-agent", agent)),
        "kubelet": Credentials(pair=kubelet_pair(subject.cluster, words["mac"])),
        "joining": Credentials(subject.cluster.token()),
    }
    secret = line.json("get", "secret", words["key"], "-n", a)["data"]
    member = Pair(*(base64.b64decode(secret[part]).decode() for part in ("tls.crt", "tls.key")))
    subject.callers = {
        "stranger": Credentials(),
        "forged": Credentials(pair=forged_pair(folder)),
        **{name: subject.who[name] for name in ("pod", "edit", "agent", "kubelet")},
        "member": Credentials(pair=member),
        "admin": subject.who["admin"],
        "key": Credentials(API_KEY),
    }


@pytest.fixture(scope="module")
def subject(line: Line, the_pair: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    group = the_pair.until_ready()
    with contextlib.ExitStack() as stack:
        keyed = line.deploy("keyed", nodes={"min": 1, "max": 1}, server={"apiKeySecret": "keys"}, benchmark={})
        stack.callback(line.forget, keyed)
        keys = [f"--from-literal={name}={key}" for name, key in (("matrix", API_KEY), *OTHER_KEYS.items())]
        keyed.kubectl("create", "secret", "generic", "keys", *keys)
        found = Subject(line, group, keyed, keyed.namespace)
        names = ("matrix-edit", "matrix-view", "matrix-author")
        stack.callback(
            line.kubectl, "delete", "rolebinding,serviceaccount,role", *names, "-n", group.namespace, "--ignore-not-found"
        )
        stack.callback(line.kubectl, "delete", "rolebinding,serviceaccount", names[0], "-n", SYSTEM, "--ignore-not-found")
        stack.callback(line.kubectl, "delete", "pod", "waits", "-n", group.namespace, "--ignore-not-found")
        for name, signer in (
            (f"matrix-{group.namespace}", "example.com/matrix"),
            (f"matrix-serving-{group.namespace}", SERVING_SIGNER),
        ):
            stack.callback(line.kubectl, "delete", "csr", name, "--ignore-not-found")
            line.kubectl("create", "-f", "-", text=yamltext.dump(pending_request(name, signer)))
        line.kubectl("create", "-f", "-", text=yamltext.dump(waiting_pod(group.namespace, "waits")))
        line.kubectl("create", "-f", "-", text=yamltext.dump(waiting_pod(keyed.namespace, "theirs")))
        keyed.kubectl("create", "secret", "generic", "theirs", "--from-literal=password=x")
        keyed.until_ready()
        found.words = find_words(found)
        find_credentials(found, tmp_path_factory.mktemp("forged"))
        yield found


# --- requests to the API server ----------------------------------------------------------------------------------------------


def authority(cluster: Cluster) -> str:
    config = yamltext.load(cluster.kubeconfig.read_text())
    return base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()


def verdict(status: int, text: str) -> str:
    """The word for an answer of the API server."""
    if status < 300 or (status == 400 and "pgrade" in text):
        # The request for a stream was allowed; it only lacked the upgrade.
        return "yes"
    if status == 401:
        return "401"
    if status in (403, 422) and "ValidatingAdmissionPolicy 'thunderfleet-" in text:
        return "policy"
    if status == 403 and " cannot " in text:
        return "role"
    if status == 403 and "not permitted to approve requests with signerName" in text:
        return "signer"
    if status == 403 and "node" in text:
        return "node"
    return f"{status}: {text[:300]}"


class Asker:
    """Sends requests to the API server as one identity."""

    def __init__(self, subject: Subject, who: Credentials) -> None:
        ca = authority(subject.cluster)
        tls = client_context(ca, who.pair.certificate, who.pair.key) if who.pair else ssl.create_default_context(cadata=ca)
        self._subject, self._who = subject, who
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls), timeout=aiohttp.ClientTimeout(total=SECONDS), headers=who.headers
        )

    async def __aenter__(self) -> "Asker":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, action: Action) -> str:
        filled = self._subject.filled
        method, path = filled(action.request).split(" ", 1)
        dry = "" if method == "GET" or action.real else "?dryRun=All"
        if action.content.startswith("application/apply"):
            dry += "&fieldManager=matrix&force=true"
        body = filled(json.dumps(action.body)) if action.body is not None else None
        headers = {"Content-Type": action.content} | {name: filled(value) for name, value in action.headers}
        async with self._session.request(
            method, self._subject.cluster.server + path + dry, data=body, headers=headers
        ) as answer:
            return verdict(answer.status, await answer.text())


@pytest.fixture(scope="module")
def answers(subject: Subject) -> Cells:
    """What the API server says to every identity about every action."""

    async def ask_all() -> Cells:
        found: Cells = {action.id: {} for action in ACTIONS}
        gate = asyncio.Semaphore(AT_ONCE)

        async def cell(asker: Asker, name: str, action: Action) -> None:
            async with gate:
                found[action.id][name] = await asker.ask(action)

        async with contextlib.AsyncExitStack() as stack:
            askers = {name: await stack.enter_async_context(Asker(subject, who)) for name, who in subject.who.items()}
            await asyncio.gather(*(cell(askers[name], name, action) for action in ACTIONS for name in IDENTITIES))
        return found

    known: list[Cells] = []

    def roles_are_in_force() -> bool:
        """A new binding takes effect a moment after it was made; nothing else changes while this waits."""
        known.append(asyncio.run(ask_all()))
        return known[-1] == {action.id: action.expected for action in ACTIONS} or known[-2:-1] == known[-1:]

    until(roles_are_in_force, "the API server says the same twice", ROUNDS_SECONDS)
    return known[-1]


def differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    return [f"{name}: expected {word}, found {found[name]}" for name, word in expected.items() if found[name] != word]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_who_may(action: Action, answers: Cells) -> None:
    assert differences(answers[action.id], action.expected) == []


# --- requests to ports -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where something listens. ``direct``: this process reaches it without the proxy of the cluster."""

    address: str
    port: int
    tls: bool
    direct: bool = False


def local_port(cluster: Cluster, program: str, flag: str) -> int:
    """The port of a program of the control plane, from its command line."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_text(errors="replace").split("\0")
            if Path(words[0]).name == program and any(str(cluster.folder.root) in word for word in words):
                value = next(word.partition("=")[2] for word in words if word.startswith(f"--{flag}="))
                return int(value.rpartition(":")[2])
    raise AssertionError(f"{program} is not running")


def places(subject: Subject) -> dict[str, Place]:
    line, words = subject.line, subject.words
    macs = {name: machine.address for name, machine in line.cluster.machines.items()}
    gateway, keyed = (urlsplit(one.endpoint) for one in (subject.group, subject.keyed))
    control, control_port = subject.group.group()["coordinator"].rsplit(":", 1)
    api = urlsplit(line.cluster.server)
    inner = str(line.json("get", "endpointslice", "kubernetes")["endpoints"][0]["addresses"][0])
    proxy = urlsplit(line.cluster.proxy)
    (operator, *_) = pods_of(line, "operator")
    return {
        "kubelet": Place(macs[words["mac"]], 10250, True),
        "agent": Place(macs[words["other"]], 9440, True),
        "agent-metrics": Place(macs[words["other"]], 9441, False),
        "operator": Place(operator["status"]["podIP"], 9401, False),
        "control": Place(control, int(control_port), True),
        "gateway": Place(str(gateway.hostname), int(gateway.port or 0), False),
        "keyed": Place(str(keyed.hostname), int(keyed.port or 0), False),
        "api": Place(str(api.hostname), int(api.port or 0), True, direct=True),
        "etcd": Place(inner, local_port(line.cluster, "etcd", "listen-client-urls"), True),
        "scheduler": Place(inner, local_port(line.cluster, "kube-scheduler", "secure-port"), True),
        "controllers": Place(inner, local_port(line.cluster, "kube-controller-manager", "secure-port"), True),
        "proxy": Place(str(proxy.hostname), int(proxy.port or 0), False, direct=True),
    }


def unchecked(subject: Subject, pair: Pair | None) -> ssl.SSLContext:
    """TLS that accepts every server, as an attacker's would."""
    ca = authority(subject.cluster)
    context = client_context(ca, pair.certificate, pair.key) if pair else ssl.create_default_context(cadata=ca)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def knock(subject: Subject, place: Place, who: Credentials, path: str) -> str:
    """One request to a port; the word for its outcome."""
    proxy = urlsplit(subject.cluster.proxy)
    near = (place.address, place.port) if place.direct else (str(proxy.hostname), proxy.port)
    connection: http.client.HTTPConnection = (
        http.client.HTTPSConnection(*near, timeout=SECONDS, context=unchecked(subject, who.pair))
        if place.tls
        else http.client.HTTPConnection(*near, timeout=SECONDS)
    )
    if not place.direct:
        connection.set_tunnel(place.address, place.port, proxy_headers(subject.cluster.proxy))
    headers = {**who.headers, NODE_HEADER: subject.words["mac"], "Host": GROUP_TLS_NAME}
    try:
        connection.request("GET", path, headers=headers)
        status = connection.getresponse().status
    except (ssl.SSLError, http.client.HTTPException, ConnectionError):
        return "tls"
    except OSError as error:
        return "none" if "Tunnel connection failed: 502" in str(error) else f"error: {error!r}"
    finally:
        connection.close()
    return str(status) if status in (401, 403, 407) else "yes" if status < 500 else f"status {status}"


@pytest.fixture(scope="module")
def knocked(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Cells:
    """What every port says to every caller."""
    known = places(subject)
    agent = subject.line.json("get", "pod", subject.words["agent"], "-n", SYSTEM)
    as_agent = Credentials(pair=agent_pair(subject.cluster, subject.words["mac"], agent))

    def cell(one: Knock, name: str) -> str:
        who = as_agent if name == "member" and one.at != "control" else subject.callers[name]
        return knock(subject, known[one.at], who, subject.filled(one.path))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {one.id: {name: pool.submit(cell, one, name) for name in CALLERS} for one in KNOCKS}
        return {row: {name: future.result() for name, future in cells.items()} for row, cells in futures.items()}


@pytest.mark.parametrize("one", KNOCKS, ids=lambda one: one.id)
def test_who_is_answered(one: Knock, subject: Subject, knocked: Cells) -> None:
    if one.at in LOCAL_ONLY and subject.cluster.network != "namespaces":
        pytest.skip("on loopback addresses every program can be reached; test_localcluster asks them")
    assert differences(knocked[one.id], one.expected) == []


def test_a_gateway_tells_strangers_what_it_wants_and_accepts_each_key(subject: Subject) -> None:
    keyed = subject.keyed
    for path in ("models", "chat/completions"):
        refused = subject.line.request(f"{keyed.endpoint}/{path}")
        assert refused.status == 401, refused.body
        assert "Authorization: Bearer" in refused.json["error"]["message"]
    assert keyed.ask(PROMPT, 1, "wrong").status == 401
    for key in OTHER_KEYS.values():
        assert keyed.ask(PROMPT, 1, key).status == 200


# Run on a machine: TCP sockets that listen, as address and port, and UNIX sockets that do.
LISTENERS = """
import json, socket
tcp = []
for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
        (address, _, port), state = line.split()[1].partition(":"), line.split()[3]
        raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
        if state == "0A":
            tcp.append([socket.inet_ntop(family, raw), int(port, 16)])
unix = [line.split() for line in open("/proc/net/unix").read().splitlines()[1:]]
print(json.dumps({"tcp": tcp, "unix": [row[-1] for row in unix if int(row[3], 16) & 0x10000]}))
"""


def test_nothing_else_listens(subject: Subject) -> None:
    """Every socket of every machine is in the table of ports, and bound to an address of that machine alone."""
    line, cluster = subject.line, subject.cluster
    if cluster.network != "namespaces":
        pytest.skip("without namespaces the sockets of all programs of this machine are in one list")
    groups = {place for one in (subject.group, subject.keyed) for place in one.ports()}
    for name, machine in cluster.machines.items():
        ran = line.run(name, sys.executable, "-S", "-c", LISTENERS)
        assert ran.returncode == 0, ran.stderr
        found = json.loads(ran.stdout)
        fixed = {10250, 9440, 9441} if machine.kind == "mac" else {10250, 9401, PROMETHEUS_PORT}
        allowed = fixed | {port for node, port in groups if node == name}
        own = {machine.address, *(str(cable["address"]) for cable in machine.cables)}
        assert [at for at in found["tcp"] if at[0] not in own or at[1] not in allowed] == [], name
        assert {10250} <= {port for _, port in found["tcp"]}, "the list is not empty"
        # The recorded launchd stands in for macOS', and obeys root only, as that does.
        assert found["unix"] == (["@thunderfleet.launchd"] if machine.kind == "mac" else []), name


def test_runners_have_no_credentials(subject: Subject) -> None:
    """No token of a service account is mounted, and none is in the environment."""
    words = subject.words
    pod = subject.line.json("get", "pod", words["pod"], "-n", words["a"])
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not [volume for volume in pod["spec"]["volumes"] if "projected" in volume]
    script = 'find -L "$CONTAINER_SANDBOX_MOUNT_POINT" -name token; env | grep -i -E "token|kubeconfig"; true'
    assert subject.group.kubectl("exec", words["pod"], "--", "sh", "-c", script).strip() == ""


def test_the_group_has_not_noticed(subject: Subject, answers: Cells, knocked: Cells) -> None:
    """Dry runs and refused requests change nothing."""
    assert subject.group.is_ready() and subject.keyed.is_ready()
    assert [rank["pod"] for rank in subject.group.ranks()] == [subject.words["pod"], subject.words["otherpod"]]


def test_the_tables_are_shown(answers: Cells, knocked: Cells, record_property: Callable[[str, object], None]) -> None:
    """As they were found, in the summary of the run."""
    record_property("table", grid(IDENTITIES, [(action.what, answers[action.id]) for action in ACTIONS]))
    record_property("table", grid(CALLERS, [(one.what, knocked[one.id]) for one in KNOCKS]))
    assert all(set(cells) == set(IDENTITIES) for cells in answers.values())
    assert all(set(cells) == set(CALLERS) for cells in knocked.values())
