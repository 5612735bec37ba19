"""A checked request. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thunderfleet_runner.api.errors import refused
from thunderfleet_runner.api.request.constraints import Constraint
from thunderfleet_runner.api.request.tools import Tools
from thunderfleet_runner.intakeprotocol import CallFormat, Endpoint, ModelLimits, Options
from thunderfleet_runner.protocol import Sampling


@dataclass(frozen=True)
class Call:
    """A checked request; only the prompt's length in tokens is unknown.

    The prompt is one of ``messages``, ``text`` and ``tokens``.
    """

    endpoint: Endpoint
    messages: Sequence[dict[str, Any]] = ()
    tools: Tools = field(default_factory=Tools)
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template."""
    text: str = ""
    tokens: Sequence[int] = ()
    max_tokens: int | None = None
    """Maximum tokens of the answer; None: as many as fit."""
    stream: bool = False
    include_usage: bool = False
    return_token_ids: bool = False
    choices: int = 1
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    constraint: Constraint | None = None
    echo: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the response repeats."""
    ignored: tuple[str, ...] = ()

    @property
    def constrained(self) -> Constraint | None:
        """The format of the answer, also of one that must be a tool call."""
        return self.tools.constraint() or self.constraint

    def options(self, max_tokens: int, calls: CallFormat = "marked") -> Options:
        """What the client requests besides its prompt. ``max_tokens``: what ``fit`` returns. ``calls``: the model's."""
        return Options(
            endpoint=self.endpoint,
            max_tokens=max_tokens,
            clamped=self.max_tokens is not None and max_tokens < self.max_tokens,
            stream=self.stream,
            include_usage=self.include_usage,
            return_token_ids=self.return_token_ids,
            choices=self.choices,
            ignored=self.ignored,
            stop=self.stop,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            sampling=self.sampling,
            tools=json.dumps(self.tools.offered) if self.tools.offered else "",
            calls=calls,
            forced=self.tools.forced,
            parallel=self.tools.parallel,
            echo=json.dumps(dict(self.echo)) if self.echo else "",
        )


def fit(call: Call, prompt_tokens: int, limits: ModelLimits) -> int:
    """Maximum tokens to generate after a prompt of ``prompt_tokens``. Raises ApiError when there is no room for one."""
    if prompt_tokens <= 0:
        raise refused("prompt" if call.endpoint == "completion" else "messages", "the prompt has no tokens")
    room = limits.context_tokens - prompt_tokens
    if room < 1:
        raise refused(
            None,
            f"the prompt has {prompt_tokens} tokens, which leaves no room in the context of {limits.context_tokens} tokens",
            "context_length_exceeded",
        )
    return room if call.max_tokens is None else min(call.max_tokens, room)
