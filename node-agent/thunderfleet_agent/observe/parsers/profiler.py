"""Sections of a JSON report of `system_profiler`."""

from __future__ import annotations

import json
from typing import Any

from thunderfleet_lib.host.hostcmd import quote
from thunderfleet_lib.host.parsing import ParseError


def report(command: str, text: str, data_type: str) -> list[dict[str, Any]]:
    """The sections of ``system_profiler … -json``: the objects in the list under ``data_type``. Raises ParseError."""
    if not text.strip():
        raise ParseError(command, "printed nothing")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(command, f"printed invalid JSON ({error}): {quote(text)}") from None
    sections = document.get(data_type) if isinstance(document, dict) else None
    if not isinstance(sections, list):
        raise ParseError(command, f"printed JSON without a list {data_type}")
    return [section for section in sections if isinstance(section, dict)]
