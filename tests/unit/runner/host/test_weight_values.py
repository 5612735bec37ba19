"""The values of the weights: hashed once for each copy, compared between Macs, and the answers that depend on them."""

import json
import os
import signal
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import KnownWeights, RecordedAnswer
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner.group.decide import answers
from thunderfleet_runner.group.decide.evidence import Evidence
from thunderfleet_runner.group.decide.rendezvous import Identity
from thunderfleet_runner.host import weightvalues
from thunderfleet_runner.host.weightvalues import Interrupted, Known, digest, signature
from thunderfleet_runner.net import peers

EARLIER = RecordedAnswer(key="k", tokens=(5, 6, 7), costs=(100, 700, 10), margins=(900, 100, 2000))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    tinymodel.make(folder, layers=2)
    return folder


def read(folder: Path) -> tuple[str, str]:
    return digest(folder, threading.Event())


def change_value(folder: Path) -> None:
    """One value of one tensor, and nothing that a header tells."""
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def rot(folder: Path) -> None:
    """As if the disk gave other values, in a file that nobody has written to."""
    file = folder / "model.safetensors"
    told, data = file.stat(), bytearray(file.read_bytes())
    header = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8 : 8 + header])["model.layers.1.mlp.down_proj.weight"]["data_offsets"]
    # The same numbers in another order.
    numbers = array("f", bytes(data[8 + header + begin : 8 + header + end]))
    data[8 + header + begin : 8 + header + end] = array("f", [-4 * number for number in reversed(numbers)]).tobytes()
    with file.open("r+b") as same:
        same.write(data)
    os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))


def test_one_changed_value_changes_the_hash_and_the_signature(model: Path, tmp_path: Path) -> None:
    before = read(model)
    assert read(model) == before and before[0] == signature(model)
    os.utime(model / "model.safetensors", ns=(1, 1))
    touched = read(model)
    assert touched[0] != before[0] and touched[1] == before[1], "another signature, the same values"
    change_value(model)
    assert read(model)[1] != before[1]


