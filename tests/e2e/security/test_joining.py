"""Who becomes which Node: real tokens at the real API server, its controller manager and our approver."""

import asyncio
import base64
import json
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_kubelet.bootstrap.certificate_work import new_key, signing_request
from thunderfleet_kubelet.bootstrap.certificates import (
    CertificateError,
    csr_object,
    obtain,
    usable,
)
from thunderfleet_kubelet.bootstrap.identity import load_identity
from thunderfleet_lib.csr.names import CLIENT_SIGNER, REQUESTS, SERVING_SIGNER
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.launch import kubelet_command
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support import yamltext
from tests.support.waiting import until

Json = dict[str, Any]

SECONDS = 3600
LIMIT = 60.0


class Joining:
    """Joins under names of its own, so that tests can share the cluster."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def join(self, node: str, token: str, *more: str) -> subprocess.CompletedProcess[str]:
        """``thunderfleet-kubelet join --no-run``; each node has a folder of its own."""
        config = self.folder / f"{node}.yaml"
        config.write_text(json.dumps({"nodeName": node, "addresses": ["192.0.2.1"]}))
        known = ["--server", self.cluster.server, "--ca-hash", self.cluster.state["caHash"], "--token", token]
        files = ["--root", str(self.folder / node), "--config", str(config), "--no-run"]
        command = [*kubelet_command(), "join", *known, *files, *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)

    def as_stranger(self) -> Path:
        """A kubeconfig without credentials."""
        config = yamltext.load(self.cluster.kubeconfig.read_text())
        config["users"] = [{"name": config["users"][0]["name"], "user": {}}]
        file = self.folder / "stranger.kubeconfig"
        file.write_text(yamltext.dump(config))
        return file

    def joined(self, node: str) -> bool:
        return load_identity(self.folder / node) is not None

    def make_node(self, name: str) -> None:
        self.cluster.kubectl(
            "create", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        )

    def requests(self, node: str) -> list[dict[str, Any]]:
        """The requests that ask for ``node``'s client certificate, by who sent them and how they were decided."""
        items = json.loads(self.cluster.kubectl("get", "csr", "-o", "json").stdout)["items"]
        return [item for item in items if item["spec"]["signerName"] == CLIENT_SIGNER and node in str(item["status"])]


@pytest.fixture
def joining(control_plane: Cluster, tmp_path: Path) -> Joining:
    return Joining(control_plane, tmp_path)


def test_a_bound_token_joins_its_name_and_no_other(joining: Joining) -> None:
    token = joining.cluster.token("bound-a.lan")
    for other in ("bound-b", "bound-a-lan"):
        refused = joining.join(other, token)
        assert refused.returncode == 1
        assert f"the token is for Node bound-a.lan, not for {other}" in refused.stderr
        assert not joining.joined(other)
    done = joining.join("bound-a.lan", token)
    assert done.returncode == 0, done.stderr
    assert joining.joined("bound-a.lan")


def test_an_unbound_token_does_not_take_over_a_node(joining: Joining) -> None:
    """Neither with --replace, which only asks the client to be careful, nor past the client."""
    cluster, token = joining.cluster, joining.cluster.token()
    joining.make_node("taken")
    for more in ((), ("--replace",)):
        refused = joining.join("taken", token, *more)
        assert refused.returncode == 1
        assert "Node taken exists" in refused.stderr
        assert "thunderfleet local token --node taken" in refused.stderr
        assert not joining.joined("taken")
    assert {condition["type"] for item in joining.requests("taken") for condition in item["status"]["conditions"]} == {"Denied"}
    cluster.kubectl("delete", "node", "taken")
    done = joining.join("taken", token)
    assert done.returncode == 0, done.stderr


def test_a_bound_token_takes_over_its_node_when_told_to(joining: Joining) -> None:
    token = joining.cluster.token("moved")
    joining.make_node("moved")
    careful = joining.join("moved", token)
    assert careful.returncode == 1
    assert "a Node named moved already exists" in careful.stderr and "--replace" in careful.stderr
    done = joining.join("moved", token, "--replace")
    assert done.returncode == 0, done.stderr


def test_a_node_renews_its_own_certificate_and_gets_no_other(joining: Joining) -> None:
    """Renewals are approved by the controller manager, and do not depend on tokens."""
    assert joining.join("renews", joining.cluster.token("renews")).returncode == 0
    identity = load_identity(joining.folder / "renews")
    assert identity is not None
    joining.make_node("renews")
    joining.make_node("victim")

    async def renew() -> None:
        async with identity.kube() as kube:
            for signer, addresses in ((CLIENT_SIGNER, ()), (SERVING_SIGNER, ("192.0.2.1",))):
                with pytest.raises((ApiError, CertificateError), match=r"can only create a node CSR|common name"):
                    await obtain(kube, "victim", signer, SECONDS, addresses=addresses, limit=LIMIT)
            pair = await obtain(kube, "renews", CLIENT_SIGNER, SECONDS, limit=LIMIT)
            assert usable(pair, "renews", datetime.now(UTC))

    asyncio.run(renew())


