"""``thunderfleet ui`` on a real cluster: what runs where, a pulled cable, an answer; and the same in Chromium."""

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import browser as browsers
from tests.support.line import Deployment, Line
from tests.support.screenshots import page_address
from tests.support.waiting import until

Json = dict[str, Any]
END = "mini-1:1"
CABLE = "cable/mini-1.tb1--studio-1.tb2"
"""No group uses it."""
SECONDS = 60.0


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

    def request(self, path: str, body: Json | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        return self._opener.open(urllib.request.Request(self.origin + path, content, self._headers), timeout=SECONDS)

    def follow(self, stream: Any, goal: str, seconds: float = 90.0) -> Iterator[Json]:
        """Messages until the caller has seen enough, with a limit."""
        deadline = time.monotonic() + seconds
        for line in stream:
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {goal}"
            if line.strip():
                message = json.loads(line)
                self.entities.update({one["id"]: one for one in message["put"]})
                yield message


@contextmanager
def pulled(line: Line) -> Iterator[None]:
    line.cluster.cable("pull", END)
    try:
        yield
    finally:
        line.cluster.cable("plug", END)


@pytest.mark.soak
def test_the_page_shows_placements_a_pulled_cable_and_an_answer(line: Line, pair: Deployment) -> None:
    with page_address(line) as address:
        client = Client(address)
        model = f"model/default/{pair.name}"
        with client.request("/api/feed") as stream:
            for _ in client.follow(stream, "the fleet"):
                if client.entities.get(model, {}).get("serves"):
                    break
            macs = client.entities[model]["groups"][0]["macs"]
            assert macs == [rank["node"] for rank in pair.ranks()]
            assert all(client.entities[f"mac/{mac}"]["ranks"][0]["group"] == f"default/{pair.name}-0" for mac in macs)
            with pulled(line):
                for _ in client.follow(stream, "the pulled cable is bad"):
                    if client.entities[CABLE]["health"] == "bad":
                        break
            for _ in client.follow(stream, "the cable is well again"):
                if client.entities[CABLE]["connected"]:
                    break
        found = json.load(client.request(f"/api/details?id={model}"))
        assert found["why"]["cause"] is None and found["conditions"]
        asked = {"model": f"default/{pair.name}", "messages": [{"role": "user", "content": "Hello"}]}
        assert b"data: " in client.request("/api/chat", asked).read(1 << 16)


@pytest.mark.soak
@pytest.mark.skipif(not browsers.installed(), reason="no chromium and chromedriver: apt-get install chromium chromium-driver")
def test_the_same_in_chromium(line: Line, pair: Deployment) -> None:
    with page_address(line) as address, browsers.browser() as window:
        window.open(address)
        health = "return document.querySelector(`.row[data-id='${args[0]}']`)?.dataset.health"
        until(lambda: window.run(health, f"model/default/{pair.name}") == "good", "the model is shown")
        window.click("#tab-cables")
        until(lambda: window.run(health, CABLE) == "idle", "the cable is shown")
        started = time.monotonic()
        with pulled(line):
            until(lambda: window.run(health, CABLE) == "bad", "the pulled cable is red", pause=0.02)
            print(f"red {time.monotonic() - started:.1f} s after the pull")
        until(lambda: window.run(health, CABLE) == "idle", "the cable is well again")
        assert [one for one in window.log() if one.startswith("SEVERE")] == []
