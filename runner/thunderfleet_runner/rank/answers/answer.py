"""One request on rank 0: mlx-lm's items become messages to the supervisor."""

import itertools
import logging
import math
from collections.abc import Callable
from typing import Literal

import mlx.core as mx

from thunderfleet_runner import protocol
from thunderfleet_runner.rank import mlxlm
from thunderfleet_runner.rank.answers.stops import StopFinder
from thunderfleet_runner.rank.grammar import Unusable
from thunderfleet_runner.rank.mlxlm import Admitted, Broken, Finished, Prefilling, Sampled

log = logging.getLogger(__name__)

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has no number for; OpenAI uses the same value."""
_KINDS: dict[str, Literal["text", "reasoning", "tool"]] = {"reasoning": "reasoning", "tool": "tool"}

_SHOWN = ("normal", "reasoning", "tool")

Send = Callable[..., None]
"""Sends messages to the supervisor, in order."""


def _finite(value: float) -> float:
    return max(value, LOWEST_LOGPROB) if math.isfinite(value) else LOWEST_LOGPROB


class Recorder:
    """Records the token ids of the check, which every rank reports, and by how much each was the likeliest."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.costs: list[float] = []
        """Log probabilities of the tokens, with the opposite sign."""
        self.margins: list[float] = []

    def put(self, item: object) -> None:
        event = mlxlm.classify(item)
        if isinstance(event, Sampled):
            self.tokens.append(event.token)
            self.costs.append(-_finite(event.logprob))
            best = sorted((value for _, value in event.top), reverse=True)[:2]
            self.margins.append(_finite(best[0] - best[1]) if len(best) == 2 else 0.0)
        elif isinstance(event, Broken):
            raise event.error


class NullSink:
    """Discards the items on other ranks; rank 0 reports them."""

    def put(self, item: object) -> None:
        """Does nothing."""


class Answer:
    """One request: turns mlx-lm's items into messages, finds stop strings, and ends early when cancelled."""

    def __init__(self, request: protocol.Request, send: Send, decode: Callable[[int], str], stoppable: bool) -> None:
        self.request = request
        self.over = False
        """Whether its Done is sent; later items are dropped."""
        self.ending = False
        """Whether the loop should look up and remove the request."""
        self._send = send
        self._decode = decode
        self._stoppable = stoppable
        self._cancelled = False
        self._admitted: Admitted | None = None
        self._machine: mlxlm.TextMachine | None = None
        self._stops = StopFinder(request.stop)
        self._generated = 0
        self._reasoning = 0
        self._kind = "normal"

    def cancel(self) -> None:
        """From any thread: ends the request after the running step."""
        self._cancelled = True
        self._stop()

    def _stop(self) -> None:
        # With several ranks, mlx-lm cannot stop a model whose caches cannot be batched, so the loop ends the request on all
        # ranks.
        if self._admitted is not None and self._stoppable:
            self._admitted.stop()

    def put(self, item: object) -> None:
        """Called by mlx-lm's loop on the main thread. An exception here ends this request only."""
        try:
            self._put(item)
        except Exception as error:
            log.exception("request %s failed", self.request.id)
            self._stop()
            self.ending = True
            if not self.over:
                self.over = True
                self._send(protocol.RequestError(id=self.request.id, text=f"{type(error).__name__}: {error}"))

    def _put(self, item: object) -> None:
        event = mlxlm.classify(item)
        if isinstance(event, Admitted):
            self._admitted = event
            self._machine = mlxlm.TextMachine(event.machine, event.initial_state)
            self._kind = event.initial_state
        if self._cancelled and not self.over:
            self._stop()
            self._done("cancelled")
        if self.over and isinstance(event, Admitted):
            # It failed before the loop could end it.
            self._stop()
        if self.over:
            self.ending = True
            return
        match event:
            case Sampled():
                self._sampled(event)
            case Broken(error=Unusable() as error):
                # The loop continues this answer until it is ended.
                self._stop()
                self.over = self.ending = True
                text = f"the answer can no longer follow the requested format: {error}"
                self._send(protocol.RequestError(id=self.request.id, text=text, refused=True))
            case Broken(error):
                self.over = True
                self._send(protocol.RequestError(id=self.request.id, text=f"{type(error).__name__}: {error}"))
            case Finished():
                self._done("stop")
            case Admitted() | Prefilling():
                pass

    def _sampled(self, event: Sampled) -> None:
        self._generated += 1
        before = self._kind
        texts, stopped = self._visible(event)
        self._tell(event, texts, before)
        if stopped:
            self._stop()
            self.ending = True
            self._done("stop")
        elif event.finish_reason is not None:
            self._done("length" if event.finish_reason == "length" else "stop")

    def _visible(self, event: Sampled) -> tuple[list[tuple[str, str]], bool]:
        """The (kind, text) pairs that the token makes visible, and whether it completes a stop string.

        A tool call of the model is followed by text of another kind, which may be empty.
        """
        assert self._machine is not None, "mlx-lm reports the admission of a request before its first token"
        texts: list[tuple[str, str]] = []
        stopped = False
        for kind, text in self._machine.feed(event.text, event.finish_reason):
            ended = self._kind == "tool" != kind
            self._kind = kind
            if stopped:
                continue
            if kind not in _SHOWN:
                # Headers between the parts of an answer, in formats that have some.
                text = ""
            if kind == "normal":
                text, stopped = self._stops.feed(text)
            if text or ended:
                texts.append((kind, text))
        if event.finish_reason is not None and not stopped and (rest := self._stops.flush()):
            texts.append(("normal", rest))
        return texts, stopped

    def _tell(self, event: Sampled, texts: list[tuple[str, str]], before: str) -> None:
        request = self.request
        merged: list[tuple[str, str]] = []
        for kind, text in texts:
            if merged and merged[-1][0] == kind:
                merged[-1] = (kind, merged[-1][1] + text)
            else:
                merged.append((kind, text))
        kind, text = merged[0] if merged else (self._kind, "")
        self._reasoning += kind == "reasoning"
        top = sorted(event.top, key=lambda entry: -entry[1]) if request.logprobs else []
        self._send(
            protocol.Token(
                id=request.id,
                token=event.token,
                text=text,
                kind=_KINDS.get(kind, "text"),
                ends_tool=before == "tool" != kind,
                logprob=_finite(event.logprob) if request.logprobs else None,
                top_logprobs=tuple(
                    protocol.TopLogprob(token=token, text=self._decode(token), logprob=_finite(value)) for token, value in top
                ),
            )
        )
        for (earlier, _), (kind, text) in itertools.pairwise(merged):
            ends = earlier == "tool"
            self._send(
                protocol.Token(id=request.id, token=protocol.NO_TOKEN, text=text, kind=_KINDS.get(kind, "text"), ends_tool=ends)
            )

    def _done(self, reason: Literal["stop", "length", "cancelled"]) -> None:
        admitted = self._admitted
        self.over = True
        self._send(
            protocol.Done(
                id=self.request.id,
                finish_reason=reason,
                prompt_tokens=admitted.prompt_tokens if admitted else 0,
                cached_tokens=admitted.cached_tokens if admitted else 0,
                generated_tokens=self._generated,
                reasoning_tokens=self._reasoning,
                stop=self._stops.found,
                peak_memory_bytes=mx.get_peak_memory(),
            )
        )
