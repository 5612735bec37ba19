"""The status of a condition, with its reason and message."""

from collections.abc import Iterable
from typing import NamedTuple

MESSAGE_LENGTH = 1500
NO_REPLICAS = "spec.replicas is 0"


class Verdict(NamedTuple):
    """One condition's status (None: Unknown), reason and message."""

    status: bool | None
    reason: str
    message: str


def joined(parts: Iterable[str]) -> str:
    """Parts of a message, each once, cut to its length."""
    text = "; ".join(dict.fromkeys(part for part in parts if part))
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 1] + "…"
