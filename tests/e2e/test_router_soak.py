"""Routers under constant load, while groups, routers, the API server, keys and models come and go on six Macs."""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.chaos.faults import KILL, RANK, hunt
from tests.e2e.test_router import ROUTERS, SLEEPS, ask, asleep, pods, routers, store_keys, upgrade
from tests.support.line import SYSTEM, Deployment, Line, chat, on_fleet
from tests.support.waiting import until

MACS = tuple(f"mini-{number}" for number in range(1, 7))
FLEET = "machines:\n  - {name: linux-1, kind: linux}\n" + "".join(
    f"  - {{name: {name}, model: Mac Studio (M3 Ultra), memory: 96 GB}}\n" for name in MACS
)
ONE_MAC = {"nodes": {"min": 1, "max": 1}, "benchmark": {"promptTokens": 2, "generationTokens": 1}}
PROMPTS = ("Where are you?", "What is a cable?", "Count to ten.")
TOKENS = 12
CLIENTS = 4
SETTLE_REQUESTS = 8
"""Answers that clients must get after a fault before the next one."""


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    values = ("operator.replicas=1", "router.enabled=true", "router.linuxReplicas=1")
    with on_fleet(FLEET, "soak", "THUNDERFLEET_E2E_SOAK", *values) as found:
        yield found


