"""The whole line, as every benchmark needs it: a cluster of recorded Macs with the chart installed and models on its disks."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove

from tests.bench import client, models, processes

NAME = "bench"
NAMESPACE = "thunderfleet-system"
ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 120.0
POLL_SECONDS = 0.05
PROMPT = "Which Macs are wired together?"

Split = Literal["Tensor", "Pipeline"]
Json = dict[str, Any]


class BenchFailed(RuntimeError):
    """The measured event did not happen."""


@dataclass(frozen=True)
class Seen:
    """A state of the deployment as a watch saw it; ``at`` in seconds since 1970."""

    at: float
    ready: bool
    endpoint: str
    generation: str


class Watch:
    """Follows a deployment with a watch, as ``kubectl get --watch`` does, because polling would disturb the measurement."""

    def __init__(self, line: "Line", name: str) -> None:
        columns = (
            "NAME:.metadata.name,READY:.status.conditions[?(@.type=='Ready')].status,END:.status.endpoint,"
            "GENERATION:.status.conditions[?(@.type=='Ready')].observedGeneration"
        )
        command = [str(line.cluster.tool("kubectl")), "get", "md", "--watch", "--no-headers", "-o", f"custom-columns={columns}"]
        self._name = name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=line.cluster.environment(),
        )
        self._changed = threading.Condition()
        self._seen: list[Seen] = []
        self._over = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            at, words = time.time(), text.split()
            if len(words) == 4 and words[0] == self._name:
                with self._changed:
                    self._seen.append(Seen(at, words[1] == "True", "" if words[2] == "<none>" else words[2], words[3]))
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def until(self, wanted: Callable[[Seen], bool], what: str) -> Seen:
        """The first state that is ``wanted`` among those not yet passed; what came before it is passed then."""
        limit = time.monotonic() + WAIT_SECONDS
        with self._changed:
            while True:
                while self._seen:
                    if wanted(seen := self._seen.pop(0)):
                        return seen
                left = limit - time.monotonic()
                if left <= 0 or self._over:
                    raise BenchFailed(f"{self._name}: {what}: not within {WAIT_SECONDS:.0f} s")
                self._changed.wait(left)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        self._thread.join(10)


def manifest(name: str, model: str, split: Split, more: Json | None = None) -> str:
    """A deployment of two ranks with this parallelism; ``more`` is merged into the spec."""
    spec = {"model": {"repository": model}, "nodes": {"min": 2, "max": 2}, "parallelism": split, "transport": "Ring"}
    spec |= more or {}
    kind = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelDeployment"}
    return json.dumps({**kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec})


def chat(tokens: int) -> Json:
    """A request for ``tokens`` tokens, greedy and streamed."""
    messages = [{"role": "user", "content": PROMPT}]
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}


class Line:
    """The cluster, and what the benchmarks do with it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @classmethod
    @contextlib.contextmanager
    def up(cls, say: Callable[[str], None]) -> Iterator["Line"]:
        """Starts the cluster, and always ends it."""
        cluster = Cluster.start(name=NAME, audit=True)
        try:
            line = cls(cluster)
            say(f"cluster up in {cluster.start_seconds:.1f} s; installing the chart")
            line._install()
            say("chart installed; waiting until every Mac has reported its models")
            line._discovered()
            yield line
        finally:
            cluster.stop()
            remove(cluster.folder, everything=True)

    def _install(self) -> None:
        folder = self.cluster.models
        models.make_tiny(folder / models.TINY)
        models.make_small(folder / models.SMALL)
        self.cluster.kubectl("create", "namespace", NAMESPACE)
        self.cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=privileged")
        self.cluster.helm(
            *("install", "thunderfleet", str(ROOT / "charts/thunderfleet"), "--namespace", NAMESPACE, "--wait"),
            *("--set", f"agent.modelFolders={{{folder}}}", "--timeout", "180s"),
            seconds=200,
        )

    def _discovered(self) -> None:
        def sized() -> bool:
            profiles = json.loads(self.cluster.kubectl("get", "np", "-o", "json").stdout)["items"]
            links = json.loads(self.cluster.kubectl("get", "tbl", "-o", "json").stdout)["items"]
            known = [[model for model in p.get("status", {}).get("models", []) if model.get("sizedBy")] for p in profiles]
            whole = [len(link.get("status", {}).get("endpoints", [])) == 2 for link in links]
            return len(known) == 3 and all(len(found) == 2 for found in known) and len(whole) == 2 and all(whole)

        self.wait(sized, "models sized on every Mac", 1.0)

    def wait(self, reached: Callable[[], bool], what: str, pause: float = POLL_SECONDS) -> None:
        limit = time.monotonic() + WAIT_SECONDS
        while not reached():
            if time.monotonic() > limit:
                raise BenchFailed(f"{what}: not within {WAIT_SECONDS:.0f} s")
            time.sleep(pause)

    def apply(self, name: str, model: str, split: Split, more: Json | None = None) -> float:
        """Applies a deployment; returns when it started to, in seconds since 1970."""
        text = manifest(name, model, split, more)
        began = time.time()
        self.cluster.kubectl("apply", "-f", "-", text=text)
        return began

    def delete(self, name: str) -> None:
        """Deletes a deployment and waits until all its objects and processes are gone."""
        self.cluster.kubectl("delete", "md", name, "--timeout=60s", seconds=70)
        pods = ("get", "pods", "-l", f"thunderfleet.io/deployment={name}", "-o", "name")
        self.wait(lambda: not self.cluster.kubectl(*pods).stdout.strip(), f"the end of {name}", 0.3)

    @contextlib.contextmanager
    def deployed(self, name: str, model: str, split: Split, more: Json | None = None) -> Iterator[tuple[float, Seen, Watch]]:
        """A Ready deployment, deleted afterwards: when it was applied, its Ready state, and its watch."""
        with Watch(self, name) as watch:
            began = self.apply(name, model, split, more)
            try:
                ready = watch.until(lambda seen: seen.ready and bool(seen.endpoint), "Ready")
                yield began, ready, watch
            finally:
                self.delete(name)

    def deployment(self, name: str) -> Json:
        found: Json = json.loads(self.cluster.kubectl("get", "md", name, "-o", "json").stdout)
        return found

    def benchmarked(self, name: str) -> None:
        """Waits until the group's own benchmark is over: it would run beside what is measured here."""
        self.wait(lambda: bool(self.deployment(name).get("status", {}).get("benchmark")), f"the benchmark of {name}", 0.5)

    def ask(self, name: str, endpoint: str, model: str, tokens: int) -> Json:
        """The response to a client on the Mac of rank 0. Raises BenchFailed."""
        node = self.deployment(name)["status"]["groups"][0]["ranks"][0]["node"]
        return self.ask_on(node, endpoint, model, tokens)

    def ask_on(self, node: str, endpoint: str, model: str, tokens: int, at_once: tuple[int, int] | None = None) -> Json:
        """As ``ask``, on the Mac ``node``; ``at_once``: number of clients and seed of their prompts."""
        body = json.dumps({**chat(tokens), "model": model})
        command = [sys.executable, client.__file__, endpoint, str(WAIT_SECONDS), body, *map(str, at_once or ())]
        done = self.cluster.machines[node].run(command, seconds=WAIT_SECONDS + client.ANSWER_SECONDS)
        if done.returncode:
            raise BenchFailed(done.stderr.strip())
        answer: Json = json.loads(done.stdout)
        return answer

    def programs(self) -> dict[str, list[processes.Process]]:
        """Our programs of this cluster that run now, by name."""
        found: dict[str, list[processes.Process]] = {}
        for process in processes.descendants(self.cluster.pid, processes.all_processes()):
            if process.program:
                found.setdefault(process.program, []).append(process)
        return found

    def kill_rank(self, rank: int) -> float:
        """SIGKILL to the process of a rank; when, in seconds since 1970. Raises BenchFailed unless exactly one runs."""
        ranks = [process for process in self.programs().get("rank", []) if f"--rank {rank} " in f"{process.command} "]
        if len(ranks) != 1:
            raise BenchFailed(f"{len(ranks)} processes of rank {rank} run")
        at = time.time()
        os.kill(ranks[0].pid, signal.SIGKILL)
        return at
