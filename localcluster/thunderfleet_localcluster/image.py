"""The content of the image of our own programs: a Python that works by itself, in a folder that everybody can read."""

from dataclasses import dataclass
from pathlib import Path

IMAGE = "thunderfleet/thunderfleet:0.1.0"


@dataclass(frozen=True)
class Image:
    """A folder as an image, and the file that whoever uses it holds a shared lock on."""

    folder: Path
    lock: Path


def make_image(images: Path) -> Image:
    """Makes the image unless it is there."""
    images.mkdir(parents=True, exist_ok=True)
    return Image(images / "none", images / "none.lock")
