"""The contents of a body that the router needs: the model, whether to stream, and the beginning of the prompt. Pure.

The gateway checks everything else, in a process that may fail. The router limits a body before parsing it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thunderfleet_lib import jsonbounds
from thunderfleet_lib.httpapi.errors import refused

MAX_VALUES = 400_000
"""Maximum values of a body; more than a gateway with a context of 262,144 tokens accepts. Longer lists of token ids are
refused."""
MAX_DEPTH = 64
MAX_NAME = 512
MAX_PROMPT = 128 * 1024
"""Maximum characters of a prompt that are used."""
_BEFORE_MESSAGES = ("tools", "system", "instructions")
"""Fields that templates put before the messages."""
_MESSAGES = ("messages", "input", "prompt")


@dataclass(frozen=True, slots=True)
class Asked:
    """A parsed body. ``prompt``: text of the prompt; that of a later request in the same conversation starts with it."""

    model: str | None
    stream: bool
    prompt: bytes
    fields: Mapping[str, Any]

    def without_fields(self) -> "Asked":
        """The same without the objects, which can be much larger than the body."""
        return Asked(self.model, self.stream, self.prompt, {})

    def renamed(self, model: str) -> bytes:
        """The body for a gateway that has the model under another name."""
        # Only single surrogates, which UTF-8 cannot encode, are escaped. If everything else were, a body in another script
        # would be up to three times as large, and larger than a gateway accepts.
        return json.dumps({**self.fields, "model": model}, ensure_ascii=False).encode("utf-8", "backslashreplace")


def parse(body: bytes) -> Asked:
    """The request in a body. Raises ApiError."""
    try:
        found = jsonbounds.loads(body, values=MAX_VALUES, depth=MAX_DEPTH)
    except jsonbounds.TooLarge as error:
        raise refused(None, f"the body is too large: {error}") from error
    except ValueError as error:
        raise refused(None, f"the body is not JSON in UTF-8: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise refused(None, "the body must be a JSON object")
    model = found.get("model")
    if model is not None and (not isinstance(model, str) or not model or len(model) > MAX_NAME):
        raise refused("model", f"model must be a string of at most {MAX_NAME} characters: the name of a model")
    return Asked(model, found.get("stream") is True, _prompt(found), found)


def _prompt(fields: Mapping[str, Any]) -> bytes:
    parts = [fields[name] for name in _BEFORE_MESSAGES if fields.get(name)]
    messages = next((fields[name] for name in _MESSAGES if fields.get(name)), "")
    # Message by message, so that the prompt of one request is a prefix of the next one's.
    parts.extend(messages if isinstance(messages, list) and not _of_numbers(messages) else [messages])
    texts, size = [], 0
    for part in parts:
        texts.append(part if isinstance(part, str) else json.dumps(part))
        size += len(texts[-1]) + 1
        if size > MAX_PROMPT:
            break
    return "\n".join(texts)[:MAX_PROMPT].encode("utf-8", "surrogatepass")


def _of_numbers(values: list[Any]) -> bool:
    return bool(values) and not isinstance(values[0], str | dict | list)
