"""The list of API servers on disk, with which a Mac that boots begins."""

from pathlib import Path

from thunderfleet_lib.host.privatefiles import write_private

from thunderfleet_controlplane.balancer.servers import FILE_BYTES, ApiServer, from_text, to_text


def read(path: Path) -> tuple[ApiServer, ...]:
    """The list on disk; empty if there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            return from_text(file.read(FILE_BYTES))
    except (OSError, ValueError):
        return ()


def write(path: Path, servers: tuple[ApiServer, ...]) -> None:
    """Replace the list on disk if it differs."""
    if read(path) != servers:
        write_private(path, to_text(servers).encode())
