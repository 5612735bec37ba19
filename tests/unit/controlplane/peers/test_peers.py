"""Members of a real etcd: one joins without a vote, gets one, moves, is lost, and is removed."""

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thunderfleet_controlplane import components
from thunderfleet_controlplane.components import Endpoints
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import HostConfig
from thunderfleet_controlplane.install.backup import etcd as snapshots
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.peers import members as module
from thunderfleet_controlplane.install.peers import settle as settling
from thunderfleet_controlplane.install.peers.members import Etcd, EtcdError
from thunderfleet_controlplane.install.peers.quorum import Member, initial_cluster, why_not_without
from thunderfleet_controlplane.install.sharing import join
from thunderfleet_controlplane.pki import make_pki
from thunderfleet_localcluster.programs import find_programs

from tests.support.waiting import until

pytestmark = pytest.mark.linux
"""macOS has one loopback address."""
NET = f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}"
HOSTS = (f"{NET}.1", f"{NET}.2")
"""Those of this process: another run of these tests may use the same ports."""
CLIENT, PEER = 23791, 23801


class Etcds:
    """Two Macs, as far as etcd knows them: each has a loopback address of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.programs = find_programs(lambda event: None)
        self.folder = folder
        monkeypatch.setattr("thunderfleet_controlplane.daemons.plan.ETCD_PEER", PEER)
        self.pki = make_pki(folder / "pki", HOSTS, HOSTS)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def config(self, number: int) -> HostConfig:
        layout = HostLayout("0.1.0", data=self.folder / HOSTS[number])
        name = "thunderfleet" if number == 0 else "member-second"
        return HostConfig(f"mac-{number}", HOSTS[number], layout, shared=True, etcd_name=name)

    def start(self, config: HostConfig) -> None:
        host = config.address
        at = Endpoints(host, 1, host, CLIENT, PEER, 2, 3, loopback=True)
        program = components.etcd(
            self.programs / "etcd", config.layout.etcd, self.pki, at, durable=False, peering=config.peering
        )
        config.layout.etcd.mkdir(parents=True, exist_ok=True, mode=0o700)
        argv = [word.replace("0.0.0.0", host) for word in program.argv]
        if not config.etcd_initial and not settling.has_data(config.layout):
            # It begins the cluster, as one that is alone does it.
            argv = [word.replace("state=existing", "state=new") for word in argv]
        self.running[host] = subprocess.Popen([*argv, "--log-level=error"], stderr=subprocess.DEVNULL)

    def asked(self, monkeypatch: pytest.MonkeyPatch, number: int) -> Etcd:
        """The client on a Mac: 127.0.0.1 is that Mac."""
        monkeypatch.setattr(module, "LOCAL", HOSTS[number])
        return Etcd(self.pki, HOSTS, CLIENT)

    def end(self, host: str) -> None:
        process = self.running.pop(host)
        process.kill()
        process.wait()


@pytest.fixture
def etcds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Etcds]:
    made = Etcds(tmp_path, monkeypatch)
    yield made
    for host in list(made.running):
        made.end(host)


def mac(said: list[str]) -> Any:
    """A Mac of which only the reports count."""
    return SimpleNamespace(step=lambda name, text: said.append(text), launchctl=None, layout=None)


def by_host(etcd: Etcd, number: int) -> Member:
    return next(one for one in etcd.members() if HOSTS[number] in one.hosts)


def test_a_member_joins_votes_and_leaves(etcds: Etcds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "why_not", lambda *_: "")
    first, second = etcds.config(0), etcds.config(1)
    etcds.start(first)
    etcd = etcds.asked(monkeypatch, 0)
    until(lambda: etcd.members(), "the first answers", retry_on=(EtcdError,))
    assert why_not_without(etcd.members(), by_host(etcd, 0), etcd.alive(etcd.members())) == ""
    said: list[str] = []
    on_second = etcds.asked(monkeypatch, 1)
    # Killed after each of these, the next run does the same.
    for _ in range(2):
        joined = join._member(mac(said), second, on_second)
    assert len(on_second.members()) == 2 and by_host(on_second, 1).learner
    assert joined.etcd_initial == initial_cluster(on_second.members(), second.etcd_name, second.peer_url)
    etcds.start(joined)
    settling.settle(mac(said), joined, on_second)
    assert not by_host(on_second, 1).learner and said[-1] == "member-second has all data and is now a voting member"
    settling.settle(mac(said), joined, on_second)
    assert settling.has_data(second.layout)

    both = on_second.members()
    assert on_second.alive(both) == {one.id for one in both}
    etcds.end(HOSTS[0])
    assert on_second.alive(both) == {by_id.id for by_id in both if HOSTS[1] in by_id.hosts}
    with pytest.raises(EtcdError):
        on_second.remove(next(one for one in both if HOSTS[0] in one.hosts))
    assert on_second.members(consistent=False) == both
    # What is left of a cluster without a majority can be saved.
    monkeypatch.setattr(snapshots, "LOCAL", HOSTS[1])
    monkeypatch.setattr(snapshots, "ETCD_CLIENT", CLIENT)
    files: Any = SimpleNamespace(pki=etcds.pki)
    assert sum(map(len, snapshots.snapshot(files))) > 10_000
    etcds.start(first)

    def left() -> bool:
        etcd.remove(by_host(etcd, 1))
        return True

    until(left, "the first removes the second", retry_on=(EtcdError,))
    assert [one.hosts for one in etcd.members()] == [(HOSTS[0],)]


def test_etcd_learns_that_a_member_has_moved(etcds: Etcds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "why_not", lambda *_: "")
    first = etcds.config(0)
    etcds.start(first)
    etcd, said = etcds.asked(monkeypatch, 0), list[str]()
    moved = replace(first, address=f"{NET}.9")
    settling.settle(mac(said), moved, etcd)
    assert [one.hosts for one in etcd.members()] == [(f"{NET}.9",)]
    assert f"sending the other members the new address {NET}.9" in said


def test_a_member_that_has_lost_its_data_does_not_begin_another_cluster(etcds: Etcds) -> None:
    first = etcds.config(0)
    at = Endpoints(first.address, 1, first.address, CLIENT, PEER, 2, 3, loopback=True)
    program = components.etcd(etcds.programs / "etcd", first.layout.etcd, etcds.pki, at, durable=False, peering=first.peering)
    first.layout.etcd.mkdir(parents=True, mode=0o700)
    argv = [word.replace("0.0.0.0", first.address) for word in program.argv]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0 and not settling.has_data(first.layout)
    with pytest.raises(InstallError, match=r"are missing.*reset --member mac-0"):
        settling.check_data(first)
    first.layout.joining.parent.mkdir(parents=True, exist_ok=True)
    first.layout.joining.touch()
    settling.check_data(first)


def test_a_stranger_is_no_member_and_no_client(etcds: Etcds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a certificate of another authority nor the API server's makes a member."""
    etcds.start(etcds.config(0))
    etcd = etcds.asked(monkeypatch, 0)
    until(lambda: etcd.members(), "the first answers", retry_on=(EtcdError,))
    foreign = make_pki(tmp_path / "foreign", HOSTS, HOSTS)
    (foreign.folder / "etcd-ca.crt").write_bytes((etcds.pki.folder / "etcd-ca.crt").read_bytes())
    with pytest.raises(EtcdError, match="does not answer"):
        Etcd(foreign, HOSTS[:1], CLIENT).members()
    with pytest.raises(EtcdError, match="does not answer"):
        Etcd(etcds.pki, HOSTS[:1], PEER).members()


def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> str:
        raise EtcdError("etcd at 10.0.0.1: unhealthy cluster")

    monkeypatch.setattr(settling, "POLL_SECONDS", 0.0)
    began = time.monotonic()
    with pytest.raises(Exception, match="unhealthy cluster\nits log"):
        settling.until(refuses, lambda: "its log", seconds=0.05)
    assert time.monotonic() > began
