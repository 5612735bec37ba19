"""Real supervisors on loopback, with real ring processes: what a group does when its parts come late, go, or lie."""

from collections.abc import Callable
from typing import Any

from thunderfleet_runner import protocol


async def test_two_supervisors_form_a_ring_and_generate(make_group: Callable[..., Any]) -> None:
    group = make_group(2)
    leader, other = group.start(0), group.start(1)
    await group.until_ready()
    assert leader.state.attempt == 1
    assert [report.phase for report in leader.state.ranks] == ["Serving", "Serving"]
    await group.until(lambda: other.service.ready, "rank 1 knows that the group is Ready")
    assert leader.service.vocabulary.size == 64
    for number in range(3):
        request = protocol.Request(id=f"r{number}", kind="completion", prompt="a b c", max_tokens=4)
        assert await leader.service.prepare(request) == 3
        events = [event async for event in leader.service.submit(request)]
        assert [event.token for event in events[:-1]] == [0, 2, 4, 6]
        assert events[-1].finish_reason == "length"
