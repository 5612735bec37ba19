"""Formats that an answer must have: JSON, JSON of a schema, a regular expression, a grammar. Pure.

The names are OpenAI's (``response_format``) and those of vLLM (``structured_outputs``, and ``guided_…`` before).
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request.fields import Fields, parsed

MAX_BYTES = 64 * 1024
"""Of a schema, a regular expression or a grammar."""
MAX_WORDS = 1024
"""Answers from which the model may choose."""

Kind = Literal["json", "regex", "grammar", "choice"]
_GUIDED: tuple[Kind, ...] = ("json", "regex", "grammar", "choice")


@dataclass(frozen=True)
class Constraint:
    """A format. ``source``: a schema, or a list of texts in JSON; a regular expression; a grammar of Lark or GBNF."""

    kind: Kind
    source: str
    param: str
    """The field that requests it."""


def constraint(fields: Fields) -> Constraint | None:
    """The format that a body requests. Raises ApiError, also when it requests two."""
    found = [_response_format(fields.take("response_format"), "response_format"), *_structured(fields), *_guided(fields)]
    asked = [one for one in found if one is not None]
    if len(asked) > 1:
        raise refused(asked[1].param, f"{asked[1].param} contradicts {asked[0].param}: an answer has one format")
    return asked[0] if asked else None


def of_format(value: Any, where: str) -> Constraint | None:
    """The format in an object like OpenAI's ``response_format``, or in one with the schema beside the type."""
    return _response_format(value, where)


def schema(value: Any, where: str) -> Constraint:
    """The format of a JSON schema, which is an object, or a string with one."""
    if isinstance(value, str):
        try:
            value = parsed(value)
        except ValueError as error:
            raise refused(where, f"{where} must be a JSON schema: {str(error)[:200]}") from error
    if not isinstance(value, dict | bool):
        raise refused(where, f"{where} must be a JSON schema, an object")
    return Constraint("json", _bounded(json.dumps(value, ensure_ascii=False), where), where)


def _response_format(value: Any, where: str) -> Constraint | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        # Other servers take a schema here.
        return schema(value.get("schema") or {"type": "object"}, where)
    if kind == "json_schema":
        inner = value.get("json_schema", value)
        found = inner.get("schema") if isinstance(inner, dict) else None
        if found is None:
            raise refused(where, f"{where} of type json_schema needs a schema")
        return schema(found, where)
    raise refused(where, f"{where}.type must be text, json_object or json_schema")


def _structured(fields: Fields) -> list[Constraint | None]:
    inner = fields.inner("structured_outputs")
    found: list[Constraint | None] = [_named(kind, inner.take(kind), f"structured_outputs.{kind}") for kind in _GUIDED]
    if inner.boolean("json_object"):
        found.append(schema({"type": "object"}, "structured_outputs.json_object"))
    inner.drop(("disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"))
    if inner.left():
        raise refused(inner.left()[0][:64], f"structured_outputs accepts {', '.join(_GUIDED)} and json_object only")
    return found


def _guided(fields: Fields) -> list[Constraint | None]:
    fields.drop(("guided_decoding_backend", "guided_whitespace_pattern"))
    return [_named(kind, fields.take(f"guided_{kind}"), f"guided_{kind}") for kind in _GUIDED]


def _named(kind: Kind, value: Any, where: str) -> Constraint | None:
    if value is None:
        return None
    if kind == "json":
        return schema(value, where)
    if kind == "choice":
        if not isinstance(value, list) or not 0 < len(value) <= MAX_WORDS or not all(_word(word) for word in value):
            raise refused(where, f"{where} must be a list of 1 to {MAX_WORDS} non-empty strings")
        return Constraint(kind, _bounded(json.dumps(value, ensure_ascii=False), where), where)
    if not isinstance(value, str) or not value:
        raise refused(where, f"{where} must be a non-empty string")
    return Constraint(kind, _bounded(value, where), where)


def _word(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _bounded(text: str, where: str) -> str:
    if len(text.encode()) > MAX_BYTES:
        raise refused(where, f"{where} must have at most {MAX_BYTES >> 10} KiB")
    return text
