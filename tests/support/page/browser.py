"""Headless Chromium, driven by the WebDriver protocol of its driver (Debian: packages chromium and chromium-driver)."""

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

SECONDS: Final = 60.0
ARGUMENTS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
_PORT: Final = re.compile(r"on port (\d+)")


def installed() -> bool:
    """Whether this machine has Chromium and its driver."""
    return all(shutil.which(name) for name in ("chromium", "chromedriver"))


class BrowserError(AssertionError):
    """The driver refused a command; the text gives the reason."""


class Browser:
    """One window."""

    def __init__(self, driver: str, size: tuple[int, int], folder: Path) -> None:
        self._driver = driver
        arguments = [*ARGUMENTS, f"--window-size={size[0]},{size[1]}", f"--user-data-dir={folder}"]
        options = {"binary": shutil.which("chromium"), "args": arguments}
        logs = {"browser": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        opened = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{opened['sessionId']}"
        self.process = int(opened["capabilities"].get("goog:processID") or 0)

    def open(self, address: str) -> None:
        """Opens an address."""
        self._call("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a function body returns, of a promise too. Scripts of the page's own files can be imported."""
        whole = (
            "const done = arguments[arguments.length - 1]; const given = [...arguments].slice(0, -1);"
            f"(async (...args) => {{ {script} }})(...given).then((value) => done([value ?? null, null]), "
            "(error) => done([null, String(error)]));"
        )
        value, error = self._call("POST", f"{self._session}/execute/async", {"script": whole, "args": arguments})
        if error is not None:
            raise BrowserError(f"{script}: {error}")
        return value

    def text(self, selector: str) -> str:
        """The text of the first element; "" if there is none or it is hidden."""
        script = "const found = document.querySelector(args[0]); return found && found.checkVisibility() ? found.innerText : ''"
        return str(self.run(script, selector))

    def click(self, selector: str) -> None:
        """Clicks the first element."""
        self.run("document.querySelector(args[0]).click()", selector)

    def keys(self, *keys: str) -> None:
        """Presses and releases keys, one after the other."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def press(self, x: float, y: float) -> None:
        """Presses and releases the pointer at a place of the page."""
        move = {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y), "origin": "viewport"}
        actions = [move, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._call("POST", f"{self._session}/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def log(self) -> list[str]:
        """What the browser has reported since the last call: errors, refusals by the policy, messages of scripts."""
        found = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{one['level']} {one['message']}" for one in found]

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._call("GET", f"{self._session}/screenshot"))

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of the browser's developer tools."""
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def dark(self, dark: bool = True) -> None:
        """What the page sees as the user's preference."""
        value = "dark" if dark else "light"
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def close(self) -> None:
        """Ends the browser."""
        self._call("DELETE", self._session)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        content = None if method in ("GET", "DELETE") else json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._driver + path, content, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise BrowserError(f"{method} {path}: {json.load(error)['value']['message']}") from None


@contextmanager
def browser(size: tuple[int, int] = (1440, 900)) -> Iterator[Browser]:
    """A new window with an empty profile."""
    with tempfile.TemporaryDirectory(prefix="tf-chromium-", ignore_cleanup_errors=True) as folder:
        driver = subprocess.Popen(
            [str(shutil.which("chromedriver")), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            assert driver.stdout is not None
            found = next((match for line in driver.stdout if (match := _PORT.search(line)) and "successfully" in line), None)
            assert found is not None, "chromedriver did not start"
            window = Browser(f"http://127.0.0.1:{found[1]}", size, Path(folder))
            try:
                yield window
            finally:
                window.close()
        finally:
            driver.terminate()
            driver.wait(timeout=SECONDS)
            if driver.stdout is not None:
                driver.stdout.close()
