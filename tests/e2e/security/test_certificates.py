"""Serving certificates of kubelets: the operator approves them, and a hostile kubelet gets none for the address of another."""

import asyncio
import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from thunderfleet_kubelet.bootstrap.certificate_work import new_key, signing_request
from thunderfleet_kubelet.bootstrap.identity import NodeIdentity, load_identity
from thunderfleet_lib.csr.names import REQUESTS, SERVING_SIGNER
from thunderfleet_lib.csr.rules import WAIT_SECONDS
from thunderfleet_lib.kube import ApiError
from thunderfleet_localcluster.client.launch import kubelet_command
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.line import SYSTEM, Line, condition
from tests.support.waiting import until

Json = dict[str, Any]

ROGUE, ITS_OWN = "rogue-1", "192.0.2.77"
SERVING = ("digital signature", "server auth")
DECIDED_SECONDS = WAIT_SECONDS + 30


def agent_of(line: Line, mac: str) -> str:
    pods = line.items("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=agent")
    return next(str(pod["metadata"]["name"]) for pod in pods if pod["spec"]["nodeName"] == mac)


def request_of(line: Line, name: str) -> Json:
    return line.api.get(f"{REQUESTS}/{name}") or {}


def conditions_of(line: Line, name: str) -> list[str]:
    return [f"{one['type']}: {one['message']}" for one in request_of(line, name).get("status", {}).get("conditions", [])]


class Rogue:
    """Root on a Mac that has joined: its kubelet's identity, and a Node whose status it writes as it likes."""

    def __init__(self, line: Line, identity: NodeIdentity, addresses: tuple[str, ...]) -> None:
        self.line, self.identity = line, identity
        status = {
            "addresses": [{"type": "InternalIP", "address": address} for address in addresses],
            "nodeInfo": self._info(),
        }
        self._as_kubelet("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": ROGUE}})
        self._as_kubelet("PATCH", f"/api/v1/nodes/{ROGUE}/status", {"status": status})

    def _info(self) -> Json:
        found: Json = self.line.api.items("/api/v1/nodes")[0]["status"]["nodeInfo"]
        return found

    def _as_kubelet(self, method: str, path: str, body: Json) -> Json:
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"

        async def ask() -> Json:
            async with self.identity.kube() as kube:
                return await kube.request(method, path, body=body, content=content)

        return asyncio.run(ask())

    def send(self, *names: str, node: str = ROGUE, usages: tuple[str, ...] = SERVING, signer: str = SERVING_SIGNER) -> str:
        """Sends a request for a certificate with these addresses and DNS names; its name."""
        text = base64.b64encode(signing_request(new_key(), node, names)).decode()
        spec = {"request": text, "signerName": signer, "usages": list(usages)}
        made = self._as_kubelet(
            "POST",
            REQUESTS,
            {
                "apiVersion": "certificates.k8s.io/v1",
                "kind": "CertificateSigningRequest",
                "metadata": {"generateName": "rogue-"},
                "spec": spec,
            },
        )
        return str(made["metadata"]["name"])


