"""The command line: help, bad input, and clusters that are not there."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from thunderfleet_cli.cli import main, moved, parser
from thunderfleet_cli.install.command import COMMANDS as INSTALL_COMMANDS
from thunderfleet_cli.local import arguments as local
from thunderfleet_cli.local.commands import LOCAL_COMMANDS


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


@pytest.mark.parametrize(
    "line",
    [[], ["--help"], ["demo"], ["support"], ["local", "up"], ["status", "--namespace=a"], ["unknown"], ["token", "create"]],
)
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


def test_options_behind_a_machine_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", "machine", "off", "studio-1", "--name", "demo"]) == 2
    assert "write options before MACHINE: --name demo" in capsys.readouterr().err


# --- what a command line waits for -------------------------------------------------------------------------------------------

LOADED = """
import json, sys
from thunderfleet_cli.cli import main
try:
    main({words})
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
SLOW = {"aiohttp", "asyncio", "cryptography", "dateutil", "kubernetes", "prometheus_client", "pydantic", "rich", "yaml"}


@pytest.mark.parametrize("words", [["--help"], ["status", "--help"], ["local", "up", "--help"], ["why"]])
def test_a_command_line_is_read_without_the_modules_of_any_command(words: list[str]) -> None:
    """They take eight times as long as reading it, and also delay `status` and `why` in large fleets."""
    done = subprocess.run([sys.executable, "-c", LOADED.format(words=words)], capture_output=True, text=True, timeout=60)
    found = set(json.loads(done.stderr.splitlines()[-1]))
    assert "thunderfleet_cli.cli" in found and found & SLOW == set()


def commands(top: argparse.ArgumentParser, *before: str) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """All command lines without their options, with their parsers."""
    below = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield before, top
    for action in below:
        for name, found in action.choices.items():
            yield from commands(found, *before, name)


def test_the_names_of_commands_are_those_of_their_implementations() -> None:
    named = {words[1] for words, _ in commands(parser()) if words[0] == "local"}
    assert named == set(local.COMMANDS) == set(LOCAL_COMMANDS)
    assert set(INSTALL_COMMANDS) <= {words[0] for words, _ in commands(parser())}


# --- interrupts --------------------------------------------------------------------------------------------------------------

SWALLOWING = """
import argparse, asyncio, os, signal, sys
from thunderfleet_cli import cli
from thunderfleet_cli.view import ui

async def work(*_):
    try:
        os.kill(os.getpid(), signal.{name})
        sum(range(10))
    except BaseException:
        print("swallowed")
    await asyncio.Event().wait()

ui.connect, ui._serve = (lambda *_: None), work
given = argparse.Namespace(kubeconfig=None, context=None, namespace=None)
calls = {{"any": lambda _: asyncio.run(work()), "ui": lambda _: ui.show_page(given)}}
cli.parser = lambda _: argparse.Namespace(parse_args=lambda _: argparse.Namespace(call=calls["{command}"]))
if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(cli.main(["x"]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize(("command", "ignored"), [("any", False), ("ui", False), ("ui", True)])
def test_a_signal_ends_a_command_wherever_it_is(name: str, command: str, ignored: bool) -> None:
    """An exception in the loop of asyncio may end nothing, or leave a task that `asyncio.run` waits for without end.

    A shell's job in the background may ignore SIGINT.
    """
    program = SWALLOWING.format(name=name, command=command, ignored=ignored)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "thunderfleet: interrupted\n")
