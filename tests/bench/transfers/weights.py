"""Weights: the hub against `hf download`, ranks beside a copy on their cable, and what loading from a neighbour could save.

Namespaces and cables are those of ``copies``. ``python -m tests.bench.transfers.weights [NAME …]`` runs these alone.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thunderfleet_lib.modelstore.store import Store

from tests.bench.figures import Bound, Figure
from tests.bench.transfers.copies import MEGABYTE, CopyBench, NotMeasured, Say, bench_of_copies, fetch, output_of
from tests.support.models.copies import REPOSITORY, content

HUB_PORT = 18080
USED_CABLE = 25 * MEGABYTE
"""The default of the chart's value usedCableBytesPerSecond."""
STEP_MILLISECONDS = 10.0
RANKS_SECONDS = 6.0


def safetensors(seed: int, size: int) -> bytes:
    """A file of weights that MLX loads: one array of bytes."""
    head = json.dumps({"weights": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(head)) + head + content(seed, size)


def _in(bench: CopyBench, number: int, *command: str, **environment: str) -> "subprocess.Popen[str]":
    """A program in the namespace of a Mac."""
    return subprocess.Popen(
        ["ip", "netns", "exec", bench.space(number), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def hub(repeats: int, say: Say, rate: str = "500mbit", size: int = 300 * MEGABYTE) -> list[Figure]:
    """A download with all its checks, from the start of its process until the store has the model, against `hf download`."""
    with bench_of_copies() as bench:
        here, _ = bench.cable(1, 2, rate)
        folder = bench.folder / "repository"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(safetensors(5, size))
        server = _in(
            bench,
            1,
            *(sys.executable, "-m", "thunderfleet_localcluster.models.hub", here, str(HUB_PORT), f"{REPOSITORY}={folder}"),
        )
        try:
            assert server.stdout is not None
            if "ready" not in server.stdout.readline():
                raise NotMeasured("the hub did not start")
            url = {"HF_ENDPOINT": f"http://{here}:{HUB_PORT}", "HF_HUB_DISABLE_TELEMETRY": "1"}
            ours, other = [], []
            program = str(Path(sys.executable).with_name("hf"))
            for number in range(repeats):
                cache = bench.folder / "cache"
                began = time.monotonic()
                output_of(_in(bench, 2, program, "download", REPOSITORY, "--cache-dir", str(cache), **url))
                other.append(size / MEGABYTE / (time.monotonic() - began))
                shutil.rmtree(cache)
                root = bench.folder / "store"
                began = time.monotonic()
                download = (sys.executable, "-m", "tests.bench.transfers.weightmac", "download", str(root), REPOSITORY)
                output_of(_in(bench, 2, *download, **url))
                ours.append(size / MEGABYTE / (time.monotonic() - began))
                shutil.rmtree(root)
                say(f"hub {number}: {ours[-1]:.1f} MB/s, hf download {other[-1]:.1f} MB/s")
        finally:
            server.kill()
            server.communicate()
        note = f"{size / 1e9:.2g} GB at {rate}, with the hash of all bytes"
        return [Figure("hub", "MB/s", tuple(ours), tuple(other), "hf download", Bound(">=", 0.95), note)]


def beside(repeats: int, say: Say, rate: str = "2500mbit", size: int = 400 * MEGABYTE) -> list[Figure]:
    """Tokens per second of two ranks with a fixed step, while a copy uses their cable, against the same without a copy."""
    with bench_of_copies() as bench:
        here, there = bench.cable(1, 2, rate)
        _, path = bench.model(1, {"model.safetensors": content(6, size)})
        source, target = bench.mac(1, here), bench.mac(2, there)
        source.lists_known()
        ranks = (sys.executable, "-m", "tests.bench.transfers.weightmac")
        way = {"node": source.node, "address": here, "source": there}

        def tokens() -> float:
            first = _in(bench, 1, *ranks, "answer", here)
            try:
                said = output_of(_in(bench, 2, *ranks, "step", here, str(STEP_MILLISECONDS), str(RANKS_SECONDS)))
            finally:
                first.kill()
                first.communicate()
            return float(said)

        alone, beside_copy = [], []
        for number in range(repeats):
            alone.append(tokens())
            target.ask(do="fetch", manifest=str(path), ways=[way], forget=True, limit=USED_CABLE)
            beside_copy.append(tokens())
            copied = target.answer()
            if not copied["done"] or copied["seconds"] < RANKS_SECONDS:
                raise NotMeasured(f"the copy ended before the ranks: {copied}")
            say(f"ranks {number}: {beside_copy[-1]:.2f} tokens/s beside a copy, {alone[-1]:.2f} alone")
        note = f"{STEP_MILLISECONDS:g} ms steps, 64 KiB each way, {rate} cable, copy at {USED_CABLE / 1e6:g} MB/s"
        return [Figure("tokens beside a copy", "1/s", tuple(beside_copy), tuple(alone), "alone", Bound(">=", 0.99), note)]


def neighbour(repeats: int, say: Say, size: int = 600 * MEGABYTE) -> list[Figure]:
    """What a rank could save by streaming its weights into memory: a copy to the disk and loading it, against a copy in memory.

    The stream is checked as a copy is, and loading it counts as no time, so this is the most that it could save.
    """
    found = []
    for rate in ("1gbit", "2500mbit", None):
        with bench_of_copies() as bench, tempfile.TemporaryDirectory(prefix="tfdisk", dir=Path.cwd()) as disk:
            here, there = bench.cable(1, 2, rate)
            whole, path = bench.model(1, {"model.safetensors": safetensors(7, size)})
            source = bench.mac(1, here)
            source.lists_known()
            way = {"node": source.node, "address": here, "source": there}
            in_memory, on_disk = bench.mac(2, there), bench.mac(2, there, root=Path(disk), port=9441)
            streamed, loaded = [], []
            for number in range(repeats):
                streamed.append(fetch(in_memory, path, way)["seconds"])
                copied = fetch(on_disk, path, way, forget=False)["seconds"]
                model = Store(Path(disk)).layout.snapshot(REPOSITORY, whole.commit) / "model.safetensors"
                load = float(
                    output_of(_in(bench, 2, sys.executable, "-m", "tests.bench.transfers.weightmac", "load", str(model)))
                )
                loaded.append(copied + load)
                shutil.rmtree(Path(disk) / f"models--{REPOSITORY.replace('/', '--')}")
                say(f"{rate or 'unshaped'} {number}: copy {copied:.2f} s and load {load:.2f} s, stream {streamed[-1]:.2f} s")
            name = f"copy and load at {rate}" if rate else "copy and load, cable not shaped"
            found.append(
                Figure(name, "s", tuple(loaded), tuple(streamed), "streamed", note=f"{size / 1e9:.2g} GB; adopted at 1.5")
            )
    return found


PARTS: dict[str, Callable[[int, Say], list[Figure]]] = {"hub": hub, "beside": beside, "neighbour": neighbour}


def figures(repeats: int, say: Say, names: tuple[str, ...] = tuple(PARTS)) -> list[Figure]:
    """All figures. Raises NotMeasured."""
    return [figure for name in names for figure in PARTS[name](repeats, say)]


def _main() -> None:
    from tests.bench.figures import table

    said: Any = table(figures(int(os.environ.get("REPEATS", "3")), print, tuple(sys.argv[1:]) or tuple(PARTS)))
    print(said)


if __name__ == "__main__":
    _main()
