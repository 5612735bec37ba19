"""The agent's side of a ``measure-child``: started, heard, bounded in time, and gone when its caller is.

Cancelling ends it within a second: SIGTERM first, because a clean end frees wired memory, then SIGKILL for the whole process
group, because a rank in a collective hears nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from thunderfleet_lib.hostcmd import quote

from thunderfleet_agent.measure.worker.child import START_SECONDS

LINE_BYTES = 256 * 1024
# What a child may take beyond its own limit before it is killed.
GRACE_SECONDS = 2.0 + START_SECONDS
TERM_SECONDS = 0.4
KILL_SECONDS = 1.0
COMPLAINT_BYTES = 64 * 1024

Heard = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]


class ChildFailed(Exception):
    """Why a measurement gave nothing."""


async def nothing(message: dict[str, Any]) -> None:
    """Hears and says nothing."""


async def run(order: Mapping[str, Any], heard: Heard = nothing) -> dict[str, Any]:
    """The result of one order (see ``child.main``), within its ``seconds``. ``heard`` gets every line that is no result, and
    what it returns goes back to the child. Raises ChildFailed.
    """
    seconds = float(order["seconds"])
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "thunderfleet_agent", "measure-child", json.dumps(dict(order)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
            process_group=0,
        )  # fmt: skip
    except OSError as error:
        raise ChildFailed(f"the measuring process cannot be started: {error.strerror or error}") from None
    complaint = bytearray()
    reading = asyncio.create_task(_complaints(process, complaint))
    try:
        async with asyncio.timeout(seconds + GRACE_SECONDS):
            return await _talk(process, heard)
    except TimeoutError:
        raise ChildFailed(f"the measuring process was not done within {seconds:g} s") from None
    except (ValueError, asyncio.LimitOverrunError) as error:
        raise ChildFailed(f"the measuring process said what cannot be read: {error}") from None
    except _Silent:
        await _gone(process, KILL_SECONDS)
        words = quote(complaint.decode("utf-8", "replace")[-400:])
        raise ChildFailed(
            f"the measuring process ended with code {process.returncode}" + (f": {words}" if words else "")
        ) from None
    finally:
        reading.cancel()
        await _end(process)


class _Silent(Exception):
    """The child's output ended without a result."""


async def _talk(process: asyncio.subprocess.Process, heard: Heard) -> dict[str, Any]:
    assert process.stdout is not None and process.stdin is not None
    while line := await process.stdout.readline():
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"no message: {line[:80]!r}")
        if "result" in message:
            return dict(message["result"])
        if "error" in message:
            raise ChildFailed(str(message["error"]))
        answer = await heard(message)
        if answer is not None:
            process.stdin.write(json.dumps(answer).encode() + b"\n")
            await process.stdin.drain()
    raise _Silent


async def _complaints(process: asyncio.subprocess.Process, into: bytearray) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(4096):
        into += chunk
        del into[:-COMPLAINT_BYTES]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process and whatever it started. However often this is cancelled, it goes on until that is done, within
    TERM_SECONDS and KILL_SECONDS: an orphan would hold a queue pair.
    """
    ending, cancelled = asyncio.create_task(_end_now(process)), False
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _gone(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Waits until it has ended, at most so long."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), seconds)


async def _end_now(process: asyncio.subprocess.Process) -> None:
    try:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await _gone(process, TERM_SECONDS)
    finally:
        # Also when the leader has gone: what it started may be left in its group. And also when this is cancelled, as all is
        # when the agent itself ends.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            await _gone(process, KILL_SECONDS)
        finally:
            process._transport.close()  # type: ignore[attr-defined]
