"""The main job from nothing to tokens, on a fleet of recorded Macs: what somebody sees who has just cloned the project.

Everything in it is what a user would type (``kubectl``, ``helm``, a request to the endpoint); the demo only waits, compares
and times. Each step says how long it took; the first that fails says which, why and where to look, and ends the run.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove, running
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.paths import cluster_folder
from thunderfleet_localcluster.programs import find_programs
from thunderfleet_localcluster.progress import Progress

STEPS = 9
NAMESPACE = "thunderfleet-system"
MODEL = "thunderfleet/tiny-qwen2"
DEPLOYMENT = "tiny"
NAME = "demo"
ROOT = Path(__file__).resolve().parents[3]
"""The checkout: the demo installs its chart and applies its example."""

COMMAND_SECONDS = 60
INSTALL_SECONDS = 180
READY_SECONDS = 180
REQUEST_SECONDS = 60
POLL_SECONDS = 0.3

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A streamed chat completion: its text and its token ids."""

    text: str
    tokens: list[int]


class Demo:
    """One run. ``cluster`` is there from the second step on."""

    def __init__(self) -> None:
        self.folder = cluster_folder(NAME)
        self.number = 0
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "the cluster is brought up in the second step"
        return self._cluster

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A numbered step with its time. A failure inside it is told with the step's name and where the logs are."""
        self.number += 1
        say(f"\n[{self.number}/{STEPS}] {title}")
        began = time.monotonic()
        try:
            yield
        except LocalClusterError as error:
            raise LocalClusterError(
                f"step {self.number} failed after {time.monotonic() - began:.0f} s: {title}\n{error}\n"
                f"logs: {self.folder.logs}, and of pods below {self.folder.machines}"
            ) from error
        say(f"      ({time.monotonic() - began:.1f} s)")

    def up(self) -> None:
        """Brings the cluster up, saying each of its steps."""
        with Progress(sys.stdout) as progress:
            self._cluster = Cluster.start(name=NAME, on_event=progress.event)

    def down(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(*arguments, seconds=COMMAND_SECONDS).stdout

    def show(self, *arguments: str, lines: int = 40) -> None:
        """Shows a kubectl command and the first ``lines`` of what it prints, as in a terminal."""
        say(f"      $ kubectl {' '.join(arguments)}")
        for line in self.kubectl(*arguments).splitlines()[:lines]:
            say(f"      {line}")

    def json(self, *arguments: str) -> Json:
        answer: Json = json.loads(self.kubectl(*arguments, "-o", "json"))
        return answer

    def deployment(self) -> Json:
        return self.json("get", "md", DEPLOYMENT)

    def until_ready(self, reached: Callable[[Json], bool], goal: str) -> Json:
        """Follows the deployment until ``reached``, saying what it waits for whenever that changes."""
        said, limit = "", time.monotonic() + READY_SECONDS
        while True:
            found = self.deployment()
            if reached(found):
                return found
            waits = waiting_for(found)
            if waits != said:
                say(f"      … {waits}")
                said = waits
            if time.monotonic() > limit:
                raise LocalClusterError(
                    f"{goal}: not within {READY_SECONDS} s; it last waited for: {said or 'nothing it told'}"
                )
            time.sleep(POLL_SECONDS)

    def ask(self, prompt: str, tokens: int) -> Answer:
        """Streams one chat completion from ``status.endpoint``, printing as it comes."""
        endpoint = self.deployment()["status"]["endpoint"]
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": self.cluster.proxy}))
        say(f"      POST {endpoint}/chat/completions: {prompt!r}")
        text: list[str] = []
        ids: list[int] = []
        ended = False
        sys.stdout.write("      ")
        try:
            with opener.open(request, timeout=REQUEST_SECONDS) as response:
                for line in response:
                    if not line.startswith(b"data: "):
                        continue
                    data = line[len(b"data: ") :].strip()
                    if data == b"[DONE]":
                        ended = True
                        break
                    event = json.loads(data)
                    if "error" in event:
                        raise LocalClusterError(f"the stream ended with an error: {event['error'].get('message')}")
                    for choice in event["choices"]:
                        piece = choice.get("delta", {}).get("content") or ""
                        text.append(piece)
                        ids.extend(choice.get("token_ids") or [])
                        sys.stdout.write(piece)
                        sys.stdout.flush()
        except OSError as error:
            raise LocalClusterError(f"{endpoint}: {error}") from error
        finally:
            say("")
        if not ended:
            raise LocalClusterError("the stream broke off before [DONE]")
        return Answer("".join(text), ids)

    def compare(self, answer: Answer, expected: Sequence[int], how: str) -> None:
        if answer.tokens != list(expected):
            raise LocalClusterError(
                f"two ranks ({how}) and one process of mlx-lm differ:\n  two {answer.tokens}\n  one {list(expected)}"
            )
        say(f"      {how}: all {len(answer.tokens)} token ids equal those of one process of mlx-lm")


def say(line: str) -> None:
    print(line, flush=True)


def condition(deployment: Json, name: str) -> Json:
    conditions: list[Json] = deployment.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == name), {})


