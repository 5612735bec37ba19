"""Checks that the group's connections carry values unchanged, in every attempt, before the model is loaded.

Ranks that receive wrong values do not fail: they generate wrong tokens. So neighboring ranks send known values in both
directions, and then all ranks run the collectives that models use, with results known in advance. Values are small integers,
whose sums bfloat16 holds exactly in any order. Sizes alternate, because transports have failed when a buffer was reused for
another size. Ranks pause at random, so that they are not always synchronous.

A wrong sum of three or more ranks, and in a ring a wrong gather, does not show which link corrupted the value. Then all ranks
search for the link: on each link, they send messages as large as the one that was wrong, and the partial sums that a ring
passes on.
"""

import functools
import itertools
import json
import operator
import random
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import mlx.core as mx
from thunderfleet_crds.vocabulary import Split

ROUNDS = 20
SIZES = (4096, 32 * 1024 - 2, 32 * 1024, 32 * 1024 + 2, 512 * 1024, 100_002)
"""Bytes. JACCL sends messages up to 32 KiB in another way than longer ones; the last one is no multiple of a block size."""
SMALL = 24
"""Sizes of the messages of every step: a flag and a digest, and as short as some tokens."""
SKEW_SECONDS = 0.002
PROMPT_TOKENS = 2048
"""Tokens of a full step of a prompt, whose activations are the largest message."""
HIDDEN = 4096
MOST_BYTES = 64 << 20
SEARCH_ROUNDS = 5
SEARCH_SECONDS = 10.0
"""No further round of the search for a link begins after this time. A rare fault may not occur again."""
_MULTIPLIER = mx.array(2654435761, mx.uint32)
_EXACT = 256
"""bfloat16 holds all integers up to this."""
_BYTES = 2
_REPORT = struct.Struct("<BBQ")
"""What a rank reports to the others: its ``_Seen``, whether it would continue the search, and the size of the wrong message."""

Tell = Callable[[bytes], Sequence[bytes]]
"""Exchanges the reports of all ranks, by rank, over another path than the connections that are checked."""


class _Seen(IntEnum):
    """What a rank has seen so far."""

    RIGHT = 0
    WRONG = 1
    NAMED = 2
    """A wrong value, and it is known who sent it."""


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
    size: int = 0
    """Bytes that were received, of all ranks if they were gathered."""
    echo: bool = False
    """Another rank can name the rank that sent it a wrong value, and this wrong value follows from that one."""


@dataclass(frozen=True)
class Proof:
    """``exchanges`` were checked, all of them unless one is ``wrong``."""

    exchanges: int
    seconds: float
    wrong: Wrong | None = None


def prove(group: Any, model: Path, *, split: Split, mesh: bool, step: Callable[[], None], tell: Tell) -> Proof:
    """Collective: all ranks of ``group`` call it. The largest message goes the way it goes with ``split``.

    ``mesh``: every two ranks are connected, not only those next to each other. ``step`` is called after each exchange.
    A rank that has seen a wrong value continues, because the others wait for it. Two ranks have one link and need no search.
    """
    began = time.monotonic()
    prover = _Prover(group, mesh, step)
    largest = _largest(model)
    last = [(kind, largest) for kind in _kinds_of_largest(split, group.size(), mesh)]
    for number, (kind, size) in enumerate([*rounds(), *last]):
        prover.round(number, kind, size)
    if group.size() > 2:
        prover.search(tell)
    return Proof(prover.exchanges, time.monotonic() - began, prover.wrong)


def _kinds_of_largest(split: Split, size: int, mesh: bool) -> tuple[Kind, ...]:
    """How the largest message is sent. A mesh gathers before it adds, because a wrong sum does not name the rank."""
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


