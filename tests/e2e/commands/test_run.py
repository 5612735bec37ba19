"""``thunderfleet run`` as a user types it: a prompt, a pipe, a chat at a terminal, and a model that no Mac has."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faults import INTAKE, STOP, hunt
from tests.support.line import MODEL, READY_SECONDS, Line
from tests.support.waiting import until

COMMAND = [sys.executable, "-m", "thunderfleet_cli", "run"]
NAME, NAMESPACE = "tiny-run", "run-e2e"
GONE_SECONDS = 120
EVENT_SECONDS = 180


@pytest.fixture(scope="module")
def there(line: Line) -> Iterator[tuple[str, ...]]:
    """The arguments for a namespace of its own."""
    line.kubectl("create", "namespace", NAMESPACE)
    yield ("--name", NAME, "-n", NAMESPACE)
    line.cluster.kubectl(
        "delete", "namespace", NAMESPACE, "--wait=true", f"--timeout={GONE_SECONDS}s", seconds=GONE_SECONDS + 10
    )


def environment(line: Line) -> dict[str, str]:
    """No proxy: the kubeconfig of a local cluster brings it."""
    return {**os.environ, "KUBECONFIG": str(line.cluster.kubeconfig)}


def run(line: Line, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments, f"--timeout={READY_SECONDS:.0f}"]
    return subprocess.run(
        command, input=text, env=environment(line), capture_output=True, text=True, timeout=READY_SECONDS + 60, check=False
    )


def test_a_prompt_creates_what_a_pipe_finds(line: Line, there: tuple[str, ...]) -> None:
    first = run(line, MODEL, *there, "--prompt", "Hello")
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip() and "created ModelDeployment tiny-run" in first.stderr
    second = run(line, MODEL, *there, text="Hello")
    assert second.returncode == 0, second.stderr
    assert "using ModelDeployment tiny-run" in second.stderr
    found = json.loads(line.kubectl("get", "md", NAME, "-n", NAMESPACE, "-o", "json"))
    assert found["spec"]["model"]["repository"] == MODEL
    other = run(line, "other/model", *there, text="Hello")
    assert other.returncode == 2 and f"serves {MODEL}; use another --name" in other.stderr


class Terminal:
    """The command at a pseudo-terminal."""

    def __init__(self, line: Line, *arguments: str) -> None:
        self.end, child = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], env=environment(line), stdin=child, stdout=child, stderr=child, start_new_session=True
        )
        os.close(child)
        self.said = ""

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def until(self, pattern: str, again: str = "") -> None:
        """Reads until what was said matches; while nothing comes, types ``again``."""
        limit = time.monotonic() + READY_SECONDS
        while re.search(pattern, self.said, re.DOTALL) is None:
            assert time.monotonic() < limit, self.said
            if select.select([self.end], [], [], 1.0)[0]:
                try:
                    self.said += os.read(self.end, 65536).decode("utf-8", "replace")
                except OSError:
                    assert re.search(pattern, self.said, re.DOTALL), self.said
                    return
            elif again:
                self.type(again)


def test_a_chat_ends_with_ctrl_d_and_the_model_keeps_serving(line: Line, there: tuple[str, ...]) -> None:
    terminal = Terminal(line, MODEL, *there)
    try:
        terminal.until(">>> ")
        terminal.type("Hello\n")
        terminal.until(">>> .*>>> ")
        terminal.type("Tell me more\n")
        # In the middle of the answer; if that has ended meanwhile, the prompt comes once more.
        terminal.until(r"Tell me more(?:\s|\x1b\[\?2004[hl])+[^\s\x1b]")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until(r"Tell me more.*>>> ")
        # The terminal may just be changing its mode, and lose what is typed.
        terminal.type("\x04")
        terminal.until("keeps serving", again="\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait(30)
        os.close(terminal.end)
    status = json.loads(line.kubectl("get", "md", NAME, "-n", NAMESPACE, "-o", "json"))["status"]
    assert status["endpoint"] in terminal.said
    ready = next(one for one in status["conditions"] if one["type"] == "Ready")
    assert ready["status"] == "True"


def view(line: Line, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`kubectl thunderfleet …`: kubectl finds the plugin on PATH."""
    folders = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = [str(line.cluster.tool("kubectl")), "thunderfleet", *arguments]
    env = {**environment(line), "PATH": folders}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_kubectl_shows_the_fleet_and_what_serves(line: Line, there: tuple[str, ...]) -> None:
    within = ("-n", NAMESPACE)
    shown = view(line, "status", *within)
    assert shown.returncode == 0 and re.search(rf"{NAME} +{MODEL} +1/1 ", shown.stdout), shown.stdout + shown.stderr
    explained = view(line, "why", NAME, *within)
    assert explained.returncode == 0 and "the model serves and nothing is wrong" in explained.stdout, explained.stdout
    drawn = json.loads(view(line, "topology", "-o", "json", *within).stdout)
    (mac,) = (mac["name"] for mac in drawn["macs"] if mac["ranks"])
    assert [cable["name"] for cable in drawn["cables"]] == [
        cable["name"] for cable in json.loads(view(line, "cables", "-o", "json").stdout)
    ]
    said = view(line, "logs", NAME, "--tail", "20", *within).stdout.splitlines()
    assert said and all(f"group 0 rank 0 {mac}" in text for text in said)
    happened = view(line, "events", NAME, *within).stdout
    assert f"modeldeployment/{NAME}" in happened
    limited = view(line, "top")
    assert limited.returncode == 0 and "install metrics-server" in limited.stdout and mac in limited.stdout


@pytest.mark.soak
def test_an_intake_that_hangs_has_an_event_and_another_one_serves(line: Line, there: tuple[str, ...]) -> None:
    within = ("-n", NAMESPACE)
    assert run(line, MODEL, *there, text="Hello").returncode == 0
    drawn = json.loads(view(line, "topology", "-o", "json", *within).stdout)
    (mac,) = (mac["name"] for mac in drawn["macs"] if mac["ranks"])
    assert hunt(line, mac, f"{NAME}-", INTAKE, STOP)
    # It fails after 30 s, or is sent again.
    waiting = [*COMMAND, MODEL, *there, "--prompt", "Hello"]
    with subprocess.Popen(waiting, env=environment(line), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as asked:

        def named() -> bool:
            events = json.loads(view(line, "events", NAME, "-o", "json", *within).stdout)
            return any(
                one["reason"] == "IntakeFailed" and f"rank 0 on {mac} that tokenizes them" in one["message"] for one in events
            )

        try:
            until(named, "an Event names the intake", EVENT_SECONDS)
        finally:
            asked.kill()
    again = run(line, MODEL, *there, text="Hello")
    assert again.returncode == 0, again.stderr


def test_a_model_that_no_mac_has_ends_with_three_and_why_names_it(line: Line, there: tuple[str, ...]) -> None:
    done = run(line, "nobody/absent", "-n", NAMESPACE, text="Hello")
    assert done.returncode == 3, done.stderr
    assert "ModelNotFound" in done.stderr and f"kubectl delete md absent -n {NAMESPACE}" in done.stderr
    explained = view(line, "why", "absent", "-n", NAMESPACE)
    line.kubectl("delete", "md", "absent", NAME, "-n", NAMESPACE, "--wait=false")
    assert explained.returncode == 1 and "cause: ModelDeployment" in explained.stdout and "ModelNotFound" in explained.stdout
    until(lambda: not line.items("pods", "-n", NAMESPACE), "its pods are gone")