def test_reading_is_slow_ends_when_told_and_trusts_no_files_that_change(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    end.set()
    with pytest.raises(Interrupted):
        digest(model, end, rate=1.0)
    told = iter(["before", "after"])
    monkeypatch.setattr(weightvalues, "signature", lambda folder: next(told))
    with pytest.raises(Interrupted):
        read(model)


def test_what_is_known_holds_until_the_files_change(model: Path, tmp_path: Path) -> None:
    known = Known(tmp_path / "weights.json")
    assert known.of(model) is None
    found = read(model)
    known.save(found)
    assert known.of(model) == found
    change_value(model)
    assert known.of(model) is None
    (tmp_path / "weights.json").write_text("[1]")
    assert known.of(model) is None


@pytest.mark.parametrize(
    ("tokens", "costs", "wrong"),
    [
        ((5, 6, 7), (0.1, 0.7, 0.01), None),
        ((9, 6, 7), (0.1, 0.7, 0.01), "token 1 of the answer to the test prompt is 9; with the same weights, chips and"),
        # The second token was not clear, and after it the beginnings differ.
        ((5, 9, 9), (0.1, 0.8, 9.0), None),
        ((5, 9, 9), (0.1, 1.3, 0.01), "the log probability of token 2 of the answer to the test prompt is -1.3; with the same"),
        ((5, 6, 7), (0.7, 0.7, 0.01), "the log probability of token 1 of the answer to the test prompt is -0.7; with the same"),
        ((5, 6, 9), (0.1, 0.7, 0.01), "token 3 of the answer to the test prompt is 9"),
        ((5, 6), (0.1, 0.7), "the answer to the test prompt has 2 tokens; with the same weights, chips and versions it had 3"),
        ((5, 6, 7), (), "the answer to the test prompt has 0 tokens"),
        ((5, 6, 7), (0.1, float("nan"), 0.01), "the log probability of token 2"),
    ],
)  # fmt: skip
def test_answers_agree_where_the_margin_is_clear(tokens: tuple[int, ...], costs: tuple[float, ...], wrong: str | None) -> None:
    found = answers.differs(EARLIER, answers.record("k", tokens, costs, (1.0,) * len(tokens)))
    assert found is None if wrong is None else found is not None and found.startswith(wrong)


def test_numbers_are_bounded() -> None:
    assert answers.thousandths([0.5, -1.0, float("inf"), float("nan"), 1e9]) == (
        500,
        0,
        answers.MOST,
        answers.MOST,
        answers.MOST,
    )


class World:
    """Two ranks' evidence. ``hashed``: the weights that are known at the preflight, by rank."""

    def __init__(
        self, plan: Any, *, versions: tuple[str, ...] = ("1", "2", "3"), recorded: tuple[RecordedAnswer, ...] = ()
    ) -> None:
        self.evidence = Evidence(plan, Identity(versions[0], versions[1], "d"), recorded, versions[2:])

    def attempt(self, hashed: tuple[str, str], tokens: tuple[int, ...] = (5, 6), kinds: tuple[int, int] = (1, 1)) -> Any:
        self.evidence.begin()
        for rank in range(2):
            checked = peers.Checked(attempt=1, port=1, digest="d", weights=hashed[rank], signature="s" if hashed[rank] else "")
            if (fault := self.evidence.checked(rank, checked)) is not None:
                return fault
        for rank in (1, 0):
            ready = peers.RankReady(
                attempt=1, tokens=tokens, costs=(0.5,) * len(tokens), margins=(2.0,) * len(tokens), kind=kinds[rank],
                vocabulary=9, chat_template=True, peak_memory_bytes=1,
            )  # fmt: skip
            if (fault := self.evidence.answered(rank, ready)) is not None:
                return fault
        return None


@pytest.fixture
def plan(make_group: Callable[..., Any]) -> Any:
    return make_group(2).plan


def test_an_answer_is_compared_when_all_that_it_depends_on_is_the_same(plan: Any) -> None:
    world = World(plan)
    assert world.attempt(("w", "w")) is None
    first = world.evidence.recorded
    assert first is not None and first.tokens == (5, 6) and (first.costs, first.margins) == ((500, 500), (2000, 2000))
    wrong = world.attempt(("w", "w"), (5, 7))
    assert (wrong.reason, world.evidence.recorded) == ("OutputWrong", first)
    for other in (world.attempt(("x", "x"), (8, 8)), world.attempt(("w", "w"), (8, 8), kinds=(1, 2))):
        assert other is None, "other weights, or another chip"
    assert World(plan, recorded=(first,)).attempt(("w", "w"), (5, 7)).reason == "OutputWrong", "after a restart"
    known = plan.model_copy(update={"recorded_answers": (first,)})
    assert World(known).attempt(("w", "w"), (5, 7)).reason == "OutputWrong", "in a later placement"
    for versions in (("1", "3", "3"), ("2", "2", "3"), ("1", "2", "4")):
        # Another mlx-lm or mlx, or other libraries that make the tokens of the test prompt.
        newer = World(known, versions=versions)
        assert newer.attempt(("w", "w"), (5, 7)) is None
        assert newer.evidence.recorded is not None and newer.evidence.recorded.key != first.key
        assert newer.attempt(("w", "w"), (5, 8)).reason == "OutputWrong", "from then on it is that version's answer"
    assert World(plan.model_copy(update={"verify": "Quick"})).attempt(("w", "w")) is None


def test_weights_that_differ_are_named_as_soon_as_they_are_known(plan: Any) -> None:
    world = World(plan)
    fault = world.attempt(("w", "x"))
    assert (fault.fault, fault.reason) == ("Configure", "ModelDiffers")
    assert "on studio-1 have other values than those on studio-0" in fault.message
    assert world.attempt(("", "w")) is None and world.evidence.recorded is None, "not known yet"
    same = peers.WeightsRead(weights="w", signature="s")
    assert world.evidence.read(0, same) is None
    assert world.evidence.recorded is not None, "recorded when the weights are known"
    assert world.evidence.read(1, peers.WeightsRead(weights="x", signature="s")).reason == "ModelDiffers"


async def test_a_serving_group_reads_its_weights_once_and_is_judged_by_its_answer(
    served: Callable[..., Any], model: Path
) -> None:
    known = KnownWeights(node="studio-0", signature="another copy", digest="other")
    plan = {"knownWeights": [known.model_dump()]}
    # The kill is only to load the model again: on macOS, a second one would hold the group.
    async with served(model, 2, "Pipeline", benchmark=True, plan=plan, wired=None) as (group, _):
        leader = group.running[0][0]
        await group.until(lambda: leader.state.verified.recorded is not None, "the answer is recorded")
        told = leader.state.verified
        assert [copy.node for copy in told.weights] == ["studio-0", "studio-1"]
        assert {(copy.signature, copy.digest) for copy in told.weights} == {read(model)}
        assert len(told.recorded.tokens) == len(told.recorded.costs) == len(told.recorded.margins) > 4
        rot(model)
        os.kill(leader.member.pid, signal.SIGKILL)
        await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "it gives up")
        failure = leader.state.failure
        assert (failure.reason, leader.state.verified.reason) == ("OutputWrong", "OutputWrong")
        assert " of the answer to the test prompt is " in failure.message


async def test_an_answer_is_not_taken_for_that_of_files_that_have_replaced_the_loaded_ones(
    served: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the right answer of the new files counts as wrong, whenever the group starts again."""
    hashed: list[str] = []

    def late(folder: Path, end: threading.Event) -> tuple[str, str]:
        change_value(folder)
        found = digest(folder, end)
        hashed.append(found[1])
        return found

    monkeypatch.setattr(weightvalues, "digest", late)
    async with served(model, 1, "None", benchmark=True) as (group, _):
        leader = group.running[0][0]
        await group.until(lambda: hashed, "the weights are hashed")
        await group.until(lambda: leader.state.benchmark is not None, "the group has worked on")
        told = leader.state.verified
        assert told.weights == () and told.recorded is None
        os.kill(leader.member.pid, signal.SIGKILL)
        await group.until(lambda: leader.state.verified.recorded is not None, "the next attempt has loaded these files")
        assert [copy.digest for copy in leader.state.verified.weights] == hashed
