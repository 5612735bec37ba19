"""Takes the pictures of the documentation from a real run: recorded Macs, the chart, models, and the page in Chromium.

``python -m tests.support.page.screenshots FILE`` (``make screenshots``).
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.line import MODEL, Deployment, Line, on_fleet
from tests.support.page.browser import browser
from tests.support.waiting import until

MAC = "  - {{name: studio-{0}, model: Mac Studio (M3 Ultra), memory: 512 GB, rdma: true, jaccl: recorded}}\n"
CABLES = ("1:1 2:1", "1:2 3:1", "1:3 4:1", "2:2 3:2", "2:3 4:2", "3:3 4:3", "5:1 6:1", "5:2 6:2")
LOOSE = "mini-1:1"
"""Of a cable that is pulled, so that the picture shows what that looks like."""
MAX_BYTES = 200_000


def fleet() -> str:
    """Four Macs with a cable between each pair, two with two cables, and one at the end of a cable."""
    ends = (one.split() for one in CABLES)
    cables = "".join(f'  - {{a: "studio-{a}", b: "studio-{b}", speed: 80}}\n' for a, b in ends)
    loose = f'  - {{a: "studio-6:3", b: "{LOOSE}", speed: 40}}\n'
    mini = "  - {name: mini-1, model: Mac mini (M4), memory: 32 GB}\n"
    # The operator runs on the Linux machine.
    linux = "  - {name: linux-1, kind: linux}\n"
    macs = "".join(MAC.format(number) for number in range(1, 7))
    return f"machines:\n{linux}{macs}{mini}cables:\n{cables}{loose}"


@contextlib.contextmanager
def page_address(line: Line, *, plugin: bool = False) -> Iterator[str]:
    """Runs ``thunderfleet ui`` (or, as a ``plugin``, ``kubectl thunderfleet ui``) for a cluster; the address that it prints."""
    ours, kubeconfig = Path(sys.executable).parent, str(line.cluster.kubeconfig)
    program = [str(line.cluster.tool("kubectl")), "thunderfleet"] if plugin else [str(ours / "thunderfleet")]
    # kubectl looks for its plugins on the path.
    environment = {**os.environ, "PATH": f"{ours}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        [*program, "ui", "--kubeconfig", kubeconfig],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=30)


def deploy(line: Line, name: str, macs: range) -> Deployment:
    """A model on certain Macs, in the namespace that the page does not name."""
    for number in macs:
        line.kubectl("label", "node", f"studio-{number}", f"desk={name}")
    spec = {
        "model": {"repository": MODEL},
        "nodes": {"min": len(macs), "max": len(macs), "selector": {"desk": name}},
        "transport": "JACCL",
        "benchmark": {"promptTokens": 64, "generationTokens": 16},
    }
    found = Deployment(line, "default", name)
    found.apply(spec)
    return found


@contextlib.contextmanager
def busy(deployment: Deployment) -> Iterator[None]:
    """Sends requests to a model repeatedly, so that its cables have traffic."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                deployment.ask("Tell me about cables.", 200)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main(file: Path) -> int:
    """Writes the picture, and a dark one into the folder for temporary files."""
    with on_fleet(fleet(), "pictures", "", "operator.replicas=1") as line:
        chat, code = deploy(line, "chat", range(1, 5)), deploy(line, "code", range(5, 7))
        for one in (chat, code):
            one.until_ready()
        measured = "the benchmarks have ended"
        until(lambda: all(one.get()["status"].get("tokensPerSecond") for one in (chat, code)), measured)
        with page_address(line) as address, browser((1440, 960)) as window, busy(chat):
            window.open(address)
            shown = "return document.querySelectorAll('.row[data-health=good]').length"
            until(lambda: window.run(shown) == 2, "both models are shown", describe=lambda: window.text("body"))
            flowing = """
              const { scene } = await import('/assets/page.js');
              return scene.store.notes.length ? 0 : scene.store.rates.size
            """
            until(lambda: window.run(flowing) > 0, "there are rates of cables", describe=lambda: window.text("body"))
            line.cluster.cable("pull", LOOSE)
            until(lambda: "1 problem" in window.text("#counts"), "the pulled cable is shown")
            # A busy machine answers late now and then, which the page says in a note; the picture is of a calm one.
            until(lambda: window.run(flowing) > 0, "there are rates of cables still", describe=lambda: window.text("body"))
            file.write_bytes(picture := window.screenshot())
            window.dark()
            Path(tempfile.gettempdir(), f"{file.stem}-dark.png").write_bytes(window.screenshot())
    print(f"{file}: {len(picture)} bytes")
    return 0 if len(picture) < MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
