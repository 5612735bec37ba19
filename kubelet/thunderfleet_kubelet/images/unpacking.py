"""Runs the process that unpacks an image, and ends it in time."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_kubelet.images.errors import PullError

UNPACK_SECONDS = 1800.0
MAX_ANSWER = 64 * 1024


async def unpack(
    layers: Sequence[tuple[Path, str, str]], target: Path, max_bytes: int, spare: int = 0, seconds: float = UNPACK_SECONDS
) -> None:
    """Unpacks ``layers`` (file, compression, digest of the content) into the empty folder ``target``.

    ``spare``: bytes that stay free on the disk. Raises PullError.
    """
    order = {
        "layers": [(str(file), *rest) for file, *rest in layers],
        "target": str(target),
        "bytes": max_bytes,
        "spare": spare,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-m", "thunderfleet_kubelet.images.unpack", str(os.getpid())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd="/",
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate(json.dumps(order).encode())
    except TimeoutError:
        raise PullError(f"unpacking takes more than {seconds:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    problem = _problem(output[:MAX_ANSWER])
    if problem or process.returncode:
        raise PullError(f"cannot unpack the image: {problem or f'the process ended with {process.returncode}'}")


def _problem(output: bytes) -> str:
    try:
        return str(json.loads(output)["problem"])
    except (ValueError, KeyError, TypeError):
        return ""
