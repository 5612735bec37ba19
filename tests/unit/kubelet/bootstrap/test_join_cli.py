"""The command line: help, exit codes, and the launchd property list."""

import logging
import os
import plistlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_controlplane.daemons.keys import problems
from thunderfleet_kubelet import cli, configprocess, oneoff
from thunderfleet_kubelet.answers import Answers
from thunderfleet_kubelet.bootstrap import certificate_process
from thunderfleet_kubelet.bootstrap.certificates import read_pair
from thunderfleet_kubelet.bootstrap.errors import JoinError
from thunderfleet_kubelet.cli import main, parser
from thunderfleet_kubelet.singleton import only_one

from tests.unit.kubelet.node.test_node_app import identity as make_identity

JOIN = ["join", "--token", "abcdef.0123456789abcdef", "--ca-hash", "sha256:" + "0" * 64]


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """`main` configures logging for its process; this process continues."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("command", [["--help"], ["join", "--help"], ["run", "--help"], ["launchd-plist", "--help"]])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(command)
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert command == ["--help"] or "default: /var/lib/thunderfleet/kubelet" in " ".join(said.split())


def test_run_without_having_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--root", str(tmp_path)]) == 1
    assert "no identity found; join a cluster first" in capsys.readouterr().err


def test_a_wrong_command_line_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOIN, "--server", "http://1.2.3.4", "--root", str(tmp_path / "root")]) == 2
    assert "must be https://HOST:PORT" in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


def test_wrong_settings_are_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text("prot: 1\n")
    assert main([*JOIN, "--server", "https://127.0.0.1:1", "--root", str(tmp_path / "root"), "--config", str(file)]) == 2
    assert f"{file}: prot: unknown setting" in capsys.readouterr().err


def test_no_running_cluster_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*JOIN, "--server", "https://127.0.0.1:1", "--root", str(tmp_path / "root")]) == 1
    assert "cannot connect" in capsys.readouterr().err


def test_a_node_that_has_joined_runs_in_a_fresh_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all options, and without the libraries that only joining needs."""
    began: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: began.append([program, *words]))
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-X", "dev", "/opt/bin/thunderfleet-kubelet", "join"])
    monkeypatch.setattr(sys, "argv", ["/opt/bin/thunderfleet-kubelet", "join"])
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    make_identity(tmp_path)
    config, log = tmp_path / "k.yaml", tmp_path / "k.log"
    config.write_text("nodeName: studio-1")
    given = ["--server", "https://127.0.0.1:1", "--root", str(tmp_path), "--config", str(config)]
    options = ["--log-file", str(log), "--log-level", "debug", "--log-format", "json"]
    assert main([*JOIN, *given, *options]) == 0
    start = [sys.executable, sys.executable, "-X", "dev", "/opt/bin/thunderfleet-kubelet"]
    assert [words[: len(start)] for words in began] == [start]
    assert parser().parse_args(began[0][len(start) :]) == parser().parse_args(["run", *given[2:], *options])
    assert main([*JOIN, *given, "--no-run"]) == 0 and len(began) == 1
    # The kubelet asks no process for what this one has read.
    client = read_pair(tmp_path / "identity" / "client.pem")
    monkeypatch.setattr(oneoff, "done", None)
    monkeypatch.setattr(certificate_process, "_known", {})
    kept = Answers(tmp_path / "identity" / "answers.json")
    assert configprocess.load(config, "studio-1", kept).node_name == "studio-1"
    assert client is not None and "user" in certificate_process.read([(client.key, client.certificate)], kept)[0]


PREFERRED = """
import asyncio, os, sys
from thunderfleet_kubelet import app, cli

def nice(*_):
    return os.getpriority(os.PRIO_PROCESS, 0)

async def run(root, identity, config, adopted):
    loop = asyncio.get_running_loop()
    # The thread stays.
    found = [nice(), await loop.run_in_executor(None, nice)]
    adopted()
    print(*found, nice(), await loop.run_in_executor(None, nice))

app.run = run
before = nice()
cli.main(["run", "--root", sys.argv[1]])
print(before)
"""


