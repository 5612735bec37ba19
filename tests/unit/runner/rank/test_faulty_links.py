"""Which link of a ring of three or more ranks changed a value: every rank runs the check, over links that change values.

The ranks are threads, and the ring adds as MLX's does: half of the values go round in each direction, first parts of the sum to
which each rank adds, and then the whole parts.
"""

import json
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from thunderfleet_crds.vocabulary import Split
from thunderfleet_runner.rank.checks import connections as proof
from thunderfleet_runner.rank.checks.connections import Proof, prove

from tests.support.suite.tiers import quick

SIZES = (4096, 32 * 1024 - 2, 32 * 1024, 32 * 1024 + 2, 100_002)
HIDDEN = 256
"""The largest message has 1 MiB, so its parts in rings of three and four are larger than those of the other rounds."""
SECONDS = 60.0

Fault = Callable[[Any], Any]


class Ring:
    """``faults`` maps a link, from one rank to the next one, to what it does to the values that it carries."""

    def __init__(self, size: int, faults: dict[tuple[int, int], Fault]) -> None:
        self.size, self.faults = size, faults
        self._links: dict[tuple[int, int], queue.Queue[Any]] = {}
        for rank in range(size):
            for peer in ((rank + 1) % size, (rank - 1) % size):
                self._links[rank, peer] = queue.Queue()
        self._told: list[bytes] = [b""] * size
        self._all = threading.Barrier(size)

    def put(self, sender: int, receiver: int, values: Any) -> None:
        mx.eval(values)
        self._links[sender, receiver].put(values)

    def take(self, sender: int, receiver: int) -> Any:
        values = self._links[sender, receiver].get(timeout=SECONDS)
        return self.faults.get((sender, receiver), lambda values: values)(values)

    def tell(self, rank: int, mine: bytes) -> Sequence[bytes]:
        self._told[rank] = mine
        self._all.wait(SECONDS)
        told = list(self._told)
        self._all.wait(SECONDS)
        return told


class Group:
    """One rank's end of a ring."""

    def __init__(self, ring: Ring, rank: int) -> None:
        self.ring, self._rank = ring, rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self.ring.size

    def shift(self, values: Any, direction: int = 1) -> Any:
        """Sends to the next rank and receives from the one before."""
        rank, size = self._rank, self.ring.size
        self.ring.put(rank, (rank + direction) % size, values)
        return self.ring.take((rank - direction) % size, rank)


def all_sum(values: Any, group: Group) -> Any:
    size = group.size()
    halves = mx.split(mx.pad(values, (0, -values.size % (2 * size))), 2)
    sums = [_one_way(half, group, direction) for half, direction in zip(halves, (1, -1), strict=True)]
    return mx.concatenate(sums)[: values.size]


def _one_way(values: Any, group: Group, direction: int) -> Any:
    size = group.size()
    place = direction * group.rank() % size
    parts = list(mx.split(values, size))
    for step in range(size - 1):
        at = (place - step - 1) % size
        parts[at] = parts[at] + group.shift(parts[(place - step) % size], direction)
    for step in range(size - 1):
        parts[(place - step) % size] = group.shift(parts[(place - step + 1) % size], direction)
    return mx.concatenate(parts)


def all_gather(values: Any, group: Group) -> Any:
    size, rank = group.size(), group.rank()
    parts = [values] * size
    for step in range(size - 1):
        parts[(rank - step - 1) % size] = group.shift(parts[(rank - step) % size])
    return mx.concatenate(parts)


def send(values: Any, peer: int, group: Group) -> Any:
    group.ring.put(group.rank(), peer, values)
    return values


def recv(shape: tuple[int], dtype: Any, peer: int, group: Group) -> Any:
    return group.ring.take(peer, group.rank())


