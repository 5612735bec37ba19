"""The kubelet's streams through kubectl of two minor versions before the cluster's, and through the cluster's own."""

import hashlib
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubelets import LISTEN, MAC, SECONDS, Fleet, alive_with, container, first, pod, use_terminal
from tests.support.otherprojects import oldkubectl
from tests.support.waiting import until

pytestmark = pytest.mark.soak
PORT = 15321
ANSWER = f"""exec python3 -u -c '
import http.server, os
os.chdir(os.environ["HOME"])
server = http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), http.server.SimpleHTTPRequestHandler)
print("listens")
server.serve_forever()
'"""
TICKS = "i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.1; done"
BYTES = 8 * 1024**2
"""What is copied and forwarded: more than all buffers on the way."""


@dataclass(frozen=True)
class Client:
    """One version of kubectl."""

    version: str
    program: Path
    fleet: Fleet

    def run(self, *words: str, text: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return oldkubectl.run(self.program, self.fleet.cluster.environment(), *words, text=text, check=check)

    def start(self, *words: str, stdin: int = subprocess.DEVNULL, both: int = subprocess.PIPE) -> "subprocess.Popen[str]":
        environment = self.fleet.cluster.environment()
        command = [str(self.program), *words]
        return subprocess.Popen(
            command, env=environment, stdin=stdin, stdout=both, stderr=both, text=True, start_new_session=True
        )

    def pod(self, name: str, script: str, **more: Any) -> str:
        """The name of a running pod of this client alone."""
        name = f"{name}-{self.version.replace('.', '-')}"
        self.fleet.apply(pod(name, [container(self.fleet.cluster.image, script, **more)], restartPolicy="Never"))
        self.fleet.running(name)
        return name


@pytest.fixture(params=["old", "own"])
def client(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[Client]:
    own = fleet.cluster.tool("kubectl")
    program = oldkubectl.program() if request.param == "old" else own
    said = oldkubectl.run(program, fleet.cluster.environment(), "version").stdout
    versions = dict(re.findall(r"^(Client|Server) Version: (v1\.\d+)\.\d+$", said, re.MULTILINE))
    minor = {who: int(version.removeprefix("v1.")) for who, version in versions.items()}
    assert minor["Client"] == minor["Server"] - (2 if request.param == "old" else 0), said
    found = Client(versions["Client"], program, fleet)
    yield found
    mine = found.version.replace(".", "-")
    names = [one["metadata"]["name"] for one in fleet.get("pods")["items"] if one["metadata"]["name"].endswith(mine)]
    fleet.kubectl("delete", "pod", "--wait=false", "--ignore-not-found", *names)


def test_logs(client: Client) -> None:
    name = client.pod("ticks", TICKS)
    until(lambda: client.run("logs", name).stdout.count("\n") > 5, "it ticks")
    assert client.run("logs", name).stdout.startswith("tick 0\ntick 1\n")
    assert len(client.run("logs", name, "--tail=2", "--timestamps").stdout.splitlines()) == 2
    assert client.run("logs", name, "--limit-bytes=6").stdout == "tick 0"
    previous = client.run("logs", name, "--previous", check=False)
    assert "previous terminated container main" in previous.stderr and previous.returncode == 1
    with client.start("logs", "-f", "--tail=1", name) as follower:
        assert follower.stdout is not None
        numbers = [int(follower.stdout.readline().removeprefix("tick ")) for _ in range(6)]
        follower.kill()
    assert numbers == list(range(numbers[0], numbers[0] + 6))


def test_exec_and_cp(client: Client, tmp_path: Path) -> None:
    name = client.pod("runs", TICKS)
    text = "in and out\n" * 20_000
    assert client.run("exec", "-i", name, "--", "cat", text=text).stdout == text
    done = client.run("exec", name, "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.returncode, done.stdout) == (7, "out\n") and "err\n" in done.stderr
    missing = client.run("exec", name, "--", "no-such-command", check=False)
    assert "command 'no-such-command' not found on PATH=" in missing.stderr
    # A pod's own folder is where a relative path leads.
    file, back = tmp_path / "file", tmp_path / "back"
    file.write_bytes(os.urandom(BYTES))
    client.run("cp", str(file), f"{name}:copied")
    shown = client.run("exec", name, "--", "sh", "-c", "cd $HOME && sha256sum copied").stdout
    assert shown.split()[0] == hashlib.sha256(file.read_bytes()).hexdigest()
    client.run("cp", f"{name}:copied", str(back))
    assert back.read_bytes() == file.read_bytes()


def test_attach_with_input_and_with_a_terminal(client: Client) -> None:
    name = client.pod("listens", LISTEN, stdin=True, stdinOnce=True)
    said = client.run("attach", "-i", name, text="one\ntwo\n").stdout
    assert said.endswith("heard one. heard two. \nover\n")
    client.fleet.await_pod(name, lambda item: item["status"]["phase"] == "Succeeded", "its input has ended")
    name = client.pod("shell", "exec sh", stdin=True, tty=True)
    use_terminal(lambda inner: client.start("attach", "-it", name, stdin=inner, both=inner))
    ended = client.fleet.await_pod(name, lambda item: item["status"]["phase"] == "Failed", "its shell has ended")
    assert first(ended)["state"]["terminated"]["exitCode"] == 4


def test_port_forward(client: Client) -> None:
    name = client.pod("answers", ANSWER)
    until(lambda: "listens" in client.run("logs", name).stdout, "it listens")
    client.run("exec", name, "--", "sh", "-c", f"head -c {BYTES} /dev/urandom > $HOME/file")
    wanted = client.run("exec", name, "--", "sh", "-c", "cd $HOME && sha256sum file").stdout.split()[0]
    with client.start("port-forward", f"pod/{name}", f":{PORT}", "--address", "127.0.0.1") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Forwarding from 127.0.0.1:"), (line, process.stderr and process.stderr.read())
            local = int(line.split(" -> ")[0].rpartition(":")[2])
            for _ in range(2):
                with urllib.request.urlopen(f"http://127.0.0.1:{local}/file", timeout=SECONDS) as answer:
                    assert hashlib.sha256(answer.read()).hexdigest() == wanted
            assert alive_with(client.fleet.pod(name)["metadata"]["uid"]), MAC
        finally:
            process.terminate()
