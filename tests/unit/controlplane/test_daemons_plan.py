"""The LaunchDaemons of a control plane: property lists that launchd accepts, and what is in them."""

import plistlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_controlplane.components import encryption_config
from thunderfleet_controlplane.daemons.job import INPUTS, Daemon, PlistError
from thunderfleet_controlplane.daemons.keys import problems
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import (
    APPROVER,
    KUBELET,
    NODE,
    ORDER,
    HostConfig,
    balancer,
    daemons,
    from_state,
    label,
    ports,
)
from thunderfleet_controlplane.daemons.plan import INPUTS as INPUT_FILES

CONFIG = HostConfig("studio-1", "192.168.1.7", HostLayout("0.1.0"))
PYTHON = Path("/opt/thunderfleet/0.1.0")


def jobs(config: HostConfig = CONFIG, **inputs: str) -> dict[str, Daemon]:
    environment = {"LANG": "C.UTF-8"}
    own = balancer(config.layout, environment, PYTHON, control_plane=True, version="1")
    every = (*daemons(config, inputs, environment, PYTHON), own)
    return {one.name: one for one in every}


def plist(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = plistlib.loads(daemon.to_plist())
    return found


def flags(daemon: Daemon) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in daemon.arguments if word.startswith("--") and "=" in word)


def test_every_daemon_is_one_that_launchd_accepts_and_keeps_alive() -> None:
    found = jobs()
    assert (*found, KUBELET) == ORDER
    for daemon in found.values():
        assert problems(daemon.to_plist(), CONFIG.layout.plist(daemon.label).name) == []
        content = plist(daemon)
        assert content["Label"] == label(daemon.name) == f"io.thunderfleet.{daemon.name}"
        assert (content["RunAtLoad"], content["KeepAlive"]) == (True, True)
        assert content["StandardErrorPath"] == f"/Library/Logs/Thunderfleet/{daemon.name}.log"
        assert content["SoftResourceLimits"] == content["HardResourceLimits"] == {"NumberOfFiles": 65536}
        assert "UserName" not in content
        assert content.get("Nice") == (5 if daemon.name == APPROVER else None)
        assert content["ProgramArguments"][0].startswith("/opt/thunderfleet/")


def test_etcd_keeps_its_data() -> None:
    etcd = flags(jobs()["etcd"])
    assert etcd["data-dir"] == "/var/lib/thunderfleet/control-plane/etcd"
    assert "unsafe-no-fsync" not in etcd
    assert etcd["listen-client-urls"] == "https://127.0.0.1:2379"


def test_the_api_server_listens_everywhere_and_encrypts_secrets() -> None:
    server = flags(jobs()["kube-apiserver"])
    assert (server["bind-address"], server["advertise-address"]) == ("0.0.0.0", "192.168.1.7")
    assert server["encryption-provider-config"] == str(CONFIG.layout.encryption)
    assert {"127.0.0.1", "::1", "192.168.1.7", "studio-1", "studio-1.local"} <= set(CONFIG.server_names)
    six = replace(CONFIG, address="fd00::7")
    assert flags(jobs(six)["kube-apiserver"])["bind-address"] == "::"
    assert six.server == "https://[fd00::7]:6443"


def test_a_control_plane_alone_opens_no_port_of_etcd_and_elects_nobody() -> None:
    etcd = flags(jobs()["etcd"])
    assert {etcd[f"listen-{who}-urls"] for who in ("client", "peer")} == {"https://127.0.0.1:2379", "https://127.0.0.1:2380"}
    for name in ("kube-controller-manager", "kube-scheduler"):
        assert flags(jobs()[name])["leader-elect"] == "false"


def test_an_etcd_alone_serves_within_half_a_second_after_a_boot() -> None:
    """It elects itself after a random part of the time in which other members would have to be silent."""
    alone = flags(jobs()["etcd"])
    assert (alone["heartbeat-interval"], alone["election-timeout"]) == ("100", "500")
    shared = flags(jobs(replace(CONFIG, shared=True))["etcd"])
    assert (shared["heartbeat-interval"], shared["election-timeout"]) == ("500", "2500")


def test_control_planes_of_one_cluster_find_each_other_and_elect() -> None:
    shared = replace(CONFIG, shared=True)
    etcd = flags(jobs(shared)["etcd"])
    assert (
        etcd["listen-peer-urls"] == "https://0.0.0.0:2380" and etcd["initial-advertise-peer-urls"] == "https://192.168.1.7:2380"
    )
    assert (etcd["peer-client-cert-auth"], etcd["client-cert-auth"], etcd["peer-cert-allowed-cn"]) == ("true", "true", "etcd")
    assert (etcd["name"], etcd["initial-cluster-state"]) == ("thunderfleet", "existing")
    every = "thunderfleet=https://192.168.1.7:2380,member-studio-2=https://192.168.1.8:2380"
    second = replace(shared, name="studio-2", address="192.168.1.8", etcd_name="member-studio-2", etcd_initial=every)
    etcd = flags(jobs(second)["etcd"])
    assert (etcd["initial-cluster"], etcd["initial-cluster-state"]) == (every, "existing")
    for name in ("kube-controller-manager", "kube-scheduler"):
        assert flags(jobs(second)[name])["leader-elect"] == "true"
    six = flags(jobs(replace(shared, address="fd00::7"))["etcd"])
    assert (six["listen-client-urls"], six["advertise-client-urls"]) == ("https://[::]:2379", "https://[fd00::7]:2379")


def test_the_next_run_knows_the_configuration() -> None:
    shared = replace(CONFIG, shared=True, etcd_name="member-studio-1", etcd_initial="a=b")
    for config in (CONFIG, shared):
        assert from_state(config.state(), config.layout, ()) == config


def test_secrets_are_encrypted_with_the_key_first() -> None:
    config = encryption_config(b"k" * 32)
    providers = config["resources"][0]["providers"]
    assert config["resources"][0]["resources"] == ["secrets"]
    assert [next(iter(one)) for one in providers] == ["secretbox", "identity"]


def test_a_daemon_whose_files_changed_has_another_property_list() -> None:
    """So it is started again; the others keep running."""
    before, after = jobs(etcd="1"), jobs(etcd="2")
    changed = [name for name in before if before[name].to_plist() != after[name].to_plist()]
    assert changed == ["etcd"]
    assert plist(after["etcd"])["EnvironmentVariables"][INPUTS] == "2"
    assert {*INPUT_FILES, *NODE} == {*before, KUBELET}


def test_the_approver_runs_from_our_python_and_talks_to_this_mac() -> None:
    approver = jobs()["approver"]
    assert approver.arguments[:3] == (str(PYTHON / "bin/python3"), "-m", "thunderfleet_controlplane.install.approve")
    assert approver.arguments[approver.arguments.index("--server") + 1] == "https://127.0.0.1:6443"
    logs = {str(one.log) for name, one in jobs().items() if name not in NODE}
    assert {word.removeprefix("--log=") for word in approver.arguments if word.startswith("--log=")} == logs


def test_ports_are_those_of_the_command_lines() -> None:
    text = " ".join(word for daemon in jobs().values() for word in daemon.arguments)
    for daemon in ORDER[:-1]:
        for port in ports(daemon):
            assert f":{port}" in text or f"={port}" in text


def test_an_invalid_daemon_is_not_written() -> None:
    with pytest.raises(PlistError, match="not an absolute path"):
        Daemon("x", ("etcd",), Path("/tmp/x.log")).to_plist()
