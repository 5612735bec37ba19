"""How a kubelet joins, and what its Node says, on the real control plane as users see it."""

import json
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from thunderfleet_localcluster.client.launch import kubelet_command

from tests.support.kubelets import LINUX, MAC, ROOT, Fleet
from tests.support.waiting import until


def test_joined_node_says_what_it_is(fleet: Fleet) -> None:
    node = fleet.get("node", MAC)
    labels = node["metadata"]["labels"]
    assert labels["kubernetes.io/os"] == "darwin"
    assert labels["kubernetes.io/arch"] == "arm64"
    assert labels["kubernetes.io/hostname"] == MAC
    assert labels["thunderfleet.io/chip"] == "Apple-M3-Ultra"
    assert {"key": "thunderfleet.io/macos", "effect": "NoSchedule"} in [
        {key: taint[key] for key in ("key", "effect")} for taint in node["spec"]["taints"]
    ]
    status = node["status"]
    # The default limit of macOS for GPU memory with 96 GB: three quarters.
    assert status["capacity"]["memory"] == "72Gi"
    assert int(status["capacity"]["cpu"]) > 1
    assert status["capacity"]["pods"] == "110"
    assert status["addresses"] == [{"type": "InternalIP", "address": fleet.cluster.machines[MAC].address}]
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "PodsShareUser": str(not ROOT),
    }
    linux = fleet.get("node", LINUX)
    assert linux["metadata"]["labels"]["kubernetes.io/os"] == "linux"
    assert not linux["spec"].get("taints")


def test_joined_node_has_certificates_and_renews_its_lease(fleet: Fleet) -> None:
    folder = fleet.cluster.machines[MAC].folder / "kubelet" / "identity"
    assert folder.stat().st_mode & 0o777 == 0o700
    pem = (folder / "client.pem").read_bytes()
    leaf = x509.load_pem_x509_certificate(pem[pem.find(b"-----BEGIN CERT") :])
    assert leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == f"system:node:{MAC}"
    assert leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value == "system:nodes"
    assert {(folder / name).stat().st_mode & 0o777 for name in ("client.pem", "serving.pem")} == {0o600}
    requests = fleet.get("csr")["items"]
    signers = {item["spec"]["signerName"] for item in requests if item["spec"]["username"].startswith("system:bootstrap:")}
    assert signers == {"kubernetes.io/kube-apiserver-client-kubelet"}
    assert any(
        item["spec"]["username"] == f"system:node:{MAC}" and item["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
        for item in requests
    )

    def renewed() -> str:
        lease = fleet.get("lease", MAC, "-n", "kube-node-lease")
        assert lease["spec"]["holderIdentity"] == MAC
        return str(lease["spec"]["renewTime"])

    before = renewed()
    until(lambda: renewed() > before, "the Lease is renewed", 40)


def test_a_lease_that_a_wrong_clock_renewed_goes_on_from_there(fleet: Fleet) -> None:
    """The controller manager ignores a time of renewal that is before the last one, and would call the Node dead for a year."""
    machine, ahead = fleet.cluster.machines[LINUX], "2099-01-01T00:00:00.000000Z"

    def renewed() -> str:
        return str(fleet.get("lease", LINUX, "-n", "kube-node-lease")["spec"]["renewTime"])

    machine.stop_kubelet()
    patch = json.dumps({"spec": {"renewTime": ahead}})
    fleet.kubectl("patch", "lease", LINUX, "-n", "kube-node-lease", "--type=merge", "-p", patch)
    machine.start_kubelet()
    first = until(lambda: renewed() if renewed() > ahead else None, "the Lease is renewed", 40)
    until(lambda: renewed() > first, "and again", 40)


def joining(fleet: Fleet, folder: Path, name: str, *more: str, **given: str) -> subprocess.CompletedProcess[str]:
    """``thunderfleet-kubelet join --no-run`` on the Linux machine, into ``folder``."""
    machine = fleet.cluster.machines[LINUX]
    known = json.loads((machine.folder / "kubelet/identity/cluster.json").read_text())
    fresh = fleet.cluster.command(do="token")
    config = folder.parent / f"{folder.name}.yaml"
    config.write_text(json.dumps({"nodeName": name, "addresses": [machine.address]}))
    words = {"server": known["server"], "token": fresh["token"], "ca-hash": fresh["caHash"]} | given
    flags = [word for key, value in words.items() for word in (f"--{key}", value)]
    return machine.run(
        [*kubelet_command(), "join", *flags, "--root", str(folder), "--config", str(config), "--no-run", *more], seconds=60
    )


def test_join_with_a_wrong_hash_sends_no_token(fleet: Fleet, tmp_path: Path) -> None:
    done = joining(fleet, tmp_path / "node", "late-1", **{"ca-hash": "sha256:" + "0" * 64})
    assert done.returncode == 1
    assert "the token was not sent" in done.stderr
    assert not (tmp_path / "node/identity/client.pem").exists()


@pytest.mark.soak
def test_join_with_a_token_that_is_no_good(fleet: Fleet, tmp_path: Path) -> None:
    unknown = joining(fleet, tmp_path / "node", "late-1", token="abcdef.0123456789abcdef")
    assert unknown.returncode == 1
    assert "rejected the token" in unknown.stderr
    assert "thunderfleet local token" in unknown.stderr
    mistyped = joining(fleet, tmp_path / "node", "late-1", token="nonsense")
    assert mistyped.returncode == 2
    assert "nonsense" not in mistyped.stderr
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-expird", "namespace": "kube-system"},
        "stringData": {
            "token-id": "expird",
            "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": "system:bootstrappers:thunderfleet",
            "expiration": "2026-01-01T00:00:00Z",
        },
    }
    fleet.apply(secret)
    expired = joining(fleet, tmp_path / "node", "late-1", token="expird.0123456789abcdef")
    assert expired.returncode == 1
    assert "expired" in expired.stderr
    assert not (tmp_path / "node/identity/client.pem").exists()


@pytest.mark.soak
def test_join_under_a_name_that_is_taken(fleet: Fleet, tmp_path: Path) -> None:
    unbound = joining(fleet, tmp_path / "node", LINUX, "--replace")
    assert unbound.returncode == 1
    assert f"thunderfleet local token --node {LINUX}" in unbound.stderr
    refused = joining(fleet, tmp_path / "node", LINUX, token=fleet.cluster.token(LINUX))
    assert refused.returncode == 1
    assert f"a Node named {LINUX} already exists (Lease last renewed at " in refused.stderr
    assert "--replace" in refused.stderr
    assert not (tmp_path / "node/identity/cluster.json").exists()
    taken = joining(fleet, tmp_path / "node", LINUX, "--replace", token=fleet.cluster.token(LINUX))
    assert taken.returncode == 0, taken.stderr
    assert (tmp_path / "node/identity/client.pem").exists()
