"""``thunderfleet doctor`` on a recorded Mac: what it prints, changes and undoes."""

import asyncio
import json
import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_cli.cli import main
from thunderfleet_cli.connection import Connection
from thunderfleet_cli.doctor import installed, page
from thunderfleet_cli.doctor.checks.check import Check, State
from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_lib.host import privilege
from thunderfleet_lib.kube import plugin as limits
from thunderfleet_localcluster import paths
from thunderfleet_localcluster.fleet.file import parse_fleet
from thunderfleet_localcluster.fleet.layout import plan_layout
from thunderfleet_localcluster.recorded.folder import write_machine

from tests.support.processes import exists

Json = dict[str, Any]

FLEET = """
machines:
  - {name: studio-1, model: Mac Studio (M3 Ultra), rdma: true}
  - {name: studio-2, model: Mac Studio (M3 Ultra), rdma: true}
cables:
  - {a: "studio-1:1", b: "studio-2:1"}
"""


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a recorded Mac whose commands come first; there is no cluster."""
    layout = plan_layout(parse_fleet(FLEET), "namespaces")
    write_machine(layout, layout.machine("studio-1"), tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(paths, "state_folder", lambda: tmp_path / "clusters")
    # Only repairs of a real Mac need root.
    monkeypatch.setattr("os.geteuid", lambda: 0)
    # As root, doctor replaces the environment and looks for commands in folders of the system only.
    monkeypatch.setattr(privilege, "ROOT_FOLDERS", (str(tmp_path / "bin"), "/usr/bin", "/bin"))
    monkeypatch.setattr(os, "umask", lambda mask: 0)
    monkeypatch.setattr(installed, "layout", lambda: layout_below(tmp_path))
    before = dict(os.environ)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def layout_below(folder: Path) -> HostLayout:
    return HostLayout("0.1.0", folder / "opt", folder / "var", folder / "logs", folder / "daemons")


def kubeconfig(path: Path, **user: object) -> Path:
    """A kubeconfig whose API server does not answer."""
    cluster = {"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    users = [{"name": "a", "user": user}]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "a"}))
    return path


def settings(folder: Path) -> list[str]:
    """What the commands with settings print."""
    commands = (["pmset", "-g", "custom"], ["socketfilterfw", "--getglobalstate"], ["sh", "-c", "cat recorded/firewall.apps"])
    return [subprocess.run(one, cwd=folder, capture_output=True, text=True, check=True).stdout for one in commands]


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Json:
    assert main(["doctor", "-o", "json", *arguments]) == code
    answer: Json = json.loads(capsys.readouterr().out)
    return answer


def states(answer: Json) -> dict[str, str]:
    return {check["name"]: check["state"] for check in answer["checks"]}


def test_a_new_mac(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys)
    wrong = {name: state for name, state in states(answer).items() if state != "ok"}
    assert wrong == {
        "sleep": "warning",
        "restart-after-power-loss": "warning",
        "local-network": "unknown",
        "api-server": "unknown",
    }
    assert answer["repairs"] == []
    before = settings(studio)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "fix: sudo pmset -c sleep 0\n" in text and text.endswith("0 failure, 2 unknown\n")
    assert settings(studio) == before


def test_a_fix_is_idempotent_and_reversible(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["socketfilterfw", "--setglobalstate", "on"], check=True)
    before = settings(studio)
    answer = run(capsys, "--fix")
    assert [one["name"] for one in answer["repairs"]] == ["sleep", "restart-after-power-loss", "firewall"]
    assert not [one for one in answer["repairs"] if one["failure"]]
    assert {states(answer)[one["name"]] for one in answer["repairs"]} == {"ok"}
    after = settings(studio)
    assert after != before
    assert run(capsys, "--fix")["repairs"] == []
    assert settings(studio) == after
    for one in answer["repairs"]:
        for command in one["undo"].split(" && "):
            sudo, program, *arguments = shlex.split(command)
            assert sudo == "sudo"
            subprocess.run([Path(program).name, *arguments], check=True)
    assert settings(studio) == before


def test_a_blocked_application_is_blocked_again(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["socketfilterfw", "--setglobalstate", "on"], check=True)
    (added,) = (one["ran"] for one in run(capsys, "--fix")["repairs"] if one["name"] == "firewall")
    python = shlex.split(added)[-1]
    subprocess.run(["socketfilterfw", "--blockapp", python], check=True)
    before = settings(studio)
    assert states(run(capsys, code=1))["firewall"] == "failure"
    (repair,) = run(capsys, "--fix")["repairs"]
    assert repair["failure"] is None
    subprocess.run(["socketfilterfw", *shlex.split(repair["undo"])[2:]], check=True)
    assert settings(studio) == before


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ("exit 0", "the commands succeeded, but the check still finds: this Mac sleeps"),
        ("echo refused >&2; exit 1", "exited with code 1: refused"),
    ],
)
def test_a_repair_that_changes_nothing_is_no_success(
    last: str, text: str, studio: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pmset = studio / "bin/pmset"
    pmset.write_text(pmset.read_text().replace('echo "$3" > "$here/pmset.$2"; exit $?', last))
    answer = run(capsys, "--fix")
    assert [one["name"] for one in answer["repairs"]] == ["sleep", "restart-after-power-loss"]
    assert text in answer["repairs"][0]["failure"]
    assert states(answer)["sleep"] == "warning"
    main(["doctor", "--fix"])
    said = capsys.readouterr().out
    assert "not repaired: sleep: " in said and "\nrepaired: " not in said
    # Commands that succeeded may have changed something, whatever the check finds.
    assert ("undo: " in said) == (last == "exit 0")


def test_half_a_repair_is_undone(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["socketfilterfw", "--setglobalstate", "on"], check=True)
    firewall = studio / "bin/socketfilterfw"
    firewall.write_text(firewall.read_text().replace('--unblockapp) keep "$2" permitted ;;', "--unblockapp) exit 1 ;;"))
    before = settings(studio)[1:]
    (repair,) = (one for one in run(capsys, "--fix")["repairs"] if one["name"] == "firewall")
    assert "exited with code 1" in repair["failure"]
    assert settings(studio)[1:] == before


def test_changes_need_root(studio: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 501)
    before = settings(studio)
    assert main(["doctor", "--fix"]) == 2
    assert "run it as root" in capsys.readouterr().err
    assert settings(studio) == before


@pytest.mark.parametrize("arguments", [["--kubeconfig", "/nonexistent"], ["--context", "other"]])
def test_a_cluster_that_is_named_must_exist(arguments: list[str], studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    assert capsys.readouterr().out == ""


def test_a_cluster_that_does_not_answer(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = of_cluster(run(capsys, "--kubeconfig", str(kubeconfig(studio / "config")), code=1))
    assert check["state"] == "failure" and "cannot read the cluster" in check["finding"]


def of_cluster(answer: Json) -> Json:
    (check,) = (check for check in answer["checks"] if check["subject"] == "cluster")
    found: Json = check
    return found


def plugin(folder: Path, script: str) -> Json:
    """A user whose credentials are what a program prints."""
    (folder / "plugin").write_text(f"#!/bin/sh\ntouch {folder}/ran\n{script}\n")
    (folder / "plugin").chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(folder / "plugin")}}


def test_root_uses_no_kubeconfig_of_its_caller(
    studio: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = kubeconfig(studio / ".kube" / "config", **plugin(studio, "exit 1"))
    for variable in ("", str(usual)):
        monkeypatch.setenv("HOME", str(studio))
        monkeypatch.setenv("KUBECONFIG", variable)
        check = of_cluster(run(capsys))
        assert check["state"] == "unknown" and "give one with --kubeconfig, or run it without sudo" in check["finding"]
    assert not (studio / "ran").exists()


def test_root_uses_the_kubeconfig_of_the_installation(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig(layout_below(studio).local_kubeconfig)
    assert "cannot read the cluster" in of_cluster(run(capsys, code=1))["finding"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_root_runs_no_plugin_that_another_user_chose(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = kubeconfig(studio / "config", **plugin(studio, "exit 1"))
    os.chown(config, 501, 20)
    assert main(["doctor", "--kubeconfig", str(config)]) == 2
    assert "names a credential plugin, which root does not run" in capsys.readouterr().err
    assert not (studio / "ran").exists()
    kubeconfig(config)
    assert "cannot read the cluster" in of_cluster(run(capsys, "--kubeconfig", str(config), code=1))["finding"]


def test_a_plugin_that_does_not_end_is_ended(
    studio: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.5)
    config = kubeconfig(studio / "config", **plugin(studio, f"echo $$ > {studio}/pid; exec sleep 600"))
    pid = studio / "pid"
    pid.touch()
    # Again if its time was over before it had said its number.
    while not pid.read_text():
        use(config)
    assert "the credential plugin plugin did not answer within 0.5 s" in caplog.text
    assert not exists(int(pid.read_text()))


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo 'no login' >&2; exit 3", "ended with code 3: no login"),
        ("echo hello", "printed no ExecCredential"),
        ('echo \'{"apiVersion": "v0", "status": {}}\'', "has the version v0, not client.authentication.k8s.io/v1"),
    ],
)
def test_a_plugin_that_fails_says_why(script: str, text: str, studio: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert use(kubeconfig(studio / "config", **plugin(studio, script))) is None
    assert f"the credential plugin plugin {text}" in caplog.text


def use(config: Path) -> str | None:
    """The authorization that a client with this kubeconfig sends."""

    async def ask() -> str | None:
        async with await Connection(config, None, "default", None).kube() as kube:
            return (await kube.credentials()).authorization

    return asyncio.run(ask())


def test_the_token_of_a_plugin_is_used(studio: Path) -> None:
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}
    assert use(kubeconfig(studio / "config", **plugin(studio, f"echo '{json.dumps(credential)}'"))) == "Bearer t"


def test_the_firewall_is_asked_about_the_python_that_is_installed(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not about that of the command: `init` may have copied it."""
    subprocess.run(["socketfilterfw", "--setglobalstate", "on"], check=True)
    where = layout_below(studio)
    binaries = where.programs / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python3.13").touch()
    (binaries / "python3").symlink_to("python3.13")
    where.daemons.mkdir()
    path = where.plist("io.thunderfleet.kubelet")
    path.write_bytes(plistlib.dumps({"ProgramArguments": [str(binaries / "thunderfleet-kubelet"), "run"]}))
    (repair,) = (one for one in run(capsys, "--fix")["repairs"] if one["name"] == "firewall")
    assert shlex.split(repair["ran"])[-1] == str(binaries / "python3.13")
    path.write_bytes(b"no property list")
    (repair,) = (one for one in run(capsys, "--fix")["repairs"] if one["name"] == "firewall")
    assert shlex.split(repair["ran"])[-1] == os.path.realpath(sys.executable)