@pytest.mark.parametrize("by", ["itself", "launchd"])
def test_pods_wait_for_a_kubelet_that_comes_before_other_programs(tmp_path: Path, by: str) -> None:
    make_identity(tmp_path)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    first = -15 if os.geteuid() == 0 else own
    given = first if by == "launchd" else own
    done = subprocess.run(
        [sys.executable, "-c", PREFERRED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        # Tests of ranks set the value of their process group, which is also that of the programs that other tests start.
        start_new_session=True,
        preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, given),
    )
    lasting = max(given, 0)
    assert list(map(int, done.stdout.split())) == [first, first, lasting, lasting, given]


def test_one_kubelet_a_root(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(JoinError, match="another kubelet uses this folder"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass


def test_the_launch_daemon_abandons_its_containers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launchd-plist", "--root", "/var/lib/k", "--config", "/etc/k.yaml"]) == 0
    made = plistlib.loads(capsys.readouterr().out.encode())
    assert made["ProgramArguments"][1:] == [
        *("run", "--root", "/var/lib/k", "--log-file", "/var/log/thunderfleet-kubelet.log", "--config", "/etc/k.yaml")
    ]
    # launchd rotates nothing, so the log is not what it keeps open.
    assert made["StandardErrorPath"] == "/var/log/thunderfleet-kubelet.stderr.log"
    assert made["ProgramArguments"][0].startswith("/")
    assert made["AbandonProcessGroup"] is True
    assert made["KeepAlive"] is True
    assert made["ExitTimeOut"] >= 60
    assert made["Nice"] == -15
    assert "UserName" not in made, "a root daemon: user agents are cut off from LAN peers"


def test_the_launch_daemon_logs_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(tmp_path / "kubelet.log")
    assert main(["launchd-plist", "--root", "/var/lib/k", "--log-level", "debug", "--log-file", log]) == 0
    made = plistlib.loads(capsys.readouterr().out.encode())
    assert made["ProgramArguments"][1:] == [*("run", "--root", "/var/lib/k", "--log-file", log, "--log-level", "debug")]


@pytest.mark.parametrize("more", [[], ["--config", "/etc/k.yaml", "--log-level", "debug"]])
def test_launchd_knows_all_keys_of_the_launch_daemon(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launchd-plist", "--root", "/var/lib/k", *more]) == 0
    # install.md says where to put it.
    assert problems(capsys.readouterr().out.encode(), "io.thunderfleet.kubelet.plist") == []


def test_the_token_may_be_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where other users do not read it, unlike a command line."""
    file, rest = tmp_path / "token", [*JOIN[3:], "--server", "https://127.0.0.1:1", "--root", str(tmp_path / "root")]
    file.write_text("abcdef.0123456789abcdef\n")
    assert main(["join", "--token-file", str(file), *rest]) == 1
    assert "cannot connect" in capsys.readouterr().err
    file.write_text("abcdef")
    assert main(["join", "--token-file", str(file), *rest]) == 2
    assert "6 lower-case letters or digits" in capsys.readouterr().err
    file.unlink()
    assert main(["join", "--token-file", str(file), *rest]) == 2
    assert f"--token-file {file}: cannot be read" in capsys.readouterr().err
    for both in (["join", *rest], [*JOIN, "--token-file", str(file), "--server", "https://127.0.0.1:1"]):
        with pytest.raises(SystemExit) as caught:
            main(both)
        assert caught.value.code == 2


def test_the_log_file_is_rotated_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "LOG_BYTES", 1000)
    file = tmp_path / "kubelet.log"
    cli.set_up_logging("info", file)
    for number in range(100):
        logging.getLogger("x").info("line %d %s", number, "." * 50)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["kubelet.log", *(f"kubelet.log.{number}" for number in range(1, cli.LOG_FILES))]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert "line 99" in file.read_text()


def test_a_log_file_that_cannot_be_written_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--root", str(tmp_path), "--log-file", str(tmp_path / "none" / "log")]) == 1
    assert f"cannot write the log to {tmp_path}/none/log: No such file or directory" in capsys.readouterr().err


def test_what_launchd_keeps_open_is_emptied_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "STDERR_BYTES", 10)
    with (tmp_path / "stderr").open("a") as file:
        file.write("." * 10)
        file.flush()
        cli.bound(file.fileno())
        assert (tmp_path / "stderr").stat().st_size == 10
        file.write(".")
        file.flush()
        cli.bound(file.fileno())
        assert (tmp_path / "stderr").stat().st_size == 0
    reader, writer = os.pipe()
    cli.bound(writer)
    os.close(reader)
    os.close(writer)
