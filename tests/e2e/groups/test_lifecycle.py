"""Serving groups are drained first: rollouts, scaling, evictions and deletions while requests run."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from thunderfleet_localcluster.models import tinymodel

from tests.support.line import Deploy, Deployment, Line
from tests.support.waiting import until

Json = dict[str, Any]

PROMPT = tinymodel.MESSAGES[0]["content"]
TOKENS_ALONE, TOKENS_PAIR = 500, 150
"""Enough tokens, on one Mac and on two, that a stream still runs when the test interferes, and ends within the limit of a
drain."""
STREAM_SECONDS = 120.0
GONE_SECONDS = 90.0
DRAINED_SECONDS = 30.0
"""After the last stream of a deleted ModelDeployment, seconds within which everything of it must be gone."""
ONE_MAC = {"min": 1, "max": 1}


class Stream:
    """A streamed completion after its first event; ``rest`` reads it to its end."""

    def __init__(self, line: Line, endpoint: str, tokens: int) -> None:
        body = {"model": "", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens, "temperature": 0}
        body |= {"model": "thunderfleet/tiny-qwen2", "stream": True, "return_token_ids": True}
        sent = urllib.request.Request(
            f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": line.cluster.proxy}))
        self._answer = opener.open(sent, timeout=STREAM_SECONDS)
        self._lines = [self._answer.readline()]

    def finish(self) -> list[str]:
        """The remaining events."""
        with self._answer:
            self._lines += self._answer.readlines()
        return [line.decode().strip().removeprefix("data: ") for line in self._lines if line.startswith(b"data: ")]

    def assert_whole(self) -> None:
        events = self.finish()
        assert events[-1] == "[DONE]", events[-3:]
        choices = [choice for event in events[:-1] for choice in json.loads(event).get("choices", [])]
        assert choices[-1]["finish_reason"] in ("length", "stop"), choices[-1]


def groups_reported(line: Line, served: Deployment) -> dict[str, list[Json]]:
    """By Mac, the groups of this deployment in NodeProfiles."""
    prefix = f"{served.namespace}/{served.name}-"
    reported = {item["metadata"]["name"]: item.get("status", {}).get("groups", []) for item in line.items("np")}
    found = {name: [use for use in uses if use["name"].startswith(prefix)] for name, uses in reported.items()}
    return {name: uses for name, uses in found.items() if uses}


@contextmanager
def asking(line: Line, served: Deployment) -> Iterator[list[str]]:
    """A client that sends requests to ``status.endpoint`` in a loop, and its errors."""
    ended, complaints = threading.Event(), list[str]()
    asked = 0

    def ask() -> None:
        nonlocal asked
        while not ended.is_set():
            endpoint = served.status.get("endpoint")
            if endpoint is None:
                complaints.append("status names no endpoint")
                return
            body = {"model": "thunderfleet/tiny-qwen2", "prompt": "x", "max_tokens": 1}
            try:
                answer = line.request(f"{endpoint}/completions", body)
                why = "" if answer.status == 200 else f"{answer.status} {answer.body}"
            except OSError as error:
                why = str(error)
            asked += 1
            # The endpoint in status changes before a group drains, so refused clients find another one.
            if why and served.status.get("endpoint") == endpoint:
                complaints.append(f"{endpoint} is what status names, and does not serve: {why}")
                return

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield complaints
    finally:
        ended.set()
        client.join(STREAM_SECONDS)
    assert asked > 3 or complaints, "the client has asked"


def test_rollout_then_scale_down_under_requests(line: Line, deploy: Deploy) -> None:
    served = deploy("rolls", replicas=2, nodes=ONE_MAC).until_ready()
    before = [group["epoch"] for group in served.status["groups"]]
    with asking(line, served) as complaints:
        stream = Stream(line, served.group(0)["endpoint"], TOKENS_ALONE)
        served.patch({"memory": {"contextTokens": 4096}})
        stream.assert_whole()

        def rolled() -> bool:
            return [g["epoch"] > b for g, b in zip(served.status["groups"], before, strict=True)] == [True, True]

        served.until(rolled, "both groups are of the new spec")
        served.until_ready()
        assert complaints == []
    assert [group["restarts"] for group in served.status["groups"]] == [0, 0]

    stream, kept = Stream(line, served.group(1)["endpoint"], TOKENS_ALONE), served.group(0)["epoch"]
    served.patch({"replicas": 1})
    stream.assert_whole()
    served.until(lambda: not second(served), "nothing of the second group is left", GONE_SECONDS)
    assert served.until_ready().group(0)["epoch"] == kept


def second(served: Deployment) -> list[str]:
    labels = ((child["metadata"]["name"], child["metadata"]["labels"]) for child in served.children())
    return [name for name, found in labels if found.get("thunderfleet.io/group") == "1"]


@pytest.mark.soak
def test_eviction_of_one_rank_drains_the_group(line: Line, deploy: Deploy) -> None:
    served = deploy("evicted", recovery={"maxRestarts": 0}).until_ready()
    nodes = [rank["node"] for rank in served.ranks()]
    reported = groups_reported(line, served)
    assert sorted(reported) == sorted(nodes)
    for (use,) in reported.values():
        assert (use["nodes"], use["epoch"]) == (nodes, 1) and len(use["links"]) == 1

    stream, pod = Stream(line, served.endpoint, TOKENS_PAIR), served.ranks()[1]["pod"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": served.namespace}}
    path = f"/api/v1/namespaces/{served.namespace}/pods/{pod}/eviction"
    line.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    stream.assert_whole()
    served.until(lambda: served.group().get("epoch") == 2, "another epoch")
    served.until_ready()
    group = served.group()
    assert (group["restarts"], group["lastFailure"]["reason"]) == (0, "Evicted")

    def epochs() -> set[int]:
        return {use["epoch"] for uses in groups_reported(line, served).values() for use in uses}

    served.until(lambda: epochs() == {2}, "no Mac is said to be in the old placement")


def test_deletion_drains_and_a_new_one_of_the_name_takes_no_name_of_it(line: Line, deploy: Deploy) -> None:
    served = deploy("again").until_ready()
    ports = served.ports()
    spec = served.get()["spec"]
    stream = Stream(line, served.endpoint, TOKENS_PAIR)
    served.kubectl("delete", "md", served.name, "--wait=false")
    served.apply(spec)
    stream.assert_whole()
    served.until(lambda: not [c for c in served.children() if "-0-e1" in c["metadata"]["name"]], "the old pods are gone")
    served.until_ready()
    names = [child["metadata"]["name"] for child in served.children() if child["kind"] == "Pod"]
    assert names == [f"{served.name}-0-e2-0", f"{served.name}-0-e2-1"]

    ports |= served.ports()
    processes, listening = served.seen()
    assert processes, "its processes can be seen"
    assert listening & ports, "and its ports"
    stream = Stream(line, served.endpoint, TOKENS_PAIR)
    served.kubectl("delete", "md", served.name, "--wait=false")
    stream.assert_whole()

    def gone() -> bool:
        return not served.left(ports) and not line.items("md", "-n", served.namespace)

    until(gone, "nothing of it is left", DRAINED_SECONDS, describe=lambda: "\n".join(served.left(ports)))
    until(lambda: not groups_reported(line, served), "no Mac is said to be in its group")