def test_a_token_gets_no_more_than_a_node(joining: Joining) -> None:
    """Past the client: other subjects, usages and signers than those of a joining kubelet."""
    cluster, token = joining.cluster, joining.cluster.token("modest")
    ca = joining.folder / "ca.crt"
    ca.write_bytes((cluster.folder.control_plane / "pki" / "ca.crt").read_bytes())

    async def ask(node: str, signer: str) -> str:
        async with Kube.with_files(cluster.server, ca, token=token) as kube:
            csr = await kube.create(REQUESTS, csr_object(signing_request(new_key(), node, ["192.0.2.1"]), signer, SECONDS))
            return str(csr["metadata"]["name"])

    def send(signer: str) -> str:
        return asyncio.run(ask("modest", signer))

    for signer, text in (
        (SERVING_SIGNER, "is not node modest"),
        (CLIENT_SIGNER, "must not have DNS names or addresses"),
    ):
        # The API server hears of a new token by a watch.
        name = until(partial(send, signer), "the API server takes the token", LIMIT, retry_on=(ApiError,))

        def denied(name: str = name) -> str | None:
            conditions = json.loads(cluster.kubectl("get", "csr", name, "-o", "json").stdout)["status"].get("conditions") or []
            return next((str(one["message"]) for one in conditions if one["type"] == "Denied"), None)

        assert text in until(denied, "the request is denied")


def test_bootstrap_tokens_end(joining: Joining) -> None:
    """An hour after they were made; and one that has ended joins nothing."""
    cluster, token = joining.cluster, joining.cluster.token()
    name = f"bootstrap-token-{token.partition('.')[0]}"
    secret = json.loads(cluster.kubectl("get", "secret", name, "-n", "kube-system", "-o", "json").stdout)
    ends = datetime.fromisoformat(base64.b64decode(secret["data"]["expiration"]).decode())
    left = (ends - datetime.now(UTC)).total_seconds()
    assert 3600 - LIMIT < left <= 3600
    past = base64.b64encode(b"2026-01-01T00:00:00Z").decode()
    cluster.kubectl("patch", "secret", name, "-n", "kube-system", "-p", json.dumps({"data": {"expiration": past}}))

    def refused() -> bool:
        done = cluster.kubectl("--token", token, "--kubeconfig", str(joining.as_stranger()), "get", "csr", check=False)
        return "Unauthorized" in done.stderr or "must be logged in" in done.stderr

    until(refused, "the API server does not know the token any more", LIMIT)


def test_a_node_reads_the_secrets_of_its_pods_and_no_others(joining: Joining) -> None:
    """So everybody who joins a Node gets the Secrets of the pods that the scheduler binds to it."""
    cluster = joining.cluster
    assert joining.join("greedy", cluster.token()).returncode == 0
    identity = load_identity(joining.folder / "greedy")
    assert identity is not None
    for name in ("bound", "other"):
        cluster.kubectl("create", "secret", "generic", name, "--from-literal=password=x")
    mount = {"name": "keys", "secret": {"secretName": "bound"}}
    spec = {"nodeName": "greedy", "containers": [{"name": "main", "image": "none"}], "volumes": [mount]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bound"}, "spec": spec}
    secrets = "/api/v1/namespaces/default/secrets"

    async def read(name: str) -> Json | None:
        async with identity.kube() as kube:
            try:
                return await kube.get(f"{secrets}/{name}")
            except ApiError as error:
                assert error.status == 403, error
                return None

    async def register() -> None:
        async with identity.kube() as kube:
            await kube.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "greedy"}})

    asyncio.run(register())
    assert asyncio.run(read("bound")) is None, "no pod of it mounts the Secret yet"
    cluster.kubectl("create", "-f", "-", text=json.dumps(pod))
    until(lambda: asyncio.run(read("bound")), "the Node reads the Secret of its pod", LIMIT)
    assert asyncio.run(read("other")) is None
    cluster.kubectl("delete", "pod", "bound", "--force", "--grace-period=0")
    cluster.kubectl("delete", "node", "greedy")
    cluster.kubectl("delete", "secret", "bound", "other")


def test_no_group_holds_a_name_that_is_no_node(joining: Joining) -> None:
    with pytest.raises(LocalClusterError, match="not a valid node name"):
        joining.cluster.token("No_Node")
