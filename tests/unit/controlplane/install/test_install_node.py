"""When `init` and `join` take this Mac's Node for Ready: only by what its kubelet wrote after it was started."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.steps import cluster, kubelet
from thunderfleet_controlplane.install.steps.cluster import until_node_ready
from thunderfleet_controlplane.install.steps.kubelet import Cluster, KubeletInstaller
from thunderfleet_kubelet import configfile
from thunderfleet_lib.net import tls

Json = dict[str, Any]
HERE = Cluster("https://192.168.64.11:6443", "sha256:00")
STARTED = datetime(2026, 1, 1, 12, tzinfo=UTC)


def node(ready: str) -> Json:
    return {"status": {"conditions": [{"type": "Ready", "status": ready, "message": f"Ready is {ready}"}]}}


def lease(seconds: float) -> Json:
    time = STARTED + timedelta(seconds=seconds)
    return {"spec": {"renewTime": time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}


class Api:
    """An API server that has another Node and Lease each time somebody looks; the last ones stay."""

    def __init__(self, *states: tuple[Json | None, Json | None]) -> None:
        self.states, self.looks = list(states), 0

    async def get_or_none(self, path: str) -> Json | None:
        found, renewed = self.states[0]
        if path == "/api/v1/nodes/studio-1":
            self.looks += 1
            if len(self.states) > 1:
                self.states.pop(0)
            return found
        assert path == "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/studio-1"
        return renewed


def wait(api: Any) -> None:
    asyncio.run(until_node_ready(api, "studio-1", STARTED, lambda: "the log"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.0)


def test_the_state_of_an_earlier_kubelet_does_not_count() -> None:
    api = Api((node("True"), lease(-5)), (node("True"), None), (node("False"), lease(1)), (node("True"), lease(2)))
    wait(api)
    assert api.looks == 4


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ((None, None), "it does not exist"),
        ((node("True"), lease(-5)), "its kubelet has not renewed its Lease"),
        ((node("True"), {"spec": {"renewTime": "soon"}}), "its kubelet has not renewed its Lease"),
        ((node("False"), lease(5)), "Ready is False"),
    ],
)
def test_a_node_that_does_not_become_ready_says_why(
    state: tuple[Json | None, Json | None], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "NODE_SECONDS", 0.01)
    with pytest.raises(InstallError, match=rf"Node studio-1 is not Ready: {text}\nthe log"):
        wait(Api(state))


@pytest.mark.parametrize("started", [True, False])
def test_a_kubelet_that_runs_already_need_not_renew_at_once(
    started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: Callable[..., datetime | None] = lambda *arguments: datetime.now(UTC) if started else None  # noqa: E731
    monkeypatch.setattr(kubelet, "put_daemon", put)
    layout = HostLayout("0.1.0", *(tmp_path / name for name in ("opt", "data", "logs", "daemons")))
    launchctl: Any = None
    installer = KubeletInstaller(layout, launchctl, tmp_path, {})
    plist = '<plist version="1.0"><dict><key>Label</key><string>io.thunderfleet.kubelet</string>'
    plist += "<key>ProgramArguments</key><array><string>/x</string></array></dict></plist>"
    monkeypatch.setattr(installer, "_run", lambda *arguments: '<?xml version="1.0"?>' + plist)
    layout.data.mkdir()
    layout.kubelet_config.write_text("nodeName: studio-1\n")
    before = datetime.now(UTC)
    since = installer.start("1")
    assert (since >= before) == started
    assert before - since <= timedelta(seconds=kubelet.LEASE_SECONDS)


def test_the_kubelet_of_a_control_plane_watches_its_certificates_and_components_and_no_other_does(tmp_path: Path) -> None:
    layout = HostLayout("0.1.0", *(tmp_path / name for name in ("opt", "data", "logs", "daemons")))
    launchctl: Any = None
    installer = KubeletInstaller(layout, launchctl, tmp_path, {})
    installer.write_config("studio-1", None, control_plane=True)
    found = configfile.load(layout.kubelet_config)
    assert found.control_plane_certificates == layout.pki.folder and found.control_plane_components
    installer.write_config("studio-1", None, control_plane=False)
    found = configfile.load(layout.kubelet_config)
    assert found.control_plane_certificates is None and not found.control_plane_components


def identity(folder: Path, valid: timedelta) -> None:
    """The files of a node's identity, as the kubelet writes them."""
    folder.mkdir(parents=True)
    (folder / "cluster.json").write_text(json.dumps({"server": HERE.server, "nodeName": "studio-1", "configFile": None}))
    name, key = tls.subject("system:node:studio-1", ["system:nodes"]), tls.new_key()
    end = datetime.now(UTC) + valid
    made = tls.build_certificate(name, key.public_key(), tls.Issuer(name, key), tls.Validity(end - timedelta(days=365), end))
    (folder / "client.pem").write_bytes(tls.key_pem(key) + tls.certificate_pem(made))


@pytest.mark.parametrize(
    ("lost", "days", "joined"),
    [("", 1, True), ("", -1, False), ("client.pem", 1, False), ("cluster.json", 1, False), ("../../joined.json", 1, False)],
)
def test_a_mac_without_its_identity_joins_again(lost: str, days: int, joined: bool, tmp_path: Path) -> None:
    layout = HostLayout("0.1.0", *(tmp_path / name for name in ("opt", "data", "logs", "daemons")))
    launchctl: Any = None
    installer = KubeletInstaller(layout, launchctl, tmp_path, {})
    identity(layout.kubelet / "identity", timedelta(days=days))
    layout.kubelet_state.write_text(json.dumps({"name": "studio-1", "server": HERE.server, "caHash": HERE.ca_hash}))
    if lost:
        (layout.kubelet / "identity" / lost).unlink()
    assert installer.joined("studio-1", HERE) == joined
    assert not installer.joined("studio-2", HERE) and not installer.joined("studio-1", replace(HERE, server="https://b:6443"))


def test_a_line_for_other_macs_has_a_token_for_every_new_node_that_is_valid_for_a_day() -> None:
    made: list[Json] = []

    class Secrets:
        async def create(self, path: str, body: Json) -> None:
            made.append(body["stringData"])

    api: Any = Secrets()
    before = datetime.now(UTC).replace(microsecond=0)
    token = asyncio.run(cluster.make_token(api, "for Macs that join", cluster.JOIN_TOKEN_HOURS))
    (data,) = made
    assert token == f"{data['token-id']}.{data['token-secret']}" and "auth-extra-groups" not in data
    assert before <= datetime.fromisoformat(data["expiration"]) - timedelta(hours=24) <= datetime.now(UTC)
