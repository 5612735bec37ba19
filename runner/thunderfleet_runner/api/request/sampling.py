"""How tokens are sampled, and where an answer stops. Pure."""

from collections.abc import Mapping
from typing import Any

from thunderfleet_runner.api.errors import ApiError, refused
from thunderfleet_runner.api.request.fields import Fields
from thunderfleet_runner.intakeprotocol import ModelLimits
from thunderfleet_runner.protocol import Sampling

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
"""Bounded, because rank 0 compares the text with all prefixes of all stop strings while the whole group waits."""
MAX_BIASES = 1024
MAX_CONTEXT_SIZE = 4096
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 16
"""Answers to one request."""
SMALLEST_TEMPERATURE = 1e-3
"""A lower temperature means greedy: sampling would divide by almost zero."""
_MOST_TOKENS = (1 << 63) - 1
_FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling(fields: Fields, limits: ModelLimits, defaults: Sampling) -> Sampling:
    """How tokens are sampled; ``defaults`` are the model's own values for fields that the body does not set."""
    temperature = fields.number("temperature", 0, 2, defaults.temperature)
    last = limits.vocabulary - 1 if limits.vocabulary else (1 << 31) - 1
    return Sampling(
        temperature=temperature if temperature >= SMALLEST_TEMPERATURE else 0.0,
        top_p=fields.number("top_p", 0, 1, defaults.top_p),
        top_k=_top_k(fields, last, defaults.top_k),
        min_p=fields.number("min_p", 0, 1, defaults.min_p),
        repetition_penalty=fields.number("repetition_penalty", 0, 10, defaults.repetition_penalty),
        repetition_context_size=fields.integer("repetition_context_size", 1, MAX_CONTEXT_SIZE, 20),
        presence_penalty=fields.number("presence_penalty", -2, 2, 0),
        presence_context_size=fields.integer("presence_context_size", 1, MAX_CONTEXT_SIZE, 20),
        frequency_penalty=fields.number("frequency_penalty", -2, 2, 0),
        frequency_context_size=fields.integer("frequency_context_size", 1, MAX_CONTEXT_SIZE, 20),
        logit_bias=_logit_bias(fields, last),
        seed=fields.integer("seed", -(1 << 63), (1 << 63) - 1, 0) if "seed" in fields else None,
    )


def model_defaults(config: Mapping[str, Any], vocabulary: int) -> Sampling:
    """The sampling in a model's ``generation_config.json``. Invalid values are left out."""
    if config.get("do_sample") is False:
        return Sampling()
    found = {name: config[name] for name in _FROM_MODEL if config.get(name) is not None}
    if config.get("do_sample") is True:
        found.setdefault("temperature", 1.0)
    if found.get("repetition_penalty") == 1:
        # The same answer with less work.
        del found["repetition_penalty"]
    if isinstance(found.get("top_k"), int) and vocabulary and found["top_k"] >= vocabulary:
        found["top_k"] = 0
    limits = ModelLimits(model="", vocabulary=vocabulary, context_tokens=1)
    kept = Sampling()
    for name, value in found.items():
        try:
            kept = sampling(Fields({**_values(kept), name: value}), limits, Sampling())
        except ApiError:
            continue
    return kept


def _values(kept: Sampling) -> dict[str, Any]:
    return {name: getattr(kept, name) for name in _FROM_MODEL}


def _top_k(fields: Fields, last: int, default: int) -> int:
    top_k = fields.take("top_k", default)
    # Other servers write -1 for all tokens.
    return 0 if top_k == -1 else Fields({"top_k": top_k}).integer("top_k", 0, last, 0)


def _logit_bias(fields: Fields, last: int) -> dict[int, float]:
    value = fields.take("logit_bias", {})
    sentence = f"logit_bias must map at most {MAX_BIASES} token ids from 0 to {last} to numbers from -100 to 100"
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise refused("logit_bias", sentence)
    biases: dict[int, float] = {}
    for token, bias in value.items():
        usable = token.isascii() and token.isdigit() and len(token) < 12 and int(token) <= last
        if not usable or isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise refused("logit_bias", sentence)
        biases[int(token)] = float(bias)
    return biases


def stops(fields: Fields, name: str = "stop") -> tuple[str, ...]:
    """Strings that end the answer."""
    value = fields.take(name, [])
    found = [value] if isinstance(value, str) else value
    if (
        not isinstance(found, list)
        or len(found) > MAX_STOPS
        or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in found)
    ):
        raise refused(
            name, f"{name} must be a string of 1 to {MAX_STOP_CHARACTERS} characters or a list of at most {MAX_STOPS} of them"
        )
    return tuple(found)


def max_tokens(fields: Fields, *names: str) -> int | None:
    """Tokens to generate at most, by the first of ``names`` that is there; None, or -1 in a body: as many as fit."""
    found = [(name, fields.take(name)) for name in names if name in fields]
    if not found or found[0][1] == -1:
        return None
    return Fields(dict(found)).integer(found[0][0], 1, _MOST_TOKENS, 1)


def top_logprobs(value: int, limits: ModelLimits) -> int:
    """The number of alternatives to each token."""
    # mlx-lm partitions by this number and fails when it equals the size of the vocabulary.
    return min(value, limits.vocabulary - 1) if limits.vocabulary else value


def stream(fields: Fields) -> tuple[bool, bool]:
    """Whether the answer is streamed, and whether the stream ends with its usage."""
    streamed = fields.boolean("stream")
    options = fields.take("stream_options")
    if options is None:
        return streamed, False
    if not streamed:
        raise refused("stream_options", "stream_options requires stream to be true")
    if not isinstance(options, dict):
        raise refused("stream_options", "stream_options must be an object")
    return streamed, Fields(options, "stream_options.").boolean("include_usage")
