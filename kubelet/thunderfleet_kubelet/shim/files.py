"""Writes files atomically."""

import os


def write_file(path: str, text: str) -> None:
    """Writes ``text`` to ``path``; a reader sees the old content or all of the new. Raises OSError."""
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
