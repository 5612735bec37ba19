"""The file with what was changed on this Mac. It is written in one step, and is on the disk before the change is made."""

import contextlib
import json
import os
from dataclasses import fields
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, Final

from thunderfleet_lib.macnet.values import Record

LIMIT_BYTES: Final = 1024 * 1024
VERSION: Final = 1


def load(path: Path) -> Record:
    """The record in a file; an empty one if there is no file. Raises ValueError if it is not such a record."""
    try:
        with path.open("rb") as file:
            text = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        return Record()
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{path} is not a record of network settings: {error}") from None


def parse(text: bytes) -> Record:
    """The record in a JSON text. Raises ValueError."""
    found: Any = json.loads(text) if len(text) <= LIMIT_BYTES else None
    if not isinstance(found, dict) or found.pop("version", None) != VERSION:
        raise ValueError(f"expected an object with version {VERSION}")
    defaults = {field.name: getattr(Record(), field.name) for field in fields(Record)}
    for name, value in found.items():
        if name not in defaults:
            raise ValueError(f"unknown field {name[:40]}")
        found[name] = _checked(name, value, defaults[name])
    record = Record(**found)
    for address in record.kept.values():
        IPv4Interface(address)
    return record


def _checked(name: str, value: Any, default: object) -> Any:
    if isinstance(default, tuple) and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    if isinstance(default, (bool, str, int)) and type(value) is type(default):
        return value
    if isinstance(value, dict) and not isinstance(default, (tuple, bool, str, int)) and _strings(value):
        return dict(value)
    raise ValueError(f"{name} has the wrong type")


def _strings(value: dict[Any, Any]) -> bool:
    return all(isinstance(one, str) for pair in value.items() for one in pair)


def dump(record: Record) -> bytes:
    """The record as JSON."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    plain = {name: dict(value) if hasattr(value, "items") else value for name, value in values.items()}
    return json.dumps({"version": VERSION, **plain}, indent=2, sort_keys=True).encode() + b"\n"


def save(path: Path, record: Record) -> None:
    """Write the record; remove the file if there is nothing in it. Raises OSError."""
    if record == Record():
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return
    fresh = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(dump(record))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    # The name has to be on the disk too before anything is changed.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
