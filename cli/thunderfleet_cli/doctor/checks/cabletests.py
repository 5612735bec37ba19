"""Which agents test which cables, and the meaning of their answers. Pure.

The agent of one end tests all cables to the other Mac (``thunderfleet-agent measure link PEER --test``). A Mac takes part in
one test at a time, so tests are run in rounds.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thunderfleet_crds.vocabulary import MeasurementTransport
from thunderfleet_lib.host.parsing import clean

Json = Mapping[str, Any]

AGENT_PODS = "app.kubernetes.io/name=thunderfleet,app.kubernetes.io/component=agent"
MEASURE = "--measure="
TEXT_CHARACTERS = 600


@dataclass(frozen=True)
class Agent:
    """The pod of a running agent. ``transport``: used for its groups of two ranks."""

    node: str
    namespace: str
    pod: str
    container: str
    transport: MeasurementTransport


@dataclass(frozen=True)
class Test:
    """The test of all cables between two Macs, by the agent of one of them."""

    agent: Agent
    peer: str
    links: tuple[str, ...]

    @property
    def argv(self) -> tuple[str, ...]:
        """The command in the agent's container."""
        transport = self.agent.transport.lower()
        return ("thunderfleet-agent", "measure", "link", self.peer, "--test", "-o", "json", "--transport", transport)


@dataclass(frozen=True)
class Tried:
    """Result of the test of one cable: the answers of the agent, by kind; ``problem``: why there are none."""

    transport: MeasurementTransport = MeasurementTransport.RDMA
    answers: Mapping[str, Json] = field(default_factory=dict)
    problem: str = ""


def agents(pods: Sequence[Json]) -> dict[str, Agent]:
    """The agents that are ready, by Node."""
    found = {}
    for pod in pods:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        if not any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions):
            continue
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]
        node = str(pod["spec"].get("nodeName"))
        transport = _transport([*(container.get("command") or ()), *(container.get("args") or ())])
        found[node] = Agent(node, str(metadata["namespace"]), str(metadata["name"]), str(container["name"]), transport)
    return found


def _transport(words: Sequence[object]) -> MeasurementTransport:
    """The transport in the agent's settings, which must be the same at both ends of a test."""
    text = next((str(word).removeprefix(MEASURE) for word in words if str(word).startswith(MEASURE)), "{}")
    try:
        return MeasurementTransport(json.loads(text)["rdma"]["transport"])
    except (ValueError, LookupError, TypeError):
        return MeasurementTransport.RDMA


def tests(links: Sequence[Json], ready: Mapping[str, Agent]) -> tuple[list[Test], dict[str, str]]:
    """The tests of these cables, and why the other cables are not tested."""
    between: dict[tuple[str, str], list[str]] = {}
    problems = {}
    for link in links:
        name, first, second = str(link["metadata"]["name"]), *(str(link["spec"][end]["node"]) for end in ("a", "b"))
        missing = [node for node in (first, second) if node not in ready]
        if missing:
            problems[name] = f"no agent is ready on {' and '.join(missing)}: check with `kubectl get pods -A -o wide`"
        else:
            between.setdefault((first, second), []).append(name)
    return [Test(ready[first], second, tuple(names)) for (first, second), names in between.items()], problems


def rounds(wanted: Sequence[Test]) -> Iterator[list[Test]]:
    """The tests in rounds, so that no Mac takes part in two at a time."""
    left = list(wanted)
    while left:
        busy: set[str] = set()
        now = []
        for one in left:
            if busy.isdisjoint((one.agent.node, one.peer)):
                busy |= {one.agent.node, one.peer}
                now.append(one)
        yield now
        left = [one for one in left if one not in now]


def read(test: Test, code: int, output: str, error: str) -> dict[str, Tried]:
    """Result of each cable of a test, from the output of its command."""
    try:
        listed = [one for one in json.loads(output) if isinstance(one, dict)]
    except (ValueError, TypeError, RecursionError):
        lines = [line for line in (error or output).splitlines() if line.strip()]
        text = readable(lines[-1]) if lines else f"exit code {code} without an answer"
        return unanswered(test, text.removeprefix("thunderfleet-agent measure: "))
    notes = readable("; ".join(str(one.get("error")) for one in listed if not one.get("link")))
    found = {}
    for link in test.links:
        answers = {str(one.get("kind")): one for one in listed if one.get("link") == link}
        found[link] = Tried(test.agent.transport, answers, "" if answers else notes)
    return found


def readable(text: object) -> str:
    """An agent's text as one line for a terminal."""
    return clean(str(text), TEXT_CHARACTERS) or ""


def microseconds(answer: Json, name: str) -> str:
    """A time in an answer, as text."""
    value = answer.get(name)
    return f"{value} µs" if type(value) is int else "an unknown time"


def unanswered(test: Test, why: str) -> dict[str, Tried]:
    """The same reason for each cable of a test."""
    return {link: Tried(test.agent.transport, {}, why) for link in test.links}
