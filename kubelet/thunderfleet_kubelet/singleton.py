"""One kubelet for each root folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from thunderfleet_kubelet.bootstrap.errors import JoinError


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Locks ``root`` for this process. Raises JoinError if another kubelet runs there."""
    root.mkdir(parents=True, exist_ok=True)
    stream: IO[str]
    with (root / "kubelet.lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JoinError(f"{root}: another kubelet uses this folder; stop it, or use another --root") from None
        yield
