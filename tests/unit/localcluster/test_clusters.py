"""Clusters that are not there, and the network of one that starts."""

import fcntl
from pathlib import Path

import pytest
from thunderfleet_localcluster import paths
from thunderfleet_localcluster.client import launch
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove, running
from thunderfleet_localcluster.client.launch import choose_network
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.network import namespaces


def test_a_cluster_that_does_not_run_is_told_from_those_that_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "state_folder", lambda: tmp_path)
    with pytest.raises(LocalClusterError, match=r"start one with `thunderfleet local up`$"):
        Cluster.attach()
    (tmp_path / "notes").touch()
    demo = ClusterFolder(tmp_path / "demo")
    demo.root.mkdir()
    with demo.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LocalClusterError, match=r"`thunderfleet local up`, or name a running one: --name demo$"):
            Cluster.attach()
        with pytest.raises(
            LocalClusterError, match=r"`thunderfleet local up --name other`, or name a running one: --name demo$"
        ):
            Cluster.attach("other")
        with pytest.raises(
            LocalClusterError, match=r"already running in .*; stop it with `thunderfleet local down --name demo`"
        ):
            Cluster.start(name="demo", network="loopback")


def test_a_stale_folder_is_no_cluster(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    folder.lock.write_text("1\n")
    folder.state.write_text("{}")
    assert not running(folder)
    with pytest.raises(LocalClusterError, match="no cluster is running"):
        Cluster.attach("x", tmp_path)
    folder.logs.mkdir()
    folder.log("supervisor").write_text("why it ended")
    remove(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    remove(folder, everything=True)
    assert not tmp_path.exists()


def test_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "can_isolate", lambda: "the reason")
    assert choose_network("auto") == ("loopback", "the reason")
    with pytest.raises(LocalClusterError, match="the reason"):
        choose_network("namespaces")
    monkeypatch.setattr(launch, "can_isolate", lambda: None)
    assert choose_network("auto") == ("namespaces", "")
    assert choose_network("loopback") == ("loopback", "chosen with --network")


def test_without_ip_there_are_no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "program", lambda name: None)
    assert "iproute2" in str(namespaces.can_isolate()) or "no network namespaces" in str(namespaces.can_isolate())
