"""Routers under constant load, while groups, routers, the API server, keys and models come and go on six Macs."""

import base64
import json
import random
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from thunderfleet_lib.net import tls

from tests.chaos.faults import KILL, RANK, hunt
from tests.e2e.routing.test_router import ROUTERS, SLEEPS, Asked, ask, asleep, pods, routers, store_keys, upgrade
from tests.support.line import SYSTEM, Answer, Deployment, Line, chat, condition, on_fleet
from tests.support.waiting import until

pytestmark = pytest.mark.soak

MACS = tuple(f"mini-{number}" for number in range(1, 7))
LARGE, SMALL = "model: Mac Studio (M3 Ultra), memory: 96 GB", "model: Mac mini (M4), memory: 24 GB"
FLEET = "machines:\n  - {name: linux-1, kind: linux}\n" + "".join(
    f"  - {{name: {name}, {SMALL if name == MACS[-1] else LARGE}}}\n" for name in MACS
)
ONE_MAC = {"nodes": {"min": 1, "max": 1}, "benchmark": {"promptTokens": 2, "generationTokens": 1}}
PROMPTS = ("Where are you?", "What is a cable?", "Count to ten.")
TOKENS = 12
CLIENTS = 4
SETTLE_REQUESTS = 8
"""Answers that clients must get after a fault before the next one."""
CERTIFICATE = "router-certificate"
"""Name of the Secret."""
CLASS = "idle-models"
"""Name of the PriorityClass of models that take turns."""
MOST = {"contextTokens": 2048, "cachedTokens": 9_000_000}
"""More than half of the last Mac: a KiB a token."""
STAYS = {"minReplicas": 0, "maxReplicas": 1, "scaleToZeroAfterSeconds": 3600}
TURN_SECONDS = 240
"""A model serves for 60 s before it makes room."""
WAITING_SECONDS = 400.0
"""Longer than a router lets a request wait."""


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
        self.urls = urls
        self._line, self._model = line, model
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(CLIENTS)]

    def _client(self, number: int) -> None:
        chosen = random.Random(number)
        while not self._end.is_set():
            url, prompt, stream = chosen.choice(self.urls), chosen.choice(PROMPTS), bool(number % 2)
            body = {**chat(prompt, TOKENS, stream=stream), "model": self._model}
            try:
                answer = self._line.request(f"{url}/chat/completions", body, {"Authorization": f"Bearer {self.key}"}, 120)
            except OSError:
                with self._lock:
                    self.seen.unreachable[url] += 1
                self._end.wait(0.2)
                continue
            with self._lock:
                if answer.status == 502 and "cannot connect" in answer.body:
                    # From the cluster's proxy; routers answer no 502.
                    self.seen.unreachable[url] += 1
                else:
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


@dataclass
class World:
    """What all tests share. They run in order: each leaves everything as it was."""

    line: Line
    served: Deployment
    sleeper: Deployment
    load: Load

    @property
    def name(self) -> str:
        return f"{self.served.namespace}/{self.served.name}"

    @property
    def urls(self) -> list[str]:
        return routers(self.served)

    def all_answer(self, key: str, status: int = 200) -> bool:
        return all(ask(self.line, url, self.name, key).status == status for url in self.urls)


@pytest.fixture(scope="module")
def world(line: Line) -> Iterator[World]:
    served = line.deploy("pair", **ONE_MAC, replicas=2, server={"apiKeySecret": "keys"})
    store_keys(served, ci="sk-first")
    sleeper = line.deploy("sleeper", **ONE_MAC, autoscaling=SLEEPS, server={"apiKeySecret": "keys", "aliases": ["gpt-tiny"]})
    store_keys(sleeper, ci="sk-sleeper")
    served.until(lambda: both_ready(served), "both groups are Ready", 180)
    # One on each Mac, and one on the Linux machine.
    until(lambda: len(router_pods(line)) == len(MACS) + 1, "all routers are ready", 120)
    served.until(lambda: len(routers(served)) == len(MACS) + 1, "status has all routers")
    with Load(line, f"{served.namespace}/{served.name}", "sk-first", routers(served)) as load:
        found = World(line, served, sleeper, load)
        until(lambda: found.all_answer("sk-first"), "all routers serve", 60)
        yield found


def test_a_rank_is_killed(world: World) -> None:
    line, served = world.line, world.served
    with world.load.during("a rank is killed") as seen:
        assert hunt(line, mac_of(served, 0), f"{served.name}-0", RANK, KILL)
        served.until(lambda: not both_ready(served), "the failure is seen", 60)
        served.until(lambda: both_ready(served), "both groups are Ready", 180)
    assert not seen.refused and not seen.unreachable


