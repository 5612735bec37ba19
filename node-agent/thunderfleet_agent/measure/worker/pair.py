"""One rank of a group of two over one cable: messages each way, and small all-sums. Runs in a ``measure-child``.

Both ranks run exactly the same steps. The number of messages is computed from a sum that both ranks have, because a rank that
stopped earlier would leave the other in a collective. Over JACCL the gathers go through the agents; over the ring MLX connects
according to the hostfile. Times are taken where the bytes arrive.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

from thunderfleet_agent.measure.worker.pipe import Pipe

PAYLOAD = 4 << 20
SMALL = 16
TRIPS = 50
WARM_TRIPS = 10
SUMS = 30
# Messages of the first stream, which only gives the rate, and the most of the second.
FIRST = 4
MOST = 4096
WRONG_SUM = "computed a wrong sum"
# The part of the probe's time for the messages of one direction.
SHARE = 0.1


def environment(order: dict[str, Any], folder: str) -> dict[str, str]:
    """MLX's variables for one rank, from ``devices`` (RDMA) or ``hosts`` (ring, ``ip:port``), each in the order of ranks."""
    path = os.path.join(folder, "group.json")
    if order["backend"] == "jaccl":
        first, second = order["devices"]
        matrix: Any = [[None, first], [second, None]]
        variable = "MLX_IBV_DEVICES"
    else:
        matrix = [[host] for host in order["hosts"]]
        variable = "MLX_HOSTFILE"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(matrix, file)
    return {"MLX_RANK": str(order["rank"]), variable: path}


def measure(order: dict[str, Any], pipe: Pipe) -> dict[str, Any]:
    """The figures of this rank.

    ``receivedMbps`` and ``sentMbps`` (as the other rank timed it), ``rttMicroseconds``, ``jitterMicroseconds``,
    ``allSumMicroseconds``, ``payloadBytes``. Raises RuntimeError or ValueError with MLX's message.
    """
    for name in [name for name in os.environ if name.startswith(("MLX_", "JACCL_"))]:
        del os.environ[name]
    import mlx.core as mx

    backend, rank = str(order["backend"]), int(order["rank"])
    if not mx.distributed.is_available(backend):
        raise RuntimeError(f"MLX on this Mac has no {backend} backend")
    os.environ.update(environment(order, str(order["folder"])))
    options = {"all_gather_factory": pipe.exchange} if backend == "jaccl" else {}
    group = mx.distributed.init(strict=True, backend=backend, **options)
    if (group.rank(), group.size()) != (rank, 2):
        raise RuntimeError(f"this is rank {rank} of 2, MLX reports rank {group.rank()} of {group.size()}")
    pipe.send({"formed": rank})
    return _figures(Rank(mx, group, rank), int(order["bytes"]), float(order["seconds"]) * SHARE)


@dataclass(frozen=True)
class Rank:
    """The collectives of one rank; each is run by both ranks at the same step."""

    mx: Any
    group: Any
    rank: int

    @property
    def peer(self) -> int:
        return 1 - self.rank

    def zeros(self, size: int) -> Any:
        """A message of ``size`` bytes."""
        array = self.mx.zeros((size // 4,), self.mx.float32)
        self.mx.eval(array)
        return array

    def total(self, value: float) -> float:
        """The sum of both ranks' values."""
        mx = self.mx
        return float(mx.distributed.all_sum(mx.array([value], mx.float32), group=self.group, stream=mx.cpu).item())

    def send(self, array: Any) -> None:
        self.mx.eval(self.mx.distributed.send(array, self.peer, group=self.group, stream=self.mx.cpu))

    def receive(self, array: Any) -> float:
        """When the message has arrived."""
        self.mx.eval(self.mx.distributed.recv_like(array, self.peer, group=self.group, stream=self.mx.cpu))
        return time.perf_counter()

    def trip(self, message: Any) -> float:
        """Seconds of one round trip at rank 0; 0 at rank 1."""
        started = time.perf_counter()
        if self.rank == 0:
            self.send(message)
            return self.receive(message) - started
        self.receive(message)
        self.send(message)
        return 0.0

    def stream(self, sender: int, count: int, message: Any) -> float:
        """Seconds from the first to the last message at the receiver; 0 at the sender."""
        if self.rank == sender:
            for _ in range(count):
                self.send(message)
            return 0.0
        times = [self.receive(message) for _ in range(count)]
        return times[-1] - times[0]


def _figures(rank: Rank, most: int, seconds: float) -> dict[str, Any]:
    small, payload = rank.zeros(SMALL), rank.zeros(PAYLOAD)
    if (total := rank.total(rank.rank + 1.0)) != 3.0:
        raise RuntimeError(f"the two Macs {WRONG_SUM} over the cable, {total} instead of 3: replace the cable")
    sums = _sums(rank)
    trips = [rank.trip(small) for _ in range(WARM_TRIPS + TRIPS)][WARM_TRIPS:]
    rates = [_rate(rank, sender, payload, most, seconds) for sender in (0, 1)]
    # Only rank 0 has timed the trips; a sum gives the figure to rank 1.
    rtt = rank.total(statistics.median(trips))
    jitter = rank.total(statistics.fmean(abs(a - b) for a, b in itertools.pairwise(trips)))
    return {
        "receivedMbps": rates[rank.peer],
        "sentMbps": rates[rank.rank],
        "rttMicroseconds": max(1, round(rtt * 1e6)),
        "jitterMicroseconds": round(jitter * 1e6),
        "allSumMicroseconds": max(1, round(statistics.median(sums) * 1e6)),
        "payloadBytes": PAYLOAD,
    }


def _sums(rank: Rank) -> list[float]:
    """Seconds of each all-sum, without the first."""
    times = []
    for _ in range(SUMS + 1):
        started = time.perf_counter()
        rank.total(1.0)
        times.append(time.perf_counter() - started)
    return times[1:]


def _rate(rank: Rank, sender: int, payload: Any, most: int, seconds: float) -> int:
    """Mb/s from ``sender`` to the other rank, within ``most`` bytes and about ``seconds``; the same at both ranks."""
    each = rank.total(rank.stream(sender, FIRST, payload)) / (FIRST - 1)
    count = int(max(FIRST, min(MOST, most // PAYLOAD, seconds / max(each, 1e-6))))
    took = rank.total(rank.stream(sender, count, payload))
    return max(1, round((count - 1) * PAYLOAD * 8 / max(took, 1e-9) / 1e6))