@dataclass
class Seen:
    """What clients saw during one fault."""

    whole: int = 0
    cut: int = 0
    """Streams that had started and ended with an error event."""
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Answers with an error status."""
    unreachable: Counter[str] = field(default_factory=Counter)
    """Connections that failed, by router."""


class Load:
    """Clients that ask all the time, streamed and whole, at the routers in turn."""

    def __init__(self, line: Line, model: str, key: str, urls: list[str]) -> None:
        self.key = key
        self.seen = Seen()
        self._line, self._model, self._urls = line, model, urls
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(CLIENTS)]

    def _client(self, number: int) -> None:
        chosen = random.Random(number)
        while not self._end.is_set():
            url, prompt, stream = chosen.choice(self._urls), chosen.choice(PROMPTS), bool(number % 2)
            body = {**chat(prompt, TOKENS, stream=stream), "model": self._model}
            try:
                answer = self._line.request(f"{url}/chat/completions", body, {"Authorization": f"Bearer {self.key}"}, 120)
            except OSError:
                with self._lock:
                    self.seen.unreachable[url] += 1
                self._end.wait(0.2)
                continue
            with self._lock:
                self._judge(prompt, stream, answer.status, answer.body)

    def _judge(self, prompt: str, stream: bool, status: int, body: str) -> None:
        if status != 200:
            self.seen.refused.append(f"{status} {body[:300]}")
            return
        text = _streamed(body) if stream else json.loads(body)["choices"][0]["message"]["content"]
        if text is None:
            # Whatever ends a stream without an error event ends it with [DONE].
            if '"error"' in body:
                self.seen.cut += 1
            else:
                self.seen.wrong.append(body[-300:])
        elif text != self._known.setdefault(prompt, text):
            self.seen.wrong.append(f"{prompt}: {text!r} instead of {self._known[prompt]!r}")
        else:
            self.seen.whole += 1

    def settled(self) -> None:
        """Waits for further answers."""
        before = self.seen.whole
        until(lambda: self.seen.whole >= before + SETTLE_REQUESTS, "clients get answers", 120, describe=lambda: str(self.seen))

    @contextmanager
    def during(self, what: str) -> Iterator[Seen]:
        """What clients see meanwhile; it is never wrong."""
        self.settled()
        with self._lock:
            self.seen = seen = Seen()
        yield seen
        self.settled()
        print(f"{what}: {seen}")
        assert not seen.wrong, what

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(150)


def _streamed(body: str) -> str | None:
    """The text of a complete stream."""
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return None
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def mac_of(deployment: Deployment, index: int) -> str:
    return str(deployment.group(index)["ranks"][0]["node"])


def both_ready(deployment: Deployment) -> bool:
    groups = deployment.status.get("groups", [])
    return len(groups) == 2 and all(group.get("state") == "Ready" for group in groups) and deployment.is_ready()


def router_pods(line: Line) -> dict[str, str]:
    """UIDs of the routers that are ready, by Node."""
    return {
        item["spec"]["nodeName"]: item["metadata"]["uid"]
        for item in line.items("pods", "-n", SYSTEM, "-l", ROUTERS)
        if any(one["type"] == "Ready" and one["status"] == "True" for one in item.get("status", {}).get("conditions", []))
    }


def ranks(line: Line, deployment: Deployment) -> list[int]:
    return sorted(pid for mac in line.macs for pid in hunt(line, mac, f"{deployment.name}-", RANK, 0))


ODD = (
    b"{", b"[]", b"null", b'{"model": 7}', b'{"messages": []}', b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1e999}',
    b'{"messages": [{"role": "\\u0000", "content": null}], "stream": true}',
    b'{"prompt": [1, 2, 999999999]}', b'{"prompt": [-1], "max_tokens": 1}', b'{"messages": ' + b"[" * 60 + b"]" * 60 + b"}",
    b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"a": 1}, "top_logprobs": 1000, "n": 99}',
    b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema", "json_schema": {}}}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1, "seed": 99999999999999999999}',
)  # fmt: skip


@pytest.mark.soak
def test_no_request_is_lost_that_another_group_can_answer(line: Line) -> None:
    served = line.deploy("pair", **ONE_MAC, replicas=2, server={"apiKeySecret": "keys"})
    store_keys(served, ci="sk-first")
    doomed = line.deploy("doomed", **ONE_MAC)
    sleeper = line.deploy("sleeper", **ONE_MAC, autoscaling=SLEEPS, server={"apiKeySecret": "keys", "aliases": ["gpt-tiny"]})
    store_keys(sleeper, ci="sk-sleeper")
    served.until(lambda: both_ready(served), "both groups are Ready", 180)
    # One on each Mac, and one on the Linux machine.
    until(lambda: len(router_pods(line)) == len(MACS) + 1, "all routers are ready", 120)
    served.until(lambda: len(routers(served)) == len(MACS) + 1, "status has all routers")
    name, urls = f"{served.namespace}/{served.name}", routers(served)
    until(lambda: all(ask(line, url, name, "sk-first").status == 200 for url in urls), "all routers serve", 60)
    with Load(line, name, "sk-first", urls) as load:
        with load.during("a rank is killed") as seen:
            assert hunt(line, mac_of(served, 0), f"{served.name}-0", RANK, KILL)
            served.until(lambda: not both_ready(served), "the failure is seen", 60)
            served.until(lambda: both_ready(served), "both groups are Ready", 180)
        assert not seen.refused and not seen.unreachable

        with load.during("a Mac is drained") as seen:
            mac, epoch = mac_of(served, 1), served.group(1)["epoch"]
            line.kubectl("cordon", mac)
            served.kubectl("delete", "pods", "-l", "thunderfleet.io/group=1", "--wait=false")
            served.until(lambda: served.group(1).get("epoch") != epoch and both_ready(served), "the group has moved", 180)
            line.kubectl("uncordon", mac)
        assert not seen.refused and not seen.unreachable

        with load.during("the groups are rolled") as seen:
            epochs = [served.group(index)["epoch"] for index in (0, 1)]
            served.patch({"memory": {"contextTokens": 1024}})
            served.until(
                lambda: both_ready(served) and all(served.group(index)["epoch"] != epochs[index] for index in (0, 1)),
                "both groups are replaced", 300,
            )  # fmt: skip
        assert not seen.refused and not seen.unreachable

        with load.during("a router is killed") as seen:
            url = next(one["url"] for one in served.status["endpoints"] if one["node"] == MACS[5])
            assert hunt(line, MACS[5], "thunderfleet-router-", "thunderfleet-router", KILL)
            load.settled()
            until(lambda: MACS[5] in router_pods(line) and ask(line, url, name, "sk-first").status == 200, "it is back", 90)
        assert not seen.refused and set(seen.unreachable) <= {url}

        with load.during("routers are upgraded") as seen:
            before = router_pods(line)
            upgrade(line, "router.logLevel=debug")
            until(
                lambda: len(now := router_pods(line)) == len(before) and not set(now.values()) & set(before.values()),
                "all routers are replaced", 300,
            )  # fmt: skip
        assert not seen.refused

        with load.during("the API server is away") as seen:
            line.cluster.component("kube-apiserver", "off")
            load.settled()
            line.cluster.component("kube-apiserver", "on")
            until(lambda: line.ready_machines(), "the API server is back", 90)
        assert not seen.refused and not seen.unreachable

        with load.during("keys are rotated") as seen:
            store_keys(served, ci="sk-first", next="sk-second")
            until(lambda: all(ask(line, url, name, "sk-second").status == 200 for url in urls), "the new key is accepted", 30)
            load.key = "sk-second"
            load.settled()
            store_keys(served, next="sk-second")
            until(lambda: all(ask(line, url, name, "sk-first").status == 401 for url in urls), "the old one is refused", 30)
        assert not seen.refused and not seen.unreachable

        with load.during("a model sleeps, and is woken at all routers") as seen:
            until(lambda: asleep(sleeper), "it sleeps", 120, describe=sleeper.conditions)
            for model in ("gpt-tiny", f"{sleeper.namespace}/{sleeper.name}"):
                assert ask(line, urls[0], model, "sk-stranger").status == 401
            listed = line.request(f"{urls[0]}/models", headers={"Authorization": "Bearer sk-stranger"})
            assert sleeper.name not in listed.body and served.name not in listed.body
            assert asleep(sleeper)
            woken: list[int] = []
            askers = [
                threading.Thread(target=lambda url=url: woken.append(ask(line, url, "gpt-tiny", "sk-sleeper").status))
                for url in urls
            ]
            for thread in askers:
                thread.start()
            for thread in askers:
                thread.join(150)
            assert woken == [200] * len(urls)
            assert len(sleeper.status["groups"]) == 1
        assert not seen.refused and not seen.unreachable

        with load.during("a model is deleted under its clients") as seen:
            until(lambda: ask(line, urls[0], f"{doomed.namespace}/{doomed.name}").status == 200, "it serves", 90)
            stop, statuses = threading.Event(), Counter[int]()

            def go_on() -> None:
                while not stop.is_set():
                    statuses[ask(line, urls[0], f"{doomed.namespace}/{doomed.name}").status] += 1

            client = threading.Thread(target=go_on)
            client.start()
            line.forget(doomed)
            until(lambda: statuses[401] + statuses[404], "it is unknown", 30, describe=lambda: str(statuses))
            stop.set()
            client.join(150)
            assert set(statuses) <= {200, 401, 404, 503}, statuses
        assert not seen.refused and not seen.unreachable

        with load.during("odd payloads") as seen:
            before_pods, before_ranks = pods(served), ranks(line, served)
            chosen = random.Random(17)
            for body in (*ODD, *(chosen.randbytes(chosen.randrange(200)) for _ in range(30))):
                for path in ("chat/completions", "completions", "messages", "responses"):
                    _send(line, f"{urls[0]}/{path}", body, name, "sk-second")
            assert (pods(served), ranks(line, served)) == (before_pods, before_ranks)
        assert not seen.refused and not seen.unreachable


def _send(line: Line, url: str, body: bytes, model: str, key: str) -> None:
    """Sends any bytes; those of an object name the model."""
    text = body.replace(b"{", b'{"model": "%s", ' % model.encode(), 1) if body.startswith(b'{"') else body
    command = ["curl", "-s", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", "-H", f"Authorization: Bearer {key}"]
    done = line.run(MACS[0], *command, "-H", "Content-Type: application/json", "--data-binary", f"@{_file(line, text)}", url)
    assert done.stdout.strip() not in ("000", "500", "502"), (body, done.stdout, done.stderr)


def _file(line: Line, body: bytes) -> str:
    path = line.cluster.folder / "odd.bin"
    path.write_bytes(body)
    return str(path)
