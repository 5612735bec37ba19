"""Lines of logs as text for people. Pure. ``logs`` writes these lines."""

import json
from typing import Any, Final

BEGINNING: Final = '{"time": '
"""Prefix of each line of JSON."""
LEFT_OUT: Final = frozenset(
    {
        *("time", "level", "program", "logger", "message", "error"),
        *("namespace", "deployment", "group", "epoch", "rank", "node", "pod"),
    }
)
"""Fields that are shown beside a log, or once for all of its lines."""


def readable(line: str) -> str:
    """A line of JSON as ``LEVEL message name=value …``, with its traceback in further lines; another line as it is."""
    entry = parsed(line)
    if entry is None:
        return line
    more = "".join(f" {name}={word(value)}" for name, value in entry.items() if name not in LEFT_OUT)
    trace = f"\n{entry['error']}" if entry.get("error") else ""
    return f"{str(entry['level']).upper()} {entry['message']}{more}{trace}"


def messages(text: str) -> str:
    """The end of a log, with the message in place of each line of JSON: for a sentence that quotes it."""
    return "\n".join(_message(line) for line in text.splitlines())


def parsed(line: str) -> dict[str, Any] | None:
    """The record of a line of JSON; None for another line."""
    if not line.startswith(BEGINNING):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and {"level", "message"} <= entry.keys() else None


def word(value: object) -> str:
    """A value in a line of text; quoted if it has spaces, so that it cannot look like another field."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=False)


def _message(line: str) -> str:
    entry = parsed(line)
    if entry is None:
        return line
    last = str(entry.get("error") or "").splitlines()[-1:]
    return last[0] if last else str(entry["message"])
