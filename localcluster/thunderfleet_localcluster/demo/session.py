"""One run of the demo: its cluster, kubectl, requests to the endpoint, and comparison with mlx-lm."""

import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, FailureKind
from thunderfleet_view.follow import waiting_for

from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.demo.model import the_model
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.paths import cluster_folder
from thunderfleet_localcluster.progress import Progress

STEPS = 9
DEPLOYMENT = "tiny"
NAME = "demo"
COMMAND_SECONDS = 60
READY_SECONDS = 180
REQUEST_SECONDS = 60
POLL_SECONDS = 0.3

Json = dict[str, Any]


def say(line: str) -> None:
    """Print a line without buffering."""
    print(line, flush=True)


@dataclass(frozen=True)
class Answer:
    """A streamed chat completion: its text and its token ids."""

    text: str
    tokens: list[int]


class Session:
    """One run of the demo. ``cluster`` exists from the second step on."""

    def __init__(self) -> None:
        self.folder, self.model = cluster_folder(NAME), the_model()
        self.number = 0
        self.model_folder: Path | None = None
        """Path of the model on this machine."""
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "the cluster is brought up in the second step"
        return self._cluster

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A numbered step with its duration. A failure names the step and the logs."""
        self.number += 1
        say(f"\n[{self.number}/{STEPS}] {title}")
        began = time.monotonic()
        try:
            yield
        except LocalClusterError as error:
            raise LocalClusterError(
                f"step {self.number} failed after {time.monotonic() - began:.0f} s: {title}\n{error}\n"
                f"logs: {self.folder.logs}; of pods: below {self.folder.machines}"
            ) from error
        say(f"      ({time.monotonic() - began:.1f} s)")

    def up(self, fleet: str | None = None, control_plane_mac: str | None = None) -> None:
        """Start the cluster, with its progress."""
        with Progress(sys.stdout) as progress:
            self._cluster = Cluster.start(fleet, name=NAME, on_event=progress.event, control_plane_mac=control_plane_mac)

    def down(self) -> None:
        """End the cluster."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl; returns its output."""
        return self.cluster.kubectl(*arguments, seconds=COMMAND_SECONDS).stdout

    def show(self, *arguments: str, lines: int = 40) -> None:
        """Show a kubectl command and the first ``lines`` of its output, as in a terminal."""
        say(f"      $ kubectl {' '.join(arguments)}")
        for line in self.kubectl(*arguments).splitlines()[:lines]:
            say(f"      {line}")

    def json(self, *arguments: str) -> Json:
        """Run kubectl with JSON output."""
        answer: Json = json.loads(self.kubectl(*arguments, "-o", "json"))
        return answer

    def deployment(self) -> Json:
        """The demo's ModelDeployment."""
        return self.json("get", "md", DEPLOYMENT)

    def until_ready(self, reached: Callable[[Json], bool], goal: str) -> Json:
        """Follow the deployment until ``reached``, and show each change of what it waits for."""
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
                raise LocalClusterError(f"not {goal} within {READY_SECONDS} s; last state: {said or 'unknown'}")
            time.sleep(POLL_SECONDS)

    def ask(self, prompt: str) -> Answer:
        """Stream one chat completion from ``status.endpoint`` and print it as it arrives."""
        endpoint = self.deployment()["status"]["endpoint"]
        body = {
            "model": self.model.repository,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.model.tokens,
            "temperature": 0,
            "stream": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": self.cluster.proxy}))
        say(f"      POST {endpoint}/chat/completions: {prompt!r}")
        sys.stdout.write("      ")
        try:
            with opener.open(request, timeout=REQUEST_SECONDS) as response:
                return _read_stream(response)
        except OSError as error:
            raise LocalClusterError(f"{endpoint}: {error}") from error
        finally:
            say("")

    def check(self, question: str, how: str) -> None:
        """Send a question and compare the answer with one mlx-lm process. Raises LocalClusterError if they differ."""
        answer = self.ask(question)
        assert self.model_folder is not None, "the model is there before it is deployed"
        expected = reference(self.model_folder, question, self.model.tokens)
        self.compare(answer, expected, how)

    def compare(self, answer: Answer, expected: Sequence[int], how: str) -> None:
        """Compare token IDs. Raises LocalClusterError if they differ."""
        if answer.tokens != list(expected):
            raise LocalClusterError(
                f"two ranks ({how}) and one mlx-lm process differ:\n  two: {answer.tokens}\n  one: {list(expected)}"
            )
        say(f"      {how}: the {len(answer.tokens)} token IDs equal those of one mlx-lm process")


def _read_stream(lines: Iterable[bytes]) -> Answer:
    """Print and collect a stream of server-sent events. Raises LocalClusterError if it has an error or no end."""
    text: list[str] = []
    ids: list[int] = []
    for line in lines:
        if not line.startswith(b"data: "):
            continue
        data = line[len(b"data: ") :].strip()
        if data == b"[DONE]":
            return Answer("".join(text), ids)
        event = json.loads(data)
        if "error" in event:
            raise LocalClusterError(f"the stream ended with an error: {event['error'].get('message')}")
        for choice in event["choices"]:
            piece = choice.get("delta", {}).get("content") or ""
            text.append(piece)
            ids.extend(choice.get("token_ids") or [])
            sys.stdout.write(piece)
            sys.stdout.flush()
    raise LocalClusterError("the stream ended before [DONE]")


def reference(model: Path, prompt: str, tokens: int) -> list[int]:
    """Token IDs of one mlx-lm process."""
    command = [sys.executable, "-m", "thunderfleet_localcluster.models.reference", str(model), prompt, "--tokens", str(tokens)]
    answer = BlockingHost().run(command, REQUEST_SECONDS)
    if isinstance(answer, Failure):
        if answer.kind is FailureKind.TIMED_OUT:
            raise LocalClusterError(f"mlx-lm did not answer within {REQUEST_SECONDS} s")
        raise LocalClusterError(f"mlx-lm failed:\n{answer.error.strip() or answer}")
    ids: list[int] = json.loads(answer.text)
    return ids