def _searched(sizes: Sequence[int], ranks: int) -> list[int]:
    """Bytes of the messages of a search, by those that were wrong, the largest first.

    A ring divides a sum, or each half of it if it goes round in both directions, into a part for each rank.
    """
    wrong = {size for size in sizes if size}
    parts = {-(-size // number // _BYTES) * _BYTES for size in wrong for number in (ranks, 2 * ranks)}
    return sorted(wrong | parts, reverse=True)


class _Prover:
    def __init__(self, group: Any, mesh: bool, step: Callable[[], None]) -> None:
        self._group, self._mesh, self._step = group, mesh, step
        self._rank, self._size = group.rank(), group.size()
        self._pairs = neighbors(self._size)
        # Other ranks pause at other times.
        self._skew = random.Random(self._rank)
        self._limit = _EXACT // self._size
        # Of the exchanges of a search, after those of all rounds.
        self._numbers = itertools.count(2 * ROUNDS)
        self.exchanges = 0
        self.wrong: Wrong | None = None

    def round(self, number: int, kind: Kind, size: int) -> None:
        """One exchange with messages of ``size`` bytes."""
        exchange: Callable[[int, int], None] = {Kind.MESSAGES: self._messages, Kind.GATHER: self._gather, Kind.SUM: self._sum}[
            kind
        ]
        time.sleep(self._skew.random() * SKEW_SECONDS)
        exchange(number, size // _BYTES)

    def search(self, tell: Tell) -> None:
        """Searches for the link that changed a value, if any rank got a wrong value from an unknown sender.

        All ranks decide from the same reports, so all do the same. Afterwards ``wrong`` has the result of this rank.
        """
        began = time.monotonic()
        for number in itertools.count():
            more = number < SEARCH_ROUNDS and time.monotonic() - began < SEARCH_SECONDS
            reports = [_REPORT.unpack(one) for one in tell(self._report(more=more))]
            self._step()
            seen = [_Seen(one[0]) for one in reports]
            if _Seen.NAMED in seen or _Seen.WRONG not in seen or not reports[0][1]:
                break
            for size in _searched([one[2] for one in reports], self._size):
                self._search(size)
        if self.wrong is not None and self.wrong.peer is None:
            self.wrong = self._unnamed(self.wrong, seen, number)

    def _report(self, *, more: bool) -> bytes:
        if self.wrong is None:
            return _REPORT.pack(_Seen.RIGHT, more, 0)
        return _REPORT.pack(_Seen.WRONG if self.wrong.peer is None else _Seen.NAMED, more, self.wrong.size)

    def _search(self, size: int) -> None:
        """One exchange over every link in both directions, as messages and as the sums that ranks of a ring pass on.

        Sums have larger values than messages, so they show a fault that depends on the values.
        """
        count = size // _BYTES
        self._messages(next(self._numbers), count)
        if self._mesh:
            self._gather(next(self._numbers), count, limit=_EXACT)
        for direction in (1, -1):
            self._passed_on(next(self._numbers), count, direction)

    def _unnamed(self, wrong: Wrong, seen: Sequence[_Seen], rounds: int) -> Wrong:
        """A wrong value, after ``rounds`` rounds that did not show this rank who sent it."""
        if _Seen.NAMED in seen:
            return replace(wrong, echo=True)
        ranks = ", ".join(str(rank) for rank, found in enumerate(seen) if found is not _Seen.RIGHT)
        text = f"wrong on rank{'s' if ranks.count(',') else ''} {ranks}, and right in {rounds} rounds between neighbors"
        return replace(wrong, what=f"{wrong.what} ({text})")

    def _messages(self, number: int, count: int) -> None:
        for low, high in self._pairs:
            # One sends first while the other receives, because two ranks that both send first could wait for each other.
            for sender, receiver in ((low, high), (high, low)):
                self._pass(sender, receiver, number, functools.partial(self._values, sender, number, count))

    def _passed_on(self, number: int, count: int, direction: int) -> None:
        """Twice around the ring: each rank sends on the sum of its values and of all before it, and then the whole sum."""
        order = [direction * place % self._size for place in range(2 * self._size)]
        sums = list(itertools.accumulate(self._values(rank, number, count) for rank in order[: self._size]))
        for place, (sender, receiver) in enumerate(itertools.pairwise(order)):
            self._pass(sender, receiver, number, functools.partial(mx.array, sums[min(place, self._size - 1)]))

    def _pass(self, sender: int, receiver: int, number: int, values: Callable[[], Any]) -> None:
        """A message with ``values``, if this rank sends or receives it."""
        if self._rank == sender:
            mx.eval(mx.distributed.send(values(), receiver, group=self._group))
        elif self._rank == receiver:
            right = values()
            found = mx.distributed.recv(right.shape, mx.bfloat16, sender, group=self._group)
            if (place := self._differs(found, right)) is not None:
                self._found(sender, f"message of {right.nbytes} bytes", right.nbytes, number, place)

    def _sum(self, number: int, count: int) -> None:
        values = [self._values(rank, number, count) for rank in range(self._size)]
        total = mx.distributed.all_sum(values[self._rank], group=self._group)
        right = functools.reduce(operator.add, values)
        if (place := self._differs(total, right)) is not None:
            self._found(None, f"all-sum of {total.nbytes} bytes", total.nbytes, number, place)

    def _gather(self, number: int, count: int, limit: int = 0) -> None:
        values = [self._values(rank, number, count, limit) for rank in range(self._size)]
        gathered = mx.distributed.all_gather(values[self._rank], group=self._group)
        if (place := self._differs(gathered, mx.concatenate(values))) is not None:
            length = values[0].size
            # In a ring, the values of a rank pass through others.
            peer = place[0] // length if self._mesh else None
            what = f"all-gather of {length * _BYTES} bytes"
            self._found(peer, what, gathered.nbytes, number, (place[0] % length, *place[1:]))

    def _values(self, rank: int, number: int, count: int, limit: int = 0) -> Any:
        """What ``rank`` sends in this round: integers from 0 to below ``limit``, another sequence for every rank and round.

        Without a limit, sums of the values of all ranks are exact.
        """
        index = mx.arange(count, dtype=mx.uint32)
        mixed = (index * _MULTIPLIER + mx.array((rank + 1) * 40503 + (number + 1) * 1_000_003, mx.uint32)) >> 11
        return (mixed % (limit or self._limit)).astype(mx.bfloat16)

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

    def _found(self, peer: int | None, what: str, size: int, number: int, place: tuple[int, float, float]) -> None:
        """Keeps the first wrong value, or the first one whose sender is known."""
        if self._size == 2:
            peer = 1 - self._rank
        if self.wrong is None or (self.wrong.peer is None and peer is not None):
            offset, found, right = place
            text = f"{what}, round {number + 1}: value {offset} is {found:g} instead of {right:g}"
            self.wrong = Wrong(peer, text, size)