@pytest.fixture
def proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Proof]]:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": HIDDEN}))
    monkeypatch.setattr(proof, "SKEW_SECONDS", 0.0)
    monkeypatch.setattr(proof, "SIZES", SIZES)
    for function in (all_sum, all_gather, send, recv):
        monkeypatch.setattr(mx.distributed, function.__name__, function)

    def run(size: int, faults: dict[tuple[int, int], Fault]) -> list[Proof]:
        ring = Ring(size, faults)

        def rank(number: int) -> Proof:
            def tell(mine: bytes) -> Sequence[bytes]:
                return ring.tell(number, mine)

            # Devices and streams are those of a thread.
            with mx.stream(mx.new_stream(mx.cpu)):
                return prove(Group(ring, number), tmp_path, split=Split.TENSOR, mesh=False, step=lambda: None, tell=tell)

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))

    return run


def flipped(values: Any) -> Any:
    changed = mx.array(values)
    changed[7] = changed[7] + 1
    return changed


def large(values: Any) -> Any:
    """Nothing in the rounds is as large, but for the largest message."""
    return flipped(values) if values.nbytes > max(SIZES) else values


def parts_of_the_largest(values: Any) -> Any:
    """The largest message itself passes, and half of it."""
    return flipped(values) if max(SIZES) < values.nbytes < 1 << 18 else values


def sums(values: Any) -> Any:
    """One rank's values are less than 86."""
    return mx.where(values > 100, values - 64, values)


LINKS = {3: [(0, 1), (1, 2), (2, 0), (0, 2)], 4: [(0, 1), (2, 3), (3, 0), (2, 1)]}


CASES = [(size, link, fault) for size in LINKS for link in LINKS[size] for fault in (large, parts_of_the_largest, sums)]


@pytest.mark.parametrize(
    ("size", "link", "fault"),
    quick([(3, (2, 0), large), (3, (0, 2), sums), (4, (2, 1), parts_of_the_largest), (4, (0, 1), sums)], CASES),
)
def test_a_link_of_a_ring_that_changes_only_sums_or_only_large_messages_is_named(
    proofs: Callable[..., list[Proof]], size: int, link: tuple[int, int], fault: Fault
) -> None:
    sender, receiver = link
    found = [one.wrong for one in proofs(size, {link: fault})]
    named = found[receiver]
    assert named is not None and (named.peer, named.echo) == (sender, False)
    others = [wrong for rank, wrong in enumerate(found) if rank != receiver and wrong is not None]
    assert others, "the sum is wrong elsewhere too"
    assert all((wrong.peer, wrong.echo) == (None, True) for wrong in others), "what one knows comes first"


@pytest.mark.parametrize("size", LINKS)
def test_a_fault_that_does_not_come_again_names_the_ranks_that_saw_it(
    proofs: Callable[..., list[Proof]], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(proof, "SEARCH_ROUNDS", 2)
    once = iter([flipped])

    def fault(values: Any) -> Any:
        return next(once, lambda same: same)(values) if values.nbytes > max(SIZES) else values

    found = proofs(size, {(0, 1): fault})
    wrong = [one.wrong for one in found if one.wrong is not None]
    assert wrong and all((one.peer, one.echo) == (None, False) for one in wrong)
    seen = ", ".join(str(rank) for rank, one in enumerate(found) if one.wrong is not None)
    assert all(one.what.endswith(f" {seen}, and right in 2 rounds between neighbors)") for one in wrong)


def test_links_without_a_fault_are_not_searched(proofs: Callable[..., list[Proof]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof._Prover, "_search", None)
    assert [one.wrong for one in proofs(3, {})] == [None] * 3


def test_a_search_ends_when_its_time_is_over(proofs: Callable[..., list[Proof]], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of rank 0; the others do as it does, whatever their clocks say."""
    monkeypatch.setattr(proof, "SEARCH_SECONDS", -1.0)
    found = [one.wrong for one in proofs(3, {(0, 1): large})]
    assert all(wrong is not None and wrong.what.endswith("and right in 0 rounds between neighbors)") for wrong in found)
