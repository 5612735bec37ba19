"""The fields of a request body, read one by one. Fields that are not read have no effect, and the response names them. Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from thunderfleet_lib import jsonbounds

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.intakeprotocol import ModelLimits

MAX_VALUES = 100_000
"""Values and names in a body, in addition to the tokens of the context, which a prompt may list one by one."""
MAX_DEPTH = 32
"""Levels of nested lists and objects in a body."""


class Fields:
    """The fields of one object that are not read yet. A field that is null counts as absent."""

    def __init__(self, body: Mapping[str, Any], where: str = "") -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        self._where = where
        """Prefix of the fields' names in errors, such as ``thinking.``."""

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def name(self, name: str) -> str:
        """The field's name in the client's request."""
        return f"{self._where}{name}"

    def take(self, name: str, default: Any = None) -> Any:
        """Any value."""
        return self._left.pop(name, default)

    def drop(self, names: Collection[str]) -> None:
        """Drops fields that are only bookkeeping, so that they are not named as ignored."""
        for name in names:
            self._left.pop(name, None)

    def left(self) -> tuple[str, ...]:
        """The names of the fields that nobody has read."""
        return tuple(self.name(name) for name in sorted(self._left))

    def boolean(self, name: str, default: bool = False) -> bool:
        """True or false. Raises ApiError, like the other methods."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise refused(self.name(name), f"{self.name(name)} must be true or false")
        return value

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        """An integer from ``low`` to ``high``."""
        value = self.take(name, default)
        # JSON does not distinguish 1 and 1.0, and some languages write the latter.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refused(self.name(name), f"{self.name(name)} must be an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A number from ``low`` to ``high``."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise refused(self.name(name), f"{self.name(name)} must be a number from {low:g} to {high:g}")
        return float(value)

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self.take(name, default)
        if not isinstance(value, str):
            raise refused(self.name(name), f"{self.name(name)} must be a string")
        return value

    def one_of(self, name: str, values: Sequence[str], default: str) -> str:
        """One of these strings."""
        value = self.take(name, default)
        if value not in values:
            raise refused(self.name(name), f"{self.name(name)} must be one of {', '.join(values)}")
        return str(value)

    def inner(self, name: str) -> "Fields":
        """The fields of an object, none when it is absent."""
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise refused(self.name(name), f"{self.name(name)} must be an object")
        return Fields(value, f"{self.name(name)}.")


def read(raw: bytes, limits: ModelLimits) -> dict[str, Any]:
    """The JSON object in a body. Raises ApiError, whatever the bytes are."""
    try:
        body = jsonbounds.loads(raw, values=MAX_VALUES + limits.context_tokens, depth=MAX_DEPTH)
    except jsonbounds.TooLarge as error:
        raise refused(None, f"the body is too large: {error}") from error
    except ValueError as error:
        raise refused(None, f"the body is not JSON in UTF-8: {str(error)[:200]}") from error
    if not isinstance(body, dict):
        raise refused(None, "the body must be a JSON object")
    check_sane(body)
    return body


def parsed(text: str) -> Any:
    """The JSON in a string of a body. Raises ValueError for what is not JSON, or too much of it, ApiError for odd values."""
    value = jsonbounds.loads(text.encode(), values=MAX_VALUES, depth=MAX_DEPTH)
    check_sane(value)
    return value


def check_sane(body: Any) -> None:
    """Rejects values that encoders and decoders treat differently: huge numbers and lone surrogates."""
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise refused(None, "the body has text that is not valid Unicode (a lone surrogate)") from error
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise refused(None, "the body has a number that is too large")
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise refused(None, "the body has a number that is too large")