def waiting_for(deployment: Json) -> str:
    """What stands between this deployment and Ready, in its own words."""
    for name in ("ModelResolved", "Placed", "Bootstrapped", "Ready"):
        found = condition(deployment, name)
        if found.get("status") != "True":
            return f"{name}: {found.get('message') or found.get('reason') or 'not yet reported'}"
    return "status of the newest change"


def is_ready(deployment: Json, parallelism: str | None = None) -> bool:
    """Ready for the newest spec; with ``parallelism``, as a group that is cut so."""
    ready = condition(deployment, "Ready")
    current = ready.get("observedGeneration") == deployment["metadata"]["generation"]
    groups = deployment.get("status", {}).get("groups", [])
    cut = parallelism is None or (bool(groups) and groups[0].get("parallelism") == parallelism)
    return ready.get("status") == "True" and current and cut


def reference(model: Path, prompt: str, tokens: int) -> list[int]:
    """What one process of mlx-lm says."""
    command = [sys.executable, "-m", "thunderfleet_localcluster.models.reference", str(model), prompt, "--tokens", str(tokens)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=REQUEST_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LocalClusterError(f"mlx-lm alone did not answer within {REQUEST_SECONDS} s") from error
    if done.returncode:
        raise LocalClusterError(f"mlx-lm alone failed:\n{done.stderr.strip()}")
    ids: list[int] = json.loads(done.stdout)
    return ids


def play(demo: Demo, keep: bool) -> None:
    """All steps. Raises LocalClusterError at the first that fails."""
    prompt, tokens = tinymodel.DEMO_MESSAGES[0]["content"], tinymodel.DEMO_TOKENS

    with demo.step("The programs of the control plane: built once, then kept"):
        with Progress(sys.stdout) as progress:
            folder = find_programs(progress.event)
        say(f"      {folder}")
    with demo.step("A control plane; three recorded Macs and two Linux nodes join it by bootstrap tokens"):
        demo.up()
        tinymodel.make(demo.cluster.models / MODEL)
    with demo.step("helm install thunderfleet"):
        demo.kubectl("create", "namespace", NAMESPACE)
        demo.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=privileged")
        say(f"      $ helm install thunderfleet charts/thunderfleet --namespace {NAMESPACE} --wait …")
        demo.cluster.helm(
            *("install", "thunderfleet", str(ROOT / "charts/thunderfleet"), "--namespace", NAMESPACE, "--wait"),
            *("--set", f"agent.modelFolders={{{demo.cluster.models}}}", "--timeout", f"{INSTALL_SECONDS}s"),
            seconds=INSTALL_SECONDS + 30,
        )
        demo.show("get", "pods", "-n", NAMESPACE, "-o", "wide")
    with demo.step("What the agents found"):
        wait_for_discovery(demo)
        demo.show("get", "nodes,np,tbl")
    with demo.step("A ModelDeployment of ten lines"):
        example = ROOT / "examples/tiny.yaml"
        for line in example.read_text().splitlines():
            say(f"      | {line}")
        demo.show("apply", "-f", str(example))
        demo.until_ready(is_ready, "Ready")
    with demo.step("One question, streamed; the same as one process of mlx-lm says, token id for token id"):
        expected = reference(demo.cluster.models / MODEL, prompt, tokens)
        first = demo.deployment()["status"]["groups"][0]["parallelism"]
        demo.compare(demo.ask(prompt, tokens), expected, first)
        other = "Tensor" if first == "Pipeline" else "Pipeline"
        change = json.dumps({"spec": {"parallelism": other}})
        demo.show("patch", "md", DEPLOYMENT, "--type=merge", "-p", change)
        demo.until_ready(lambda found: is_ready(found, other), f"Ready as {other}")
        demo.compare(demo.ask(prompt, tokens), expected, other)
    with demo.step("What there is to see"):
        demo.until_ready(lambda found: bool(found["status"].get("tokensPerSecond")), "a benchmark in status")
        demo.show("get", "md")
        pod = rank_zero(demo)["pod"]
        demo.show("logs", pod, "--tail=6")
        benchmark = demo.deployment()["status"]["benchmark"]
        say("      status.benchmark: " + ", ".join(f"{key} {value}" for key, value in benchmark.items()))
        show_metrics(demo)
    with demo.step("A rank killed with SIGKILL: the group comes back by itself"):
        kill_rank(demo)
        demo.until_ready(lambda found: not is_ready(found), "the failure in status")
        demo.until_ready(is_ready, "Ready again")
        demo.compare(demo.ask(prompt, tokens), expected, "after the failure")
    if keep:
        cluster = demo.cluster
        demo.number += 1
        say(f"\n[{demo.number}/{STEPS}] Left running. To go on:")
        say(f"      export KUBECONFIG={cluster.kubeconfig} PATH={cluster.tool('kubectl').parent}:$PATH")
        say(f"      export http_proxy={cluster.proxy}    # how this shell reaches status.endpoint")
        say("      kubectl get md,np,tbl,pods")
        say(f"      {sys.argv[0]} status --name {NAME}    # its processes, addresses and logs")
        say(f"      {sys.argv[0]} down --name {NAME}      # when done")
        return
    with demo.step("Everything down again"):
        demo.down()
        if running(demo.folder) or (left := leftovers(demo.folder)):
            raise LocalClusterError("left behind: " + ", ".join(left or ["the supervisor"]))
        remove(demo.folder)
        say("      no process, port, namespace or mount is left")


def leftovers(folder: ClusterFolder) -> list[str]:
    """Processes of this machine that still name the cluster's folder in their command line."""
    done = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, timeout=10, check=False)
    return [line.strip() for line in done.stdout.splitlines() if str(folder.root) in line]


