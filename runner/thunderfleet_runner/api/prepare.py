"""A request body becomes a checked request in tokens. Pure: the model is an argument.

The request is built from known fields, and never passed on as received: one field that mlx-lm does not expect can end every
rank of a group. A field that would change the answer and is not supported is refused with a message. Other unknown fields have
no effect, and a response header names them. The input may be any bytes; only ApiError is raised.

It runs in the intake process: parsing 16 MiB takes longer than heartbeats may pause.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from thunderfleet_runner.api.anthropic import messages
from thunderfleet_runner.api.errors import ApiError, refused
from thunderfleet_runner.api.openai import chat, completion, responses
from thunderfleet_runner.api.request import fields
from thunderfleet_runner.api.request.call import Call, fit
from thunderfleet_runner.api.request.constraints import Constraint
from thunderfleet_runner.intakeprotocol import CallFormat, Endpoint, ModelLimits, Prepare, Prepared, Rejected
from thunderfleet_runner.protocol import Prompt, Sampling

Parser = Callable[[Mapping[str, Any], ModelLimits, Sampling], Call]

_PARSERS: dict[Endpoint, Parser] = {
    "chat": chat.parse,
    "completion": completion.parse,
    "messages": messages.parse,
    "responses": responses.parse,
}


class Model(Protocol):
    """The served model's tokenizer, as requests need it."""

    defaults: Sampling
    """How tokens are sampled if a request does not set it."""
    calls: CallFormat
    """How the model writes tool calls."""

    def prompt(self, call: Call) -> Prompt:
        """The prompt of a request. Raises ApiError when the template or the tokenizer rejects it."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; ``special``: with those that the tokenizer adds. Raises ApiError."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""

    def grammar(self, constraint: Constraint) -> str:
        """A format that the ranks can force. Raises ApiError when it is invalid or takes too much."""


def prepare(question: Prepare, raw: bytes, model: Model) -> Prepared | Rejected:
    """The request in a body, in tokens."""
    try:
        call = parse(question.endpoint, raw, question.limits, model.defaults)
        prompt = tokenized(call, question.limits, model)
        options = call.options(fit(call, prompt.count, question.limits), model.calls)
        grammar = _grammar(call.constrained, prompt, model) if call.constrained is not None else ""
        return Prepared(options=options, prompt=prompt, grammar=grammar)
    except ApiError as error:
        return rejected(error)


def _grammar(constraint: Constraint, prompt: Prompt, model: Model) -> str:
    if prompt.initial_state not in ("normal", "reasoning"):
        # The model writes headers of its own around the answer, which a format would forbid.
        raise refused(constraint.param, f"{constraint.param} is not supported for this model's chat format")
    return model.grammar(constraint)


def rejected(error: ApiError) -> Rejected:
    """The error as a message."""
    return Rejected(status=error.status, message=str(error), error=error.type, param=error.param, code=error.code)


def parse(endpoint: Endpoint, raw: bytes, limits: ModelLimits, defaults: Sampling) -> Call:
    """The request in a body. Raises ApiError, whatever the bytes are."""
    return _PARSERS[endpoint](fields.read(raw, limits), limits, defaults)


def tokenized(call: Call, limits: ModelLimits, model: Model) -> Prompt:
    """The request's prompt. Raises ApiError when the tokenizer has tokens that the model does not have."""
    prompt = model.prompt(call)
    highest = max((max(segment, default=0) for segment in prompt.unpacked()), default=0)
    if limits.vocabulary and highest >= limits.vocabulary:
        raise refused(None, f"the prompt contains token id {highest}; the model has ids 0 to {limits.vocabulary - 1} only")
    return prompt
