"""``thunderfleet ui`` on a real cluster: snapshot, changes and an answer; and in Chromium what a person sees there."""

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.support.api import OURS
from tests.support.line import SYSTEM, Deployment, Line, condition
from tests.support.page import browser as browsers
from tests.support.page.browser import Browser
from tests.support.page.screenshots import page_address
from tests.support.waiting import until

Json = dict[str, Any]
END = "mini-1:1"
LINK = "mini-1.tb1--studio-1.tb2"
"""No group uses it."""
SECONDS = 60.0
MARKUP = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
HOSTILE_MAC = "hostile-mac"
HOSTILE_LINK = f"{HOSTILE_MAC}.tb1--other-mac.tb2"
OPERATOR = ("deployment/thunderfleet-operator", "-n", SYSTEM)
AFTER_STATUS_SECONDS = 3.0
"""From the status of a ThunderboltLink to the color on the page."""
AFTER_PULL_SECONDS = 8.0
CHROMIUM = pytest.mark.skipif(not browsers.installed(), reason="no chromium and chromedriver: `make chromium` installs them")


class Client:
    """What the page does: exchanges the token, follows the fleet, asks a model."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._headers = {"Content-Type": "application/json"}
        session = json.load(self.request("/session", {"token": parts.fragment}))["session"]
        self._headers["Authorization"] = f"Bearer {session}"
        self.entities: dict[str, Json] = {}
        self.rates: dict[str, list[int]] = {}

    def request(self, path: str, body: Json | None = None, **headers: str) -> Any:
        content = None if body is None else json.dumps(body).encode()
        sent = urllib.request.Request(self.origin + path, content, {**self._headers, **headers})
        return self._opener.open(sent, timeout=SECONDS)

    def refused(self, path: str, **headers: str) -> int:
        """The status of a request that is refused."""
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.request(path, None, **headers)
        caught.value.close()
        return caught.value.code

    def follow(self, stream: Any, holds: Callable[[], object], goal: str, seconds: float = SECONDS) -> Json:
        """Takes messages until what they said fulfils ``holds``; the last one."""
        deadline = time.monotonic() + seconds
        for line in stream:
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {goal}"
            if line.strip():
                message: Json = json.loads(line)
                self.entities.update({one["id"]: one for one in message["put"]})
                self.rates = message.get("rates", self.rates)
                for gone in message["drop"]:
                    self.entities.pop(gone, None)
                if holds():
                    return message
        raise AssertionError(f"the stream has ended before: {goal}")


@contextmanager
def pulled(line: Line) -> Iterator[None]:
    line.cluster.cable("pull", END)
    try:
        yield
    finally:
        line.cluster.cable("plug", END)


def connected(line: Line) -> str:
    return str(condition(line.json("get", "tbl", LINK), "Connected").get("status"))


@pytest.mark.parametrize("plugin", [False, True], ids=["thunderfleet ui", "kubectl thunderfleet ui"])
def test_the_page_gets_the_fleet_of_a_real_api_server_and_its_changes(line: Line, plugin: bool) -> None:
    with page_address(line, plugin=plugin) as address:
        client = Client(address)
        with client.request("/api/feed") as stream:
            macs, cable = [f"mac/{name}" for name in line.macs], f"cable/{LINK}"
            whole = client.follow(stream, lambda: {*macs, cable} <= client.entities.keys(), "the Macs and their cables")
            assert [client.entities[mac]["health"] for mac in macs] != ["bad"] * len(macs), whole
            assert client.entities[cable]["ends"] == [["mini-1", 1], ["studio-1", 2]]
            suspended = line.deploy("suspended", suspend=True)
            model = f"model/{suspended.namespace}/{suspended.name}"
            change = client.follow(stream, lambda: model in client.entities, "a new model")
            assert "whole" not in change, "only what has changed is sent"
            line.forget(suspended)
            client.follow(stream, lambda: model not in client.entities, "the model is gone")
        details = json.load(client.request(f"/api/details?id={quote(cable)}"))
        assert {"Connected", "Symmetric"} <= {one["type"] for one in details["conditions"]}
        # No other page gets anything: not by a name that leads here, nor from elsewhere, nor without the session.
        assert client.refused("/api/feed", Host="attacker.example") == 403
        assert client.refused("/api/feed", Origin="https://attacker.example") == 403
        assert client.refused("/api/feed", Authorization="Bearer guessed") == 401


@pytest.mark.soak
def test_the_page_shows_placements_a_pulled_cable_and_an_answer(line: Line, pair: Deployment) -> None:
    with page_address(line) as address:
        client = Client(address)
        name = f"{pair.namespace}/{pair.name}"
        model, cable = f"model/{name}", f"cable/{LINK}"
        with client.request("/api/feed") as stream:
            client.follow(stream, lambda: client.entities.get(model, {}).get("serves"), "the model serves")
            macs = client.entities[model]["groups"][0]["macs"]
            assert macs == [rank["node"] for rank in pair.ranks()]
            client.follow(stream, lambda: cable in client.entities, "the cable")
            assert all(client.entities[f"mac/{mac}"]["ranks"][0]["group"] == f"{name}-0" for mac in macs)
            with pulled(line):
                client.follow(stream, lambda: client.entities[cable]["health"] == "bad", "the pulled cable is bad")
            client.follow(stream, lambda: client.entities[cable]["connected"], "the cable is well again")
        found = json.load(client.request(f"/api/details?id={quote(model)}"))
        assert found["why"]["cause"] is None and found["conditions"]
        asked = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
        assert b"data: " in client.request("/api/chat", asked).read(1 << 16)


def health(window: Browser, entity: str) -> str:
    """How the list that is open shows an entity."""
    script = "return document.querySelector(`.row[data-id='${args[0]}']`)?.dataset.health ?? ''"
    return str(window.run(script, entity))


def text_of(window: Browser, element: str) -> str:
    """The text of an element, by its id, also where it is cut off."""
    return str(window.run("return document.getElementById(args[0]).textContent", element))


def page_text(window: Browser) -> str:
    return window.text("body")


@contextmanager
def page(line: Line) -> Iterator[Browser]:
    """The page in a browser, with the state of the fleet."""
    with page_address(line) as address, browsers.browser() as window:
        window.open(address)
        until(lambda: window.text("#link-text") == "live", "the page is live", describe=lambda: page_text(window))
        yield window
        assert [one for one in window.log() if one.startswith("SEVERE")] == []


@pytest.mark.soak
@CHROMIUM
def test_chromium_shows_placements_conditions_and_an_answer(line: Line, pair: Deployment) -> None:
    model = f"model/{pair.namespace}/{pair.name}"
    with page(line) as window:
        until(lambda: health(window, model) == "good", "the model is listed", describe=lambda: page_text(window))
        hues = window.run("const {scene} = await import('/assets/page.js'); return [...scene.hue.keys()]")
        assert f"{pair.namespace}/{pair.name}-0" in hues, "its group has a color"
        window.click(f".row[data-id='{model}']")
        detail = window.text
        until(lambda: "Placed: True" in detail("#detail"), "its conditions are shown", describe=lambda: page_text(window))
        for rank in pair.ranks():
            assert rank["node"] in detail("#detail")
        window.run("document.querySelector('.talk textarea').value = 'Hello'")
        window.run("document.querySelector('.talk form').requestSubmit()")
        answered = "the answer is shown"
        until(lambda: detail(".talk .turn:not(.user)"), answered, describe=lambda: page_text(window))
        until(lambda: detail(".talk form button") == "Send", "it has ended", describe=lambda: page_text(window))
        assert not window.run("return document.querySelector('.turn.failed') !== null"), page_text(window)


@pytest.mark.soak
@CHROMIUM
def test_chromium_shows_a_pulled_cable_in_time(line: Line, pair: Deployment) -> None:
    with page(line) as window:
        window.click("#tab-cables")
        until(lambda: health(window, f"cable/{LINK}") == "idle", "the cable is shown", describe=lambda: page_text(window))
        # The page notes the moment itself, so that the questions of the test delay nothing.
        window.run(
            """
            const look = () => {
              const row = document.querySelector(`.row[data-id='${args[0]}']`);
              if (row?.dataset.health === 'bad') window.redAt = Date.now();
              else requestAnimationFrame(look);
            };
            look();
            """,
            f"cable/{LINK}",
        )
        with line.api.watched(f"{OURS}/thunderboltlinks/{LINK}") as seen:
            started = time.time()
            with pulled(line):
                reported: list[float] = []

                def red() -> float | None:
                    if not reported and any(condition(one, "Connected").get("status") == "False" for one in seen[1:]):
                        reported.append(time.time())
                    found = window.run("return window.redAt ?? null")
                    return found / 1000 if found and reported else None

                shown = until(red, "the pulled cable is red", pause=0.02, describe=lambda: page_text(window))
        print(f"red {shown - started:.2f} s after the pull, {shown - reported[0]:.2f} s after the status of its link")
        assert shown - started <= AFTER_PULL_SECONDS
        assert shown - reported[0] <= AFTER_STATUS_SECONDS
        until(lambda: health(window, f"cable/{LINK}") == "idle", "the cable is well again")


FLOOD = """
import socket, sys, time
there, port, serves = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "serve"
if serves:
    peer, _ = socket.create_server((there, port)).accept()
    while peer.recv(1 << 16): pass
