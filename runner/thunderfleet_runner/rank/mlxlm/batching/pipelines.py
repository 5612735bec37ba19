"""Prompts in a pipeline: how the stages exchange what they compute, and how many tokens a step has.

macOS ends a GPU command that takes longer than about 5 s. If a rank waits inside a GPU command for the stage before it, that
command takes as long as that stage computes. So in a prompt's step, a rank has received its input completely before its own
stage begins, and its stage is complete before it sends: while it waits, its GPU runs no command. The last hidden states go from
rank 0 to all others only for a token that is sampled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

STAGE_SECONDS = 2.0
"""A step of a prompt is made so short that a stage takes less than this."""
STEPS = (2048, 1024, 512, 256)
FIRST_STEP = 512
"""Tokens of a step while nothing is known of the model's speed."""
LEAST_TOKENS = 256
"""Steps of fewer tokens do not predict longer ones."""


class Pace:
    """How many tokens the next prompts' steps have, by the last step that was long enough."""

    def __init__(self) -> None:
        self.step = FIRST_STEP

    def add(self, tokens: int, seconds: float) -> None:
        """A step of rank 0 has ended. It took as long as the slowest stage, or as all stages together."""
        if tokens >= LEAST_TOKENS:
            fitting = (step for step in STEPS if seconds / tokens * step < STAGE_SECONDS)
            self.step = next(fitting, STEPS[-1])


class _Apart:
    """mlx's messages between ranks, of which those of a prompt's step are evaluated apart."""

    def __init__(self) -> None:
        self.prompt = False

    @contextmanager
    def step(self, tokens: int) -> Iterator[None]:
        """While the model is called with this many tokens of each sequence."""
        before, self.prompt = self.prompt, tokens > 1
        try:
            yield
        finally:
            self.prompt = before

    def receiving(self, receive: Callable[..., Any]) -> Callable[..., Any]:
        def received(*arguments: Any, **options: Any) -> Any:
            found = receive(*arguments, **options)
            if self.prompt:
                mx.eval(found)
            return found

        return received

    def sending(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(values: Any, *arguments: Any, **options: Any) -> Any:
            if not self.prompt:
                return send(values, *arguments, **options)
            mx.eval(values)
            found = send(values, *arguments, **options)
            mx.eval(found)
            return found

        return sent

    def gathering(self, gather: Callable[..., Any]) -> Callable[..., Any]:
        def gathered(values: Any, *arguments: Any, **options: Any) -> Any:
            # Without the gather, each rank keeps its own rows. Callers use the first rows only, and only rank 0's are correct.
            return values if self.prompt else gather(values, *arguments, **options)

        return gathered


def evaluate_apart(model: Any) -> None:
    """Evaluates messages of prompt steps separately, from now on in this process. Patches the class of mlx-lm's ``model``."""
    apart, kind = _Apart(), type(model)
    plain = kind.__call__

    def call(self: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        with apart.step(inputs.shape[1] if inputs.ndim > 1 else 1):
            return plain(self, inputs, *arguments, **options)

    kind.__call__ = call
    distributed: Any = mx.distributed
    distributed.recv = apart.receiving(distributed.recv)
    distributed.recv_like = apart.receiving(distributed.recv_like)
    distributed.send = apart.sending(distributed.send)
    distributed.all_gather = apart.gathering(distributed.all_gather)
