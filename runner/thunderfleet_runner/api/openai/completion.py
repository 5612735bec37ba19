"""Bodies of ``/v1/completions``. Pure."""

from collections.abc import Mapping
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request import constraints, names, refusals, sampling
from thunderfleet_runner.api.request.call import Call
from thunderfleet_runner.api.request.fields import Fields
from thunderfleet_runner.intakeprotocol import ModelLimits
from thunderfleet_runner.protocol import Sampling


def parse(body: Mapping[str, Any], limits: ModelLimits, defaults: Sampling) -> Call:
    """The request in a body. Raises ApiError."""
    fields = Fields(body)
    refusals.check(fields)
    names.check(fields, limits)
    text, tokens = prompt(fields.take("prompt"), limits)
    # In this endpoint logprobs is the number of alternatives to return, which may be 0.
    if body.get("logprobs") is False:
        fields.drop(["logprobs"])
    top = fields.integer("logprobs", 0, sampling.MAX_TOP_LOGPROBS, 0) if "logprobs" in fields else None
    streamed, usage = sampling.stream(fields)
    return Call(
        endpoint="completion",
        text=text,
        tokens=tokens,
        max_tokens=sampling.max_tokens(fields, "max_tokens", "max_completion_tokens"),
        stream=streamed,
        include_usage=usage,
        return_token_ids=fields.boolean("return_token_ids"),
        choices=fields.integer("n", 1, sampling.MAX_CHOICES, 1),
        stop=sampling.stops(fields),
        logprobs=top is not None,
        top_logprobs=sampling.top_logprobs(top or 0, limits),
        sampling=sampling.sampling(fields, limits, defaults),
        constraint=constraints.constraint(fields),
        ignored=fields.left(),
    )


def prompt(value: Any, limits: ModelLimits) -> tuple[str, list[int]]:
    """A prompt as text, or as token ids. Raises ApiError."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value, []
    if isinstance(value, list) and value and all(isinstance(token, int) and not isinstance(token, bool) for token in value):
        return "", checked(value, "prompt", limits)
    raise refused("prompt", "prompt must be one non-empty string or one non-empty list of token ids")


def checked(tokens: list[int], name: str, limits: ModelLimits) -> list[int]:
    """Token ids of the model that fit into its context. Raises ApiError."""
    if min(tokens) < 0 or (limits.vocabulary and max(tokens) >= limits.vocabulary):
        raise refused(name, f"the {name}'s token ids must be from 0 to {limits.vocabulary - 1}")
    if len(tokens) > limits.context_tokens:
        raise refused(
            name,
            f"the {name} has {len(tokens)} tokens, the context is {limits.context_tokens} tokens",
            "context_length_exceeded",
        )
    return tokens
