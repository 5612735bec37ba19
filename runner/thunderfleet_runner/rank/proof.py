"""Whether the group's connections carry values unchanged: checked in every attempt, before the model is loaded.

Ranks that receive wrong values do not fail: they answer with wrong tokens. So ranks next to each other send known values both
ways, and then all ranks run the collectives that models use, with results known in advance. Values are small integers, whose
sums bfloat16 holds exactly in any order. Sizes alternate, because buffers that are reused for another size are where transports
have failed; and ranks pause at random, so that they are not always in step.
"""

import functools
import itertools
import json
import operator
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import mlx.core as mx
from thunderfleet_crds.vocabulary import Split

ROUNDS = 20
SIZES = (4096, 32 * 1024 - 2, 32 * 1024, 32 * 1024 + 2, 512 * 1024, 100_002)
"""Bytes. JACCL sends messages up to 32 KiB in another way than longer ones; the last one is a multiple of nothing."""
SMALL = 24
"""Bytes of what ranks tell each other in every step: a flag and a digest, and as short as some tokens."""
SKEW_SECONDS = 0.002
PROMPT_TOKENS = 2048
"""Tokens of a full step of a prompt, whose activations are the largest message."""
HIDDEN = 4096
MOST_BYTES = 64 << 20
_MULTIPLIER = mx.array(2654435761, mx.uint32)
_EXACT = 256
"""bfloat16 holds all integers up to this."""
_BYTES = 2


class Kind(Enum):
    """What the ranks do in a round."""

    MESSAGES = "messages"
    GATHER = "all-gather"
    SUM = "all-sum"


def rounds() -> list[tuple[Kind, int]]:
    """Every kind with every size, in an order that is the same on every rank. Messages come first: they show who sent them."""
    shuffled = random.Random(ROUNDS).sample
    messages = [(Kind.MESSAGES, size) for size in shuffled(SIZES, len(SIZES))]
    every = list(itertools.product((Kind.GATHER, Kind.SUM), SIZES))
    others = shuffled(every, len(every))
    return [*messages, *others, (Kind.GATHER, SMALL), (Kind.SUM, SMALL)]


@dataclass(frozen=True)
class Wrong:
    """A value that did not arrive unchanged. ``peer``: the rank that sent it, None for a collective of all ranks."""

    peer: int | None
    what: str


@dataclass(frozen=True)
class Proof:
    """``exchanges`` were checked, all of them unless one is ``wrong``."""

    exchanges: int
    seconds: float
    wrong: Wrong | None = None


def prove(group: Any, model: Path, *, split: Split, mesh: bool, step: Callable[[], None]) -> Proof:
    """Collective: all ranks of ``group`` call it. The largest message goes the way it goes with ``split``.

    ``mesh``: every two ranks are connected, not only those next to each other. ``step`` is called after each exchange.
    A rank that has seen a wrong value goes on, because the others wait for it.
    """
    began = time.monotonic()
    prover = _Prover(group, mesh, step)
    largest = _largest(model)
    last = [(kind, largest) for kind in _kinds_of_largest(split, group.size(), mesh)]
    for number, (kind, size) in enumerate([*rounds(), *last]):
        prover.round(number, kind, size)
    return Proof(prover.exchanges, time.monotonic() - began, prover.wrong)


def _kinds_of_largest(split: Split, size: int, mesh: bool) -> tuple[Kind, ...]:
    """How the largest message goes. A wrong sum of three ranks names none of them, so a mesh gathers first, which does."""
    if split is Split.PIPELINE:
        return (Kind.MESSAGES,)
    return (Kind.GATHER, Kind.SUM) if mesh and size > 2 else (Kind.SUM,)


def _largest(model: Path) -> int:
    """Bytes of the activations of a full step of a prompt, by the model's configuration."""
    try:
        config = json.loads((model / "config.json").read_bytes())
        hidden = config.get("hidden_size") or config.get("text_config", {}).get("hidden_size")
    except (OSError, ValueError, AttributeError):
        # Loading reports what is wrong with the file.
        hidden = None
    found = hidden if isinstance(hidden, int) and hidden > 0 else HIDDEN
    return min(MOST_BYTES, PROMPT_TOKENS * found * _BYTES)


