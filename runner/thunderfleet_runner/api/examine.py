"""Requests about tokens: counting, tokenizing and detokenizing. Pure: the model is an argument.

It runs in the intake process, like ``prepare``.
"""

import json
from collections.abc import Mapping
from typing import Any

from thunderfleet_runner.api.anthropic import messages as anthropic
from thunderfleet_runner.api.errors import ApiError, refused
from thunderfleet_runner.api.openai import chat
from thunderfleet_runner.api.openai.completion import checked
from thunderfleet_runner.api.prepare import Model, rejected, tokenized
from thunderfleet_runner.api.request import fields, names
from thunderfleet_runner.api.request.fields import Fields
from thunderfleet_runner.intakeprotocol import Examine, Examined, ModelLimits, Rejected
from thunderfleet_runner.protocol import Prompt


def examine(question: Examine, raw: bytes, model: Model) -> Examined | Rejected:
    """The response to a question."""
    try:
        body = fields.read(raw, question.limits)
        answer = _ANSWERS[question.subject](body, question.limits, model)
    except ApiError as error:
        return rejected(error)
    return Examined(body=json.dumps(answer))


def _count(body: Mapping[str, Any], limits: ModelLimits, model: Model) -> dict[str, Any]:
    """Anthropic's ``count_tokens``."""
    return {"input_tokens": tokenized(anthropic.parse(body, limits, model.defaults), limits, model).count}


def _tokenize(body: Mapping[str, Any], limits: ModelLimits, model: Model) -> dict[str, Any]:
    """VLLM's ``/tokenize``, of a text or a chat; llama.cpp calls the text ``content``."""
    read = Fields(body)
    spelled = read.boolean("return_token_strs")
    if "messages" in read:
        prompt: Prompt = tokenized(chat.parse(body, limits, model.defaults), limits, model)
        tokens = [token for segment in prompt.unpacked() for token in segment]
    else:
        names.check(read, limits)
        text = read.take("prompt", read.take("content"))
        if not isinstance(text, str):
            raise refused("prompt", "prompt must be a string, or send messages")
        tokens = model.encode(text, special=read.boolean("add_special_tokens", True))
    if len(tokens) > limits.context_tokens:
        raise refused(
            "prompt",
            f"the prompt has {len(tokens)} tokens, the context is {limits.context_tokens} tokens",
            "context_length_exceeded",
        )
    answer = {"count": len(tokens), "max_model_len": limits.context_tokens, "tokens": tokens}
    return {**answer, "token_strs": [model.decode([token]) for token in tokens] if spelled else None}


def _detokenize(body: Mapping[str, Any], limits: ModelLimits, model: Model) -> dict[str, Any]:
    """VLLM's ``/detokenize``; llama.cpp calls the text ``content``."""
    read = Fields(body)
    names.check(read, limits)
    tokens = read.take("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise refused("tokens", "tokens must be a list of token ids")
    text = model.decode(checked(tokens, "tokens", limits)) if tokens else ""
    return {"prompt": text, "content": text}


_ANSWERS = {"count": _count, "tokenize": _tokenize, "detokenize": _detokenize}