def test_a_mac_is_drained(world: World) -> None:
    line, served = world.line, world.served
    with world.load.during("a Mac is drained") as seen:
        mac, epoch = mac_of(served, 1), served.group(1)["epoch"]
        line.kubectl("cordon", mac)
        served.kubectl("delete", "pods", "-l", "thunderfleet.io/group=1", "--wait=false")
        served.until(lambda: served.group(1).get("epoch") != epoch and both_ready(served), "the group has moved", 180)
        line.kubectl("uncordon", mac)
    assert not seen.refused and not seen.unreachable


def test_groups_are_rolled(world: World) -> None:
    served = world.served
    with world.load.during("the groups are rolled") as seen:
        epochs = [served.group(index)["epoch"] for index in (0, 1)]
        served.patch({"memory": {"contextTokens": 1024}})
        served.until(
            lambda: both_ready(served) and all(served.group(index)["epoch"] != epochs[index] for index in (0, 1)),
            "both groups are replaced", 300,
        )  # fmt: skip
    assert not seen.refused and not seen.unreachable


def test_a_router_is_killed(world: World) -> None:
    line = world.line
    with world.load.during("a router is killed") as seen:
        url = next(one["url"] for one in world.served.status["endpoints"] if one["node"] == MACS[5])
        assert hunt(line, MACS[5], "thunderfleet-router-", "thunderfleet-router", KILL)
        world.load.settled()
        until(lambda: MACS[5] in router_pods(line) and reached(line, url, world.name, "sk-first"), "it is back", 90)
    assert not seen.refused and set(seen.unreachable) <= {url}


def test_routers_are_upgraded(world: World) -> None:
    line = world.line
    with world.load.during("routers are upgraded") as seen:
        before = router_pods(line)
        upgrade(line, "router.logLevel=debug")
        until(
            lambda: len(now := router_pods(line)) == len(before) and not set(now.values()) & set(before.values()),
            "all routers are replaced", 300,
        )  # fmt: skip
    assert not seen.refused


def test_the_api_server_is_away(world: World) -> None:
    line, sleeper = world.line, world.sleeper
    until(lambda: asleep(sleeper), "it sleeps", 120, describe=sleeper.conditions)
    with world.load.during("the API server is away") as seen:
        line.cluster.component("kube-apiserver", "off")
        urls = world.load.urls
        until(lambda: cannot_wake(ask(line, urls[0], "gpt-tiny", "sk-sleeper"), "API server"), "the router says so", 60)
        world.load.settled()
        line.cluster.component("kube-apiserver", "on")
        until(line.ready_machines, "the API server is back", 90, retry_on=(Exception,))
    assert not seen.refused and not seen.unreachable


def test_the_operator_is_away(world: World) -> None:
    line, sleeper = world.line, world.sleeper
    until(lambda: asleep(sleeper), "it sleeps", 120, describe=sleeper.conditions)
    operators = "app.kubernetes.io/component=operator"
    with world.load.during("the operator is away") as seen:
        line.kubectl("scale", "deployment/thunderfleet-operator", "-n", SYSTEM, "--replicas=0")
        until(lambda: not line.items("pods", "-n", SYSTEM, "-l", operators), "the operator is gone")
        assert cannot_wake(ask(line, world.urls[0], "gpt-tiny", "sk-sleeper"), "cannot be woken now")
        world.load.settled()
        line.kubectl("scale", "deployment/thunderfleet-operator", "-n", SYSTEM, "--replicas=1")
        until(lambda: ask(line, world.urls[0], "gpt-tiny", "sk-sleeper").status == 200, "it is woken", 120)
    assert not seen.refused and not seen.unreachable


def test_keys_are_rotated(world: World) -> None:
    served = world.served
    with world.load.during("keys are rotated") as seen:
        store_keys(served, ci="sk-first", next="sk-second")
        until(lambda: world.all_answer("sk-second"), "the new key is accepted", 30)
        world.load.key = "sk-second"
        world.load.settled()
        store_keys(served, next="sk-second")
        until(lambda: world.all_answer("sk-first", 401), "the old one is refused", 30)
        store_keys(served, ci="sk-first", next="sk-second")
        until(lambda: world.all_answer("sk-first"), "it is accepted again", 30)
        world.load.key = "sk-first"
    assert not seen.refused and not seen.unreachable


def test_a_model_sleeps_and_is_woken_at_all_routers(world: World) -> None:
    line, sleeper, urls = world.line, world.sleeper, world.urls
    with world.load.during("a model sleeps, and is woken at all routers") as seen:
        until(lambda: asleep(sleeper), "it sleeps", 120, describe=sleeper.conditions)
        epoch = sleeper.status["highestEpoch"]
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
        assert sleeper.status["highestEpoch"] == epoch + 1, "it is placed once for all of them"
    assert not seen.refused and not seen.unreachable