def wait_for_discovery(demo: Demo) -> None:
    """Until every Mac has a profile that says what the model needs, and all cables are links."""
    limit = time.monotonic() + READY_SECONDS
    cables = sum(len(machine.cables) for machine in demo.cluster.machines.values()) // 2
    macs = [n["metadata"]["name"] for n in demo.json("get", "nodes", "-l", "kubernetes.io/os=darwin")["items"]]
    while True:
        profiles = {p["metadata"]["name"]: p.get("status", {}) for p in demo.json("get", "np")["items"]}
        links = demo.json("get", "tbl")["items"]
        models = {mac: profiles.get(mac, {}).get("models", []) for mac in macs}
        missing = [mac for mac, found in models.items() if not any(model.get("sizedBy") for model in found)]
        whole = [link for link in links if len(link.get("status", {}).get("endpoints", [])) == 2]
        if not missing and len(whole) == cables:
            return
        if time.monotonic() > limit:
            raise LocalClusterError(
                f"after {READY_SECONDS} s: no sized model on {missing}; {len(whole)} of {cables} links whole"
            )
        time.sleep(POLL_SECONDS)


def rank_zero(demo: Demo) -> Json:
    rank: Json = demo.deployment()["status"]["groups"][0]["ranks"][0]
    return rank


def kill_rank(demo: Demo) -> None:
    """SIGKILL to the process of rank 1, on its own Mac."""
    rank: Json = demo.deployment()["status"]["groups"][0]["ranks"][1]
    command = ["pkill", "-KILL", "-f", "thunderfleet_runner.rank"]
    say(f"      {rank['node']} $ {' '.join(command)}")
    if demo.cluster.machines[rank["node"]].run(command).returncode:
        raise LocalClusterError(f"no rank process runs on {rank['node']}")


def show_metrics(demo: Demo) -> None:
    """A few lines of the active operator's metrics."""
    pods = demo.json("get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator")["items"]
    wanted = ("thunderfleet_operator_reconcile", "thunderfleet_operator_groups", "thunderfleet_operator_queue")
    best: list[str] = []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": demo.cluster.proxy}))
    for pod in pods:
        port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
        url = f"http://{pod['status']['podIP']}:{port}/metrics"
        try:
            with opener.open(url, timeout=COMMAND_SECONDS) as response:
                text = response.read().decode()
        except OSError as error:
            raise LocalClusterError(f"{url}: {error}") from error
        lines = [
            line for line in text.splitlines() if line.startswith(wanted) and "_bucket" not in line and "_created" not in line
        ]
        best = max(best, lines, key=len)
    for line in best[:8]:
        say(f"      {line}")


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 when every step held, 1 when one failed, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="thunderfleet demo", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave the cluster running and print the lines to go on with")
    keep = bool(parser.parse_args(arguments).keep)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    demo = Demo()
    began = time.monotonic()
    try:
        play(demo, keep)
        if keep:
            demo.cluster.detach()
    except LocalClusterError as error:
        say(f"\n{error}")
        demo.down()
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; taking everything down")
        demo.down()
        return 130
    say(f"\nThe demo took {time.monotonic() - began:.0f} s.")
    return 0
