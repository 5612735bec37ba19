"""`join --control-plane`, interrupted anywhere, and run again. Programs and the cluster are recorded; files are real."""

import os
import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thunderfleet_controlplane.daemons.layout import SHARED, HostLayout
from thunderfleet_controlplane.daemons.plan import HostConfig
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.joinline import JoinLine
from thunderfleet_controlplane.install.mac.files import write_json
from thunderfleet_controlplane.install.mac.preflight import Facts
from thunderfleet_controlplane.install.peers.quorum import Member
from thunderfleet_controlplane.install.sharing import handover
from thunderfleet_controlplane.install.sharing import join as module
from thunderfleet_controlplane.install.sharing.join import JoinControlPlaneOptions, join
from thunderfleet_controlplane.install.sharing.sealed import seal
from thunderfleet_controlplane.install.steps import cluster
from thunderfleet_controlplane.pki import make_pki

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root joins")
KEY, ADDRESS = b"k" * 32, "192.168.64.12"
FIRST = Member(1, "thunderfleet", ("https://192.168.64.11:2380",))


class Killed(BaseException):
    """SIGKILL: nothing of the process runs after it."""


class RecordedEtcd:
    """The members that the others know."""

    def __init__(self, mac: "RecordedMac") -> None:
        self._mac = mac
        self.known = [FIRST]

    def members(self) -> tuple[Member, ...]:
        return tuple(self.known)

    def add_learner(self, url: str) -> None:
        assert not any(url in one.peer_urls for one in self.known), "a member is added once"
        self.known.append(Member(2, "", (url,), learner=True))
        self._mac.tick()

    def remove(self, member: Member) -> None:
        self.known.remove(member)
        self._mac.tick()

    def alive(self, members: tuple[Member, ...]) -> frozenset[int]:
        return frozenset(one.id for one in members)

    def started(self) -> None:
        """This Mac's etcd has started, and settled."""
        self.known[:] = [FIRST, Member(2, "member-studio-2", (f"https://{ADDRESS}:2380",))]


