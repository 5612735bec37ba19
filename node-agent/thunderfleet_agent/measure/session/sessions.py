"""The two probes between Macs, each as its two sides: who dials and who answers.

Both know both figures at the end, each having timed what arrived at it, so one run serves two Macs. Every step has a limit, and
leaving a session by whatever way closes its sockets and ends its process.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from thunderfleet_crds.vocabulary import MeasurementTransport

from thunderfleet_agent.measure.schedule.probes import ECHO_SECONDS, FORM_SECONDS, SETUP_SECONDS, Kind, Probe, Target
from thunderfleet_agent.measure.schedule.results import Figures
from thunderfleet_agent.measure.schedule.settings import Settings
from thunderfleet_agent.measure.session import streams, talk
from thunderfleet_agent.measure.session.talk import Answer, Ask, Broken, Line, Refused, Step
from thunderfleet_agent.measure.worker import process

# While a group runs, each agent says so often that it is there; one that was silent for so long is frozen or cut off, and this
# Mac is not kept until the group's own limit.
ALIVE_SECONDS = 3.0
SILENT_SECONDS = 12.0
# Beyond what a phase takes by its own limit.
SLACK_SECONDS = 2.0
BACKENDS = {MeasurementTransport.RDMA: "jaccl", MeasurementTransport.RING: "ring"}


@dataclass(frozen=True)
class Found:
    """What a session found, and how many bytes it moved both ways."""

    figures: Figures
    bytes: int = 0


def _answered(answer: Answer) -> Answer:
    if answer.refused:
        raise Refused(answer.refused, answer.again)
    return answer


# --- sockets ---


async def dial_socket(
    line: Line,
    target: Target,
    settings: Settings,
    source: str,
    interface: str | None,
    sure: Callable[[], None],
    by_hand: bool = False,
) -> Found:
    """This Mac's side when it dials; ``sure`` is called when the peer has said yes. Raises Refused, Broken, Busy."""
    chosen = settings.sockets
    most = chosen.cable_bytes if target.link else chosen.bytes
    limits = {"bytes": most, "seconds": chosen.seconds, "streams": chosen.streams}
    await line.say(Ask(kind=Kind.SOCKET, link=target.link, by_hand=by_hand, **limits))
    answer = _answered(await line.hear(Answer))
    sure()
    most, seconds = min(most, answer.bytes), min(float(chosen.seconds), answer.seconds)
    try:
        async with asyncio.timeout(SETUP_SECONDS):
            opened = await streams.dial(
                target.address, answer.port, bytes.fromhex(answer.token), chosen.streams, source, interface
            )
    except (OSError, ValueError) as error:
        raise Broken(f"{line.peer} gave port {answer.port}, which cannot be dialled: {error or 'no answer'}") from None
    try:
        trips = await opened.echo(ECHO_SECONDS)
        await line.say(Step(next="up"))
        # A receiver that reads late is given a small window for long.
        _expect(line, await line.hear(Step), "ready")
        sent = await opened.send(streams.UP, most, seconds)
        told = _told(line, await line.hear(Step, seconds + SLACK_SECONDS))
        await line.say(Step(next="down"))
        received, arrived = await opened.receive(streams.DOWN, most, seconds)
        if received == 0:
            raise Broken(f"{line.peer}: too little arrived here")
        await line.say(Step(mbps=received, rtt=trips.rtt, jitter=trips.jitter))
    except (OSError, ValueError) as error:
        raise Broken(f"{line.peer}: {error}") from None
    finally:
        opened.close()
    return Found(
        Figures(
            sent_mbps=told.mbps,
            received_mbps=received,
            rtt_microseconds=trips.rtt,
            jitter_microseconds=trips.jitter,
            payload_bytes=streams.CHUNK,
            transport=MeasurementTransport.SOCKET,
        ),
        sent + arrived,
    )


