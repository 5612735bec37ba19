"""Runs the process that unpacks an image, and ends it in time."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Host

from thunderfleet_kubelet.images.errors import PullError

UNPACK_SECONDS = 1800.0
HEADER_SECONDS = 5.0
_HOST = Host(environment={})


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
        "headerSeconds": HEADER_SECONDS,
    }
    # In the locale C, Python would take names in archives for those of another encoding.
    argv = [sys.executable, "-I", "-X", "utf8", "-m", "thunderfleet_kubelet.images.unpack", str(os.getpid())]
    said = await _HOST.run(argv, seconds, json.dumps(order).encode())
    if not isinstance(said, Failure):
        return
    if said.kind is FailureKind.TIMED_OUT:
        raise PullError(f"unpacking takes too long: the process {said.message}")
    raise PullError(f"cannot unpack the image: {_problem(said.text) or f'the process {said.message}'}")


def _problem(output: str) -> str:
    try:
        return str(json.loads(output)["problem"])
    except (ValueError, KeyError, TypeError):
        return ""
