"""Parsers of command output: errors, bounds and checks that they share.

Whatever the text is, a parser returns a value or raises ``ParseError``, which names the command. Values are clean: without
unpaired surrogates, which JSON refuses, and within the bounds of the API.
"""

import re

from thunderfleet_lib.host.hostcmd import quote


class ParseError(Exception):
    """The output of a command cannot be parsed. ``command`` names it, ``problem`` describes the error."""

    def __init__(self, command: str, problem: str) -> None:
        super().__init__(f"`{command}` {problem}")
        self.command = command
        self.problem = problem


class Partial(ParseError):
    """A part of the output cannot be parsed. ``value`` is the rest, which is correct."""

    def __init__(self, command: str, problem: str, value: object) -> None:
        super().__init__(command, problem)
        self.value = value


# `clean` removes color codes and the like; these characters mean that the output is not text.
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1a]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def clean(value: object, limit: int) -> str | None:
    """The value as text that the API accepts, at most ``limit`` characters; None when it is not text or empty."""
    if not isinstance(value, str):
        return None
    text = _CONTROL.sub(" ", value.encode("utf-8", "replace").decode("utf-8", "replace")).strip()
    return (text if len(text) <= limit else text[: limit - 1] + "…") or None


def require_text(command: str, text: str) -> None:
    """Raises ParseError for output with characters that are not text."""
    found = _NO_TEXT.search(text)
    if found:
        before = quote(text[max(0, found.start() - 60) : found.start()])
        raise ParseError(command, f"printed a character that is not text ({ord(found.group()):#04x} after {before!r})")


def require_whole(command: str, text: str) -> None:
    """Raises ParseError when the text ends in the middle of a line: truncated output must not look like missing devices."""
    last = text.rpartition("\n")[2]
    if last:
        raise ParseError(command, f"ends in the middle of a line: {quote(last) or 'an empty one'}")
