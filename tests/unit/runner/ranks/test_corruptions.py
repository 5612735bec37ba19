"""Each corruption that a group must notice, with real ranks, and the check that notices it.

``make bench`` runs these tests too, and reports the share that was caught. The names of the cases are those of its table.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import MemoryPlan, ProvenLengths
from thunderfleet_crds.vocabulary import GroupPhase, Split
from thunderfleet_lib.backoff import Backoff
from thunderfleet_runner.api.service import Unavailable
from thunderfleet_runner.api.upkeep import canary
from thunderfleet_runner.group import launch
from thunderfleet_runner.group.decide import attempts, stall
from thunderfleet_runner.group.decide.attempts import Phase, StateMachine
from thunderfleet_runner.host import preflight
from thunderfleet_runner.host.rankprocess import RANK_MODULE

from tests.support.models import copymodel
from tests.support.suite.tiers import quick
from tests.unit.runner.ranks.test_jaccl_group import Macs, answer, macs

__all__ = ["macs"]

pytestmark = pytest.mark.usefixtures("without_compiler")

SMALL = 1000
"""A vocabulary with enough tokens for a passage of 300."""
LARGE = 6000
"""A vocabulary with enough tokens for a passage of 2,600."""
IN_CONNECTIONS = {
    "a bit": ({"at": "wire", "flipAfterBytes": 150_000}, "LinkCorrupts"),
    "a shape": ({"at": "wire", "repeatAfterBytes": 150_000}, "LinkCorrupts"),
    "two messages": ({"at": "wire", "swapAfterBytes": 150_000}, "LinkCorrupts"),
    "a lost completion": ({"at": "wire", "loseAfterBytes": 150_000}, "Stalled"),
    "above 32 KiB": ({"at": "values", "aboveBytes": 32 * 1024, "belowBytes": 1 << 30}, "LinkCorrupts"),
}
SECOND_STEP = {"at": "values", "aboveBytes": 270_000, "belowBytes": 300_000}
"""Activations of the 552 tokens that follow the first 2,048 of a passage of 2,600, and nothing in the check of connections."""
OFFSET = """
def spoil():
    from mlx_lm.models import cache
    right = cache.BatchKVCache.update_and_fetch
    def one_off(self, keys, values):
        begin, found = self._idx, right(self, keys, values)
        if begin != 2048:
            return found
        for mine, new in ((self.keys, keys), (self.values, values)):
            mine[..., begin - 1 : self._idx - 1, :] = new
        return self.keys_and_values()
    cache.BatchKVCache.update_and_fetch = one_off
"""
KERNEL = """
def spoil():
    from thunderfleet_runner.rank.checks import kernels
    right = kernels._product
    kernels._product = lambda matrix, values: right(matrix, values) * (1.5 if len(values) > 1 else 1)
"""
SPLIT = """
def spoil():
    import mlx.core as mx
    from thunderfleet_runner.rank import loading
    right = loading.split_model
    def wrong(model, split, group, ranges=()):
        right(model, split, group, ranges)
        if group.rank() == 1:
            attention = model.layers[0].self_attn
            attention.v_proj.weight = mx.roll(attention.v_proj.weight, 8, axis=0)
            attention.o_proj.weight = attention.o_proj.weight * 2
    loading.split_model = wrong
"""
LATE = """
def spoil():
    import os
    from pathlib import Path
    import mlx.core as mx
    now = Path(os.environ["THUNDERFLEET_TEST_FOLDER"]) / "now"
    right = mx.distributed.recv_like
    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        return -found if found.shape[1] == 1 and now.exists() else found
    mx.distributed.recv_like = wrong
"""
"""What a stage of a pipeline receives for a token of an answer, and never for a prompt."""
PROGRAM = """
import sys
{spoil}
from thunderfleet_runner.rank import __main__, rank
load = rank.Rank._load
def spoiled(self, *arguments):
    # Not before init, whose deadline these imports would take.
    spoil()
    return load(self, *arguments)
