"""What the scripts share. Only the standard library."""

import json
import sys
from collections.abc import Callable
from typing import Any

MODEL = "thunderfleet/tiny"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": CITY}}


def run(checks: dict[str, Callable[[], Any]]) -> None:
    """Runs the checks and prints what came of them. A check works if it returns something true."""
    found = {}
    for name, check in checks.items():
        try:
            result = check()
            found[name] = "works" if result else f"unexpected: {result!r}"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:500]
    json.dump(found, sys.stdout)
