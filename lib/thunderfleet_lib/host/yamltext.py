"""YAML that people write: whatever is wrong with a text is one kind of error, which says where."""

import contextlib
from collections.abc import Iterator
from typing import Any

import yaml


class InvalidYamlError(ValueError):
    """A text is not YAML. ``line`` (from 1) is None if it is unknown; ``problem`` is the message without it."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem if line is None else f"line {line}: {problem}")
        self.problem = problem
        self.line = line


@contextlib.contextmanager
def parsing() -> Iterator[None]:
    """Turns every error of PyYAML into InvalidYamlError. Those of invalid dates and numbers, and of depth, are no YAMLError.

    For code that reads a text and does nothing else.
    """
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InvalidYamlError(error.problem or error.context or "not valid", mark.line + 1 if mark else None) from None
    except RecursionError:
        raise InvalidYamlError("values are nested too deeply") from None
    except yaml.YAMLError as error:
        raise InvalidYamlError(" ".join(str(error).split())) from None
    except (ValueError, OverflowError, TypeError, LookupError, AttributeError) as error:
        # A date or a number that does not exist, a tag that does not fit its value.
        raise InvalidYamlError(f"invalid value: {' '.join(str(error).split())}") from None


def load(text: str) -> Any:
    """The value of one document of basic types; None for an empty one. Raises InvalidYamlError."""
    with parsing():
        return yaml.safe_load(text)
