"""The lease of an interactive measurement, which reserves this Mac at its own agent so that no other probe runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from thunderfleet_agent.measure.schedule.figures import Figures
from thunderfleet_agent.measure.schedule.probes import Probe
from thunderfleet_agent.measure.session.channel import Channel
from thunderfleet_agent.measure.session.messages import ProbeReply, ProbeRequest, SessionMessage
from thunderfleet_agent.measure.session.result import SessionResult
from thunderfleet_agent.measure.session.steps import SLACK_SECONDS, accepted, expect
from thunderfleet_agent.measure.worker.parent import GRACE_SECONDS


async def lend(channel: Channel, probe: Probe) -> SessionResult:
    """The agent's side: waits until the client finishes or disconnects. Raises SessionFailed."""
    await channel.send(ProbeReply(seconds=probe.seconds))
    message = await channel.receive(SessionMessage, probe.seconds + GRACE_SECONDS + SLACK_SECONDS)
    expect(channel, message, "done")
    return SessionResult(Figures(), probe.shared_bytes)


async def borrow(channel: Channel, probe: Probe, measure: Callable[[], Coroutine[Any, Any, Figures]]) -> Figures:
    """The client's side: runs ``measure`` under the lease, until the agent ends the lease for a group.

    Raises ProbeRefused, SessionFailed, and what ``measure`` raises.
    """
    await channel.send(ProbeRequest(kind=probe.kind, link=probe.target.link, node=probe.target.node))
    limit = accepted(await channel.receive(ProbeReply)).seconds + GRACE_SECONDS + SLACK_SECONDS
    measuring, taken_back = asyncio.create_task(measure()), asyncio.create_task(channel.receive(SessionMessage, limit))
    try:
        await asyncio.wait((measuring, taken_back), return_when=asyncio.FIRST_COMPLETED)
        if not measuring.done():
            expect(channel, await taken_back, "no message during the benchmark")
        found = await measuring
        taken_back.cancel()
        await channel.send(SessionMessage(next="done"))
        return found
    finally:
        for task in (measuring, taken_back):
            task.cancel()
        await asyncio.gather(measuring, taken_back, return_exceptions=True)
