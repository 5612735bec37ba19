"""One request for vectors on rank 0: what the loop computes becomes messages to the supervisor."""

import base64

import mlx.core as mx

from thunderfleet_runner import protocol
from thunderfleet_runner.rank.answers.answer import Send
from thunderfleet_runner.rank.mlxlm import Embedded


class Vectors:
    """Like ``answer.Answer``, for a request that ends in one step."""

    def __init__(self, request: protocol.Request, send: Send) -> None:
        self.request = request
        self.over = False
        """Whether its Done is sent; later items are dropped."""
        self.ending = False
        self._send = send
        self._cancelled = False

    def cancel(self) -> None:
        """Called from any thread. Vectors whose computation has begun are computed completely."""
        self._cancelled = True

    def put(self, item: object) -> None:
        """The vectors, or an error; None for a request that the loop has never seen."""
        if self.over:
            return
        self.over = True
        if isinstance(item, Exception):
            self._send(protocol.RequestError(id=self.request.id, text=f"{type(item).__name__}: {item}"))
            return
        found = item if isinstance(item, Embedded) and not self._cancelled else None
        self._send(
            protocol.Done(
                id=self.request.id,
                finish_reason="cancelled" if found is None else "stop",
                prompt_tokens=found.tokens if found is not None else 0,
                generated_tokens=0,
                vectors=base64.b64encode(found.vectors).decode() if found is not None else "",
                peak_memory_bytes=mx.get_peak_memory(),
            )
        )
