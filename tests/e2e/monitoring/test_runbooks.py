"""The commands of the runbooks, as they are written, on a real cluster; those that change something, without doing so."""

import os
import signal
import subprocess
import sys

import pytest
from thunderfleet_cli.cli import main
from thunderfleet_crds.names import ANNOTATION_BACKUP
from thunderfleet_lib.csr.rules import CONTROL_PLANE_LABEL

from tests.support.line import COMMAND_SECONDS, Deployment, Line
from tests.support.runbooks import ALERTS, TROUBLESHOOT, Command, of_alerts, of_page

COMMANDS = sorted(
    {one for one in [*of_page(TROUBLESHOOT.read_text()), *of_alerts(ALERTS.read_text())] if one.words},
    key=lambda one: (one.program, one.words),
)
CHANGING = ("delete", "label", "uncordon")
ALONE = ("describe", "logs")
"""They say nothing without the object, which these rows leave to the reader."""
# Those of a Mac (init, join, doctor, backup, reset, measure) have tests of their own, with a Mac; so has `kubectl top`, which
# needs metrics-server.
VIEWS = ("cables", "events", "logs", "model list", "status", "why")
MEASURED = "2026-03-01T12:00:00Z"


def filled(one: Command, line: Line, pair: Deployment) -> list[str]:
    """The words, about objects of this fleet."""
    mac, name = line.macs[0], pair.name
    if "tbl" in one.words:
        name = line.items("thunderboltlinks")[0]["metadata"]["name"]
    elif "lease" in one.words:
        name = line.items("leases", "-n", "kube-system")[0]["metadata"]["name"]
    elif "np" in one.words:
        name = mac
    places = {"NAMESPACE": pair.namespace, "NAME": name, "NODE": mac}
    found = []
    for word in one.words:
        for place, value in places.items():
            word = value if word == place else word.replace(f"={place}", f"={value}")
        found.append(word)
    if not {"-n", "-A", "--raw"} & set(found):
        found += ["-n", pair.namespace]
    return found


def kubectl() -> list[Command]:
    named = [one for one in COMMANDS if one.program == "kubectl" and one.words != ("top", "node", "NODE")]
    return [one for one in named if not (one.mentioned and one.words[0] in ALONE and len(one.words) == 1)]


def views() -> list[Command]:
    named = [one for one in COMMANDS if one.program == "thunderfleet"]
    return [one for one in named if " ".join(one.words).startswith(VIEWS) and one.words != ("logs",)]


def test_there_are_commands() -> None:
    assert len(kubectl()) > 20 and {one.words[0] for one in views()} == {word.split()[0] for word in VIEWS}


@pytest.mark.parametrize("one", kubectl(), ids=lambda one: " ".join(one.words))
def test_a_command_of_kubectl(line: Line, pair: Deployment, one: Command) -> None:
    words = filled(one, line, pair)
    line.kubectl(*words, *(["--dry-run=server"] if words[0] in CHANGING else []))


@pytest.mark.parametrize("one", views(), ids=lambda one: " ".join(one.words))
def test_a_command_of_the_plugin(
    line: Line, pair: Deployment, one: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, because most of a command's time is the start of the program."""
    monkeypatch.setenv("KUBECONFIG", str(line.cluster.kubeconfig))
    words = list(one.words) if one.words[0] == "model" else filled(one, line, pair)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        status = main(words)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    said = capsys.readouterr()
    assert status == 0 and said.out, said.err


def test_a_command_of_the_plugin_as_a_program(line: Line, pair: Deployment) -> None:
    one = next(one for one in views() if one.words[0] == "status")
    done = subprocess.run(
        [sys.executable, "-m", "thunderfleet_cli", *filled(one, line, pair)],
        env={**os.environ, "KUBECONFIG": str(line.cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0 and done.stdout, done.stderr


def test_the_command_about_backups_shows_when_the_last_one_was(line: Line) -> None:
    linux = next(name for name, machine in line.cluster.machines.items() if machine.kind == "linux")
    (one,) = [one for one in kubectl() if ANNOTATION_BACKUP.rpartition("/")[2] in one.text]
    line.kubectl("label", "node", linux, f"{CONTROL_PLANE_LABEL}=")
    line.kubectl("annotate", "node", linux, f"{ANNOTATION_BACKUP}={MEASURED}")
    try:
        said = line.kubectl(*one.words)
    finally:
        line.kubectl("annotate", "node", linux, f"{ANNOTATION_BACKUP}-")
        line.kubectl("label", "node", linux, f"{CONTROL_PLANE_LABEL}-")
    assert said.split() == ["NAME", "BACKUP", linux, MEASURED]
