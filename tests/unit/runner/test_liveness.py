"""When a group is taken for dead, frozen or stalled, and when it is not: counted in ticks, on groups of two and three."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner import protocol
from thunderfleet_runner.api.service import Unavailable
from thunderfleet_runner.group import leader as leader_module
from thunderfleet_runner.group.attempts import Stage
from thunderfleet_runner.net import peers

from tests.support.processes import exists

MakeGroup = Callable[..., Any]


async def ready(make_group: MakeGroup, size: int) -> tuple[Any, list[Any]]:
    group = make_group(size)
    supervisors = [group.start(rank) for rank in range(size)]
    await group.until_ready()
    return group, supervisors


def ticks_until_stalled(
    role: Any, size: int, steps: Callable[[int], int], *, working: bool, longest: float, of_rank_0: float | None = None
) -> int | None:
    """How many of the leader's ticks pass until it takes the group for stalled; None when a thousand do not."""
    attempt = role.machine.attempt
    for tick in range(1, 1000):
        pulse = peers.Pulse(attempt=attempt, steps=steps(tick), in_step=working, longest_step_seconds=longest)
        own = pulse if of_rank_0 is None else pulse.model_copy(update={"longest_step_seconds": of_rank_0})
        role.member.pulse = lambda own=own: own
        role._pulses = dict.fromkeys(range(1, size), pulse)
        role._watch_steps()
        if role.machine.stage is not Stage.READY:
            return tick
    return None


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("longest", "seconds"), [(0.001, 10.0), (0.05, 10.0), (4.0, 20.0), (30.0, 150.0)])
async def test_a_stall_is_as_long_as_ten_seconds_or_five_of_the_longest_step(
    make_group: MakeGroup, size: int, longest: float, seconds: float
) -> None:
    group, (leader, *_) = await ready(make_group, size)
    ticks = ticks_until_stalled(leader.role, size, lambda _: 7, working=True, longest=longest)
    # The first tick sees the steps for the first time.
    assert ticks == seconds / leader_module.TICK_SECONDS + 2
    failure = leader.state.failure
    assert failure.reason == "Stalled" and f"for {seconds:g} s" in failure.message
    del leader.role.member.pulse
    await group.until_ready()


@pytest.mark.parametrize(("of_rank_0", "longest", "seconds"), [(0.0, 0.0, 30.0), (0.2, 0.0, 30.0), (9.0, 0.0, 45.0)])
async def test_a_first_step_of_a_shape_has_thirty_seconds_since_nothing_says_how_long_one_takes(
    make_group: MakeGroup, of_rank_0: float, longest: float, seconds: float
) -> None:
    group, (leader, *_) = await ready(make_group, 2)
    ticks = ticks_until_stalled(leader.role, 2, lambda _: 7, working=True, longest=longest, of_rank_0=of_rank_0)
    assert ticks == seconds / leader_module.TICK_SECONDS + 2
    assert f"for {seconds:g} s" in leader.state.failure.message
    del leader.role.member.pulse
    await group.until_ready()


async def test_what_moves_or_is_idle_is_not_stalled(make_group: MakeGroup) -> None:
    _, (leader, *_) = await ready(make_group, 2)
    # A long prefill: a chunk every nine seconds.
    assert ticks_until_stalled(leader.role, 2, lambda tick: tick // 18, working=True, longest=0.01) is None
    assert ticks_until_stalled(leader.role, 2, lambda _: 99, working=False, longest=0.0) is None
    del leader.role.member.pulse


@pytest.mark.parametrize("last", [0, 1, 2])
async def test_a_frozen_rank_of_three_is_named_and_all_are_ended(make_group: MakeGroup, last: int) -> None:
    group, supervisors = await ready(make_group, 3)
    leader, old = supervisors[0], [supervisor.member.pid for supervisor in supervisors]
    os.kill(old[last], signal.SIGSTOP)
    await group.until(lambda: leader.state.phase is not GroupPhase.READY, "the silence is noticed")
    assert (leader.state.failure.rank, leader.state.failure.reason) == (last, "RankFrozen")
    assert "for 3 s" in leader.state.failure.message
    await group.until_ready()
    for pid in old:
        assert not exists(pid)


async def test_a_rank_of_three_that_freezes_under_a_stream_ends_it(make_group: MakeGroup) -> None:
    group, supervisors = await ready(make_group, 3)
    leader = supervisors[0]
    stream = leader.service.submit(protocol.Request(id="long", kind="completion", prompt="a", max_tokens=10_000_000))
    await anext(stream)
    os.kill(supervisors[2].member.pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match="rank 2"):
        async for _ in stream:
            pass
    await group.until_ready()
    assert leader.state.recoveries == 1


async def test_a_supervisor_of_three_that_is_gone_is_noticed_and_waited_for(make_group: MakeGroup) -> None:
    group, supervisors = await ready(make_group, 3)
    leader, others = supervisors[0], [supervisors[0].member.pid, supervisors[1].member.pid]
    await group.crash(2)
    await group.until(lambda: leader.state.phase is GroupPhase.WAITING, "rank 2 is waited for")
    assert (leader.state.failure.rank, leader.state.failure.reason) == (2, "SupervisorLost")
    for pid in others:
        assert not exists(pid)
    group.start(2)
    await group.until_ready()