class RecordedMac:
    """A Mac that gets a control plane, and the cluster that it joins."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layout = HostLayout("0.1.0", *(folder / name for name in ("opt", "data", "logs", "daemons")))
        theirs = make_pki(folder / "theirs" / "pki", ["192.168.64.11"], ["127.0.0.1"])
        (folder / "theirs" / "encryption.json").write_text("{}")
        self.files = {name: (folder / "theirs" / name).read_bytes() for name in SHARED}
        self.line = JoinLine(("192.168.64.11",), 6443, "abcdef.0123456789abcdef", theirs.ca_hash, (), KEY)
        self.offered: bytes | None = self.sealed("0.1.0")
        self.claims: set[str] = set()
        self.said: list[str] = []
        self.kill_at = 10_000
        self.etcd = RecordedEtcd(self)
        self.shipped: Any = SimpleNamespace(version="0.1.0", find_programs=self.tick, digest=None, build=None, chart=Path)
        self.host: Any = None
        self.configs: list[HostConfig] = []
        self.planes: list[int] = []
        for name, fake in {
            "find_ca": lambda servers, wanted: theirs.ca_pem,
            "put_python": lambda *_: folder,
            "put_balancer": lambda *_, **__: self.tick(),
            "default_address": lambda host: ADDRESS,
            "host_name": lambda: "studio-2",
            "other_names": lambda: (),
            "tell_kubeconfig": lambda mac: None,
            "Etcd": lambda *_: self.etcd,
            "install": self.install,
            "chart": SimpleNamespace(follow_control_planes=self.follow),
        }.items():
            monkeypatch.setattr(module, name, fake)
        monkeypatch.setattr(handover, "take", self.take)
        monkeypatch.setattr(handover, "withdraw", self.withdraw)
        monkeypatch.setattr(cluster, "connect", lambda *_: self)

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass

    def sealed(self, version: str, key: bytes = KEY) -> bytes:
        return seal(self.files, version, key=key, token="abcdef", random=secrets.token_bytes)

    def facts(self, daemons: object) -> Facts:
        state = {"name": "studio-2", "address": ADDRESS} if self.layout.state.exists() else {}
        return Facts(True, "26.3", True, (ADDRESS,), joining=self.layout.joining.exists(), initialised=state)

    def step(self, name: str, text: str) -> None:
        self.said.append(f"[{name}] {text}")
        self.tick()

    def tell(self, text: str) -> None:
        self.said.append(text)

    def tick(self) -> None:
        self.kill_at -= 1
        if self.kill_at == 0:
            raise Killed

    async def take(self, server: str, ca: Path, token: str, claim: str) -> bytes:
        self.claims.add(claim)
        self.tick()
        if self.offered is None:
            raise InstallError("the line was used already")
        return self.offered

    async def withdraw(self, kube: object, identifier: str) -> None:
        assert identifier == "abcdef"
        self.offered = None
        self.tick()

    def follow(self, mac: object, chart: object, before: int, now: int) -> None:
        self.tick()
        assert before == now - 1
        self.planes.append(now)
        self.tick()

    def install(self, mac: object, wanted: object, config: HostConfig, settle: object) -> None:
        write_json(self.layout.state, config.state())
        self.tick()
        wal = config.layout.etcd / "member" / "wal"
        wal.mkdir(parents=True, exist_ok=True)
        (wal / "0.wal").touch()
        self.etcd.started()
        self.tick()
        self.configs.append(config)

    def join(self) -> None:
        mac: Any = self
        join(mac, JoinControlPlaneOptions(self.line))


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedMac:
    return RecordedMac(tmp_path, monkeypatch)


def test_a_mac_gets_the_keys_and_a_member(mac: RecordedMac) -> None:
    mac.join()
    assert {name: (mac.layout.control_plane / name).read_bytes() for name in SHARED} == mac.files
    assert all((mac.layout.control_plane / name).stat().st_mode & 0o777 == 0o600 for name in SHARED)
    assert mac.offered is None and not mac.layout.joining.exists()
    assert not (mac.layout.control_plane / "joining-ca.crt").exists()
    (config,) = mac.configs
    assert config.shared and config.etcd_initial == (
        f"thunderfleet=https://192.168.64.11:2380,member-studio-2=https://{ADDRESS}:2380"
    )
    assert mac.planes == [2], "the operator follows"
    assert any("WARNING: 2 control planes do not survive the loss of one" in line for line in mac.said)


@pytest.mark.parametrize(
    ("voters", "says"),
    [
        (2, "WARNING: 2 control planes do not survive the loss of one: join one more Mac"),
        (4, "WARNING: 4 control planes survive the loss of 1, as 3 do: join one more Mac"),
        (6, "WARNING: 6 control planes survive the loss of 2, as 5 do: join one more Mac"),
    ],
)
def test_an_even_number_of_control_planes_is_a_warning(mac: RecordedMac, voters: int, says: str) -> None:
    recorded: Any = mac
    module._farewell(recorded, voters)
    assert any(line.startswith(says) for line in mac.said)


def test_a_join_that_is_killed_anywhere_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(1, 100):
        mac = RecordedMac(tmp_path / str(at), monkeypatch)
        mac.kill_at = at
        try:
            mac.join()
        except Killed:
            mac.kill_at = 10_000
            mac.join()
        else:
            assert at > 10, "it was killed at every step"
            return
        assert len(mac.claims) == 1, "every run is the same Mac"
        assert [one.name for one in mac.etcd.known] == ["thunderfleet", "member-studio-2"]
        assert mac.configs[-1].etcd_initial.count("https://") == 2
        assert mac.offered is None and not mac.layout.joining.exists() and mac.planes[-1] == 2


def test_keys_that_were_changed_or_are_of_another_version_are_refused(mac: RecordedMac) -> None:
    for offered, says in (
        (mac.sealed("0.1.0", b"x" * 32), "were encrypted with another key"),
        (mac.sealed("0.2.0"), "the control plane has version 0.2.0, and this is 0.1.0"),
    ):
        mac.offered = offered
        with pytest.raises(InstallError, match=says):
            mac.join()
        assert not (mac.layout.pki.folder / "ca.key").exists()
    mac.offered = mac.sealed("0.1.0")
    mac.join()


def test_an_earlier_member_of_this_mac_is_replaced(mac: RecordedMac) -> None:
    """After `reset --force`, etcd still has it."""
    mac.etcd.known.append(Member(7, "member-studio-2", (f"https://{ADDRESS}:2380",)))
    mac.join()
    assert [one.id for one in mac.etcd.known] == [1, 2]


def test_two_macs_do_not_join_at_once(mac: RecordedMac, monkeypatch: pytest.MonkeyPatch) -> None:
    mac.etcd.known.append(Member(7, "", ("https://192.168.64.13:2380",), learner=True))
    monkeypatch.setattr("thunderfleet_controlplane.install.peers.settle.SECONDS", 0.0)
    monkeypatch.setattr(module, "until", lambda step, describe: pytest.fail(step()))
    with pytest.raises(pytest.fail.Exception, match=r"192\.168\.64\.13.*is joining.*reset --member 192\.168\.64\.13"):
        mac.join()


def test_a_line_for_nodes_is_refused(mac: RecordedMac) -> None:
    mac.line = JoinLine(mac.line.addresses, 6443, mac.line.token, mac.line.ca_hash)
    with pytest.raises(InstallError, match="leave out --control-plane"):
        mac.join()
    assert mac.said == []


def test_a_mac_with_a_control_plane_is_left_alone(mac: RecordedMac) -> None:
    mac.layout.control_plane.mkdir(parents=True)
    write_json(mac.layout.state, {"name": "studio-2", "address": ADDRESS})
    with pytest.raises(InstallError, match="has a control plane already"):
        mac.join()
