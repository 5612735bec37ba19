"""The assembled kubelet: settings of pods, a deleted Node, certificate errors."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from thunderfleet_kubelet.app import EVENTS, Kubelet, pod_settings, pod_users
from thunderfleet_kubelet.bootstrap.arguments import Server
from thunderfleet_kubelet.bootstrap.certificates import CertificateError, Pair
from thunderfleet_kubelet.bootstrap.errors import JoinError
from thunderfleet_kubelet.bootstrap.identity import NodeIdentity, save_identity
from thunderfleet_kubelet.config import Config
from thunderfleet_kubelet.containers.inputs.own_image import OwnImage
from thunderfleet_kubelet.containers.inputs.user import KubeletUser
from thunderfleet_kubelet.node.addresses import MISSING, NodeAddresses
from thunderfleet_kubelet.node.awake import Awake
from thunderfleet_kubelet.node.commands import Commands
from thunderfleet_kubelet.node.facts import GIB, Machine
from thunderfleet_kubelet.node.machine import Reader
from thunderfleet_lib.kube import ApiError, Kube

from tests.support.waiting import until_async

MAC = Machine("darwin", "arm64", 32, 384 * GIB, 1000 * GIB, "macOS 26.3", "25.3.0", "id", "boot", "Apple M3 Ultra")
CONFIG = Config(node_name="studio-1", addresses=["127.0.0.1"], path=[Path("/x")], images={"a:1": Path("/img")})
SERVER = "https://192.168.64.1:6443"


def test_what_the_pods_half_needs_to_know() -> None:
    own = OwnImage("0.1.0", Path("/opt/own"))
    known = pod_settings(CONFIG, MAC, SERVER, ["127.0.0.1"], own)
    assert known.api_server == ("192.168.64.1", 6443)
    assert known.addresses == ("127.0.0.1",)
    assert known.path == (Path("/x"),)
    assert known.images == {"a:1": Path("/img"), "thunderfleet/thunderfleet:0.1.0": Path("/opt/own")}
    replaced = replace(CONFIG, images={"thunderfleet/thunderfleet:0.1.0": Path("/img")})
    assert pod_settings(replaced, MAC, SERVER, ["127.0.0.1"], own).images == replaced.images, "the configuration counts more"
    assert known.mac and known.boot == "boot"
    assert known.labels["kubernetes.io/os"] == "darwin"
    assert known.allocatable["memory"] == "384Gi"


@pytest.mark.parametrize(
    ("user", "own_users"),
    [
        (KubeletUser(0, 0), True),
        (KubeletUser(501, 20), False),
        (KubeletUser(0, 0, ((0, 1),)), False),
        (KubeletUser(0, 0, ((0, 1), (1_900_000_000, 999))), False),
        (KubeletUser(0, 0, ((0, 1), (1_900_000_000, 1000))), True),
    ],
)
def test_pods_have_their_own_users_where_the_kubelet_can_switch(user: KubeletUser, own_users: bool) -> None:
    assert pod_users(CONFIG, user) == (range(1_900_000_000, 1_900_001_000) if own_users else None)


class FakeKube:
    """Records deletes and creates."""

    def __init__(self) -> None:
        self.deleted: list[tuple[str, int | None, str | None]] = []
        self.created: list[tuple[str, dict[str, Any]]] = []
        self.stuck: set[str] = set()
        self.reconnects = 0

    async def delete(self, path: str, *, grace_seconds: int | None = None, uid: str | None = None) -> None:
        if path in self.stuck:
            raise ApiError(503, "ServiceUnavailable", "busy")
        self.deleted.append((path, grace_seconds, uid))

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.created.append((path, body))
        return body

    async def close(self) -> None:
        pass

    async def reconnect(self) -> None:
        self.reconnects += 1


def identity(root: Path) -> NodeIdentity:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "system:node:studio-1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return save_identity(root, Server("127.0.0.1", 1), "studio-1", None, pem, Pair(private, pem))


async def no_reading(current: tuple[str, ...]) -> tuple[str, ...]:
    raise AssertionError("addresses of the configuration are not read")


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    reader, addresses = Reader(Commands([]), mac=False), NodeAddresses(CONFIG.addresses, no_reading)
    made = Kubelet(tmp_path, identity(tmp_path), CONFIG, MAC, reader, addresses, Awake(None))
    real, made.credentials._kube = made.kube(), cast(Kube, FakeKube())
    yield made
    await asyncio.gather(*made._background_tasks)
    await real.close()


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"}}


async def test_pods_of_a_node_that_vanished_end_first_and_then_go(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kube = cast(FakeKube, kubelet.kube())
    kube.stuck.add("/api/v1/namespaces/default/pods/b")
    kubelet.reflector.items.update({f"default/{name}": pod(name) for name in "abc"})
    ended: list[bool] = []

    async def end() -> None:
        assert kube.deleted == []
        assert kubelet._wanted_pods() == {}, "nothing starts again under way"
        ended.append(True)

    monkeypatch.setattr(kubelet.pods, "end_all_pods", end)
    await kubelet._node_vanished()
    assert ended == [True]
    assert kube.deleted == [(f"/api/v1/namespaces/default/pods/{name}", 0, f"uid-{name}") for name in "ac"]
    assert "default/b" in caplog.text
    assert kubelet._wanted_pods().keys() == {"default/b"}, "only what could not be deleted may start again"
    kubelet.reflector.items = {"default/b": pod("b"), "default/a": {"metadata": {**pod("a")["metadata"], "uid": "uid-2"}}}
    assert kubelet._wanted_pods().keys() == {"default/a", "default/b"}, "a new pod of an old name is another"


async def test_the_mac_stays_awake_as_long_as_a_pod_has_not_ended(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[bool] = []
    monkeypatch.setattr(kubelet.awake, "want", wanted.append)
    monkeypatch.setattr(kubelet.pods, "sync", lambda pods: None)
    kubelet.reflector.synced.set()
    task = asyncio.ensure_future(kubelet._sync())
    try:
        for phase, expected in ((None, False), ("Running", True), ("Failed", False)):
            kubelet.reflector.items = {"default/a": {**pod("a"), "status": {"phase": phase}}} if phase else {}
            wanted.clear()
            kubelet._pods_changed.set()
            await until_async(lambda: wanted)
            assert wanted == [expected]
    finally:
        task.cancel()


async def test_trouble_with_certificates_is_an_event_once(kubelet: Kubelet) -> None:
    kube = cast(FakeKube, kubelet.kube())
    kubelet._report_certificate("nobody approves")
    assert kube.created == [], "not before there is a Node to hang it on"
    kubelet.node.registered.set()
    for sentence in ("still nobody", "still nobody", None, "still nobody"):
        kubelet._report_certificate(sentence)
    await asyncio.gather(*kubelet._background_tasks)
    assert [(path, body["message"]) for path, body in kube.created] == [(EVENTS, "still nobody")] * 2
    assert kube.created[0][1]["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "studio-1",
        "uid": "studio-1",
    }


async def test_a_node_with_an_expired_certificate_says_how_to_join_again(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise ApiError(401, "Unauthorized", "Unauthorized")

    monkeypatch.setattr(kubelet.kube(), "create", unknown)
    with pytest.raises(
        CertificateError, match=r"`thunderfleet-kubelet join` with a new token, .*`kubeadm token create --print-join-command`"
    ):
        await kubelet.credentials.request_client()


async def test_a_damaged_serving_certificate_is_requested_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = identity(tmp_path)
    known.serving.write_text("half a file")
    reader = Reader(Commands([]), mac=False)
    kubelet = Kubelet(tmp_path, known, CONFIG, MAC, reader, NodeAddresses(CONFIG.addresses, no_reading), Awake(None))
    assert kubelet.credentials.serving.pair is None
    assert "serving.pem is damaged; requesting another certificate" in caplog.text


async def test_without_a_certificate_there_is_no_kubelet(tmp_path: Path) -> None:
    known = identity(tmp_path)
    known.client.unlink()
    with pytest.raises(JoinError, match=r"`thunderfleet-kubelet join` with a new token, .*--node studio-1`"):
        reader = Reader(Commands([]), mac=False)
        Kubelet(tmp_path, known, CONFIG, MAC, reader, NodeAddresses(CONFIG.addresses, no_reading), Awake(None))


async def test_an_address_that_cannot_be_bound_is_why_the_node_is_not_ready(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = asyncio.Queue[None]()
    free = asyncio.Event()

    async def start() -> None:
        attempts.put_nowait(None)
        if not free.is_set():
            raise OSError(98, "Address already in use")

    monkeypatch.setattr(kubelet.server, "start", start)
    monkeypatch.setattr("thunderfleet_kubelet.app.BIND_RETRY_SECONDS", 0.0)
    task = asyncio.ensure_future(kubelet._listen())
    await asyncio.wait_for(attempts.get(), 60)
    await asyncio.wait_for(attempts.get(), 60)
    assert "127.0.0.1:10250: Address already in use" in kubelet.node.problems["ServerNotListening"]
    free.set()
    await asyncio.wait_for(task, 60)
    assert kubelet.node.problems == {}


async def test_a_new_address_goes_everywhere(kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node, pods, the server's listener and its certificate; and the Node's events tell of it."""
    starts: asyncio.Queue[str] = asyncio.Queue()
    requested: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()

    async def start() -> None:
        starts.put_nowait(kubelet.server.address)

    async def obtain(*_: Any, addresses: tuple[str, ...], **__: Any) -> Pair:
        requested.put_nowait(addresses)
        never: asyncio.Future[Pair] = asyncio.get_running_loop().create_future()
        return await never

    monkeypatch.setattr(kubelet.server, "start", start)
    monkeypatch.setattr("thunderfleet_kubelet.credentials.obtain", obtain)
    kubelet.credentials.can_serve.set()
    kubelet.node.registered.set()
    tasks = [asyncio.ensure_future(work) for work in (kubelet._serve(), kubelet.credentials.serving.run())]
    try:
        assert await asyncio.wait_for(starts.get(), 60) == "127.0.0.1"
        assert await asyncio.wait_for(requested.get(), 60) == ("127.0.0.1",)
        kubelet.addresses.current = ("127.0.0.2",)
        kubelet._addresses_changed()
        assert await asyncio.wait_for(starts.get(), 60) == "127.0.0.2"
        assert await asyncio.wait_for(requested.get(), 60) == ("127.0.0.2",), "the request for the old address is given up"
        assert kubelet.node.addresses == kubelet.pods.settings.addresses == ("127.0.0.2",)
        await asyncio.gather(*kubelet._background_tasks)
        kube = cast(FakeKube, kubelet.kube())
        assert kube.reconnects == 1, "connections from the old address are dead, and watches would wait for minutes"
        ((_, event),) = kube.created
        assert (event["reason"], event["message"]) == (
            "NodeAddressChanged",
            "the address changed from 127.0.0.1 to 127.0.0.2",
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_address_that_is_gone_is_told_and_stays_published(kubelet: Kubelet) -> None:
    kubelet.addresses.missing = True
    kubelet._addresses_changed()
    assert kubelet.node.no_address == MISSING
    assert kubelet.node.addresses == ("127.0.0.1",)
    kubelet.addresses.missing = False
    kubelet._addresses_changed()
    assert kubelet.node.no_address is None
    assert cast(FakeKube, kubelet.kube()).created == []


@pytest.mark.parametrize(("seconds", "going", "ended"), [(60, True, [(60.0, 10.0)]), (60, False, []), (0, True, [])])
async def test_sigterm_ends_pods_only_if_the_machine_shuts_down_and_the_configuration_says_so(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch, seconds: int, going: bool, ended: list[tuple[float, float]]
) -> None:
    found: list[tuple[float, float]] = []

    async def shut_down(whole: float, critical: float) -> None:
        assert next(iter(kubelet.node.problems)) == "NodeShutdown", "the first problem is the reason of the Node"
        assert not work.done(), "the kubelet works until the pods have ended"
        found.append((whole, critical))

    async def is_going() -> bool:
        return going

    async def nothing() -> None:
        await asyncio.Event().wait()

    kubelet.config = replace(
        CONFIG, shutdown_grace_period_seconds=seconds, shutdown_grace_period_critical_pods_seconds=min(seconds, 10)
    )
    kubelet.node.problems = {"ServerNotListening": "cannot listen"}
    work = asyncio.ensure_future(nothing())
    monkeypatch.setattr(kubelet, "_work", lambda: work)
    monkeypatch.setattr(kubelet.pods, "shut_down", shut_down)
    kubelet.shutting_down = is_going
    stop = asyncio.Event()
    stop.set()
    await kubelet.run(stop)
    assert found == ended


async def test_no_container_starts_before_the_kubelets_priority_is_taken_back(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    async def adopt() -> None:
        order.append("adopt")

    async def work() -> None:
        order.append("work")

    monkeypatch.setattr(kubelet.pods, "start", adopt)
    monkeypatch.setattr(kubelet, "_work", work)
    await kubelet.run(asyncio.Event(), lambda: order.append("take back"))
    assert order == ["adopt", "take back", "work"]
