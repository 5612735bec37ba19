"""The page in headless Chromium: what it shows, what markup in names and messages does, keys. Needs Debian's chromium."""

import asyncio
import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest
from aiohttp import web
from thunderfleet_view.live.fleet import Kind

from tests.support.page import browser as browsers
from tests.support.page.browser import Browser, BrowserError
from tests.support.page.fleetpage import FleetApi, Page, cable, cable_name, fleet, model, node, profile, served
from tests.support.waiting import until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not browsers.installed(), reason="no chromium and chromedriver: `make chromium` installs them"),
]
LINK = cable_name("studio-1", 1, "studio-2", 1)
MARKUP = (
    "<img src=x onerror=window.hacked=1>",
    "<script>window.hacked=1</script>",
    '"><svg onload=window.hacked=1>',
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
)


READABLE_PIXELS = 9.0
CONTRAST = 4.5
"""Of a text and what is behind it: WCAG 2, level AA."""
# Notes what the picture's last frame writes: where, how large, and the colors of the text and of what is behind it.
NOTED = """
  window.written = [];
  const prototype = CanvasRenderingContext2D.prototype;
  const { fillRect, fillText } = prototype;
  prototype.fillRect = function (x, y, width, height) {
    if (this.canvas.id === 'canvas' && width === this.canvas.clientWidth && height === this.canvas.clientHeight) written = [];
    return fillRect.call(this, x, y, width, height);
  };
  prototype.fillText = function (text, x, y) {
    if (this.canvas.id === 'canvas') {
      const ratio = this.canvas.width / this.canvas.clientWidth;
      const [now, box] = [this.getTransform(), this.measureText(text)];
      const at = (dx, dy) => now.transformPoint(new DOMPoint(x + dx, y + dy));
      const first = at(-box.actualBoundingBoxLeft, -box.actualBoundingBoxAscent);
      const last = at(box.actualBoundingBoxRight, box.actualBoundingBoxDescent);
      const behind = [...this.getImageData(first.x - ratio, (first.y + last.y) / 2, 1, 1).data.slice(0, 3)];
      written.push({
        text, behind, color: this.fillStyle, faint: this.globalAlpha < 1,
        left: first.x / ratio, top: first.y / ratio, right: last.x / ratio, bottom: last.y / ratio,
        size: (parseFloat(/([\\d.]+)px/.exec(this.font)[1]) * now.a) / ratio,
      });
    }
    return fillText.call(this, text, x, y);
  };
"""


def luminance(color: Sequence[int]) -> float:
    """Of red, green and blue from 0 to 255, as WCAG defines it."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (one / 255 for one in color)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Sequence[int], other: Sequence[int]) -> float:
    """Of two colors: from 1 (the same) to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def color(text: str) -> tuple[int, ...]:
    """Of a text ``#rrggbb``, as a canvas says it."""
    return tuple(bytes.fromhex(text.removeprefix("#")))


