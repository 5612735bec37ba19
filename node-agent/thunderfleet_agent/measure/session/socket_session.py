"""Round trip and throughput over plain sockets, both sides: the Mac that dials and the Mac that answers.

Each side times what arrives at it and sends its figure to the other, so that one session gives both Macs both directions.
Every step has a limit, and leaving the session in any way closes its sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from thunderfleet_crds.vocabulary import MeasurementTransport

from thunderfleet_agent.measure.schedule.figures import Figures
from thunderfleet_agent.measure.schedule.probes import ECHO_SECONDS, SETUP_SECONDS, ProbeKind, Target
from thunderfleet_agent.measure.schedule.settings import MeasureSettings, Sockets
from thunderfleet_agent.measure.session import streams
from thunderfleet_agent.measure.session.channel import Channel
from thunderfleet_agent.measure.session.messages import MAX_STREAMS, ProbeReply, ProbeRequest, SessionMessage
from thunderfleet_agent.measure.session.result import SessionFailed, SessionResult
from thunderfleet_agent.measure.session.steps import SLACK_SECONDS, accepted, expect
from thunderfleet_agent.measure.session.stream_listener import StreamListener
from thunderfleet_agent.measure.session.streams import DOWN, UP, Streams


async def dial(
    channel: Channel,
    target: Target,
    settings: MeasureSettings,
    source: str,
    interface: str | None,
    confirm: Callable[[], None],
    interactive: bool = False,
) -> SessionResult:
    """The side that dials. ``confirm`` is called when the peer has accepted. Raises ProbeRefused, SessionFailed, MacBusy."""
    chosen = settings.sockets
    limits = {"bytes": _bytes(chosen, target.link), "seconds": chosen.seconds, "streams": chosen.streams}
    await channel.send(ProbeRequest(kind=ProbeKind.SOCKET, link=target.link, interactive=interactive, **limits))
    reply = accepted(await channel.receive(ProbeReply))
    confirm()
    most, seconds = min(_bytes(chosen, target.link), reply.bytes), min(float(chosen.seconds), reply.seconds)
    try:
        async with asyncio.timeout(SETUP_SECONDS):
            token = bytes.fromhex(reply.token)
            opened = await streams.dial(target.address, reply.port, token, chosen.streams, source, interface)
    except (OSError, ValueError) as error:
        raise SessionFailed(f"{channel.peer}: cannot connect to its port {reply.port}: {error or 'no answer'}") from None
    async with _streams(channel, opened):
        trips = await opened.echo(ECHO_SECONDS)
        await channel.send(SessionMessage(next="up"))
        # The receiver must read from the start, because TCP opens only a small window for a receiver that begins late.
        expect(channel, await channel.receive(SessionMessage), "ready")
        sent = await opened.send(UP, most, seconds)
        theirs = await _figures_of(channel, seconds)
        await channel.send(SessionMessage(next="down"))
        received, arrived = await opened.receive(DOWN, most, seconds)
        if received == 0:
            raise _too_little(f"from {channel.peer}", seconds)
        await channel.send(SessionMessage(mbps=received, rtt=trips.rtt, jitter=trips.jitter))
    return SessionResult(_figures(theirs.mbps, received, trips.rtt, trips.jitter), sent + arrived)


async def answer(channel: Channel, request: ProbeRequest, settings: MeasureSettings, here: str, there: str) -> SessionResult:
    """The side that was dialled at address ``here`` from ``there``. Raises SessionFailed."""
    chosen = settings.sockets
    most, seconds = min(request.bytes, _bytes(chosen, request.link)), min(request.seconds, float(chosen.seconds))
    try:
        listener = StreamListener(here, there)
    except OSError as error:
        why = f"cannot listen on {here}: {error.strerror or error}"
        await channel.send(ProbeReply(refused=why))
        raise SessionFailed(f"{why} (for {channel.peer})") from None
    try:
        reply = ProbeReply(bytes=most, seconds=seconds, port=listener.port, token=listener.token.hex())
        await channel.send(reply)
        # From now on, a peer that stops closes the channel, so that this Mac is available for others at once.
        first = asyncio.create_task(channel.receive(SessionMessage, SETUP_SECONDS + ECHO_SECONDS + SLACK_SECONDS))
        opened = await _admitted(channel, listener, min(request.streams, MAX_STREAMS), first)
    finally:
        listener.close()
    async with _streams(channel, opened):
        await opened.answer_echoes(ECHO_SECONDS + SLACK_SECONDS)
        expect(channel, await first, "up")
        receiving = asyncio.create_task(opened.receive(UP, most, seconds))
        try:
            await channel.send(SessionMessage(next="ready"))
            received, arrived = await receiving
        finally:
            receiving.cancel()
        await channel.send(SessionMessage(mbps=received))
        if received == 0:
            raise _too_little(f"from {channel.peer}", seconds)
        expect(channel, await channel.receive(SessionMessage, seconds + SLACK_SECONDS), "down")
        sent = await opened.send(DOWN, most, seconds)
        theirs = await _figures_of(channel, seconds)
    return SessionResult(_figures(theirs.mbps, received, theirs.rtt, theirs.jitter), sent + arrived)


def _bytes(settings: Sockets, link: str) -> int:
    """The limit per direction. A cable has its own limit, because no other traffic uses it."""
    return settings.cable_bytes if link else settings.bytes


def _figures(sent: int | None, received: int | None, rtt: int | None, jitter: int | None) -> Figures:
    return Figures(
        sent_mbps=sent,
        received_mbps=received,
        rtt_microseconds=rtt,
        jitter_microseconds=jitter,
        payload_bytes=streams.CHUNK,
        transport=MeasurementTransport.SOCKET,
    )


@contextlib.asynccontextmanager
async def _streams(channel: Channel, opened: Streams) -> AsyncIterator[None]:
    """Closes the streams at the end. Raises SessionFailed for what they raise."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise SessionFailed(f"{channel.peer}: {error}") from None
    finally:
        opened.close()


def _too_little(where: str, seconds: float) -> SessionFailed:
    """``where``: from or at which Mac the data should have arrived."""
    return SessionFailed(
        f"too little data arrived {where} within {seconds:g} s to compute a rate: check the connection between the two Macs"
    )


async def _figures_of(channel: Channel, seconds: float) -> SessionMessage:
    """The peer's measurement: no rate if all bytes arrived in one read, 0 if too few arrived. Raises SessionFailed."""
    message = await channel.receive(SessionMessage, seconds + SLACK_SECONDS)
    expect(channel, message, "")
    if message.mbps == 0:
        raise _too_little(f"at {channel.peer}", seconds)
    return message


async def _admitted(channel: Channel, listener: StreamListener, count: int, first: asyncio.Task[SessionMessage]) -> Streams:
    """The streams, unless the peer sends a message first. Raises SessionFailed."""
    admitting = asyncio.create_task(listener.admit(count, SETUP_SECONDS))
    try:
        await asyncio.wait((admitting, first), return_when=asyncio.FIRST_COMPLETED)
        if not admitting.done():
            expect(channel, await first, "no message before its streams")
        return await admitting
    except TimeoutError:
        raise SessionFailed(f"{channel.peer} did not open its streams within {SETUP_SECONDS:g} s") from None
    except BaseException:
        first.cancel()
        admitting.cancel()
        (late,) = await asyncio.gather(admitting, return_exceptions=True)
        if isinstance(late, Streams):
            late.close()
        raise
