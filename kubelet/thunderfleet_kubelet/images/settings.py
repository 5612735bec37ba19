"""The part of the kubelet's configuration about images. Pure."""

from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3


@dataclass(frozen=True)
class PullSettings:
    """Settings of pulls and of the store; ``imagePulls`` in the configuration describes them.

    ``platforms``: (operating system, architecture) as Go names them, the best first.
    """

    registries: tuple[str, ...] = ("*",)
    plain_http: tuple[str, ...] = ()
    ca_file: Path | None = None
    max_bytes: int = 64 * GIB
    high_percent: int = 85
    low_percent: int = 80
    minimum_age: float = 120.0
    platforms: tuple[tuple[str, str], ...] = (("darwin", "arm64"),)
