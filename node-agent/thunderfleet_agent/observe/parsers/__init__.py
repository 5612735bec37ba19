"""From what macOS' commands print to values: pure functions of text, one module a family of commands.

They hold under damage. Whatever the text is, a parser gives a value or raises ``ParseError``, which names the command; never
anything else. Values leave here clean: no half characters that JSON refuses, and within the bounds that the API sets.
"""

from __future__ import annotations

import json
import re
from typing import Any

from thunderfleet_lib.hostcmd import quote


class ParseError(Exception):
    """What a command printed cannot be read. ``command`` names it, ``problem`` says why."""

    def __init__(self, command: str, problem: str) -> None:
        super().__init__(f"`{command}` {problem}")
        self.command = command
        self.problem = problem


class Partial(ParseError):
    """Some of it cannot be read. ``value`` is what can be: right as far as it goes."""

    def __init__(self, command: str, problem: str, value: object) -> None:
        super().__init__(command, problem)
        self.value = value


# Colours and the like are cut out by `clean`; these mean that what was printed is no text at all.
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1a]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def clean(value: object, limit: int) -> str | None:
    """The value as text that the API takes, at most ``limit`` characters; None when it is no text or empty."""
    if not isinstance(value, str):
        return None
    text = _CONTROL.sub(" ", value.encode("utf-8", "replace").decode("utf-8", "replace")).strip()
    return (text if len(text) <= limit else text[: limit - 1] + "…") or None


def require_text(command: str, text: str) -> None:
    """Raises ParseError for output with characters that no command prints."""
    found = _NO_TEXT.search(text)
    if found:
        before = quote(text[max(0, found.start() - 60) : found.start()])
        raise ParseError(command, f"printed what is no text (character {ord(found.group()):#04x} after {before!r})")


def require_whole(command: str, text: str) -> None:
    """Raises ParseError when the text ends in the middle of a line: half an answer must not look like things that have gone."""
    last = text.rpartition("\n")[2]
    if last:
        raise ParseError(command, f"breaks off in the middle of a line: {quote(last) or 'one that has just begun'}")


def report(command: str, text: str, data_type: str) -> list[dict[str, Any]]:
    """The sections of ``system_profiler … -json``: the objects in the list under ``data_type``. Raises ParseError."""
    if not text.strip():
        raise ParseError(command, "printed nothing")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(command, f"printed no JSON ({error}): {quote(text[:200])}") from None
    sections = document.get(data_type) if isinstance(document, dict) else None
    if not isinstance(sections, list):
        raise ParseError(command, f"printed JSON without a list {data_type}")
    return [section for section in sections if isinstance(section, dict)]