async def answer_socket(line: Line, ask: Ask, settings: Settings, here: str, there: str) -> Found:
    """This Mac's side when it was dialled at ``here`` from ``there``. Raises Broken."""
    chosen = settings.sockets
    most = min(ask.bytes, chosen.cable_bytes if ask.link else chosen.bytes)
    seconds, count = min(ask.seconds, float(chosen.seconds)), min(ask.streams, 16)
    try:
        gate = streams.Gate(here, there)
    except OSError as error:
        await line.say(Answer(refused=f"cannot listen on {here}: {error.strerror or error}"))
        raise Broken(f"cannot listen on {here} for {line.peer}: {error.strerror or error}") from None
    try:
        await line.say(Answer(bytes=most, seconds=seconds, port=gate.port, token=gate.token.hex()))
        # Heard from now on: a peer that has changed its mind hangs up, and this Mac is free for others at once.
        hearing = asyncio.create_task(line.hear(Step, SETUP_SECONDS + ECHO_SECONDS + SLACK_SECONDS))
        opened = await _admitted(line, gate, count, hearing)
    finally:
        gate.close()
    try:
        await opened.answer_echoes(ECHO_SECONDS + SLACK_SECONDS)
        _expect(line, await hearing, "up")
        receiving = asyncio.create_task(opened.receive(streams.UP, most, seconds))
        try:
            await line.say(Step(next="ready"))
            received, arrived = await receiving
        finally:
            receiving.cancel()
        await line.say(Step(mbps=received))
        if received == 0:
            raise Broken(f"{line.peer}: too little arrived here")
        _expect(line, await line.hear(Step, seconds + SLACK_SECONDS), "down")
        sent = await opened.send(streams.DOWN, most, seconds)
        told = _told(line, await line.hear(Step, seconds + SLACK_SECONDS))
    except OSError as error:
        raise Broken(f"{line.peer}: {error}") from None
    finally:
        opened.close()
    return Found(
        Figures(
            sent_mbps=told.mbps,
            received_mbps=received,
            rtt_microseconds=told.rtt,
            jitter_microseconds=told.jitter,
            payload_bytes=streams.CHUNK,
            transport=MeasurementTransport.SOCKET,
        ),
        sent + arrived,
    )


def _told(line: Line, step: Step) -> Step:
    """What the peer has timed: no rate when everything arrived there at once, 0 when too little did. Raises Broken."""
    _expect(line, step, "")
    if step.mbps == 0:
        raise Broken(f"{line.peer}: too little arrived there")
    return step


async def _admitted(line: Line, gate: streams.Gate, count: int, hearing: asyncio.Task[Step]) -> streams.Streams:
    """The streams, unless the peer says something first. Raises Broken."""
    admitting = asyncio.create_task(gate.admit(count, SETUP_SECONDS))
    try:
        await asyncio.wait((admitting, hearing), return_when=asyncio.FIRST_COMPLETED)
        if not admitting.done():
            _expect(line, await hearing, "no stream has come")
        return await admitting
    except TimeoutError:
        raise Broken(f"{line.peer} did not come with its token within {SETUP_SECONDS:g} s") from None
    except BaseException:
        hearing.cancel()
        admitting.cancel()
        (late,) = await asyncio.gather(admitting, return_exceptions=True)
        if isinstance(late, streams.Streams):
            late.close()
        raise


def _expect(line: Line, step: Step, word: str) -> None:
    if step.error:
        raise Broken(f"{line.peer}: {step.error}")
    if step.next != word:
        raise Broken(f"{line.peer} said {step.next or 'something else'!r} where {word or 'its figures'!r} comes")


# --- somebody at this Mac's terminal, who measures by himself while the agent is out of it ---


async def lend(line: Line, probe: Probe) -> Found:
    """The agent's side: nothing else until the other has done or gone. Raises Broken."""
    await line.say(Answer(seconds=probe.seconds))
    _expect(line, await line.hear(Step, probe.seconds + process.GRACE_SECONDS + SLACK_SECONDS), "done")
    return Found(Figures(), probe.shared_bytes)


async def borrow(line: Line, probe: Probe, measure: Callable[[], Coroutine[Any, Any, Figures]]) -> Figures:
    """The other's: what ``measure`` finds while the agent lends the Mac; a group that comes meanwhile ends it. Raises Refused,
    Broken, and what ``measure`` raises.
    """
    await line.say(Ask(kind=probe.kind, link=probe.target.link, node=probe.target.node))
    limit = _answered(await line.hear(Answer)).seconds + process.GRACE_SECONDS + SLACK_SECONDS
    measuring, taken = asyncio.create_task(measure()), asyncio.create_task(line.hear(Step, limit))
    try:
        await asyncio.wait((measuring, taken), return_when=asyncio.FIRST_COMPLETED)
        if not measuring.done():
            _expect(line, await taken, "nothing, since a probe runs")
        found = await measuring
        taken.cancel()
        await line.say(Step(next="done"))
        return found
    finally:
        for task in (measuring, taken):
            task.cancel()
        await asyncio.gather(measuring, taken, return_exceptions=True)


# --- a two-rank group over one cable ---


@dataclass(frozen=True)
class End:
    """One end of a cable: its RDMA device and its address."""

    device: str = ""
    address: str = ""


async def dial_pair(
    line: Line, target: Target, settings: Settings, end: End, sure: Callable[[], None], by_hand: bool = False
) -> Found:
    """Rank 0. Raises Refused, Broken, Busy, ChildFailed."""
    chosen = settings.rdma
    ask = Ask(
        kind=Kind.RDMA,
        link=target.link,
        bytes=chosen.bytes,
        seconds=chosen.seconds,
        transport=chosen.transport,
        device=end.device,
        host=_host(end, chosen.transport),
        by_hand=by_hand,
    )
    await line.say(ask)
    answer = _answered(await line.hear(Answer))
    sure()
    order = _order(0, ask, answer, min(ask.bytes, answer.bytes), min(ask.seconds, answer.seconds))
    return await _group(line, order, chosen.transport, _leads)


