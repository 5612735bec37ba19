"""The end of a log."""

from pathlib import Path

LOG_BYTES = 1 << 20


def tail(path: Path) -> str:
    """The last LOG_BYTES of a file, from the beginning of a line. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_BYTES))
        data = file.read(LOG_BYTES)
    if size > LOG_BYTES:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")
