"""A group of two ranks over one cable, both sides: rank 0 dials, rank 1 answers.

Each agent starts the process of its rank and passes on the gathers of JACCL; whichever rank fails first ends both.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from pydantic import ValidationError
from thunderfleet_crds.vocabulary import MeasurementTransport

from thunderfleet_agent.measure.schedule.figures import Figures
from thunderfleet_agent.measure.schedule.probes import FORM_SECONDS, CableEnd, ProbeKind, Target
from thunderfleet_agent.measure.schedule.settings import MeasureSettings
from thunderfleet_agent.measure.session import streams
from thunderfleet_agent.measure.session.channel import Channel
from thunderfleet_agent.measure.session.messages import MAX_ERROR, PART_BYTES, ProbeReply, ProbeRequest, SessionMessage
from thunderfleet_agent.measure.session.result import SessionFailed, SessionResult
from thunderfleet_agent.measure.session.steps import SLACK_SECONDS, accepted
from thunderfleet_agent.measure.worker import parent

# While a group runs, each agent sends a heartbeat this often. A peer that was silent for the longer time is frozen or cut off,
# and this Mac does not wait for the group's own limit.
ALIVE_SECONDS = 3.0
SILENT_SECONDS = 12.0
BACKENDS = {MeasurementTransport.RDMA: "jaccl", MeasurementTransport.RING: "ring"}

Inbox = asyncio.Queue[SessionMessage]
Gather = Callable[[Channel, Inbox, dict[str, Any]], Awaitable[dict[str, Any]]]


async def dial(
    channel: Channel,
    target: Target,
    settings: MeasureSettings,
    end: CableEnd,
    confirm: Callable[[], None],
    interactive: bool = False,
) -> SessionResult:
    """Rank 0. ``confirm`` is called when the peer accepted. Raises ProbeRefused, SessionFailed, MacBusy, WorkerFailed."""
    chosen = settings.rdma
    request = ProbeRequest(
        kind=ProbeKind.RDMA,
        link=target.link,
        bytes=chosen.bytes,
        seconds=chosen.seconds,
        transport=chosen.transport,
        device=end.device,
        host=_ring_host(end, chosen.transport),
        interactive=interactive,
    )
    await channel.send(request)
    reply = accepted(await channel.receive(ProbeReply))
    confirm()
    order = _order(0, request, reply, min(request.bytes, reply.bytes), min(request.seconds, reply.seconds))
    return await _run(channel, order, chosen.transport, _gather_as_rank_0)


async def answer(channel: Channel, request: ProbeRequest, settings: MeasureSettings, end: CableEnd) -> SessionResult:
    """Rank 1. Raises SessionFailed, WorkerFailed."""
    chosen = settings.rdma
    reply = ProbeReply(
        bytes=min(request.bytes, chosen.bytes),
        seconds=min(request.seconds, float(chosen.seconds)),
        device=end.device,
        host=_ring_host(end, request.transport),
    )
    await channel.send(reply)
    order = _order(1, request, reply, reply.bytes, reply.seconds)
    return await _run(channel, order, request.transport, _gather_as_rank_1)


def _ring_host(end: CableEnd, transport: MeasurementTransport) -> str:
    """``ip:port`` where this rank of a ring listens; the port is free now."""
    if transport is not MeasurementTransport.RING:
        return ""
    with socket.socket(streams.family(end.address), socket.SOCK_STREAM) as free:
        free.bind((end.address, 0))
        return f"{end.address}:{free.getsockname()[1]}"


def _order(rank: int, request: ProbeRequest, reply: ProbeReply, most: int, seconds: float) -> dict[str, Any]:
    return {
        "what": "pair",
        "rank": rank,
        "backend": BACKENDS[request.transport],
        "devices": [request.device, reply.device],
        "hosts": [request.host, reply.host],
        "bytes": most,
        "seconds": seconds + FORM_SECONDS,
    }


async def _gather_as_rank_0(channel: Channel, inbox: Inbox, mine: dict[str, Any]) -> dict[str, Any]:
    """Joins both parts and sends the result to rank 1."""
    theirs = await inbox.get()
    if theirs.gather != mine["gather"]:
        raise SessionFailed(
            f"{channel.peer} is at all-gather {theirs.gather}, this Mac at all-gather {mine['gather']}: use the same MLX on "
            "both Macs"
        )
    parts = _part(channel, str(mine["part"])), _part(channel, theirs.part)
    if len(parts[0]) != len(parts[1]):
        raise SessionFailed(
            f"{channel.peer} sent {len(parts[1])} bytes for an all-gather of {len(parts[0])}: use the same MLX on both Macs"
        )
    whole = base64.b64encode(b"".join(parts)).decode()
    await channel.send(SessionMessage(gather=theirs.gather, whole=whole))
    return {"gather": theirs.gather, "whole": whole}


async def _gather_as_rank_1(channel: Channel, inbox: Inbox, mine: dict[str, Any]) -> dict[str, Any]:
    part = str(mine["part"])
    _part(channel, part)
    await channel.send(SessionMessage(gather=int(mine["gather"]), part=part))
    message = await inbox.get()
    return {"gather": message.gather, "whole": message.whole}


def _part(channel: Channel, text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise SessionFailed(f"{channel.peer}: a part of an all-gather is not base64") from None
    if len(data) > PART_BYTES:
        raise SessionFailed(f"{channel.peer}: a part of an all-gather has {len(data)} bytes; the limit is {PART_BYTES}")
    return data


async def _run(channel: Channel, order: dict[str, Any], transport: MeasurementTransport, gather: Gather) -> SessionResult:
    """Runs this rank's process while relaying the peer's messages."""
    limit, inbox = float(order["seconds"]) + parent.GRACE_SECONDS, Inbox(2)

    async def heard(message: dict[str, Any]) -> dict[str, Any] | None:
        return await gather(channel, inbox, message) if "gather" in message else None

    async with _heartbeat(channel):
        found = await _both(_measure(channel, order, heard), _listen(channel, inbox), limit + SLACK_SECONDS, channel)
    try:
        figures = Figures.model_validate({**found, "transport": transport})
    except ValidationError as error:
        raise SessionFailed(f"the measuring process gave an invalid result: {error.errors()[0]['msg']}") from None
    return SessionResult(figures, 2 * int(order["bytes"]))


async def _measure(channel: Channel, order: dict[str, Any], heard: parent.Heard) -> dict[str, Any]:
    try:
        found = await parent.run(order, heard)
    except parent.WorkerFailed as error:
        await channel.send(SessionMessage(error=str(error)[:MAX_ERROR]))
        raise
    await channel.send(SessionMessage(next="done"))
    return found


async def _listen(channel: Channel, inbox: Inbox) -> None:
    """Passes on the peer's messages until it is done. Raises SessionFailed if it failed or is silent."""
    while True:
        message = await channel.receive(SessionMessage, SILENT_SECONDS)
        if message.error:
            raise SessionFailed(f"{channel.peer}: {message.error}")
        if message.next == "done":
            return
        if message.next != "alive":
            await inbox.put(message)


@contextlib.asynccontextmanager
async def _heartbeat(channel: Channel) -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            await channel.send(SessionMessage(next="alive"))

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def _both(
    measure: Coroutine[Any, Any, dict[str, Any]], listen: Coroutine[Any, Any, None], seconds: float, channel: Channel
) -> dict[str, Any]:
    measuring, listening = asyncio.create_task(measure), asyncio.create_task(listen)
    tasks = (measuring, listening)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            # A peer that fails sends the reason before it closes the channel: the reason is the better error.
            for task in (listening, measuring):
                if task.done():
                    task.result()
            return await measuring
    except TimeoutError:
        raise SessionFailed(f"the group with {channel.peer} did not finish within {seconds:g} s") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