def over(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two texts overlap."""
    sides = one["left"] < other["right"] and other["left"] < one["right"]
    return bool(sides and one["top"] < other["bottom"] and other["top"] < one["bottom"])


def unreadable(texts: list[dict[str, Any]], width: float, height: float, covers: list[dict[str, float]]) -> list[str]:
    """What cannot be read in a picture of this size, and why. ``covers``: what lies over the picture."""
    found = []
    for at, text in enumerate(texts):
        name = str(text["text"])
        if text["size"] < READABLE_PIXELS - 0.01:
            found.append(f"{name}: {text['size']:.1f} px")
        if text["left"] < 0 or text["top"] < 0 or text["right"] > width or text["bottom"] > height:
            found.append(f"{name}: outside the picture")
        if (seen := contrast(color(text["color"]), text["behind"])) < CONTRAST:
            found.append(f"{name}: contrast {seen:.1f}")
        found += [f"{name}: over {other['text']}" for other in texts[:at] if over(text, other)]
        found += [f"{name}: below something" for cover in covers if over(text, dict(cover))]
    return found


class Loop:
    """An event loop in a thread, for a server while the test drives a browser."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of ``work``."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def call(self, what: Callable[[], object]) -> None:
        """Calls ``what`` in the loop."""

        async def work() -> None:
            what()

        self.run(work())

    def close(self) -> None:
        """Ends the loop and what still runs in it."""

        async def end() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Stage:
    """A fleet's API server, its page, and a browser."""

    def __init__(self, loop: Loop, api: FleetApi, page: Page, window: Browser) -> None:
        self.loop, self.api, self.page, self.window = loop, api, page, window

    def put(self, kind: Kind, item: dict[str, Any]) -> None:
        self.loop.call(lambda: self.api.put(kind, item))

    def fill(self, count: int, size: int = 4) -> None:
        self.loop.call(lambda: self.api.fill(fleet(count, size, idle=0)))

    def open(self) -> None:
        """Opens the page with a new token."""
        addresses: list[str] = []
        self.loop.call(lambda: addresses.append(self.page.address()))
        self.window.open("about:blank")
        self.window.open(addresses[0])
        until(lambda: self.window.text("#link-text") == "live", "the page is live", describe=self.describe)

    def health(self, entity: str) -> str:
        """How the list shows an entity."""
        script = "return document.querySelector(`.row[data-id='${args[0]}']`)?.dataset.health ?? ''"
        return str(self.window.run(script, entity))

    def describe(self) -> str:
        return f"{self.window.text('body')}\n{self.window.log()}"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browsers.browser() as found:
        yield found


@pytest.fixture
def stage(window: Browser) -> Iterator[Stage]:
    loop = Loop()
    api = FleetApi()
    stack = contextlib.AsyncExitStack()
    try:
        loop.run(api.start())
        page = loop.run(stack.enter_async_context(served(api)))
        yield Stage(loop, api, page, window)
    finally:
        window.open("about:blank")
        loop.run(stack.aclose())
        loop.run(api.stop())
        loop.close()


def test_placements_appear_and_the_token_is_gone(stage: Stage) -> None:
    stage.fill(2, 2)
    stage.open()
    assert stage.window.text("#counts").split() == ["1", "model", "2", "Macs", "1", "cable"]
    assert stage.window.run("return location.href") == f"{stage.page.origin}/"
    assert stage.window.run("return document.cookie") == ""
    stage.window.click(".row[data-id='model/default/model-0']")
    until(lambda: "Conditions".upper() in stage.window.text("#detail").upper(), "conditions are shown", describe=stage.describe)
    assert "studio-1" in stage.window.text("#detail")
    stage.put(Kind.DEPLOYMENTS, model("second", ["studio-2"], "nobody/second", "Loading", "loads"))
    stage.window.click(".back")
    until(lambda: stage.health("model/default/second") == "doubtful", "the new model is listed", describe=stage.describe)
    until(
        lambda: stage.window.run("return document.querySelector('.row progress')?.value") == pytest.approx(26 / 64), "progress"
    )
    assert [line for line in stage.window.log() if line.startswith("SEVERE")] == []


def test_the_check_of_texts_sees_what_cannot_be_read() -> None:
    box = {
        "left": 10.0,
        "top": 10.0,
        "right": 60.0,
        "bottom": 20.0,
        "size": 11.0,
        "color": "#171a21",
        "behind": [255, 255, 255],
    }
    good = {**box, "text": "good"}
    assert unreadable([good], 100, 100, []) == []
    wrong = [
        {**box, "text": "small", "size": 8.0, "top": 30.0, "bottom": 38.0},
        {**box, "text": "far", "right": 101.0, "top": 50.0, "bottom": 60.0},
        {**box, "text": "pale", "color": "#bbbb33", "top": 70.0, "bottom": 80.0},
        {**box, "text": "second", "left": 50.0},
    ]
    said = unreadable([good, *wrong], 100, 100, [{"left": 0.0, "top": 90.0, "right": 9.0, "bottom": 99.0}])
    assert said == ["small: 8.0 px", "far: outside the picture", "pale: contrast 2.0", "second: over good"]
    assert unreadable([good], 100, 100, [{"left": 0.0, "top": 0.0, "right": 99.0, "bottom": 15.0}]) == ["good: below something"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("count", "size", "least"), [(2, 2, 5), (7, 7, 10), (200, 4, 200)])
def test_the_picture_is_readable(stage: Stage, count: int, size: int, least: int, dark: bool) -> None:
    noted = stage.window.devtools("Page.addScriptToEvaluateOnNewDocument", source=NOTED)["identifier"]
    try:
        stage.window.dark(dark)
        stage.fill(count, size)
        stage.open()
        until(lambda: stage.window.run("return written.length") >= least, "the picture has texts", describe=stage.describe)
        texts, width, height, covers = stage.window.run("""
          const canvas = document.getElementById('canvas');
          const from = canvas.getBoundingClientRect();
          const covers = ['legend', 'tools'].map((id) => document.getElementById(id).getBoundingClientRect());
          const moved = covers.map(({ left, top, right, bottom }) => (
            { left: left - from.left, top: top - from.top, right: right - from.left, bottom: bottom - from.top }));
          return [written, canvas.clientWidth, canvas.clientHeight, moved];
        """)
        names = [text["text"] for text in texts]
        assert unreadable(texts, width, height, covers) == []
        # Each Mac and each model has its name, or at least its end.
        assert sum(name.startswith(("studio", "…")) for name in names) == count
        assert sum("model-" in name for name in names) == -(-count // size)
        small = """
          return [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && !one.closest('.unseen')
            && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
            && parseFloat(getComputedStyle(one).fontSize) < 12).map((one) => one.outerHTML.slice(0, 200))
        """
        assert stage.window.run(small) == []
        assert stage.window.run("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        stage.window.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=noted)
        stage.window.dark(False)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_mac_that_failed_is_red_in_a_small_picture(stage: Stage, dark: bool) -> None:
    noted = stage.window.devtools("Page.addScriptToEvaluateOnNewDocument", source=NOTED)["identifier"]
    try:
        stage.window.dark(dark)
        stage.fill(200, 4)
        stage.put(Kind.NODES, node("studio-022", "Unknown", "Kubelet stopped posting node status."))
        stage.put(Kind.DEPLOYMENTS, model("model-16", ["studio-065", "studio-066"], "nobody/tiny", "Loading", "rank 1 loads"))
        stage.open()
        until(lambda: stage.window.run("return written.length") >= 200, "the picture has texts", describe=stage.describe)
        texts = stage.window.run("return written")
        assert unreadable(texts, float("inf"), float("inf"), []) == []
        bad = color(stage.window.run("return getComputedStyle(document.documentElement).getPropertyValue('--bad').trim()"))
        red = [text["text"] for text in texts if tuple(text["behind"]) == bad]
        assert len(red) == 1 and red[0].endswith("022")
        assert "model-16 · Loading" in [text["text"] for text in texts]
    finally:
        stage.window.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=noted)
        stage.window.dark(False)


def test_only_faults_are_red_in_the_details(stage: Stage) -> None:
    stage.fill(2, 2)
    stage.put(Kind.DEPLOYMENTS, model("model-0", ["studio-1", "studio-2"], "nobody/tiny", "Loading", "rank 1 loads"))
    stage.open()
    stage.window.click(".row[data-id='model/default/model-0']")
    red = """
      return [...document.querySelectorAll('#detail :is(.dot, .cause, .problem)')].filter((one) => {
        const style = getComputedStyle(one);
        return args.some((color) => [style.color, style.backgroundColor].includes(color));
      }).length
    """
    # Both themes.
    colors = ("rgb(208, 36, 47)", "rgb(255, 92, 102)")
    until(lambda: "WAITS FOR" in stage.window.text("#detail").upper(), "what it waits for is shown", describe=stage.describe)
    assert "Loading" in stage.window.text("#detail") and stage.window.run(red, *colors) == 0, stage.describe()
    stage.put(Kind.DEPLOYMENTS, model("model-0", ["studio-1", "studio-2"], "nobody/tiny", "GaveUp", "rank 1 has failed"))
    # The cause, the group, the problem, and the condition Ready.
    until(lambda: stage.window.run(red, *colors) >= 4, "the fault is red", describe=stage.describe)
    assert "CAUSE" in stage.window.text("#detail").upper()


def test_the_card_of_a_mac_whose_kubelet_is_silent_is_not_green(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thunderfleet_view.live.watch.LEASES_SECONDS", 0.05)
    stage.fill(2, 2)
    stage.open()
    stage.window.click("#tab-macs")
    until(lambda: stage.health("mac/studio-1") == "good", "the Mac is listed", describe=stage.describe)
    renewed = {"studio-1": 8, "studio-2": 50, "studio-3": 50}
    stage.api.leases = {
        f"kube-node-lease/{name}": {"spec": {"renewTime": f"2026-03-01T12:00:{second:02}.000000Z"}}
        for name, second in renewed.items()
    }
    until(lambda: stage.health("mac/studio-1") == "doubtful", "its card says it", describe=stage.describe)
    assert "the kubelet has not renewed its Lease" in stage.window.text(".row[data-id='mac/studio-1']")
    assert stage.health("mac/studio-2") == "good"
    # Only faults are counted in red: the Mac may still serve.
    until(lambda: "studio-1" in stage.window.text("#notes"), "a note names the Mac", describe=stage.describe)
    assert "problem" not in stage.window.text("#counts")


def test_a_pulled_cable_turns_red_in_the_picture_and_in_the_list(stage: Stage) -> None:
    stage.fill(2, 2)
    stage.open()
    stage.window.click("#tab-cables")
    until(lambda: stage.health(f"cable/{LINK}") == "good", "the cable is listed")
    stage.put(Kind.LINKS, cable("studio-1", 1, "studio-2", 1, "False", message="port 1 of studio-1 is down"))
    until(lambda: stage.health(f"cable/{LINK}") == "bad", "it is red in the list", describe=stage.describe)
    look = """
      const { scene } = await import('/assets/page.js');
      const canvas = document.getElementById('canvas');
      const { x, y } = scene.at(args[0]);
      const box = canvas.getBoundingClientRect();
      const ratio = canvas.width / canvas.clientWidth;
      // Beside the white cross in its middle.
      const pixel = canvas.getContext('2d').getImageData((x - box.left - 10) * ratio, (y - box.top) * ratio, 1, 1).data;
      return [...pixel];
    """

    def red() -> bool:
        r, g, b, _ = stage.window.run(look, f"cable/{LINK}")
        return bool(r > 150 and g < 110 and b < 120)

    until(red, "it is red in the picture", describe=stage.describe)
    assert "port 1 of studio-1 is down" in stage.window.text(f".row[data-id='cable/{LINK}']")
    assert "1 problem" in stage.window.text("#counts")
    stage.put(Kind.LINKS, cable("studio-1", 1, "studio-2", 1))
    until(lambda: stage.health(f"cable/{LINK}") == "good", "it is well again", describe=stage.describe)


@pytest.mark.parametrize("markup", MARKUP)
def test_markup_in_any_name_or_message_is_text(stage: Stage, markup: str) -> None:
    """Also where the API server would refuse the name: a page must not rely on it."""
    stage.put(Kind.NODES, node(markup, "Unknown", markup))
    stage.put(Kind.NODES, node("studio-2"))
    stage.put(Kind.PROFILES, profile(markup, markup, 96, {markup: [cable_name(markup, 1, "studio-2", 1)]}))
    stage.put(Kind.LINKS, {**cable(markup, 1, "studio-2", 1, "False", message=markup)})
    copies = [{"node": markup, "phase": markup, "bytes": 10, "bytesDone": 5, "peer": markup, "message": markup}]
    hostile = model("hostile", [markup, "studio-2"], markup, "Loading", markup, copies=copies)
    hostile["status"]["transport"] = hostile["status"]["tokensPerSecond"] = markup
    hostile["metadata"]["name"] = hostile["metadata"]["namespace"] = markup
    stage.put(Kind.DEPLOYMENTS, hostile)
    stage.open()
    for tab in ("models", "macs", "cables"):
        stage.window.click(f"#tab-{tab}")
        until(lambda: markup in stage.window.run("return document.getElementById('list').textContent"), f"{tab} are listed")
        stage.window.run("document.querySelector('.row').click()")
        until(lambda: "Conditions" in stage.window.run("return document.getElementById('detail').textContent"), "details")
        stage.window.click(".back")
    found = stage.window.run(
        "return [window.hacked ?? null, document.querySelectorAll('main img, main svg, main script, main iframe').length]"
    )
    assert found == [None, 0]
    assert not [line for line in stage.window.log() if "Trusted" in line], "nothing even tried to make markup"


def test_the_policy_would_stop_markup_that_a_mistake_made(stage: Stage) -> None:
    stage.fill(2, 2)
    stage.open()
    for sink in (
        "document.body.innerHTML = '<img src=x onerror=window.hacked=1>'",
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked=1'}))",
        "document.body.setAttribute('onclick', 'window.hacked=1'); document.body.click()",
        "await import('data:text/javascript,window.hacked=1')",
        "await fetch('http://localhost:1/x')",
    ):
        with contextlib.suppress(BrowserError):
            stage.window.run(sink)
    assert stage.window.run("return window.hacked ?? null") is None
    assert any("Content Security Policy" in line for line in stage.window.log())


def test_a_second_use_of_the_address_opens_nothing(stage: Stage) -> None:
    stage.fill(2, 2)
    addresses: list[str] = []
    stage.loop.call(lambda: addresses.append(stage.page.address()))
    stage.window.open(addresses[0])
    until(lambda: stage.window.text("#link-text") == "live", "the page is live")
    with browsers.browser() as other:
        other.open(addresses[0])
        until(
            lambda: "has been used" in other.text("#empty"), "the second page is refused", describe=lambda: other.text("body")
        )
        assert "studio" not in other.text("body")
    stage.window.open("about:blank")
    stage.window.open(stage.page.origin)
    until(lambda: stage.window.text("#link-text") == "live", "the same tab has its session")


def test_a_page_of_another_origin_gets_nothing(stage: Stage) -> None:
    stage.fill(2, 2)
    stage.open()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="<title>other</title>", content_type="text/html")

    async def foreign() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = stage.loop.run(foreign())
    try:
        stage.window.open(f"http://localhost:{runner.addresses[0][1]}/")
        script = """
          const tries = [['/', {}], ['/api/feed', {}], ['/session', {method: 'POST', body: '{}'}],
            ['/session', {method: 'POST', body: '{}', headers: {'Content-Type': 'application/json'}}],
            ['/', {mode: 'no-cors'}]];
          const found = [];
          for (const [path, init] of tries) {
            try { found.push((await fetch(args[0] + path, init)).type) } catch (error) { found.push('refused') }
          }
          const frame = document.createElement('iframe');
          frame.src = args[0];
          document.body.append(frame);
          await new Promise((resolve) => frame.addEventListener('load', resolve));
          try { found.push(frame.contentDocument.title) } catch (error) { found.push('refused') }
          return found;
        """
        assert stage.window.run(script, stage.page.origin)[:4] == ["refused"] * 4
        found = stage.window.run(script, stage.page.origin)
        assert "Thunderfleet" not in found and found[4] in ("opaque", "refused")
    finally:
        stage.window.open("about:blank")
        stage.loop.run(runner.cleanup())


def test_everything_works_with_keys_alone(stage: Stage) -> None:
    stage.fill(4, 4)
    stage.open()
    stage.window.run("document.getElementById('canvas').focus()")
    right, escape, tab, enter, down = "\ue014", "\ue00c", "\ue004", "\ue007", "\ue015"
    stage.window.keys(right)
    until(lambda: "studio-1" in stage.window.text("#detail h2"), "the first Mac is selected", describe=stage.describe)
    stage.window.keys(right)
    until(lambda: "studio-2" in stage.window.text("#detail h2"), "the Mac to its right is selected", describe=stage.describe)
    assert stage.window.run("return document.activeElement.id") == "canvas"
    stage.window.keys(escape)
    until(lambda: not stage.window.text("#detail"), "nothing is selected")
    where = "const {scene} = await import('/assets/page.js'); return scene.at('mac/studio-1').x"
    before = stage.window.run(where)
    stage.window.keys("+")
    assert stage.window.run(where) != before
    stage.window.keys("0")
    assert stage.window.run(where) == pytest.approx(before)
    for _ in range(4):
        stage.window.keys(tab)
    assert stage.window.run("return document.activeElement.id") == "tab-models"
    stage.window.keys(right)
    assert stage.window.run("return document.activeElement.id") == "tab-macs"
    stage.window.keys(tab, tab, down, enter)
    until(lambda: "studio-2" in stage.window.text("#detail h2"), "the second Mac of the list", describe=stage.describe)
    stage.window.keys(escape)
    assert stage.window.run("return document.activeElement.dataset.id") == "mac/studio-2", "the focus is where it was"


def test_a_click_selects_a_mac_and_a_cable(stage: Stage) -> None:
    stage.fill(2, 2)
    stage.open()
    where = "const {scene} = await import('/assets/page.js'); const {x, y} = scene.at(args[0]); return [x, y]"
    stage.window.press(*stage.window.run(where, "mac/studio-2"))
    until(lambda: "studio-2" in stage.window.text("#detail h2"), "the Mac is selected")
    stage.window.press(*stage.window.run(where, f"cable/{LINK}"))
    until(lambda: "studio-1 tb1 ↔ studio-2 tb1" in stage.window.text("#detail h2"), "the cable is selected")
    assert "38.4/37.9 Gb/s" in stage.window.text("#detail")


def test_places_are_the_same_in_every_page(stage: Stage) -> None:
    stage.fill(24, 24)
    where = "const {scene} = await import('/assets/page.js'); return args.map((id) => scene.at(id))"
    macs = [f"mac/studio-{number:02d}" for number in range(1, 25)]
    found = []
    for _ in range(2):
        stage.open()
        until(lambda: "24" in stage.window.text("#counts"), "all Macs are there")
        found.append(json.dumps(stage.window.run(where, *macs)))
    assert found[0] == found[1]


def test_a_server_that_comes_back_is_found_again(stage: Stage) -> None:
    stage.fill(2, 2)
    stage.open()
    port = int(stage.api.url.rpartition(":")[2])
    stage.loop.run(stage.api.stop())
    until(lambda: "does not answer" in stage.window.text("#notes"), "the page says so", describe=stage.describe)
    assert "2" in stage.window.text("#counts")
    stage.loop.run(stage.api.start(port))
    until(lambda: not stage.window.text("#notes"), "the page is well again", describe=stage.describe)


def test_markup_in_an_answer_is_text(stage: Stage) -> None:
    answer = "".join(MARKUP)

    async def complete(request: web.Request) -> web.Response:
        event = json.dumps({"choices": [{"delta": {"content": answer}}]})
        return web.Response(text=f"data: {event}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    async def serve() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = stage.loop.run(serve())
    try:
        stage.fill(2, 2)
        endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        stage.put(Kind.DEPLOYMENTS, model("model-0", ["studio-1"], "nobody/tiny", endpoint=endpoint))
        stage.open()
        stage.window.click(".row[data-id='model/default/model-0']")
        stage.window.run(
            "document.querySelector('.talk textarea').value = 'hello'; document.querySelector('.talk form').requestSubmit()"
        )
        until(lambda: stage.window.text(".talk .turn:not(.user)") == answer, "the answer is text", describe=stage.describe)
        assert stage.window.run("return [window.hacked ?? null, document.querySelectorAll('.talk img, .talk svg').length]") == [
            None,
            0,
        ]
    finally:
        stage.loop.run(runner.cleanup())


def test_no_process_of_the_browser_remains() -> None:
    with browsers.browser() as window:
        process = window.process
        assert process and subprocess.run(["ps", "-p", str(process)], capture_output=True).returncode == 0
    until(lambda: not os.path.exists(f"/proc/{process}"), "the browser has ended")
