"""Logs of all programs: the same fields everywhere, as JSON in a cluster and as text on a terminal.

A field comes from ``always`` (it holds for all records of the process), from ``fields`` (for those of a task), or from
``extra`` of one record, as ``log.info("…", extra=about(request="r1"))``.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypedDict, Unpack

from thunderfleet_lib.logtext import word

MAX_CHARACTERS: Final = 16_384
"""The longest message, and the longest traceback; what is longer is cut."""
MAX_VALUE: Final = 512
"""The longest value of a field."""
_FIELDS: Final = "thunderfleet_fields"


class Fields(TypedDict, total=False):
    """The fields that have the same name in all programs, and as labels of metrics. None: not known."""

    namespace: str | None
    deployment: str | None
    group: int | None
    rank: int | None
    node: str | None
    epoch: int | None
    attempt: int | None
    request: str | None
    pod: str | None


class Format(StrEnum):
    """How records are written."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


_always: Fields = {}
_of_task: ContextVar[Fields | None] = ContextVar("thunderfleet_log_fields", default=None)


def always(**values: Unpack[Fields]) -> None:
    """Sets fields of all later records of this process."""
    _always.update(values)


@contextmanager
def fields(**values: Unpack[Fields]) -> Iterator[None]:
    """Sets fields of all records of this task, and of tasks that it starts, until the end of the block."""
    token = _of_task.set({**(_of_task.get() or {}), **values})
    try:
        yield
    finally:
        _of_task.reset(token)


def about(more: Mapping[str, object] | None = None, /, **values: Unpack[Fields]) -> dict[str, object]:
    """The argument ``extra`` of one record. ``more``: fields that only this program has."""
    return {_FIELDS: {**values, **(more or {})}}


class Owner(TypedDict, total=False):
    """The fields that name a ModelDeployment."""

    namespace: str | None
    deployment: str


def of_key(key: str) -> Owner:
    """The fields for ``namespace/name`` of a ModelDeployment."""
    namespace, _, name = key.rpartition("/")
    return {"namespace": namespace or None, "deployment": name}


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``--log-format``."""
    parser.add_argument(
        "--log-format",
        type=Format,
        default=Format.AUTO,
        choices=list(Format),
        metavar="{auto,json,text}",
        help="format of the log; auto is text on a terminal and JSON elsewhere",
    )


def set_up(
    program: str, level: str, form: Format = Format.AUTO, *, handler: logging.Handler | None = None, quiet: bool = False
) -> None:
    """Logs to ``handler``, or to standard error. ``quiet``: print no traceback when a record cannot be written."""
    terminal = handler is None and sys.stderr.isatty()
    text = form is Format.TEXT or (form is Format.AUTO and terminal)
    used = handler or logging.StreamHandler(sys.stderr)
    used.setFormatter(TextFormatter() if text else JsonFormatter(program))
    logging.basicConfig(level=level.upper(), handlers=[used], force=handler is not None)
    if quiet:
        logging.raiseExceptions = False


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, program, logger, message, the fields, and ``error`` (a traceback)."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        entry: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "program": self._program,
            "logger": record.name,
            "message": _cut(record.getMessage(), MAX_CHARACTERS),
            **{name: _value(value) for name, value in _known(record, whole=True).items()},
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = _cut(self.formatException(record.exc_info), MAX_CHARACTERS)
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """A line for people. Fields of the process are left out: a terminal shows the log of one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, and the traceback below it."""
        about = "".join(f" {name}={word(_value(value))}" for name, value in _known(record, whole=False).items())
        line = f"{_time(record)} {record.levelname} {record.name} {_cut(record.getMessage(), MAX_CHARACTERS)}{about}"
        if record.exc_info and record.exc_info[0] is not None:
            line = f"{line}\n{_cut(self.formatException(record.exc_info), MAX_CHARACTERS)}"
        return line


def _known(record: logging.LogRecord, *, whole: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in (_always if whole else {}, _of_task.get() or {}, getattr(record, _FIELDS, {})):
        found.update({name: value for name, value in part.items() if value is not None})
    return found


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _value(value: object) -> object:
    return value if isinstance(value, int | float) else _cut(str(value), MAX_VALUE)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