def test_a_stranger_wakes_lists_and_takes_nothing(world: World) -> None:
    line, served, sleeper, urls = world.line, world.served, world.sleeper, world.urls
    with world.load.during("a stranger") as seen:
        until(lambda: asleep(sleeper), "it sleeps", 120, describe=sleeper.conditions)
        for key in ("sk-stranger", None):
            for model in ("gpt-tiny", f"{sleeper.namespace}/{sleeper.name}", world.name):
                assert ask(line, urls[0], model, key).status in (401, 404)
            listed = line.request(f"{urls[0]}/models", headers={"Authorization": f"Bearer {key}"} if key else {})
            assert sleeper.name not in listed.body and served.name not in listed.body
        # It never runs, so requests that are sent there get an error.
        taken = {"aliases": ["gpt-tiny", world.name, served.name, sleeper.name]}
        thief = line.deploy("thief", **ONE_MAC, replicas=0, server=taken)
        until(lambda: ask(line, urls[0], f"{thief.namespace}/{thief.name}").status == 503, "routers know the thief", 60)
        assert asleep(sleeper), "no stranger has woken it"
        assert ask(line, urls[0], "gpt-tiny", "sk-sleeper").status == 200
        for model in (world.name, served.name):
            assert ask(line, urls[0], model, "sk-first").status == 200
        world.load.settled()
        line.forget(thief)
    assert not seen.refused and not seen.unreachable


def test_a_model_is_deleted_under_its_clients(world: World) -> None:
    line, url = world.line, world.urls[0]
    doomed = line.deploy("doomed", **ONE_MAC)
    name = f"{doomed.namespace}/{doomed.name}"
    with world.load.during("a model is deleted under its clients") as seen:
        until(lambda: ask(line, url, name).status == 200, "it serves", 120)
        stop, statuses, streams, broken = threading.Event(), Counter[int](), list[str](), list[str]()

        def go_on() -> None:
            while not stop.is_set():
                statuses[ask(line, url, name).status] += 1

        def stream_on() -> None:
            body = {**chat("Count to ten.", 200, stream=True), "model": name}
            while not stop.is_set():
                try:
                    answer = line.request(f"{url}/chat/completions", body)
                except OSError as error:
                    broken.append(str(error))
                    continue
                statuses[answer.status] += 1
                if answer.status == 200:
                    streams.append(answer.body)

        clients = [threading.Thread(target=one, daemon=True) for one in (go_on, stream_on, stream_on)]
        for client in clients:
            client.start()
        until(lambda: streams, "a stream was whole", 60)
        line.forget(doomed)
        until(lambda: statuses[401] + statuses[404], "it is unknown", 30, describe=lambda: str(statuses))
        stop.set()
        for client in clients:
            client.join(150)
        assert not any(client.is_alive() for client in clients), "no request hangs"
        assert not broken, broken
        assert set(statuses) <= {200, 401, 404, 503}, statuses
        # A stream that had started is whole, or says that it is not.
        assert all(_streamed(body) is not None or '"error"' in body for body in streams), streams[-3:]
    assert not seen.refused and not seen.unreachable


def test_models_without_room_for_both_take_turns(world: World) -> None:
    """Of two namespaces, because both name one PriorityClass. A third model of no class takes no turn."""
    line, urls = world.line, world.urls
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": CLASS}, "value": 0}
    line.kubectl("apply", "-f", "-", text=json.dumps(kind))
    place = {"nodes": {"min": 1, "max": 1, "selector": {"kubernetes.io/hostname": MACS[-1]}}, "memory": MOST}
    spec = {**ONE_MAC, **place, "autoscaling": STAYS, "server": {"apiKeySecret": "keys"}}

    def full(deployment: Deployment) -> None:
        store_keys(deployment, ci="sk-turns")
        deployment.until_condition("Placed", "False", "NoRoom")

    def ready_seconds(deployment: Deployment) -> float:
        since = datetime.fromisoformat(condition(deployment.get(), "Ready")["lastTransitionTime"])
        return (datetime.now(UTC) - since).total_seconds()

    with world.load.during("models take turns") as seen:
        one = line.deploy("one", **spec, priorityClassName=CLASS)
        store_keys(one, ci="sk-turns")
        one.until_ready()
        two, third = line.deploy("two", **spec, priorityClassName=CLASS), line.deploy("third", **spec)
        full(two)
        full(third)
        wanted = Asked(line, urls[0], two, "sk-turns", WAITING_SECONDS)
        never = Asked(line, urls[1], third, "sk-turns", WAITING_SECONDS)
        # Requests for the first one, on another router, until its time is over.
        while ready_seconds(one) < 75:
            assert ask(line, urls[2], f"{one.namespace}/{one.name}", "sk-turns").status == 200
        assert not wanted.statuses and one.group()["epoch"] == 1, "a model with requests makes no room"
        until(lambda: wanted.statuses, "the second model answers", TURN_SECONDS, describe=two.conditions)
        assert wanted.statuses == [200] and asleep(one)
        back = Asked(line, urls[0], one, "sk-turns", WAITING_SECONDS)
        until(lambda: back.statuses, "the first one has its turn again", TURN_SECONDS, describe=one.conditions)
        assert back.statuses == [200] and asleep(two)
        assert 200 not in never.statuses and condition(third.get(), "Placed")["status"] == "False"
        for deployment in (third, one, two):
            line.forget(deployment)
        line.kubectl("delete", "priorityclass", CLASS)
    assert not seen.refused and not seen.unreachable


