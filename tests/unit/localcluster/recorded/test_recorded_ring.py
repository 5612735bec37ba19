"""Ranks on recorded Macs, which share the processors of one machine, wait for each other without using them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
from thunderfleet_localcluster.recorded import jaccl

from tests.support.network.ports import claim

# Prints how many sockets are changed at the first and the second call, and which of four block then: two of TCP, two others.
SOCKETS = """
import json, os, socket
import recorded_ring
server = socket.create_server(("127.0.0.1", 0))
one, other = socket.create_connection(server.getsockname()), server.accept()[0]
pair = socket.socketpair()
for each in (one, other, *pair):
    each.setblocking(False)
print(json.dumps([recorded_ring.wait(), recorded_ring.wait()]))
print(json.dumps([os.get_blocking(each.fileno()) for each in (one, other, *pair)]))
"""
# Prints how long MLX takes to read a file for the first and for the second time.
READS = """
import json, sys, time
import mlx.core as mx
taken = []
for _ in range(2):
    began = time.monotonic()
    assert mx.load(sys.argv[1])["a"].tolist() == [1, 1]
    taken.append(time.monotonic() - began)
print(json.dumps(taken))
"""
# A rank that adds the numbers of two. The second begins a second later; prints the sum and the processor seconds of that time.
RANK = """
import json, sys, threading, time
import mlx.core as mx
group = mx.distributed.init(strict=True, backend="ring")
add = lambda: mx.distributed.all_sum(mx.ones(300_000) * (group.rank() + 1), group=group, stream=mx.cpu)
mx.eval(add())
if group.rank() == 1:
    threading.Event().wait(1.0)
before = time.process_time()
summed = mx.sum(add() == 3).item()
print(json.dumps([summed, time.process_time() - before]))
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(jaccl.MODULES), **more}


def test_only_connections_that_do_not_block_wait_from_then_on() -> None:
    done = subprocess.run([sys.executable, "-c", SOCKETS], env=environment(), capture_output=True, text=True, check=True)
    counted, blocking = map(json.loads, done.stdout.splitlines())
    assert counted == [2, 0]
    assert blocking == [True, True, False, False]


def test_a_rank_that_waits_for_its_peer_uses_no_processor_and_adds_right(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in claim(2, "127.0.0.1")]))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=environment(MLX_HOSTFILE=str(hosts), MLX_RANK=str(rank)), stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    (added, used), (added_too, _) = (json.loads(rank.communicate(timeout=60)[0]) for rank in ranks)
    assert (added, added_too) == (300_000, 300_000)
    assert used < 0.5, "a thread that spins uses a second"


def test_reading_weights_takes_as_long_as_it_is_told_to_once(tmp_path: Path) -> None:
    folder, weights = tmp_path / "python", tmp_path / "w.safetensors"
    folder.mkdir()
    for path in jaccl.MODULES.glob("*.py"):
        (folder / path.name).write_text(path.read_text())
    mx.save_safetensors(str(weights), {"a": mx.ones(2)})

    def seconds() -> list[float]:
        done = subprocess.run(
            [sys.executable, "-c", READS, str(weights)],
            env=environment(PYTHONPATH=str(folder)), capture_output=True, text=True, check=True,
        )  # fmt: skip
        return list(json.loads(done.stdout))

    jaccl.write_disk(1.0, folder)
    first, second = seconds()
    assert first >= 1.0 > second
    jaccl.write_disk(0, folder)
    assert max(seconds()) < 1.0