def neighbors(size: int) -> list[tuple[int, int]]:
    """The pairs of ranks next to each other, the lower rank first, in the order in which all ranks take them."""
    return sorted(
        {(min(rank, following), max(rank, following)) for rank in range(size) if (following := (rank + 1) % size) != rank}
    )


class _Prover:
    def __init__(self, group: Any, mesh: bool, step: Callable[[], None]) -> None:
        self._group, self._mesh, self._step = group, mesh, step
        self._rank, self._size = group.rank(), group.size()
        self._pairs = neighbors(self._size)
        # Other ranks pause at other times.
        self._skew = random.Random(self._rank)
        self._limit = _EXACT // self._size
        self.exchanges = 0
        self.wrong: Wrong | None = None

    def round(self, number: int, kind: Kind, size: int) -> None:
        """One exchange with messages of ``size`` bytes."""
        exchange = {Kind.MESSAGES: self._messages, Kind.GATHER: self._gather, Kind.SUM: self._sum}[kind]
        time.sleep(self._skew.random() * SKEW_SECONDS)
        exchange(number, size // _BYTES)

    def _messages(self, number: int, count: int) -> None:
        for low, high in self._pairs:
            # One sends first while the other receives: two that both send first could wait for each other.
            if self._rank == low:
                self._send(high, number, count)
                self._receive(high, number, count)
            elif self._rank == high:
                self._receive(low, number, count)
                self._send(low, number, count)

    def _sum(self, number: int, count: int) -> None:
        values = [self._values(rank, number, count) for rank in range(self._size)]
        total = mx.distributed.all_sum(values[self._rank], group=self._group)
        right = functools.reduce(operator.add, values)
        if (place := self._differs(total, right)) is not None:
            self._found(None, f"all-sum of {count * _BYTES} bytes", number, place)

    def _send(self, peer: int, number: int, count: int) -> None:
        mx.eval(mx.distributed.send(self._values(self._rank, number, count), peer, group=self._group))

    def _receive(self, peer: int, number: int, count: int) -> None:
        found = mx.distributed.recv((count,), mx.bfloat16, peer, group=self._group)
        if (place := self._differs(found, self._values(peer, number, count))) is not None:
            self._found(peer, f"message of {count * _BYTES} bytes", number, place)

    def _gather(self, number: int, count: int) -> None:
        values = [self._values(rank, number, count) for rank in range(self._size)]
        gathered = mx.distributed.all_gather(values[self._rank], group=self._group)
        if (place := self._differs(gathered, mx.concatenate(values))) is not None:
            length = values[0].size
            # In a ring, the values of a rank pass through others.
            peer = place[0] // length if self._mesh else None
            self._found(peer, f"all-gather of {length * _BYTES} bytes", number, (place[0] % length, *place[1:]))

    def _values(self, rank: int, number: int, count: int) -> Any:
        """What ``rank`` sends in this round: integers from 0 to below 256 / size, another sequence for every rank and round."""
        index = mx.arange(count, dtype=mx.uint32)
        mixed = (index * _MULTIPLIER + mx.array((rank + 1) * 40503 + (number + 1) * 1_000_003, mx.uint32)) >> 11
        return (mixed % self._limit).astype(mx.bfloat16)

    def _differs(self, found: Any, right: Any) -> tuple[int, float, float] | None:
        """The first place where the values differ, and both values there."""
        # As bits: 0 and -0 are equal as numbers.
        differ = found.view(mx.uint16) != right.view(mx.uint16)
        wrong = bool(mx.any(differ).item())
        self.exchanges += 1
        self._step()
        if not wrong:
            return None
        place: Any = mx.argmax(differ).item()
        return int(place), found[place].item(), right[place].item()

    def _found(self, peer: int | None, what: str, number: int, place: tuple[int, float, float]) -> None:
        if self._size == 2:
            peer = 1 - self._rank
        if self.wrong is None:
            offset, found, right = place
            self.wrong = Wrong(peer, f"{what}, round {number + 1}: value {offset} is {found:g} instead of {right:g}")
