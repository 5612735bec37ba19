"""Checks of a message against the step at which the session is."""

from __future__ import annotations

from thunderfleet_agent.measure.session.channel import Channel
from thunderfleet_agent.measure.session.messages import ProbeReply, SessionMessage
from thunderfleet_agent.measure.session.result import ProbeRefused, SessionFailed

# Added to the limit of a step, for the message that ends it.
SLACK_SECONDS = 2.0


def accepted(reply: ProbeReply) -> ProbeReply:
    """The reply, unless it refuses. Raises ProbeRefused."""
    if reply.refused:
        raise ProbeRefused(reply.refused, reply.again)
    return reply


def expect(channel: Channel, message: SessionMessage, step: str) -> None:
    """Raises SessionFailed if the message is an error or belongs to another step."""
    if message.error:
        raise SessionFailed(f"{channel.peer}: {message.error}")
    if message.next != step:
        got, wanted = message.next or "measured values", step or "measured values"
        raise SessionFailed(
            f"{channel.peer} sent {got!r}, expected {wanted!r}: both ends must run the same version of Thunderfleet"
        )
