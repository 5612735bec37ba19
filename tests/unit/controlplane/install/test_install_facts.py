"""What an installation reads from a Mac, with the commands of recorded Macs."""

import os
import plistlib
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thunderfleet_controlplane import assets
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import KUBELET, NODE, ORDER, label
from thunderfleet_controlplane.install.mac.facts import (
    COPY_BYTES,
    addresses,
    default_address,
    macos_version,
    other_names,
    port_in_use,
    read_facts,
)
from thunderfleet_controlplane.install.mac.files import write_json
from thunderfleet_controlplane.install.mac.launchctl import Launchctl
from thunderfleet_controlplane.install.mac.preflight import init_problems
from thunderfleet_lib.host.hostcmd import BlockingHost
from thunderfleet_localcluster.fleet.fault_state import FaultState
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.recorded.folder import write_machine

from tests.support.network.ports import claim

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")

LOADED: Any = SimpleNamespace(describe=lambda label: "loaded")
"""A launchctl of a Mac on which all daemons run."""
FLEET = """
machines:
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB}
cables:
  - {a: "studio-1:1", b: "studio-2:1", speed: 80}
"""


@pytest.fixture
def host(tmp_path: Path) -> BlockingHost:
    layout = plan_layout(parse_fleet(FLEET, "test"), "namespaces")
    folder = tmp_path / "studio-1" / "bin"
    write_machine(layout, layout.machine("studio-1"), folder)
    return BlockingHost([folder])


def test_a_recorded_mac(host: BlockingHost) -> None:
    assert macos_version(host) == "26.3"
    assert default_address(host) == "192.168.64.11"
    found = addresses(host)
    assert {"127.0.0.1", "::1", "192.168.64.11", "10.64.1.1"} <= set(found)
    assert len(found) == len(set(found)) and not any("%" in one for one in found)


def test_a_mac_that_has_only_a_cable_has_the_address_of_its_bridge(tmp_path: Path) -> None:
    text = FLEET.replace("96 GB}", "96 GB, bridge: [1], bridgeAddress: 169.254.7.1}", 1)
    plan = plan_layout(parse_fleet(text, "test"), "namespaces")
    now = FaultState().with_lan("studio-1", "pull").layout(plan)
    write_machine(now, now.machine("studio-1"), tmp_path / "bin")
    assert default_address(BlockingHost([tmp_path / "bin"])) == "169.254.7.1"


def test_a_machine_without_the_commands_of_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such")
    host = BlockingHost()
    assert (macos_version(host), addresses(host), default_address(host)) == (None, (), None)


def test_ports_that_somebody_listens_on() -> None:
    (port,) = claim(1)
    with socket.create_server(("127.0.0.1", port)):
        assert port_in_use(port)
    assert not port_in_use(port)


def test_names_of_this_mac_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Studio-1.local")
    assert set(other_names()) == {"studio-1.local"}
    monkeypatch.setattr(socket, "gethostname", lambda: "Anna's Mac")
    assert other_names() == ()


@pytest.fixture
def layout(tmp_path: Path) -> HostLayout:
    return HostLayout("0.1.0", *(tmp_path / name for name in ("opt", "data", "logs", "daemons")))


@needs_root
def test_a_new_mac_and_one_whose_folders_are_of_root_can_be_installed(host: BlockingHost, layout: HostLayout) -> None:
    assert read_facts(host, Launchctl(host), layout, ()).changeable == ()
    for folder in (layout.programs_root, layout.pki.folder, layout.logs, layout.daemons):
        folder.mkdir(parents=True)
    assert read_facts(host, Launchctl(host), layout, ()).changeable == ()


@needs_root
@pytest.mark.parametrize(
    "name",
    [
        *("opt", "data", "logs", "daemons", "opt/0.1.0", "data/control-plane", "data/control-plane/encryption.json"),
        *("data/control-plane/pki/ca.key", "data/init.json", "data/kubelet", "logs/etcd.log"),
        "daemons/io.thunderfleet.etcd.plist",
    ],
)
def test_what_others_can_change_already_is_refused(host: BlockingHost, layout: HostLayout, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir(parents=True)
    os.chown(path, 501, 20)
    (found,) = read_facts(host, Launchctl(host), layout, ()).changeable
    assert found.startswith(f"{path} belongs to user 501, not to root: `sudo chown root '{path}'`")
    os.chown(path, 0, 0)
    path.chmod(0o777)
    (found,) = read_facts(host, Launchctl(host), layout, ()).changeable
    assert found.startswith(f"users other than root can write {path}: `sudo chmod go-w '{path}'`")


def test_free_space_is_compared_with_what_is_built_or_copied(host: BlockingHost, layout: HostLayout) -> None:
    facts = read_facts(host, LOADED, layout, ORDER)
    assert facts.free_bytes and facts.needed_bytes == assets.FREE_BYTES
    short = replace(facts, free_bytes=assets.FREE_BYTES - 1)
    assert any("GiB of disk are free" in one for one in init_problems(short, "studio-1", "192.168.64.11"))
    assert read_facts(host, LOADED, layout, NODE).needed_bytes == COPY_BYTES, "a Mac that joins builds nothing"


def test_a_control_plane_that_is_installed_needs_no_free_space(host: BlockingHost, layout: HostLayout) -> None:
    """`init` renews certificates, and `token create` prints a line, also when models have filled the disk."""
    layout.control_plane_programs.mkdir(parents=True)
    (layout.control_plane_programs / "etcd").touch()
    layout.data.mkdir()
    write_json(layout.kubelet_state, {"name": "studio-1"})
    facts = replace(read_facts(host, LOADED, layout, ORDER), free_bytes=0)
    assert not any("of disk" in one for one in init_problems(facts, "studio-1", "192.168.64.11"))


def test_the_installed_version_is_that_of_the_kubelet(host: BlockingHost, layout: HostLayout) -> None:
    def found() -> tuple[str, str | None, Path | None]:
        facts = read_facts(host, Launchctl(host), layout, ())
        return facts.version, facts.installed, facts.prefix

    assert found() == ("0.1.0", "", None)
    prefix = layout.programs_root / "0.9.0"
    (prefix / "lib/python3.11/site-packages/thunderfleet-0.9.0.dist-info").mkdir(parents=True)
    layout.daemons.mkdir(parents=True, exist_ok=True)
    spec = {"Label": label(KUBELET), "ProgramArguments": [f"{prefix}/bin/thunderfleet-kubelet", "run"]}
    layout.plist(label(KUBELET)).write_bytes(plistlib.dumps(spec))
    assert found() == ("0.1.0", "0.9.0", prefix)


@needs_root
def test_files_of_other_software_are_left_alone(host: BlockingHost, layout: HostLayout) -> None:
    (layout.daemons / "com.example.plist").mkdir(parents=True)
    os.chown(layout.daemons / "com.example.plist", 501, 20)
    assert read_facts(host, Launchctl(host), layout, ()).changeable == ()
