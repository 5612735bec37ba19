"""Files that only their owner reads, such as keys."""

import contextlib
import os
from pathlib import Path


def write_private(file: Path, data: bytes) -> None:
    """Writes ``file`` with mode 0600, atomically: a reader gets the old or the new content, also after a power cut."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
