"""Figures of groups: how soon they form when a rank starts late, and how soon they serve again after a rank was killed.

``python -m tests.bench.groups.formation [--skew SECONDS …] [--repeats N]`` runs without a cluster: real supervisors in this
process, their ranks as processes, on loopback.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_operator.act import keys
from thunderfleet_runner.group.decide.attempts import Phase
from thunderfleet_runner.supervisor import Supervisor, SupervisorSettings

from tests.bench.baseline import free_port
from tests.bench.figures import Bound, Figure, table
from tests.bench.line import BenchFailed

SIZES = (2, 4, 8)
SKEWS = (0.0, 5.0, 30.0)
LONG_SKEW = 30.0
"""From this skew on, each is measured once."""
ATTEMPTS = 4
WAIT_SECONDS = 180.0

Say = Callable[[str], None]


def _plan(size: int, model: Path) -> Plan:
    each = 2 + 2 * ATTEMPTS
    first = free_port(size * each)
    ranks = []
    for rank in range(size):
        gateway, control, *ring = range(first + rank * each, first + (rank + 1) * each)
        ranks.append(
            {
                "rank": rank, "node": f"mac-{rank}", "pod": f"bench-{rank}", "address": "127.0.0.1", "controlPort": control,
                "gatewayPort": gateway, "ringAddress": "127.0.0.1", "ringPorts": ring, "memoryBytes": 64 << 20,
            }
        )  # fmt: skip
    return Plan.model_validate(
        {
            "namespace": "bench", "deployment": "b", "uid": f"{os.getpid()}-{first}", "index": 0, "epoch": 1, "model": "m",
            "modelPath": str(model), "backend": "ring", "split": "Tensor", "ranks": ranks,
            "memory": {"contextTokens": 256, "concurrentRequests": 2, "cachedTokens": 0},
            "bootstrap": {"attempts": ATTEMPTS, "attemptTimeoutSeconds": 120},
        }
    )  # fmt: skip


class Group:
    """Supervisors of one group, in this process."""

    def __init__(self, folder: Path, size: int, model: Path, *, gateway: bool = False) -> None:
        self.plan, self._folder, self._gateway = _plan(size, model), folder, gateway
        pair = keys.group_keys(b"k" * 32, self.plan)
        (folder / "keys").mkdir()
        (folder / "keys" / "tls.crt").write_text(pair.certificate)
        (folder / "keys" / "tls.key").write_text(pair.key)
        self.supervisors: dict[int, Supervisor] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, rank: int) -> None:
        settings = SupervisorSettings(
            plan=self.plan, pod=f"bench-{rank}", node=f"mac-{rank}", keys_folder=self._folder / "keys",
            state_folder=self._folder / f"state-{rank}", gateway=self._gateway, benchmark=False,
        )  # fmt: skip
        self.supervisors[rank] = Supervisor(settings)
        self._tasks.append(asyncio.create_task(self.supervisors[rank].run()))

    @property
    def stage(self) -> Phase:
        role = self.supervisors[0].role
        return role.machine.phase  # type: ignore[union-attr]

    async def until(self, *stages: Phase) -> float:
        """When the group came to be in one of these stages (monotonic seconds)."""
        async with asyncio.timeout(WAIT_SECONDS):
            while self.stage not in stages:
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.005)
        return time.monotonic()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _group(size: int, model: Path) -> AsyncIterator[Group]:
    with tempfile.TemporaryDirectory(prefix="formation-") as name:
        group = Group(Path(name), size, model)
        try:
            yield group
        finally:
            await group.end()


async def _form(size: int, skew: float, model: Path, last: int) -> float:
    """Seconds from the start of the last supervisor, that of rank ``last``, until all ranks have formed."""
    async with _group(size, model) as group:
        for rank in range(size):
            if rank != last:
                group.start(rank)
        await asyncio.sleep(skew)
        group.start(last)
        began = time.monotonic()
        return await group.until(Phase.LOADING, Phase.COMPARING, Phase.READY) - began


async def _bare(size: int) -> float:
    """Seconds of ranks that are started together with a hostfile and without Thunderfleet: Python, MLX, its ring, one sum."""
    first = free_port(size)
    code = "import mlx.core as mx; mx.distributed.init(strict=True, backend='ring'); mx.distributed.all_sum(mx.ones(1)).item()"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([[f"127.0.0.1:{first + rank}"] for rank in range(size)], file)
        file.flush()
        began = time.monotonic()
        ranks = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, env={**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": file.name}
            )
            for rank in range(size)
        ]
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                codes = [await rank.wait() for rank in ranks]
        finally:
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    rank.kill()
        if any(codes):
            raise BenchFailed(f"bare ranks ended with {codes}")
        return time.monotonic() - began


async def _recover(model: Path) -> tuple[float, float, float]:
    """Seconds from a fresh start to Ready, and from the end of a rank until it is noticed and until the group serves again."""
    async with _group(2, model) as group:
        began = time.monotonic()
        group.start(0)
        group.start(1)
        fresh = await group.until(Phase.READY) - began
        pid = group.supervisors[1].member.pid
        assert pid is not None
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        noticed = await group.until(*(set(Phase) - {Phase.READY})) - killed
        return fresh, noticed, await group.until(Phase.READY) - killed


def _empty_model(folder: Path) -> Path:
    """The files that preflight needs, for ranks that load nothing."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    return folder


