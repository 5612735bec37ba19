"""Writing files that running commands read."""

import contextlib
from pathlib import Path


def replace_file(path: Path, text: str, mode: int) -> None:
    """Write ``path`` in one step, so that readers see the old or the new text; nothing if it has that text already."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    fresh.replace(path)
