"""A Mac leaves the other control planes, or one that does not come back is removed. etcd and the API are recorded."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac.files import write_json
from thunderfleet_controlplane.install.peers import leave as module
from thunderfleet_controlplane.install.peers.leave import forget_own, leave, leaving, remove_member
from thunderfleet_controlplane.install.peers.members import EtcdError
from thunderfleet_controlplane.install.peers.quorum import Member
from thunderfleet_controlplane.install.steps import cluster

ONE = Member(1, "thunderfleet", ("https://192.168.64.11:2380",))
TWO, THREE = (Member(number, f"member-studio-{number}", (f"https://192.168.64.1{number}:2380",)) for number in (2, 3))
NEW = Member(4, "", ("https://192.168.64.14:2380",), learner=True)


class Recorded:
    """A Mac with a control plane beside others."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int = 2) -> None:
        self.layout = HostLayout("0.1.0", data=folder)
        certificate = self.layout.pki.pair("etcd-client").certificate
        certificate.parent.mkdir(parents=True)
        certificate.touch()
        write_json(self.layout.state, {"name": f"studio-{number}", "address": f"192.168.64.1{number}", "shared": True})
        self.host = None
        self.known = [ONE, TWO, THREE]
        self.down: set[Member] = set()
        self.reachable = True
        self.stuck = False
        """etcd has no leader."""
        self.where = {"studio-1": "192.168.64.11 studio-1.local", "studio-2": "192.168.64.12", "studio-3": "192.168.64.13"}
        self.gone: list[str] = []
        self.said: list[str] = []
        monkeypatch.setattr(module, "Etcd", lambda *_: self)
        monkeypatch.setattr(module, "addresses", lambda host: ("127.0.0.1", f"192.168.64.1{number}"))
        monkeypatch.setattr(cluster, "connect", lambda *_: self)
        monkeypatch.setattr(cluster, "forget_api_servers", self.forget)
        monkeypatch.setattr(cluster, "remove_node", self.remove_node)

    async def __aenter__(self) -> "Recorded":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get_or_none(self, path: str) -> dict[str, Any]:
        return {"data": self.where}

    async def forget(self, kube: object, nodes: list[str]) -> None:
        for node in nodes:
            self.where.pop(node, None)

    async def remove_node(self, kube: object, node: str) -> None:
        self.gone.append(node)

    def step(self, name: str, text: str) -> None:
        self.said.append(text)

    def members(self, *, consistent: bool = True) -> tuple[Member, ...]:
        if not self.reachable:
            raise EtcdError("etcd at 127.0.0.1 does not answer")
        if consistent and self.stuck:
            raise EtcdError("etcd at 127.0.0.1: etcdserver: request timed out", refused=True)
        return tuple(self.known)

    def alive(self, members: tuple[Member, ...]) -> frozenset[int]:
        return frozenset(one.id for one in members if one not in self.down)

    def remove(self, member: Member) -> None:
        self.known.remove(member)


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return Recorded(tmp_path, monkeypatch)


def test_a_mac_leaves(mac: Any) -> None:
    one = leaving(mac)
    assert one is not None and one.member == TWO
    forget_own(mac)
    leave(mac, one)
    assert mac.known == [ONE, THREE] and mac.gone == ["studio-2"] and "studio-2" not in mac.where
    leave(mac, one)
    assert mac.known == [ONE, THREE]
    assert leaving(mac) is None, "the next run has nothing to say to etcd"


def test_the_others_must_work_without_it(mac: Any) -> None:
    mac.down = {THREE}
    with pytest.raises(
        InstallError,
        match=r"the others would not work: 1 of 2 control planes would work then.*member-studio-3.*reset --member.*--force",
    ):
        leaving(mac)
    mac.reachable = False
    with pytest.raises(InstallError, match=r"the etcd of this Mac does not answer.*--force"):
        leaving(mac)


