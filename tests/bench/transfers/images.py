"""Images: a pull over a link of 1 Gb/s against `curl` of its layers, unpacking apart, and a second pull.

Namespaces and cables are those of ``copies``. ``python -m tests.bench.transfers.images`` runs it alone, ``… pull`` is a Mac in
it.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.images import pull as pulls
from thunderfleet_kubelet.images import unpacking
from thunderfleet_kubelet.images.registry.clients import Clients
from thunderfleet_kubelet.images.registry.reference import parse
from thunderfleet_kubelet.images.settings import PullSettings
from thunderfleet_kubelet.images.store import Store
from thunderfleet_kubelet.node.machine import here

from tests.bench.figures import Bound, Figure
from tests.bench.transfers.copies import LIMIT_SECONDS, MEGABYTE, NotMeasured, Say, bench_of_copies, output_of
from tests.support.images.registry import Entry, Layer, Registry, save
from tests.support.models.copies import content

PORT = 18090
NAME = "bench/image"
LAYERS = 4


async def pull(root: Path, host: str) -> dict[str, float]:
    """Pulls the image into ``root``. Seconds of the whole pull and of unpacking, and the bytes of layers that were fetched."""
    store = Store(root)
    store.open()
    settings = PullSettings(plain_http=(host,), platforms=(here(),))
    reference = parse(f"{host}/{NAME}:1")
    assert reference is not None
    unpacked = 0.0
    plain = unpacking.unpack

    async def timed(
        layers: Sequence[tuple[Path, str, str]],
        target: Path,
        max_bytes: int,
        spare: int = 0,
        seconds: float = unpacking.UNPACK_SECONDS,
    ) -> None:
        nonlocal unpacked
        began = time.monotonic()
        await plain(layers, target, max_bytes, spare, seconds)
        unpacked += time.monotonic() - began

    async def room(need: int) -> int:
        return 0

    unpacking.unpack = timed
    began = time.monotonic()
    clients = Clients(None, "bench")
    try:
        found = await pulls.Pull(clients, store, settings, reference, room).run(())
    finally:
        await clients.close()
    return {"seconds": time.monotonic() - began, "unpacking": unpacked, "fetched": found.fetched}


def figures(repeats: int, say: Say, rate: str = "1gbit", size: int = 1000 * MEGABYTE) -> list[Figure]:
    """All figures. Raises NotMeasured."""
    with bench_of_copies() as bench, tempfile.TemporaryDirectory(prefix="tfimages", dir=Path.cwd()) as disk:
        address, _ = bench.cable(1, 2, rate)
        host, folder = f"{address}:{PORT}", Path(disk) / "registry"
        registry = Registry()
        layers = [Layer.of(Entry(f"data-{one}", content(one, size // LAYERS)), compression="") for one in range(LAYERS)]
        registry.put(NAME, "1", registry.image(*layers))
        folder.mkdir()
        save(registry, folder)
        urls = [f"http://{host}/v2/{NAME}/blobs/{digest}" for digest, blob in registry.blobs.items() if len(blob) > MEGABYTE]
        server = _in(bench.space(1), sys.executable, "-m", "tests.support.images.registry", str(folder), str(PORT), address)
        try:
            _until(folder / "ready")
            return _measure(bench.space(2), Path(disk), host, urls, repeats, say, f"{size / 1e9:.2g} GB, {rate}")
        finally:
            server.kill()
            server.communicate()


def _measure(space: str, disk: Path, host: str, urls: list[str], repeats: int, say: Say, note: str) -> list[Figure]:
    ours, other, unpacked, again = [], [], [], []
    for number in range(repeats):
        words = [word for index, url in enumerate(urls) for word in ("-o", str(disk / f"curl-{index}"), url)]
        began = time.monotonic()
        output_of(_in(space, "curl", "--silent", "--fail", *words))
        other.append(time.monotonic() - began)
        size = sum(file.stat().st_size for file in disk.glob("curl-*")) / MEGABYTE
        for file in disk.glob("curl-*"):
            file.unlink()
        root = disk / "store"
        ask = (sys.executable, "-m", "tests.bench.transfers.images", "pull", str(root), host)
        first, second = (json.loads(output_of(_in(space, *ask))) for _ in range(2))
        shutil.rmtree(root)
        ours.append(first["seconds"] - first["unpacking"])
        unpacked.append(first["unpacking"])
        again.append(float(second["fetched"]))
        say(f"image {number}: {size / ours[-1]:.1f} MB/s, curl {size / other[-1]:.1f} MB/s, unpacked in {unpacked[-1]:.1f} s")
    rates, others = tuple(size / one for one in ours), tuple(size / one for one in other)
    return [
        Figure("image pulled", "MB/s", rates, others, "curl of its layers", Bound(">=", 0.9), note),
        Figure("image unpacked", "s", tuple(unpacked), note=f"{note}, {LAYERS} layers that are not compressed"),
        Figure("second pull", "bytes", tuple(again), bound=Bound("<=", 0), note="layers that were fetched"),
    ]


def _in(space: str, *command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(["ip", "netns", "exec", space, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _until(file: Path) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not file.exists():
        if time.monotonic() > limit:
            raise NotMeasured("the registry did not start")
        time.sleep(0.1)


def _main() -> None:
    from tests.bench.figures import table

    if sys.argv[1:2] == ["pull"]:
        print(json.dumps(asyncio.run(pull(Path(sys.argv[2]), sys.argv[3]))))
        return
    said: Any = table(figures(int(os.environ.get("REPEATS", "3")), print))
    print(said)


if __name__ == "__main__":
    _main()
