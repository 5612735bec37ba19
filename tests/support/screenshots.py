"""Takes the pictures of the documentation from a real run: recorded Macs, the chart, models, and the page in Chromium.

``python -m tests.support.screenshots FILE`` (``make screenshots``).
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.browser import browser
from tests.support.line import Line, on_fleet
from tests.support.waiting import until

MAC = "  - {{name: studio-{0}, model: Mac Studio (M3 Ultra), memory: 512 GB, rdma: true, jaccl: recorded}}\n"
CABLES = ("1:1 2:1", "1:2 3:1", "1:3 4:1", "2:2 3:2", "2:3 4:2", "3:3 4:3", "5:1 6:1", "5:2 6:2")
MAX_BYTES = 200_000


def fleet() -> str:
    """Four Macs with a cable between each pair, and two with two cables."""
    ends = (one.split() for one in CABLES)
    cables = "".join(f'  - {{a: "studio-{a}", b: "studio-{b}", speed: 80}}\n' for a, b in ends)
    # The operator runs on the Linux machine.
    linux = "  - {name: linux-1, kind: linux}\n"
    return f"machines:\n{linux}{''.join(MAC.format(number) for number in range(1, 7))}cables:\n{cables}"


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


def main(file: Path) -> int:
    """Writes the picture."""
    with on_fleet(fleet(), "pictures", "", "operator.replicas=1") as line:
        benchmark = {"promptTokens": 64, "generationTokens": 16}
        chat = line.deploy("chat", nodes={"min": 4, "max": 4}, transport="JACCL", benchmark=benchmark)
        code = line.deploy("code", nodes={"min": 2, "max": 2}, transport="JACCL", benchmark=benchmark)
        for one in (chat, code):
            one.until_ready()
        measured = "the benchmarks have ended"
        until(lambda: all(one.get()["status"].get("tokensPerSecond") for one in (chat, code)), measured)
        with page_address(line) as address, browser((1440, 960)) as window:
            window.open(address)
            shown = "document.querySelectorAll('.row[data-health=good]').length"
            until(lambda: window.run(f"return {shown}") == 2, "both models are shown", describe=lambda: window.text("body"))
            # The bar of a fleet whose picture has moved into place.
            window.run("await new Promise((resolve) => setTimeout(resolve, 1000))")
            file.write_bytes(picture := window.screenshot())
    print(f"{file}: {len(picture)} bytes")
    return 0 if len(picture) < MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
