"""The command line: help, bad input, and clusters that are not there."""

import fcntl
from pathlib import Path

import pytest
from thunderfleet_localcluster import paths
from thunderfleet_localcluster.cli import main, moved
from thunderfleet_localcluster.cli_commands import LOCAL_COMMANDS
from thunderfleet_localcluster.client import launch
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove, running
from thunderfleet_localcluster.client.launch import choose_network
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.network import namespaces


def test_help_shows_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["local", "up", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "(default: thunderfleet)" in text and "(default: auto)" in text


@pytest.mark.parametrize("command", sorted(LOCAL_COMMANDS))
def test_a_command_of_an_earlier_version_names_the_new_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--name", "a b", "-x"]) == 2
    said = capsys.readouterr()
    assert f"`thunderfleet {command}` is now `thunderfleet local {command}`" in said.err and said.out == ""
    assert said.err.endswith(f"run: thunderfleet local {command} --name 'a b' -x\n")
    with pytest.raises(SystemExit) as caught:
        main(["local", command, "--help"])
    assert caught.value.code == 0


@pytest.mark.parametrize("line", [[], ["--help"], ["demo"], ["support"], ["local", "up"], ["unknown"]])
def test_other_command_lines_have_not_moved(line: list[str]) -> None:
    assert moved(line) is None


def test_an_invalid_fleet_is_reported_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("machines:\n- name: a\n  model: Mac Pro\n")
    assert main(["local", "up", str(fleet), "--dir", str(tmp_path / "c")]) == 2
    assert f"thunderfleet: {fleet}:3: machines[0].model: unknown model" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_check_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", "up", "--check", "--dir", str(tmp_path / "c")]) == 0
    assert capsys.readouterr().out == "the default fleet: 5 machines, 2 cables\n"
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["", "A", "-a", "a_b", "a" * 41, "../x"])
def test_names_of_clusters(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", "status", f"--name={name}", "--dir", str(tmp_path)]) == 2
    assert "lower-case letters" in capsys.readouterr().err


def test_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(tmp_path / "c")]
    assert main(["local", "down", *where]) == 0
    assert main(["local", "down", *where]) == 0
    assert main(["local", "status", *where]) == 1
    for command in (["kubeconfig"], ["token"], ["machine", "off", "a"], ["node", "remove", "a"], ["component", "off", "etcd"]):
        assert main(["local", *command[:1], *where, *command[1:]]) == 1
    assert f"start one with `thunderfleet local up --dir {tmp_path / 'c'}`" in capsys.readouterr().err


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