@pytest.fixture(scope="module")
def rogue(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rogue]:
    folder = tmp_path_factory.mktemp("rogue")
    (folder / "config").write_text(json.dumps({"nodeName": ROGUE, "addresses": [ITS_OWN]}))
    known = ["--server", line.cluster.server, "--ca-hash", line.cluster.state["caHash"], "--token", line.cluster.token()]
    files = ["--root", str(folder / "root"), "--config", str(folder / "config"), "--no-run"]
    command = [*kubelet_command(), "join", *known, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    identity = load_identity(folder / "root")
    assert identity is not None
    try:
        yield Rogue(line, identity, (ITS_OWN, address_of_mac(line), address_of_api(line)))
    finally:
        line.kubectl("delete", "node", ROGUE, "--ignore-not-found")


def address_of_mac(line: Line) -> str:
    return str(line.cluster.machines["studio-2"].address)


def address_of_api(line: Line) -> str:
    return str(urlsplit(line.cluster.state["innerServer"]).hostname)


def operators(line: Line, replicas: int) -> None:
    """Scales the operator and waits until so many replicas are ready."""
    line.kubectl("scale", "deployment/thunderfleet-operator", "-n", SYSTEM, f"--replicas={replicas}")

    def settled() -> bool:
        pods = line.items("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator")
        return len(pods) == replicas and all(condition(pod, "Ready").get("status") == "True" for pod in pods)

    until(settled, f"{replicas} replicas of the operator are ready", 120.0)


@pytest.fixture
def restarted(line: Line) -> Iterator[Callable[[int], None]]:
    """Scales the operator; at the end it has its two replicas again."""
    yield lambda replicas: operators(line, replicas)
    operators(line, 2)


def serving_file(line: Line, mac: str) -> Path:
    return line.cluster.machines[mac].folder / "kubelet" / "identity" / "serving.pem"


def asked_again(line: Line, mac: str) -> str:
    """Has the kubelet of a Mac ask for a new serving certificate, as a new Mac does; the name of the request."""
    machine, before = line.cluster.machines[mac], {item["metadata"]["name"] for item in line.api.items(REQUESTS)}
    machine.kill_kubelet()
    serving_file(line, mac).unlink()
    machine.start_kubelet()

    def sent() -> str | None:
        new = [item for item in line.api.items(REQUESTS) if item["metadata"]["name"] not in before]
        mine = [item for item in new if item["spec"]["username"] == f"system:node:{mac}"]
        return next((str(item["metadata"]["name"]) for item in mine), None)

    return until(sent, f"the kubelet of {mac} sends a request", describe=lambda: machine.log.read_text()[-2000:])


def test_the_operator_approves_the_certificate_of_a_mac(line: Line) -> None:
    address = str(line.cluster.machines["mini-1"].address)
    name = asked_again(line, "mini-1")
    assert until(lambda: conditions_of(line, name), "it is decided") == [f"Approved: Node mini-1 publishes {address}"]
    writers = {
        entry["manager"]
        for entry in request_of(line, name)["metadata"]["managedFields"]
        if entry.get("subresource") == "approval"
    }
    assert writers == {"thunderfleet-operator"}
    until(lambda: serving_file(line, "mini-1").exists(), "it is there")
    pem = serving_file(line, "mini-1").read_bytes()
    leaf = x509.load_pem_x509_certificate(pem[pem.find(b"-----BEGIN CERT") :])
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(value) for value in names.get_values_for_type(x509.IPAddress)] == [address] and len(list(names)) == 1
    pod = ("-n", SYSTEM, agent_of(line, "mini-1"))
    logs = until(lambda: line.kubectl("logs", *pod, "--tail=1"), "kubectl logs works", retry_on=(LocalClusterError,))
    assert logs.strip()
    assert line.kubectl("exec", *pod, "--", "sh", "-c", "echo from-the-mac").strip() == "from-the-mac"


def test_requests_wait_for_the_operator_and_hostile_ones_are_denied(
    line: Line, rogue: Rogue, restarted: Callable[[int], None]
) -> None:
    """While no operator runs nobody decides; then two replicas decide each request once."""
    restarted(0)
    victim = address_of_mac(line)
    hostile = {
        rogue.send(ITS_OWN, "192.0.2.200"): f"Node {ROGUE} does not publish 192.0.2.200",
        rogue.send(victim): f"Node studio-2 publishes {victim} too",
        rogue.send(f"::ffff:{victim}"): f"Node studio-2 publishes {victim} too",
        rogue.send(address_of_api(line)): f"{address_of_api(line)} is an address of the API server",
        rogue.send(ITS_OWN, "kubernetes.default.svc"): "DNS names are not approved",
        rogue.send(ITS_OWN, usages=(*SERVING, "client auth")): "the usages are",
        rogue.send(): "the request has no address",
    }
    honest = rogue.send(ITS_OWN)
    other_signer = rogue.send(ITS_OWN, signer="example.com/serving")
    mac = asked_again(line, "mini-1")
    assert not any(conditions_of(line, name) for name in (*hostile, honest, mac)), "nobody else decides"
    restarted(2)

    def decided() -> bool:
        return all(conditions_of(line, name) for name in (*hostile, honest, mac))

    until(decided, "all are decided", DECIDED_SECONDS, describe=lambda: line.kubectl("get", "csr"))
    for name, text in hostile.items():
        (found,) = conditions_of(line, name)
        assert found.startswith("Denied: ") and text in found
        assert not request_of(line, name)["status"].get("certificate")
    for name in (honest, mac):
        (found,) = conditions_of(line, name)
        assert found.startswith("Approved: ")
    assert conditions_of(line, other_signer) == [], "other signers are none of the operator's business"
    until(lambda: serving_file(line, "mini-1").exists(), "the Mac has its certificate again")


def test_the_identity_of_a_kubelet_asks_for_no_other_and_approves_none(line: Line, rogue: Rogue) -> None:
    with pytest.raises(ApiError, match=f"can only create a node CSR with CN=system:node:{ROGUE}"):
        rogue.send(ITS_OWN, node="studio-2")
    name = rogue.send(ITS_OWN)
    approval = {"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Me", "message": "mine"}]}}
    with pytest.raises(ApiError) as refused:
        rogue._as_kubelet("PATCH", f"{REQUESTS}/{name}/approval", approval)
    assert refused.value.status == 403
