"""JSON from untrusted clients, bounded before any of it becomes an object.

A few megabytes of ``[],`` become gigabytes of Python objects in seconds, and ``json`` holds the interpreter lock meanwhile.
This module first removes the strings, at about the speed of copying memory. The rest shows how many values there are and how
deep they nest.
"""

import json
import re
from typing import Any

# Possessive, so that unmatched quotes cause no backtracking.
_STRING = re.compile(rb'"[^"]*+"?')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class TooLarge(ValueError):
    """The text has more values or levels than allowed; the text has the limit."""


def loads(raw: bytes, *, values: int, depth: int, constants: bool = False) -> Any:
    """The value of ``raw``, which is JSON in UTF-8 with at most ``values`` values and names and ``depth`` levels.

    Raises TooLarge, or ValueError for what is not JSON. NaN and infinities are JSON only with ``constants``.
    """
    check(raw, values=values, depth=depth)
    try:
        text = raw.decode("utf-8")
        # Created once, because ``json.loads`` with an argument creates a decoder each time, which takes longer than most
        # requests.
        return json.loads(text) if constants else _STRICT.decode(text)
    except RecursionError as error:
        raise TooLarge(f"it is nested deeper than {depth} levels") from error


def check(raw: bytes, *, values: int, depth: int) -> None:
    """Raises TooLarge when ``raw`` has too many values or levels, whether or not it is JSON."""
    if _count(raw) <= values and raw.count(b"[") + raw.count(b"{") <= depth:
        # This counts the content of strings too, so the text is within the bounds.
        return
    # A backslash outside of strings is no JSON, so escapes can go without knowing where strings are.
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Strings are values or names; the check keeps the next step from making a list of millions of parts.
    if bare.count(b'"') > 2 * (values + 1):
        raise TooLarge(f"it has more than {values} values and names")
    bare = _STRING.sub(b"", bare)
    if _count(bare) > values:
        raise TooLarge(f"it has more than {values} values and names")
    level = 0
    for bracket in bare.translate(None, _NO_BRACKETS):
        level += 1 if bracket in b"[{" else -1
        if level > depth:
            raise TooLarge(f"it is nested deeper than {depth} levels")
        if level < 0:
            # Not JSON; the parser reports the position.
            return


def _count(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b":") + raw.count(b"[") + raw.count(b"{")


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_constant)