else:
    until, sent = time.monotonic() + 45, socket.create_connection((there, port), 10)
    while time.monotonic() < until:
        sent.sendall(bytes(1 << 18))
        time.sleep(0.05)
"""
"""Sends about 40 Mb/s over a cable."""


@pytest.mark.soak
def test_the_page_shows_the_rate_of_a_cable(line: Line) -> None:
    """What a Mac sends over a cable is shown in the direction of the cable, within a reading or two of its agent."""
    ends = {one["node"]: one for one in line.json("get", "tbl", LINK)["status"]["endpoints"]}
    there, port = ends["studio-1"]["address"], 34567

    def flood(mac: str, what: str) -> threading.Thread:
        command = (sys.executable, "-c", FLOOD, there, str(port), what)
        thread = threading.Thread(target=lambda: line.run(mac, *command, seconds=80))
        thread.start()
        return thread

    with page_address(line) as address:
        client = Client(address)
        with client.request("/api/feed") as stream:
            server = flood("studio-1", "serve")
            until(lambda: str(port) in line.run("studio-1", "ss", "-ltn").stdout, "the receiver listens")
            sender = flood("mini-1", "send")
            message = client.follow(stream, lambda: LINK in client.rates, "the cable has a rate")
            assert message["noRates"] == ""
            to_studio, to_mini = client.rates[LINK]
            assert to_studio > 1_000_000 > to_mini, client.rates
        for thread in (sender, server):
            thread.join()


@pytest.mark.soak
@CHROMIUM
def test_chromium_shows_what_users_write_as_text(line: Line) -> None:
    """Everything that the API server accepts where the page shows it. Without an operator, which would correct it."""
    made = hostile_objects()
    paths = [hostile_path(item) for item in made]
    line.kubectl("scale", *OPERATOR, "--replicas=0")
    try:
        selector = "app.kubernetes.io/component=operator"
        until(lambda: not line.items("pods", "-n", SYSTEM, "-l", selector), "the operator has ended")
        for item, path in zip(made, paths, strict=True):
            line.api.send("POST", path.rpartition("/")[0], {key: value for key, value in item.items() if key != "status"})
            if "status" in item:
                patch = json.dumps({"status": item["status"]})
                line.kubectl(
                    "patch", item["kind"], item["metadata"]["name"], "--subresource=status", "--type=merge", "-p", patch
                )
        with page(line) as window:
            for tab in ("models", "macs", "cables"):
                window.click(f"#tab-{tab}")
                until(lambda: "hostile" in text_of(window, "list"), f"{tab} are listed", describe=lambda: page_text(window))
                window.run("[...document.querySelectorAll('.row')].find((row) => row.textContent.includes('hostile')).click()")
                until(lambda: MARKUP in text_of(window, "detail"), "details are shown", describe=lambda: page_text(window))
                window.click(".back")
            script = "return [window.hacked ?? null, document.querySelectorAll('main :is(img, svg, script, iframe)').length]"
            assert window.run(script) == [None, 0]
    finally:
        for path in paths:
            line.api.send("DELETE", path)
        line.kubectl("scale", *OPERATOR, "--replicas=2")
        line.kubectl("rollout", "status", *OPERATOR, "--timeout=25s")


def hostile_objects() -> list[Json]:
    """A Mac, what its agent reports, a cable and a model, each with markup wherever its schema has room.

    Nobody but the operator may write the status of a model.
    """
    api, now = "thunderfleet.io/v1alpha1", "2026-01-01T00:00:00Z"

    def conditions(*kinds: str) -> list[Json]:
        texts = {"status": "False", "reason": "Hostile", "message": MARKUP, "lastTransitionTime": now}
        return [{"type": kind, **texts} for kind in kinds]

    mac = {"name": HOSTILE_MAC, "labels": {"kubernetes.io/os": "darwin"}}
    hardware = {"chip": MARKUP[:64], "memoryBytes": 1 << 36}
    ends = {"a": {"node": HOSTILE_MAC, "port": 1}, "b": {"node": "other-mac", "port": 2}}
    model = {"name": "hostile", "namespace": "default"}
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": mac, "status": {"conditions": conditions("Ready")}},
        {
            "apiVersion": api,
            "kind": "NodeProfile",
            "metadata": {"name": HOSTILE_MAC},
            "status": {"hardware": hardware, "conditions": conditions("InventoryComplete", "BridgeFree")},
        },
        {
            "apiVersion": api,
            "kind": "ThunderboltLink",
            "metadata": {"name": HOSTILE_LINK},
            "spec": ends,
            "status": {"conditions": conditions("Connected", "Symmetric")},
        },
        {
            "apiVersion": api,
            "kind": "ModelDeployment",
            "metadata": model,
            "spec": {"model": {"path": f"/models/{MARKUP}"}, "suspend": True},
        },
    ]


def hostile_path(item: Json) -> str:
    """Where an object is at the API server."""
    name = item["metadata"]["name"]
    return {
        "Node": f"/api/v1/nodes/{name}",
        "NodeProfile": f"{OURS}/nodeprofiles/{name}",
        "ThunderboltLink": f"{OURS}/thunderboltlinks/{name}",
        "ModelDeployment": f"{OURS}/namespaces/default/modeldeployments/{name}",
    }[item["kind"]]
