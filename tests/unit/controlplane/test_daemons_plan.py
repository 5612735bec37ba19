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
from thunderfleet_controlplane.daemons.plan import INPUTS as INPUT_FILES
from thunderfleet_controlplane.daemons.plan import KUBELET, ORDER, HostConfig, daemons, label, ports

CONFIG = HostConfig("studio-1", "192.168.1.7", HostLayout("0.1.0"))
PYTHON = Path("/opt/thunderfleet/0.1.0")


def jobs(config: HostConfig = CONFIG, **inputs: str) -> dict[str, Daemon]:
    return {one.name: one for one in daemons(config, inputs, {"LANG": "C.UTF-8"}, PYTHON)}


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
    assert set(INPUT_FILES) == set(before)


def test_the_approver_runs_from_our_python_and_talks_to_this_mac() -> None:
    approver = jobs()["approver"]
    assert approver.arguments[:3] == (str(PYTHON / "bin/python3"), "-m", "thunderfleet_controlplane.install.approve")
    assert approver.arguments[approver.arguments.index("--server") + 1] == "https://127.0.0.1:6443"
    logs = {str(one.log) for one in jobs().values()}
    assert {word.removeprefix("--log=") for word in approver.arguments if word.startswith("--log=")} == logs


def test_ports_are_those_of_the_command_lines() -> None:
    text = " ".join(word for daemon in jobs().values() for word in daemon.arguments)
    for daemon in ORDER[:-1]:
        for port in ports(daemon):
            assert f":{port}" in text or f"={port}" in text


def test_an_invalid_daemon_is_not_written() -> None:
    with pytest.raises(PlistError, match="not an absolute path"):
        Daemon("x", ("etcd",), Path("/tmp/x.log")).to_plist()