rank.Rank._load = spoiled
sys.exit(__main__.main())
"""


def with_program(spoil: str) -> Callable[[str, int, int], list[str]]:
    def command(group: str, epoch: int, rank: int) -> list[str]:
        return [sys.executable, "-P", "-c", PROGRAM.format(spoil=spoil), RANK_MODULE, "--group", group, "--rank", str(rank)]

    return command


@pytest.mark.parametrize("name", quick(["a shape", "above 32 KiB"], IN_CONNECTIONS))
async def test_in_the_check_of_connections(macs: Callable[..., Macs], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    point, reason = IN_CONNECTIONS[name]
    if reason == "Stalled":
        # The limit is for rank 0, whose supervisor runs here. On a busy machine an exchange that ends may take as long.
        monkeypatch.setattr(launch, "PROVE_SECONDS", 3.0)
    group = macs()
    group.fails(0, **point)
    leader = await group.start()
    failure = await group.until_failed(leader)
    assert (failure.reason, failure.attempt) == (reason, 1), failure.message
    assert not leader.state.ranks[0].loaded_bytes, "before the model is loaded"


@pytest.mark.parametrize("ranks", quick([((0, 1),)], [((0, 1),), ((1,),)]), ids=str)
async def test_only_in_the_second_step_of_a_prompt(macs: Callable[..., Macs], tmp_path: Path, ranks: tuple[int, ...]) -> None:
    copymodel.make(tmp_path / "copier", LARGE)
    group = macs()
    for rank in ranks:
        group.fails(rank, **SECOND_STEP)
    plan = group.group.plan.model_copy(update={"model_path": str(tmp_path / "copier")})
    proven = ProvenLengths(digest=preflight.digest(plan), lengths=(300, 2600))
    memory = MemoryPlan(context_tokens=4096, concurrent_requests=4, cached_tokens=4096)
    group.group.plan = plan.model_copy(update={"proven_lengths": proven, "memory": memory})
    leader = await group.start()
    failure = await group.until_failed(leader)
    assert failure.reason == "OutputWrong", failure.message
    assert failure.message.startswith("the prompt was a passage of 2600 tokens and then 32 of these tokens again; token ")


@pytest.mark.parametrize("phase", quick([Phase.PROVING], [Phase.COMPARING, Phase.PROVING, Phase.READY]))
async def test_a_rank_that_hangs_in_a_phase_costs_one_attempt(
    macs: Callable[..., Macs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """Also if the time for the check of answers is over meanwhile: the group would serve nobody."""
    usual = {name: getattr(stall, name) for name in ("STALL_SECONDS", "STALL_UNKNOWN_SECONDS", "STILL_SECONDS")}
    for name, seconds in zip(usual, (6.0, 6.0, 0.5), strict=True):
        monkeypatch.setattr(stall, name, seconds)
    copymodel.make(tmp_path / "copier", SMALL)
    group = macs()
    plan = group.group.plan.model_copy(update={"model_path": str(tmp_path / "copier")})
    proven = ProvenLengths(digest=preflight.digest(plan), lengths=(300,))
    memory = MemoryPlan(context_tokens=1024, concurrent_requests=2, cached_tokens=1024)
    group.group.plan = plan.model_copy(update={"proven_lengths": proven, "memory": memory})
    leader = await group.start()
    machine = leader.role.machine
    leader.role.machine = replace(machine, limits=replace(machine.limits, prove_seconds=4.0, still_seconds=0.5))
    step = StateMachine.step

    def stepped(before: StateMachine, event: Any) -> Any:
        after, actions = step(before, event)
        if (after.phase, after.attempt) == (phase, 1):
            group.fails(1, at="recv", hang=True, attempts=[1])
        return after, actions

    monkeypatch.setattr(StateMachine, "step", stepped)
    if phase is Phase.READY:
        await group.until_ready()
        with pytest.raises(Unavailable):
            await answer(leader, "hangs")
    failure = await group.until_failed(leader)
    assert (failure.reason, failure.attempt) == ("Stalled", 1), failure.message
    assert leader.role.machine.was_ready is (phase is Phase.READY), "it has not served"
    # The next attempt has nothing that hangs, and may be slow.
    leader.role.machine = replace(leader.role.machine, limits=machine.limits)
    for name, seconds in usual.items():
        monkeypatch.setattr(stall, name, seconds)
    await group.until_ready()
    assert (leader.state.attempt, leader.state.verified.status) == (2, "True")


@pytest.mark.soak
async def test_a_wrong_offset_of_a_cache(make_group: Callable[..., Any], tmp_path: Path) -> None:
    """The second step of a prompt is written one place too early."""
    copymodel.make(tmp_path / "copier", LARGE)
    group = make_group(1)
    plan = group.plan.model_copy(update={"model_path": str(tmp_path / "copier")})
    ranks = (plan.ranks[0].model_copy(update={"memory_bytes": 64 << 20}),)
    proven = ProvenLengths(digest=preflight.digest(plan), lengths=(300, 2600))
    memory = MemoryPlan(context_tokens=4096, concurrent_requests=4, cached_tokens=4096)
    group.plan = plan.model_copy(update={"proven_lengths": proven, "memory": memory, "ranks": ranks})
    leader = group.start(0, command=with_program(OFFSET))
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the group gives up")
    assert leader.state.failure.reason == "OutputWrong"
    assert leader.state.failure.message.startswith(
        "the prompt was a passage of 2600 tokens and then 32 of these tokens again; token "
    )


@pytest.mark.parametrize(("name", "spoil"), [("KernelWrong", KERNEL), ("SplitWrong", SPLIT)], ids=["a kernel", "a split"])
async def test_in_the_check_of_products(make_group: Callable[..., Any], tiny: Path, name: str, spoil: str) -> None:
    group = make_group(2)
    ranks = tuple(rank.model_copy(update={"memory_bytes": 64 << 20}) for rank in group.plan.ranks)
    group.plan = group.plan.model_copy(update={"model_path": str(tiny), "ranks": ranks})
    for rank in range(2):
        group.start(rank, command=with_program(spoil))
    leader = group.running[0][0]
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the group gives up")
    assert (leader.state.failure.reason, leader.state.failure.attempt) == (name, 1), leader.state.failure.message
    assert (leader.state.verified.status, leader.state.verified.reason) == ("False", name)


async def test_in_the_answers_of_an_idle_group(
    make_group: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that begins while the group serves, and comes again after the group was right."""
    monkeypatch.setattr(canary, "run", partial(canary.run, idle_seconds=0.5))
    copymodel.make(tmp_path / "copier", SMALL)
    group = make_group(2)
    plan = group.plan.model_copy(update={"model_path": str(tmp_path / "copier"), "split": Split.PIPELINE})
    ranks = tuple(
        rank.model_copy(update={"memory_bytes": 64 << 20, "layers": (1 - rank.rank, 2 - rank.rank)}) for rank in plan.ranks
    )
    proven = ProvenLengths(digest=preflight.digest(plan), lengths=(300,))
    memory = MemoryPlan(context_tokens=1024, concurrent_requests=2, cached_tokens=1024)
    group.plan = plan.model_copy(update={"proven_lengths": proven, "memory": memory, "ranks": ranks})
    limits = attempts.Limits(3, 120.0, backoff=Backoff(0.05, 30.0), steady_seconds=0.1)
    for rank in range(2):
        group.start(rank, command=with_program(LATE), limits=limits)
    leader = group.running[0][0]
    await group.until_ready()
    assert leader.service.answers.passed == {300}
    (group.faults / "now").touch()
    await group.until(lambda: leader.state.failure is not None, "the idle group notices")
    (group.faults / "now").unlink()
    assert leader.state.failure.reason == "OutputWrong"
    await group.until(lambda: leader.state.phase is GroupPhase.READY and leader.state.recoveries == 1, "it restarts once")
    await group.until(lambda: leader.role.machine.steady, "it has served for a while")
    (group.faults / "now").touch()
    await group.until(lambda: leader.state.phase is GroupPhase.GAVE_UP, "the second time it gives up")
    assert leader.state.failure.message.startswith("the prompt was a passage of 300 tokens and then 32 of these tokens again;")
    assert (leader.state.verified.status, leader.state.verified.reason) == ("False", "OutputWrong")
