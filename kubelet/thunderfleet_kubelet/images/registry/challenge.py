"""The authentication that a registry requires: the WWW-Authenticate header. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SCHEME = re.compile(r"\s*(Basic|Bearer)\b", re.IGNORECASE)
_PARAMETER = re.compile(r'\s*+(?:,\s*+)?([A-Za-z_]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s,"]+)')
MAX_HEADER = 4096


@dataclass(frozen=True)
class Challenge:
    """``scheme``: ``basic`` or ``bearer``; the others are for the latter."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def parse(headers: Iterable[str]) -> Challenge | None:
    """The first challenge that is known, ``bearer`` before ``basic``; None without one."""
    found = [one for header in headers if (one := _parse(header[:MAX_HEADER])) is not None]
    return next((one for one in found if one.scheme == "bearer" and one.realm), None) or next(
        (one for one in found if one.scheme == "basic"), None
    )


def _parse(header: str) -> Challenge | None:
    match = _SCHEME.match(header)
    if match is None:
        return None
    values: dict[str, str] = {}
    position = match.end()
    while (parameter := _PARAMETER.match(header, position)) is not None:
        value = parameter[2]
        values.setdefault(parameter[1].lower(), re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value)
        position = parameter.end()
    return Challenge(match[1].lower(), values.get("realm", ""), values.get("service", ""), values.get("scope", ""))
