"""The page of a router in headless Chromium: signing in with a key and with a token, a chat, and the end of a right."""

import contextlib
from collections.abc import Iterator

import pytest
from thunderfleet_router.http import page

from tests.support.page import browser as browsers
from tests.support.page.browser import Browser
from tests.support.routers.routing import Model, gateways
from tests.support.waiting import until, until_async
from tests.unit.router.test_page import HOSTS, Cluster, token
from tests.unit.router.test_router_app import _running
from tests.unit.view.test_page_browser import Loop

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not browsers.installed(), reason="no chromium and chromedriver: `make chromium` installs them"),
]


class Stage:
    """A router with its page, and a browser that has opened it."""

    def __init__(self, cluster: Cluster, window: Browser, address: str) -> None:
        self.cluster, self.window, self.address = cluster, window, address

    def sign(self, credential: str) -> None:
        """Gives a credential to the form."""
        until(lambda: self.window.text(".sign"), "the page asks for a credential", describe=self.describe)
        self.window.run("document.querySelector('.sign input').value = args[0]", credential)
        self.window.run("document.querySelector('.sign').requestSubmit()")

    def describe(self) -> str:
        return f"{self.window.text('body')}\n{self.window.log()}"


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(page, "CHECK_SECONDS", 1.0)
    loop, cluster, stack = Loop(), Cluster(), contextlib.AsyncExitStack()

    async def start() -> str:
        await cluster.start()
        cluster.secret("", "")
        (gateway,) = await stack.enter_async_context(gateways("a"))
        cluster.model(Model("qwen", namespace="one", urls=[gateway.url], keys={"ci": "sk-one"}))
        cluster.model(Model("llama", namespace="two", keys={"ci": "sk-two"}))
        router, _ = await stack.enter_async_context(_running(cluster, page_hosts=HOSTS))
        await until_async(lambda: router.watch.built, "the catalog is known")
        return f"http://127.0.0.1:{router.port}/"

    async def end() -> None:
        await stack.aclose()
        await cluster.stop()

    try:
        address = loop.run(start())
        with browsers.browser() as window:
            window.open(address)
            yield Stage(cluster, window, address)
        loop.run(end())
    finally:
        loop.close()


def test_an_api_key_shows_its_models_and_chats(stage: Stage) -> None:
    window = stage.window
    stage.sign("sk-wrong")
    until(lambda: "neither an API key" in window.text(".sign"), "a wrong key is refused", describe=stage.describe)
    stage.sign("sk-one")
    row = ".row[data-id='model/one/qwen']"
    until(lambda: window.text(row), "the model is listed", describe=stage.describe)
    assert "llama" not in window.text("body") and "studio" not in window.text("body")
    assert window.run("return [location.href, document.cookie]") == [stage.address, ""]
    window.click(row)
    window.run("document.querySelector('.talk textarea').value = 'hello'")
    window.run("document.querySelector('.talk form').requestSubmit()")
    until(lambda: window.text(".talk .turn:not(.user)"), "an answer", describe=stage.describe)
    until(lambda: window.text(".talk form button") == "Send", "its end", describe=stage.describe)
    assert not window.run("return document.querySelector('.turn.failed') !== null"), stage.describe()


def test_a_token_shows_the_fleet_until_its_right_ends(stage: Stage) -> None:
    window = stage.window
    stage.cluster.users[token("ann")] = "ann"
    stage.sign(token("ann"))
    until(lambda: "2 Macs" in window.text("#counts"), "the fleet is shown", describe=stage.describe)
    window.click("#tab-macs")
    window.click(".row[data-id='mac/studio-1']")
    until(lambda: "Ready: True" in window.text("#detail"), "its conditions are shown", describe=stage.describe)
    stage.cluster.users.clear()
    asked = "the page asks again"
    until(lambda: window.text(".sign"), asked, page.CHECK_SECONDS + 150, describe=stage.describe)
    assert "studio" not in window.text("body"), "nothing of the fleet remains"