async def answer_pair(line: Line, ask: Ask, settings: Settings, end: End) -> Found:
    """Rank 1. Raises Broken, ChildFailed."""
    chosen = settings.rdma
    answer = Answer(
        bytes=min(ask.bytes, chosen.bytes),
        seconds=min(ask.seconds, float(chosen.seconds)),
        device=end.device,
        host=_host(end, ask.transport),
    )
    await line.say(answer)
    return await _group(line, _order(1, ask, answer, answer.bytes, answer.seconds), ask.transport, _follows)


def _host(end: End, transport: MeasurementTransport) -> str:
    """Where this rank of a ring listens: a port that is free now."""
    if transport is not MeasurementTransport.RING:
        return ""
    with socket.socket(streams.family(end.address), socket.SOCK_STREAM) as free:
        free.bind((end.address, 0))
        return f"{end.address}:{free.getsockname()[1]}"


def _order(rank: int, ask: Ask, answer: Answer, most: int, seconds: float) -> dict[str, Any]:
    return {
        "what": "pair",
        "rank": rank,
        "backend": BACKENDS[ask.transport],
        "devices": [ask.device, answer.device],
        "hosts": [ask.host, answer.host],
        "bytes": most,
        "seconds": seconds + FORM_SECONDS,
    }


Gathers = Callable[[Line, asyncio.Queue[Step], dict[str, Any]], Awaitable[dict[str, Any]]]


async def _leads(line: Line, inbox: asyncio.Queue[Step], mine: dict[str, Any]) -> dict[str, Any]:
    """Rank 0 puts the parts together."""
    theirs = await inbox.get()
    if theirs.gather != mine["gather"]:
        raise Broken(f"{line.peer} is at gather {theirs.gather}, this Mac at {mine['gather']}")
    parts = _part(line, str(mine["part"])), _part(line, theirs.part)
    if len(parts[0]) != len(parts[1]):
        raise Broken(f"{line.peer} gave {len(parts[1])} bytes to a gather of {len(parts[0])}: do versions of MLX differ?")
    whole = base64.b64encode(b"".join(parts)).decode()
    await line.say(Step(gather=theirs.gather, whole=whole))
    return {"gather": theirs.gather, "whole": whole}


async def _follows(line: Line, inbox: asyncio.Queue[Step], mine: dict[str, Any]) -> dict[str, Any]:
    part = str(mine["part"])
    _part(line, part)
    await line.say(Step(gather=int(mine["gather"]), part=part))
    step = await inbox.get()
    return {"gather": step.gather, "whole": step.whole}


def _part(line: Line, text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise Broken(f"{line.peer}: a gather's part is no base64") from None
    if len(data) > talk.PART_BYTES:
        raise Broken(f"{line.peer}: a gather's part has {len(data)} bytes, at most {talk.PART_BYTES} are taken")
    return data


async def _group(line: Line, order: dict[str, Any], transport: MeasurementTransport, gathers: Gathers) -> Found:
    """The process of this rank, and what the other Mac says meanwhile; whichever fails first ends both."""
    limit, inbox = float(order["seconds"]) + process.GRACE_SECONDS, asyncio.Queue[Step](2)

    async def listen() -> None:
        while True:
            step = await line.hear(Step, SILENT_SECONDS)
            if step.error:
                raise Broken(f"{line.peer}: {step.error}")
            if step.next == "done":
                return
            if step.next != "alive":
                await inbox.put(step)

    async def live() -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            await line.say(Step(next="alive"))

    async def heard(message: dict[str, Any]) -> dict[str, Any] | None:
        return await gathers(line, inbox, message) if "gather" in message else None

    async def measure() -> dict[str, Any]:
        try:
            found = await process.run(order, heard)
        except process.ChildFailed as error:
            await line.say(Step(error=str(error)[:400]))
            raise
        await line.say(Step(next="done"))
        return found

    living = asyncio.create_task(live())
    try:
        found = await _both(measure(), listen(), limit + SLACK_SECONDS, line)
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
    try:
        figures = Figures.model_validate({**found, "transport": transport})
    except ValidationError as error:
        raise Broken(f"the measuring process said what cannot be read: {error.errors()[0]['msg']}") from None
    return Found(figures, 2 * int(order["bytes"]))


async def _both(
    measure: Coroutine[Any, Any, dict[str, Any]], listen: Coroutine[Any, Any, None], seconds: float, line: Line
) -> dict[str, Any]:
    measuring, listening = asyncio.create_task(measure), asyncio.create_task(listen)
    tasks = (measuring, listening)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            # A peer that has failed says why before it hangs up; what it said counts more than that it has gone.
            for task in (listening, measuring):
                if task.done():
                    task.result()
            return await measuring
    except TimeoutError:
        raise Broken(f"the group with {line.peer} was not done within {seconds:g} s") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