def test_another_machine_is_no_mac(studio: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (studio / "bin/sw_vers").unlink()
    answer = run(capsys)
    assert [check["subject"] for check in answer["checks"]] == ["this machine", "cluster"]
    assert "not a Mac" in answer["checks"][0]["finding"]


def test_a_wrong_kubeconfig_is_found_before_anything_is_changed(studio: Path) -> None:
    before = settings(studio)
    (studio / "config").write_text("{}")
    assert main(["doctor", "--fix", "--kubeconfig", str(studio / "config")]) == 2
    assert settings(studio) == before


def test_a_usual_kubeconfig_that_is_wrong_hides_no_check_of_this_mac(
    studio: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (studio / "config").write_text("{}")
    monkeypatch.setattr("os.geteuid", lambda: 501)
    monkeypatch.setenv("KUBECONFIG", str(studio / "config"))
    answer = run(capsys)
    assert states(answer)["rdma"] == "ok"
    assert [check["state"] for check in answer["checks"] if check["subject"] == "cluster"] == ["unknown"]


def test_commands_for_other_macs_are_printed_with_a_fix() -> None:
    bridged = Check("BridgeFree", State.FAILURE, "en2 is in bridge0", "sudo x", "BridgeMember", "studio-2")
    assert "for studio-2 (BridgeFree): sudo x\n" in page.as_text([bridged], [], fixing=True)
    assert "sudo x" not in page.as_text([bridged], [], fixing=False)
