"""Mutants that change nothing, each with the reason why."""

from pathlib import Path

FILE = Path(__file__).with_name("equivalent.txt")


def read(file: Path = FILE) -> dict[str, str]:
    """Keys of equivalent mutants to reasons. A line with a key is followed by an indented one with the reason."""
    found, key = dict[str, str](), ""
    for line in file.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            if not key:
                raise ValueError(f"{file.name}: a reason without a mutant: {line.strip()}")
            found[key], key = line.strip(), ""
        else:
            if key:
                raise ValueError(f"{file.name}: no reason: {key}")
            key = line
    if key:
        raise ValueError(f"{file.name}: no reason: {key}")
    return found
