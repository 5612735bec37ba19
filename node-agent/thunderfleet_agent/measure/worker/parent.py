"""The agent's side of a ``measure-child``: starts it, passes on its messages, and ends it with its caller.

Cancelling ends the child within two seconds: SIGTERM first, because a clean end frees wired memory, then SIGKILL for the whole
process group, because a rank in a collective does not react to SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from thunderfleet_lib.host.hostcmd import quote

from thunderfleet_agent.measure.worker.child import START_SECONDS

LINE_BYTES = 256 * 1024
# At most this part of the time is used to warm up.
WARM_UP_SHARE = 0.25
# A child is killed this long after its own limit.
GRACE_SECONDS = 2.0 + START_SECONDS
TERM_SECONDS = 0.4
KILL_SECONDS = 1.0
STDERR_BYTES = 64 * 1024
# The end of stderr that an error quotes.
STDERR_CHARACTERS = 400
FOLDER_PREFIX = "thunderfleet-measure-"

Heard = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]


class WorkerFailed(Exception):
    """The measuring process gave no result."""


async def ignore(message: dict[str, Any]) -> None:
    """Answers no message."""


async def run(order: Mapping[str, Any], heard: Heard = ignore) -> dict[str, Any]:
    """Carries out one order within its ``seconds`` and returns the result.

    ``order``: see ``child.main``, without ``folder``, ``lifeline`` and ``warmUpSeconds``. ``heard`` receives every message
    before the result, and what it returns is sent to the child. Raises WorkerFailed.
    """
    # Removed here, because a child that is killed cannot.
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        lifeline, ours = os.pipe()
        try:
            seconds = float(order["seconds"])
            more = {"folder": folder, "lifeline": lifeline, "warmUpSeconds": seconds * WARM_UP_SHARE}
            return await _run({**order, **more}, seconds, heard)
        finally:
            os.close(lifeline)
            os.close(ours)


async def _run(order: Mapping[str, Any], seconds: float, heard: Heard) -> dict[str, Any]:
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "thunderfleet_agent", "measure-child", json.dumps(order),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
            process_group=0,
            pass_fds=[order["lifeline"]],
        )  # fmt: skip
    except OSError as error:
        raise WorkerFailed(f"cannot start the measuring process: {error.strerror or error}") from None
    stderr = bytearray()
    reading = asyncio.create_task(_read_stderr(process, stderr))
    try:
        async with asyncio.timeout(seconds + GRACE_SECONDS):
            return await _talk(process, heard)
    except TimeoutError:
        raise WorkerFailed(f"the measuring process did not finish within {seconds:g} s") from None
    except (ValueError, asyncio.LimitOverrunError) as error:
        raise WorkerFailed(f"the measuring process sent an invalid message: {error}") from None
    except _EndOfOutput:
        await _wait_for_end(process, KILL_SECONDS)
        words = quote(stderr.decode("utf-8", "replace")[-STDERR_CHARACTERS:])
        raise WorkerFailed(
            f"the measuring process ended with code {process.returncode}" + (f": {words}" if words else "")
        ) from None
    finally:
        reading.cancel()
        await _end(process)


class _EndOfOutput(Exception):
    """The child's output ended without a result."""


async def _talk(process: asyncio.subprocess.Process, heard: Heard) -> dict[str, Any]:
    assert process.stdout is not None and process.stdin is not None
    while line := await process.stdout.readline():
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"not an object: {line[:80]!r}")
        if "result" in message:
            return dict(message["result"])
        if "error" in message:
            raise WorkerFailed(str(message["error"]))
        answer = await heard(message)
        if answer is not None:
            process.stdin.write(json.dumps(answer).encode() + b"\n")
            await process.stdin.drain()
    raise _EndOfOutput


async def _read_stderr(process: asyncio.subprocess.Process, into: bytearray) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(4096):
        into += chunk
        del into[:-STDERR_BYTES]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process and everything that it started, within TERM_SECONDS and KILL_SECONDS.

    Cancelling does not interrupt it: an orphan would hold an RDMA queue pair.
    """
    ending, cancelled = asyncio.create_task(_end_now(process)), False
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _wait_for_end(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Waits for the end of the process for at most ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()


async def _end_now(process: asyncio.subprocess.Process) -> None:
    try:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await _wait_for_end(process, TERM_SECONDS)
    finally:
        # Also when the process has ended (its group may have other members), and also when this is cancelled (the agent ends).
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            await _wait_for_end(process, KILL_SECONDS)
        finally:
            process._transport.close()  # type: ignore[attr-defined]