def test_odd_payloads_kill_no_rank(world: World) -> None:
    line, served = world.line, world.served
    with world.load.during("odd payloads") as seen:
        before = pods(served), ranks(line, served)
        chosen = random.Random(17)
        for body in (*ODD, *(chosen.randbytes(chosen.randrange(200)) for _ in range(30))):
            for path in ("chat/completions", "completions", "messages", "responses"):
                send(line, f"{world.urls[0]}/{path}", body, world.name, "sk-first")
        assert (pods(served), ranks(line, served)) == before
    assert not seen.refused and not seen.unreachable


def test_all_routers_serve_https_with_a_certificate_that_changes(world: World) -> None:
    """The last test: the routers' URLs change."""
    line, served = world.line, world.served
    authority, first = new_certificate(world)
    store_certificate(line, first)
    before = router_pods(line)
    upgrade(line, f"router.tls.secretName={CERTIFICATE}")
    until(
        lambda: len(now := router_pods(line)) == len(before) and not set(now.values()) & set(before.values()),
        "all routers are replaced", 300,
    )  # fmt: skip
    served.until(
        lambda: len(urls := world.urls) == len(before) and all(url.startswith("https://") for url in urls), "status has them"
    )
    trust = ssl.create_default_context(cadata=authority)
    bearer = {"Authorization": "Bearer sk-first"}
    body = {**chat("Where are you?", 4), "model": world.name}
    for url in world.urls:
        assert line.request(f"{url}/chat/completions", body, bearer, trust=trust).status == 200, url
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            line.request(f"{url}/models", headers=bearer, trust=ssl.create_default_context())
    service = line.json("get", "service", served.name, "-n", served.namespace)["spec"]
    assert [port["port"] for port in service["ports"]] == [443]

    # Another certificate, without a restart.
    running = router_pods(line)
    authority, second = new_certificate(world)
    store_certificate(line, second)
    trust = ssl.create_default_context(cadata=authority)

    def all_changed() -> bool:
        return all(line.request(f"{url}/models", headers=bearer, trust=trust).status == 200 for url in world.urls)

    until(all_changed, "all routers have the new certificate", 300, retry_on=(OSError,))
    assert router_pods(line) == running


def new_certificate(world: World) -> tuple[str, dict[str, str]]:
    """A certificate for the addresses of all routers: what clients trust, and the fields of the Secret."""
    key, name, now = tls.new_key(), tls.subject("routers"), datetime.now(UTC)
    hosts = [url.split("//")[1].rpartition(":")[0] for url in world.urls]
    built = tls.build_certificate(
        name, key.public_key(), tls.Issuer(name, key), tls.Validity(now - timedelta(days=1), now + timedelta(days=1)),
        ca=True, key_usages=("digital_signature", "key_cert_sign"), extended_usages=(tls.SERVER_AUTH,),
        alternative_names=hosts,
    )  # fmt: skip
    text = tls.certificate_pem(built).decode()
    return text, {"tls.crt": text, "tls.key": tls.key_pem(key).decode()}


def store_certificate(line: Line, fields: dict[str, str]) -> None:
    data = {name: base64.b64encode(text.encode()).decode() for name, text in fields.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data}
    line.kubectl("apply", "-f", "-", text=json.dumps({**secret, "metadata": {"name": CERTIFICATE, "namespace": SYSTEM}}))


def reached(line: Line, url: str, model: str, key: str) -> bool:
    try:
        return ask(line, url, model, key).status == 200
    except OSError:
        return False


def cannot_wake(answer: Answer, why: str) -> bool:
    return answer.status == 503 and "Retry-After" in answer.headers and why in answer.body


def send(line: Line, url: str, body: bytes, model: str, key: str) -> None:
    """Sends any bytes; those of an object name the model."""
    text = body.replace(b"{", b'{"model": "%s", ' % model.encode(), 1) if body.startswith(b'{"') else body
    answer = line.request(url, text, {"Authorization": f"Bearer {key}"})
    assert answer.status not in (500, 502), (body, answer)
