"""Bodies of ``/v1/embeddings``. Pure: the model is an argument. It runs in the intake process, like ``prepare``."""

from typing import Any, Protocol

from thunderfleet_runner.api.errors import ApiError, refused
from thunderfleet_runner.api.openai.completion import checked
from thunderfleet_runner.api.prepare import rejected
from thunderfleet_runner.api.request import fields, names, refusals
from thunderfleet_runner.api.request.fields import Fields
from thunderfleet_runner.intakeprotocol import Embed, ModelLimits, Rejected, Texts
from thunderfleet_runner.protocol import Prompt

MAX_TEXTS = 2048
"""Texts of one request, as at OpenAI."""
MAX_VALUES = 1 << 21
"""Values of all vectors of one response: 512 vectors of 4096 values. As text they take 25 MB."""


class Model(Protocol):
    """The served model's tokenizer, as requests for vectors need it."""

    def vector_size(self, name: str) -> int:
        """The number of values of its vectors; ``name``: the model's name. Raises ApiError if it cannot compute embeddings."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; ``special``: with those that the tokenizer adds. Raises ApiError."""


def embed(question: Embed, raw: bytes, model: Model) -> Texts | Rejected:
    """The texts in a body, in tokens."""
    try:
        return _embed(Fields(fields.read(raw, question.limits)), question.limits, model)
    except ApiError as error:
        return rejected(error)


def _embed(body: Fields, limits: ModelLimits, model: Model) -> Texts:
    refusals.check(body)
    names.check(body, limits)
    whole = model.vector_size(limits.model)
    size = body.integer("dimensions", 1, whole, whole)
    packed = body.one_of("encoding_format", ("float", "base64"), "float") == "base64"
    given = _texts(body.take("input"))
    if len(given) * size > MAX_VALUES:
        most = MAX_VALUES // size
        raise refused("input", f"input has {len(given)} texts; send at most {most}, or request fewer values with dimensions")
    texts = [_tokens(text, limits, model) for text in given]
    return Texts(texts=Prompt.of(*texts, types=("text",) * len(texts)), size=size, packed=packed, ignored=body.left())


def _texts(value: Any) -> list[Any]:
    """One or several texts, each a string or a list of token ids."""
    if isinstance(value, str) or (isinstance(value, list) and value and not isinstance(value[0], str | list)):
        value = [value]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_TEXTS:
        raise refused("input", f"input must be a text, a list of token ids, or a list of up to {MAX_TEXTS} of those")
    return value


def _tokens(text: Any, limits: ModelLimits, model: Model) -> list[int]:
    if isinstance(text, str) and text:
        return checked(model.encode(text, special=True), "input", limits)
    if isinstance(text, list) and text and all(isinstance(token, int) and not isinstance(token, bool) for token in text):
        return checked(text, "input", limits)
    raise refused("input", "each text of input must be a non-empty string, or a non-empty list of token ids")