def figures(repeats: int, say: Say, skews: Sequence[float] = SKEWS) -> list[Figure]:
    """Times to form, and from the end of a rank to Ready."""
    found = []
    with tempfile.TemporaryDirectory(prefix="formation-models-") as name:
        tiny = Path(name) / "tiny"
        tinymodel.make(tiny)
        # Ranks load nothing: the measurement ends before that.
        empty = _empty_model(Path(name) / "empty")
        cases = [(size, skew, size - 1) for size in SIZES for skew in skews]
        cases += [(4, skew, 0) for skew in skews if 0 < skew < LONG_SKEW]
        for size, skew, last in cases:
            bare: list[float] = []
            took: list[float] = []
            for _ in range(repeats if skew < LONG_SKEW else 1):
                bare.append(asyncio.run(_bare(size)))
                took.append(asyncio.run(_form(size, skew, empty, last)))
            who = f"rank {last}'s supervisor began, {skew:g} s after the others'"
            note = f"after {who}; bare ranks, started at once, take {statistics.median(bare):.2f} s"
            title = f"form {size} skew {skew:g}" + ("" if last else ", rank 0 last")
            found.append(Figure(title, "s", tuple(took), bound=Bound("<=", 2.0), note=note))
            say(f"{title}: {statistics.median(took):.2f} s {note}")
        runs = [asyncio.run(_recover(tiny)) for _ in range(repeats)]
        fresh, noticed, again = (tuple(run[part] for run in runs) for part in range(3))
        say(f"noticed {statistics.median(noticed):.2f} s, serving {statistics.median(again):.2f} s after a kill")
        found.append(Figure("death noticed", "s", noticed, bound=Bound("<=", 3.0), note="SIGKILL to rank 1 of 2"))
        found.append(Figure("death to serving", "s", again, fresh, "fresh start", Bound("<=", 2.0), "2 ranks"))
    return found


def run(_: object, repeats: int, say: Say) -> list[Figure]:
    """As one of the benchmarks; it needs no line."""
    return figures(repeats, say)


def main() -> int:
    """0 when every bound holds, 1 when one does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.groups.formation", description=__doc__)
    parser.add_argument("--skew", type=float, nargs="+", default=SKEWS, help="seconds that the last rank is late")
    parser.add_argument("--repeats", type=int, default=3, help="how often each is measured (default: 3)")
    arguments = parser.parse_args()
    found = figures(arguments.repeats, lambda text: print(text, file=sys.stderr, flush=True), arguments.skew)
    print(table(found))
    return 0 if all(figure.holds is not False for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
