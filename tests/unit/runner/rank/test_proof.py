"""The check of a group's connections, with collectives that change values in chosen places."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from thunderfleet_crds.vocabulary import Split
from thunderfleet_runner.rank.checks import connections as proof
from thunderfleet_runner.rank.checks.connections import Kind, Wrong, neighbors, prove, rounds

RANK, SIZE = 1, 3


class Group:
    """Rank 1 of 3; the other two are computed."""

    def rank(self) -> int:
        return RANK

    def size(self) -> int:
        return SIZE


class Transport:
    """Stands in for MLX's collectives. ``change`` maps an operation to the call and the place that it changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.change: dict[str, tuple[int, int]] = {}
        self.calls = {"recv": 0, "all_sum": 0, "all_gather": 0}
        self.number, self.count = -1, 0
        self.right = proof._Prover(Group(), mesh=True, step=lambda: None)
        begin = proof._Prover.round

        def round_of(prover: Any, number: int, kind: Kind, size: int) -> None:
            self.number, self.count = number, size // 2
            begin(prover, number, kind, size)

        monkeypatch.setattr(proof._Prover, "round", round_of)
        for name in ("send", "recv", "all_sum", "all_gather"):
            monkeypatch.setattr(mx.distributed, name, getattr(self, name))

    def values(self, rank: int) -> Any:
        return self.right._values(rank, self.number, self.count)

    def changed(self, name: str, values: Any) -> Any:
        call, place = self.change.get(name, (-1, 0))
        self.calls[name] += 1
        if self.calls[name] == call:
            values[place] = values[place] + 1
        return values

    def send(self, values: Any, peer: int, group: Any) -> Any:
        assert peer in (0, 2)
        return values

    def recv(self, shape: tuple[int], dtype: Any, peer: int, group: Any) -> Any:
        return self.changed("recv", self.values(peer))

    def all_sum(self, values: Any, group: Any) -> Any:
        return self.changed("all_sum", self.values(0) + self.values(1) + self.values(2))

    def all_gather(self, values: Any, group: Any) -> Any:
        return self.changed("all_gather", mx.concatenate([self.values(rank)[: values.size] for rank in range(SIZE)]))


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> Transport:
    monkeypatch.setattr(proof, "SKEW_SECONDS", 0.0)
    return Transport(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    return tmp_path


def told(mine: bytes, seen: proof._Seen = proof._Seen.RIGHT) -> list[bytes]:
    """What three ranks tell, of which the others have seen this and do not search on."""
    theirs = proof._REPORT.pack(seen, False, 0)
    return [theirs, mine, theirs]


def found(
    model: Path, *, mesh: bool = True, split: Split = Split.TENSOR, tell: Callable[[bytes], list[bytes]] = told
) -> Wrong | None:
    return prove(Group(), model, split=split, mesh=mesh, step=lambda: None, tell=tell).wrong


def of_kind(kind: Kind) -> list[tuple[int, int]]:
    """Number, from 1, and values of each round of a kind."""
    return [(number, size // 2) for number, (found, size) in enumerate(rounds(), 1) if found is kind]


def test_every_kind_is_tried_with_every_size() -> None:
    assert len(rounds()) == proof.ROUNDS
    small = {(Kind.GATHER, proof.SMALL), (Kind.SUM, proof.SMALL)}
    assert set(rounds()) == {(kind, size) for kind in Kind for size in proof.SIZES} | small
    assert rounds() == rounds()
    assert [kind for kind, _ in rounds()[: len(proof.SIZES)]] == [Kind.MESSAGES] * len(proof.SIZES)


@pytest.mark.parametrize("split", [Split.TENSOR, Split.PIPELINE])
def test_right_values_are_no_alarm_and_every_exchange_is_progress(transport: Transport, model: Path, split: Split) -> None:
    steps: list[None] = []
    proved = prove(Group(), model, split=split, mesh=True, step=lambda: steps.append(None), tell=told)
    assert proved.wrong is None
    counts = {kind: len(of_kind(kind)) for kind in Kind}
    # The largest message goes as the model's do; three ranks with connections to each other gather it first.
    for kind in (Kind.GATHER, Kind.SUM) if split is Split.TENSOR else (Kind.MESSAGES,):
        counts[kind] += 1
    # Two neighbors send messages.
    expected = {"recv": 2 * counts[Kind.MESSAGES], "all_sum": counts[Kind.SUM], "all_gather": counts[Kind.GATHER]}
    assert transport.calls == expected
    # What the ranks tell each other at the end is progress too.
    assert proved.exchanges == len(steps) - 1 == sum(expected.values())


def test_a_changed_message_names_its_sender_and_the_place(transport: Transport, model: Path) -> None:
    transport.change["recv"] = (4, 7)
    wrong = found(model)
    assert wrong is not None and wrong.peer == 2
    assert wrong.what.startswith("message of ") and f", round {of_kind(Kind.MESSAGES)[1][0]}: value 7 is " in wrong.what


@pytest.mark.parametrize(("mesh", "peer"), [(True, 2), (False, None)])
def test_a_changed_gather_names_the_sender_in_a_mesh_only(
    transport: Transport, model: Path, mesh: bool, peer: int | None
) -> None:
    # The last value of the last rank.
    transport.change["all_gather"] = (1, -1)
    wrong = found(model, mesh=mesh)
    assert wrong is not None and wrong.peer == peer
    number, count = of_kind(Kind.GATHER)[0]
    assert wrong.what.startswith(f"all-gather of {2 * count} bytes, round {number}: value {count - 1} is ")


def test_what_changes_only_the_largest_message_is_named_in_a_mesh(transport: Transport, model: Path) -> None:
    """The sum of three ranks does not tell which of them has sent the wrong value."""
    transport.change |= {"all_gather": (len(of_kind(Kind.GATHER)) + 1, 5), "all_sum": (len(of_kind(Kind.SUM)) + 1, 5)}
    wrong = found(model)
    assert wrong is not None and wrong.peer == 0
    assert wrong.what.startswith("all-gather of 262144 bytes, round 21: value 5 is ")


@pytest.mark.parametrize(
    ("split", "size", "mesh", "kinds"),
    [
        (Split.TENSOR, 2, True, (Kind.SUM,)),
        (Split.TENSOR, 3, False, (Kind.SUM,)),
        (Split.TENSOR, 3, True, (Kind.GATHER, Kind.SUM)),
        (Split.PIPELINE, 3, True, (Kind.MESSAGES,)),
    ],
)
def test_the_largest_message_goes_once_where_that_names_its_sender(
    split: Split, size: int, mesh: bool, kinds: tuple[Kind, ...]
) -> None:
    assert proof._kinds_of_largest(split, size, mesh) == kinds


def test_a_changed_sum_names_nobody(transport: Transport, model: Path) -> None:
    last = len(of_kind(Kind.SUM)) + 1
    transport.change["all_sum"] = (last, 0)
    assert found(model, split=Split.PIPELINE) is None, "the last sum is the largest message of tensor parallelism"
    transport.calls["all_sum"] = 0
    wrong = found(model)
    assert wrong is not None and wrong.peer is None
    assert wrong.what.startswith("all-sum of 262144 bytes, round 22: value 0 is ")


def test_a_transport_that_changes_only_messages_above_32_kib_is_found(transport: Transport, model: Path) -> None:
    received = of_kind(Kind.MESSAGES)
    # Each round receives from both neighbors.
    transport.change["recv"] = (2 * next(at for at, (_, count) in enumerate(received) if 2 * count > 32 * 1024) + 1, 3)
    wrong = found(model)
    assert wrong is not None and int(wrong.what.split()[2]) > 32 * 1024


def test_the_first_change_counts_and_the_rank_goes_on(transport: Transport, model: Path) -> None:
    transport.change |= {"recv": (1, 3), "all_sum": (len(of_kind(Kind.SUM)), 5)}
    wrong = found(model)
    assert wrong is not None and wrong.peer == 0
    assert transport.calls["all_sum"] == len(of_kind(Kind.SUM)) + 1


@pytest.mark.parametrize(
    ("config", "largest"),
    [
        ('{"hidden_size": 300}', 2048 * 300 * 2),
        ('{"text_config": {"hidden_size": 512}}', 2048 * 512 * 2),
        ('{"hidden_size": 1000000}', proof.MOST_BYTES),
        ('{"hidden_size": -1}', 2048 * proof.HIDDEN * 2),
        ('{"hidden_size": "64"}', 2048 * proof.HIDDEN * 2),
        ("[]", 2048 * proof.HIDDEN * 2),
        ("{", 2048 * proof.HIDDEN * 2),
        (None, 2048 * proof.HIDDEN * 2),
    ],
)
def test_the_largest_message_is_that_of_a_full_prompt_step(tmp_path: Path, config: str | None, largest: int) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert proof._largest(tmp_path) == largest


@pytest.mark.parametrize(
    ("size", "pairs"),
    [(2, [(0, 1)]), (3, [(0, 1), (0, 2), (1, 2)]), (4, [(0, 1), (0, 3), (1, 2), (2, 3)])],
)
def test_neighbors(size: int, pairs: list[tuple[int, int]]) -> None:
    assert neighbors(size) == pairs


@pytest.mark.parametrize("size", range(2, 17))
def test_sums_are_exact_in_any_order(size: int) -> None:
    class Other(Group):
        def size(self) -> int:
            return size

    prover = proof._Prover(Other(), mesh=False, step=lambda: None)
    values = [prover._values(rank, 3, 1000).astype(mx.float32) for rank in range(size)]
    total = sum(values[1:], values[0])
    assert mx.array_equal(total.astype(mx.bfloat16).astype(mx.float32), total)
    assert len({str(value.tolist()) for value in values}) == size, "ranks send different values"


def test_of_two_ranks_the_other_one_has_sent_the_wrong_value() -> None:
    class Pair(Group):
        def size(self) -> int:
            return 2

    prover = proof._Prover(Pair(), mesh=False, step=lambda: None)
    prover._found(None, "all-sum of 4 bytes", 4, 0, (1, 5.0, 4.0))
    assert prover.wrong == Wrong(0, "all-sum of 4 bytes, round 1: value 1 is 5 instead of 4", 4)


def test_values_are_compared_as_bits_and_differ_between_rounds() -> None:
    prover = proof._Prover(Group(), mesh=False, step=lambda: None)
    zero = mx.zeros((3,), mx.bfloat16)
    assert prover._differs(zero, zero) is None
    changed = prover._differs(mx.array([0.0, 0.0, -0.0], mx.bfloat16), zero)
    assert changed is not None and changed[0] == 2
    one, next_one = prover._values(0, 3, 2000), prover._values(0, 4, 2000)
    # What is left of an earlier round does not look right.
    same: Any = mx.sum(one == next_one).item()
    assert same < 200
