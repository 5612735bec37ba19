"""One rank of a two-rank group over one cable: messages each way, and small all-sums. Runs in a ``measure-child``.

Both ranks run exactly this, in this order; how many messages follow is computed from a sum that both have, since a rank that
stopped earlier would leave the other in a collective. Over JACCL the gathers go through the agents; over the ring MLX dials by
the hostfile. Times are taken where the bytes arrive.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thunderfleet_agent.measure.worker.child import Pipe

PAYLOAD = 4 << 20
SMALL = 16
TRIPS = 50
WARM_TRIPS = 10
SUMS = 30
FIRST = 4
MOST = 4096
# Part of the probe's time that messages of one direction take.
SHARE = 0.1


def environment(order: dict[str, Any], folder: str) -> dict[str, str]:
    """MLX's variables for one rank, from ``devices`` (RDMA) or ``hosts`` (ring, ``ip:port``), each in order of ranks."""
    path = os.path.join(folder, "group.json")
    if order["backend"] == "jaccl":
        first, second = order["devices"]
        matrix: Any = [[None, first], [second, None]]
        told = {"MLX_RANK": str(order["rank"]), "MLX_IBV_DEVICES": path}
    else:
        matrix = [[host] for host in order["hosts"]]
        told = {"MLX_RANK": str(order["rank"]), "MLX_HOSTFILE": path}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(matrix, file)
    return told


def measure(order: dict[str, Any], pipe: Pipe) -> dict[str, Any]:
    """What this rank found: ``receivedMbps`` and ``sentMbps`` (as the other rank timed it), ``rttMicroseconds``,
    ``jitterMicroseconds``, ``allSumMicroseconds``, ``payloadBytes``. Raises RuntimeError or ValueError in MLX's words.
    """
    for name in [name for name in os.environ if name.startswith(("MLX_", "JACCL_"))]:
        del os.environ[name]
    import mlx.core as mx

    backend, rank = str(order["backend"]), int(order["rank"])
    if not mx.distributed.is_available(backend):
        raise RuntimeError(f"MLX on this Mac has no backend {backend}")
    with tempfile.TemporaryDirectory(prefix="thunderfleet-measure-") as folder:
        os.environ.update(environment(order, folder))
        options = {"all_gather_factory": pipe.exchange} if backend == "jaccl" else {}
        group = mx.distributed.init(strict=True, backend=backend, **options)
    if (group.rank(), group.size()) != (rank, 2):
        raise RuntimeError(f"rank {rank} of 2 was agreed on, MLX says rank {group.rank()} of {group.size()}")
    pipe.say({"formed": rank})
    return _measure(mx, group, rank, int(order["bytes"]), float(order["seconds"]) * SHARE)


def _measure(mx: Any, group: Any, rank: int, most: int, seconds: float) -> dict[str, Any]:
    peer, small = 1 - rank, mx.zeros((SMALL // 4,), mx.float32)
    payload = mx.zeros((PAYLOAD // 4,), mx.float32)
    mx.eval(small, payload)

    def total(value: float) -> float:
        return float(mx.distributed.all_sum(mx.array([value], mx.float32), group=group, stream=mx.cpu).item())

    def send(array: Any) -> None:
        mx.eval(mx.distributed.send(array, peer, group=group, stream=mx.cpu))

    def receive(array: Any) -> float:
        mx.eval(mx.distributed.recv_like(array, peer, group=group, stream=mx.cpu))
        return time.perf_counter()

    def trip() -> float:
        begun = time.perf_counter()
        if rank == 0:
            send(small)
            return receive(small) - begun
        receive(small)
        send(small)
        return 0.0

    def stream(sender: int, count: int) -> float:
        """Seconds from the first message that has arrived to the last (the receiver's; 0 at the sender)."""
        if rank == sender:
            for _ in range(count):
                send(payload)
            return 0.0
        times = [receive(payload) for _ in range(count)]
        return times[-1] - times[0]

    if total(rank + 1.0) != 3.0:
        raise RuntimeError("the group adds up wrongly")
    sums = []
    for _ in range(SUMS + 1):
        begun = time.perf_counter()
        total(1.0)
        sums.append(time.perf_counter() - begun)
    trips = [trip() for _ in range(WARM_TRIPS + TRIPS)][WARM_TRIPS:]
    rates = []
    for sender in (0, 1):
        each = total(stream(sender, FIRST)) / (FIRST - 1)
        count = int(max(FIRST, min(MOST, most // PAYLOAD, seconds / max(each, 1e-6))))
        took = total(stream(sender, count))
        rates.append(max(1, round((count - 1) * PAYLOAD * 8 / max(took, 1e-9) / 1e6)))
    # Rank 0 has timed the trips; a sum tells rank 1.
    rtt = total(statistics.median(trips))
    jitter = total(statistics.fmean(abs(a - b) for a, b in itertools.pairwise(trips)))
    return {
        "receivedMbps": rates[peer],
        "sentMbps": rates[rank],
        "rttMicroseconds": max(1, round(rtt * 1e6)),
        "jitterMicroseconds": round(jitter * 1e6),
        "allSumMicroseconds": max(1, round(statistics.median(sums[1:]) * 1e6)),
        "payloadBytes": PAYLOAD,
    }
