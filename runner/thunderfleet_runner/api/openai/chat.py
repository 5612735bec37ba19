"""Bodies of ``/v1/chat/completions``. Pure."""

from collections.abc import Mapping
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request import constraints, messages, names, refusals, sampling, templates, tools
from thunderfleet_runner.api.request.call import Call
from thunderfleet_runner.api.request.fields import Fields
from thunderfleet_runner.intakeprotocol import ModelLimits
from thunderfleet_runner.protocol import Sampling


def parse(body: Mapping[str, Any], limits: ModelLimits, defaults: Sampling) -> Call:
    """The request in a body. Raises ApiError."""
    templates.require(limits, "messages")
    fields = Fields(body)
    refusals.check(fields)
    names.check(fields, limits)
    offered = tools.openai(fields.take("tools", []))
    logprobs = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, sampling.MAX_TOP_LOGPROBS, 0)
    if top and not logprobs:
        raise refused("top_logprobs", "top_logprobs requires logprobs to be true")
    streamed, usage = sampling.stream(fields)
    return Call(
        endpoint="chat",
        messages=messages.messages(fields.take("messages")),
        tools=tools.chosen(offered, fields.take("tool_choice", "auto"), parallel=fields.boolean("parallel_tool_calls", True)),
        template=templates.arguments(fields),
        max_tokens=sampling.max_tokens(fields, "max_completion_tokens", "max_tokens"),
        stream=streamed,
        include_usage=usage,
        return_token_ids=fields.boolean("return_token_ids"),
        choices=fields.integer("n", 1, sampling.MAX_CHOICES, 1),
        stop=sampling.stops(fields),
        logprobs=logprobs,
        top_logprobs=sampling.top_logprobs(top, limits),
        sampling=sampling.sampling(fields, limits, defaults),
        constraint=constraints.constraint(fields),
        ignored=fields.left(),
    )
