"""When a group of processes counts as dead or frozen, and when it does not."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner import protocol
from thunderfleet_runner.api.service import Unavailable

from tests.support.processes import exists

MakeGroup = Callable[..., Any]


async def ready(make_group: MakeGroup, size: int) -> tuple[Any, list[Any]]:
    group = make_group(size)
    supervisors = [group.start(rank) for rank in range(size)]
    await group.until_ready()
    return group, supervisors


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
    stream = leader.service.submit(protocol.Request(id="long", prompt=protocol.Prompt.of((1,)), max_tokens=10_000_000))
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