def test_who_does_not_answer_is_named_when_half_are_lost(mac: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mac.known, mac.down, mac.stuck = [TWO, THREE], {THREE}, True
    lost = r"1 of 2 control planes work now, and 2 are needed; not answering: member-studio-3 \(192.168.64.13\)"
    with pytest.raises(InstallError, match=rf"studio-3 cannot be removed: {lost}.*run this again.*thunderfleet restore FILE"):
        remove_member(mac, "studio-3", force=True)
    with pytest.raises(InstallError, match=rf"this Mac cannot be removed from etcd: {lost}.*--force"):
        leaving(mac)
    mac.down = set()
    with pytest.raises(InstallError, match=r"cannot be removed: etcd at 127.0.0.1: etcdserver: request timed out. Switch"):
        remove_member(mac, "studio-3", force=True)
    mac.reachable = False
    with pytest.raises(InstallError, match=r"cannot be removed: the etcd of this Mac does not answer \(etcd at 127.0.0.1"):
        remove_member(mac, "studio-3", force=True)

    async def fails(path: str) -> None:
        raise OSError("no API server")

    mac.reachable, mac.stuck = True, False
    monkeypatch.setattr(mac, "get_or_none", fails)
    with pytest.raises(InstallError, match=r"the API server of this Mac does not answer: no API server.*kube-apiserver.log"):
        remove_member(mac, "studio-3", force=True)


def test_the_last_one_and_one_that_is_alone_go_without_a_word(mac: Any) -> None:
    mac.known = [TWO]
    assert leaving(mac) is None
    write_json(mac.layout.state, {"name": "studio-2", "address": "192.168.64.12"})
    mac.reachable = False
    assert leaving(mac) is None


def test_one_that_was_about_to_join_leaves_no_member(mac: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mac.known = [ONE, NEW]
    mac.layout.state.unlink()
    mac.layout.joining.touch()
    monkeypatch.setattr(module, "addresses", lambda host: ("192.168.64.14",))
    one = leaving(mac)
    assert one is not None
    forget_own(mac)
    leave(mac, one)
    assert mac.known == [ONE] and mac.gone == []
    mac.layout.pki.pair("etcd-client").certificate.unlink()
    assert leaving(mac) is None, "it has no keys yet"


def test_one_that_does_not_come_back_is_removed(mac: Any) -> None:
    mac.down = {THREE}
    remove_member(mac, "studio-3", force=False)
    assert mac.known == [ONE, TWO] and mac.gone == ["studio-3"] and "studio-3" not in mac.where
    with pytest.raises(InstallError, match="no control plane is known by the name studio-3"):
        remove_member(mac, "studio-3", force=False)


@pytest.mark.parametrize(("node", "member"), [("studio-1", ONE), ("192.168.64.14", NEW)])
def test_one_is_found_by_its_node_or_its_address(mac: Any, node: str, member: Member) -> None:
    mac.known = [ONE, TWO, THREE, NEW]
    mac.down = {member}
    remove_member(mac, node, force=False)
    assert member not in mac.known


def test_one_that_works_is_not_removed_by_mistake(mac: Any) -> None:
    with pytest.raises(InstallError, match="the control plane of studio-3 works: run `sudo thunderfleet reset` there"):
        remove_member(mac, "studio-3", force=False)
    with pytest.raises(InstallError, match="leave out --member"):
        remove_member(mac, "studio-2", force=True)
    remove_member(mac, "studio-3", force=True)
    assert mac.known == [ONE, TWO]


def test_no_majority_is_lost_by_force(mac: Any) -> None:
    mac.down = {ONE, THREE}
    with pytest.raises(InstallError, match="cannot be removed: 1 of 3 control planes work now"):
        remove_member(mac, "studio-3", force=True)


def test_without_an_api_server_the_node_stays_and_is_named(mac: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise OSError("no API server")

    monkeypatch.setattr(cluster, "forget_api_servers", fails)
    forget_own(mac)
    assert any("kubectl delete node studio-2" in line for line in mac.said)
    assert asyncio.run(module._where(mac, "studio-2")) == "192.168.64.12"
