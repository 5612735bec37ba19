"""Copies of models from Mac to Mac: against iperf3 on the same cable, in a chain, over two cables; memory, many files, hashes.

Each Mac is a process in a network namespace; cables are pairs of virtual interfaces, shaped with `tc`. The files are in memory
(/dev/shm), so that the disk is not what is measured. ``python -m tests.bench.transfers.copies [NAME …]`` runs these alone.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from thunderfleet_agent.copies.shelf import hash_chunks
from thunderfleet_lib.modelstore.manifest import Manifest
from thunderfleet_lib.modelstore.store import Store

from tests.bench.figures import Bound, Figure
from tests.bench.transfers.copymac import PORT
from tests.support.models.copies import REPOSITORY, content, fill, make_identity, manifest

MEGABYTE = 10**6
IPERF_SECONDS = 4
LIMIT_SECONDS = 120.0
SHAPE = "burst 256kb latency 50ms"

Say = Callable[[str], None]


class NotMeasured(Exception):
    """Something that the benchmark needs is missing."""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise NotMeasured(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()[:300]}")
    return done.stdout


def output_of(process: "subprocess.Popen[str]") -> str:
    """What a process has printed at its end. Raises NotMeasured if it fails or takes too long."""
    try:
        said, complained = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise NotMeasured(f"{process.args!r} did not end within {LIMIT_SECONDS:g} s") from None
    if process.returncode:
        raise NotMeasured((complained or said).strip()[-400:])
    return said


class BenchMac:
    """A process in a namespace."""

    def __init__(
        self, bench: "CopyBench", number: int, addresses: list[str], root: Path | None = None, port: int = PORT
    ) -> None:
        self.node = f"mac-{number}"
        self.space = bench.space(number)
        self.addresses = addresses
        self.root = root or bench.folder / self.node
        config = {
            "node": self.node,
            "root": str(self.root),
            "identity": str(bench.identity),
            "addresses": addresses,
            "port": port,
        }
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", self.space, sys.executable, "-m", "tests.bench.transfers.copymac", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()

    def ask(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotMeasured(f"{self.node} ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def do(self, **command: Any) -> dict[str, Any]:
        self.ask(**command)
        return self.answer()

    def lists_known(self) -> None:
        """Waits until the hashes of chunks are computed."""
        until = time.monotonic() + LIMIT_SECONDS
        while not self.do(do="lists")["known"]:
            if time.monotonic() > until:
                raise NotMeasured(f"{self.node} has not computed its hashes within {LIMIT_SECONDS:g} s")
            time.sleep(0.2)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)


class CopyBench:
    """Namespaces, cables and Macs; everything is removed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.identity = folder / "identity"
        make_identity(self.identity)
        self._spaces: list[str] = []
        self._cables = 0
        self._macs: list[BenchMac] = []

    def space(self, number: int) -> str:
        """The namespace of a Mac; made if needed."""
        name = f"tfcopy{os.getpid()}-{number}"
        if name not in self._spaces:
            _run("ip", "netns", "add", name)
            self._spaces.append(name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def cable(self, a: int, b: int, rate: str | None) -> tuple[str, str]:
        """Joins two Macs. Returns the addresses of both ends. ``rate`` as `tc` has it."""
        self._cables += 1
        ends = (f"10.77.{self._cables}.1", f"10.77.{self._cables}.2")
        names = (f"tfc{self._cables}a", f"tfc{self._cables}b")
        spaces = (self.space(a), self.space(b))
        peer = ["type", "veth", "peer", "name", names[1], "netns", spaces[1]]
        _run("ip", "link", "add", names[0], "netns", spaces[0], *peer)
        for name, space, address in zip(names, spaces, ends, strict=True):
            _run("ip", "-n", space, "addr", "add", f"{address}/30", "dev", name)
            _run("ip", "-n", space, "link", "set", name, "up")
            if rate:
                tc = ["tc", "-n", space, "qdisc", "add", "dev", name, "root", "tbf", "rate", rate, *SHAPE.split()]
                _run(*tc)
        return ends

    def mac(self, number: int, *addresses: str, root: Path | None = None, port: int = PORT) -> BenchMac:
        """A Mac in a namespace. ``root``: its store, else in memory."""
        mac = BenchMac(self, number, list(addresses), root, port)
        self._macs.append(mac)
        return mac

    def model(self, number: int, files: Mapping[str, bytes]) -> tuple[Manifest, Path]:
        """Puts a model into the store of a Mac that has not started. Returns it, and a file with its manifest."""
        whole = manifest(files)
        store = Store(self.folder / f"mac-{number}")
        store.prepare()
        fill(store, whole, files)
        path = self.folder / "manifest.json"
        path.write_bytes(whole.canonical)
        return whole, path

    def iperf(self, a: int, b: int, address: str) -> float:
        """Bytes per second from Mac ``a`` at ``address`` to Mac ``b``."""
        if shutil.which("iperf3") is None:
            raise NotMeasured("the program iperf3 is not installed")
        server = subprocess.Popen(
            ["ip", "netns", "exec", self.space(a), "iperf3", "-s", "-1", "-B", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until = time.monotonic() + 20
            while True:
                command = ["iperf3", "-c", address, "-R", "-J", "-t", str(IPERF_SECONDS)]
                done = subprocess.run(
                    ["ip", "netns", "exec", self.space(b), *command], capture_output=True, text=True, timeout=60, check=False
                )
                received = json.loads(done.stdout or "{}").get("end", {}).get("sum_received")
                if received:
                    return float(received["bits_per_second"]) / 8
                if time.monotonic() > until:
                    raise NotMeasured(f"iperf3: {done.stdout[-300:]}")
                time.sleep(0.2)
        finally:
            server.kill()
            server.wait(10)

    def close(self) -> None:
        for mac in self._macs:
            mac.close()
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, timeout=20, check=False)


@contextlib.contextmanager
def bench_of_copies() -> Iterator[CopyBench]:
    """Namespaces in which models are copied. Raises NotMeasured."""
    if os.geteuid() != 0:
        raise NotMeasured("namespaces need root")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="tfcopy", dir=memory if memory.is_dir() else None) as folder:
        bench = CopyBench(Path(folder))
        try:
            yield bench
        finally:
            bench.close()


def fetch(mac: BenchMac, path: Path, *ways: dict[str, str], forget: bool = True) -> dict[str, Any]:
    """Lets a Mac copy a model. Raises NotMeasured."""
    found = mac.do(do="fetch", manifest=str(path), ways=ways, forget=forget)
    if not found["done"]:
        raise NotMeasured(f"{mac.node} did not finish")
    return found


def one_cable(rate: str | None, size: int, repeats: int, say: Say) -> list[Figure]:
    """A copy over one cable, against iperf3 on the same one, one after the other."""
    with bench_of_copies() as bench:
        here, there = bench.cable(1, 2, rate)
        whole, path = bench.model(1, {"model.safetensors": content(1, size)})
        source = bench.mac(1, here)
        target = bench.mac(2, there)
        source.lists_known()
        ours, other, cpu, memory = [], [], [], [0.0]
        for number in range(repeats):
            other.append(bench.iperf(1, 2, here) / MEGABYTE)
            before = source.do(do="usage")
            found = fetch(target, path, {"node": source.node, "address": here, "source": there})
            after = source.do(do="usage")
            ours.append(whole.total_bytes / MEGABYTE / found["seconds"])
            giga = whole.total_bytes / 1e9
            cpu.append((found["cpu"] / giga, (after["cpu"] - before["cpu"]) / giga))
            memory = [found["megabytes"], after["megabytes"]]
            say(f"{rate or 'unshaped'} {number}: {ours[-1]:.0f} MB/s, iperf3 {other[-1]:.0f} MB/s, CPU s/GB {cpu[-1]}")
        name = f"copy at {rate}" if rate else "copy, cable not shaped"
        bound = Bound(">=", 0.9) if rate else None
        figures = [Figure(name, "MB/s", tuple(ours), tuple(other), "iperf3", bound, f"{size / 1e9:.2g} GB")]
        if rate is None:
            figures += [
                Figure("receiving", "CPU s/GB", tuple(one for one, _ in cpu), note="TLS, hashes of chunks and whole, write"),
                Figure("sending", "CPU s/GB", tuple(one for _, one in cpu), note="read, TLS"),
                Figure("agent's memory at full rate", "MB", (max(memory),), bound=Bound("<=", 120), note="peak, both ends"),
            ]
        return figures


def chain(repeats: int, say: Say, macs: int = 6, rate: str = "200mbit", size: int = 400 * MEGABYTE) -> list[Figure]:
    """All Macs of a chain from its first one, against one copy over its first cable."""
    with bench_of_copies() as bench:
        ends = [bench.cable(number, number + 1, rate) for number in range(1, macs)]
        _, path = bench.model(1, {"model.safetensors": content(2, size)})
        at: list[list[str]] = [[ends[0][0]], *([ends[n - 1][1], ends[n][0]] for n in range(1, macs - 1)), [ends[-1][1]]]
        all_macs = [bench.mac(number, *at[number - 1]) for number in range(1, macs + 1)]
        all_macs[0].lists_known()
        ours, other = [], []
        for number in range(repeats):
            one = fetch(all_macs[1], path, {"node": "mac-1", "address": ends[0][0], "source": ends[0][1]})
            other.append(one["seconds"])
            began = time.monotonic()
            for which in range(1, macs):
                before = {"node": f"mac-{which}", "address": ends[which - 1][0], "source": ends[which - 1][1]}
                all_macs[which].ask(do="fetch", manifest=str(path), ways=[before], forget=False)
            answers = [mac.answer() for mac in all_macs[1:]]
            if not all(answer["done"] for answer in answers):
                raise NotMeasured("a Mac of the chain did not finish")
            ours.append(time.monotonic() - began)
            say(f"chain {number}: {ours[-1]:.1f} s, one copy {other[-1]:.1f} s")
            for mac in all_macs[1:]:
                shutil.rmtree(mac.root / f"models--{REPOSITORY.replace('/', '--')}", ignore_errors=True)
        note = f"{size / 1e9:.2g} GB at {rate} each"
        return [Figure(f"a chain of {macs} Macs", "s", tuple(ours), tuple(other), "one copy", Bound("<=", 1.3), note)]


def two_cables(repeats: int, say: Say, rate: str = "600mbit", size: int = 500 * MEGABYTE) -> list[Figure]:
    """Two cables between the same Macs, against one of them."""
    with bench_of_copies() as bench:
        ends = [bench.cable(1, 2, rate) for _ in range(2)]
        whole, path = bench.model(1, {"model.safetensors": content(3, size)})
        source, target = bench.mac(1, *(a for a, _ in ends)), bench.mac(2, *(b for _, b in ends))
        source.lists_known()
        ways = [{"node": source.node, "address": a, "source": b} for a, b in ends]
        ours, other = [], []
        for number in range(repeats):
            other.append(whole.total_bytes / MEGABYTE / fetch(target, path, ways[0])["seconds"])
            ours.append(whole.total_bytes / MEGABYTE / fetch(target, path, *ways)["seconds"])
            say(f"two cables {number}: {ours[-1]:.0f} MB/s, one {other[-1]:.0f} MB/s")
        return [Figure("two cables", "MB/s", tuple(ours), tuple(other), "one cable", Bound(">=", 1.8), f"{rate} each")]


def many_files(repeats: int, say: Say, count: int = 10_000) -> list[Figure]:
    """Many small files, against `cp -r` of the same in memory."""
    with bench_of_copies() as bench:
        here, there = bench.cable(1, 2, None)
        whole, path = bench.model(1, {f"part-{n % 100}/{n}.json": b"%d" % n * 40 for n in range(count)})
        source, target = bench.mac(1, here), bench.mac(2, there)
        ours, other = [], []
        for _ in range(repeats):
            ours.append(fetch(target, path, {"node": source.node, "address": here, "source": there})["seconds"])
            began, copied = time.monotonic(), bench.folder / "copied"
            _run("cp", "-rL", str(source.root / "models--owner--model" / "snapshots" / whole.commit), str(copied))
            other.append(time.monotonic() - began)
            shutil.rmtree(copied)
            say(f"{count} files: {ours[-1]:.1f} s, cp {other[-1]:.1f} s")
        return [Figure(f"{count} small files", "s", tuple(ours), tuple(other), "cp -r")]


def verification(repeats: int, say: Say, size: int = 1000 * MEGABYTE) -> list[Figure]:
    """The hashes of chunks and of the whole, against SHA-256 of the whole alone."""
    with bench_of_copies() as bench:
        whole, _ = bench.model(1, {"model.safetensors": content(4, size)})
        path = Store(bench.folder / "mac-1").layout.blob(REPOSITORY, whole.files[0].blob)
        ours, other = [], []
        for _ in range(repeats):
            began = time.process_time()
            with path.open("rb", buffering=0) as file:
                hashlib.file_digest(file, "sha256")
            other.append((time.process_time() - began) / size * 1e9)
            began = time.process_time()
            with path.open("rb", buffering=0) as file:
                _, right = hash_chunks(file.fileno(), whole.files[0], threading.Event())
            ours.append((time.process_time() - began) / size * 1e9)
            if not right:
                raise NotMeasured("the hash is wrong")
        return [Figure("verification", "CPU s/GB", tuple(ours), tuple(other), "SHA-256 alone", note="chunks and whole")]


PARTS: dict[str, Callable[[int, Say], list[Figure]]] = {
    "1gbit": lambda repeats, say: one_cable("1gbit", 600 * MEGABYTE, repeats, say),
    "2.5gbit": lambda repeats, say: one_cable("2500mbit", 1500 * MEGABYTE, repeats, say),
    "unshaped": lambda repeats, say: one_cable(None, 2000 * MEGABYTE, repeats, say),
    "chain": chain,
    "cables": two_cables,
    "files": many_files,
    "verification": verification,
}


def figures(repeats: int, say: Say, names: tuple[str, ...] = tuple(PARTS)) -> list[Figure]:
    """All figures. Raises NotMeasured."""
    return [figure for name in names for figure in PARTS[name](repeats, say)]


if __name__ == "__main__":
    from tests.bench.figures import table

    print(table(figures(int(os.environ.get("REPEATS", "3")), print, tuple(sys.argv[1:]) or tuple(PARTS))))
