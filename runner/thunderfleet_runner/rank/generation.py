"""A rank's work after loading: turns, requests, cancels, and what becomes of each token.

Two threads meet here. The reader thread has the supervisor's messages (tokenizing is done there, so that counting a prompt
does not wait for a decoding step); the main thread runs mlx-lm's loop and is the only one that touches MLX. Between turns
the main thread is blocked on a queue: no collective, no polling.
"""

import logging
import math
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
from pydantic import BaseModel

from thunderfleet_runner import protocol
from thunderfleet_runner.rank import allreduce, mlxlm
from thunderfleet_runner.rank.mlxlm import Broken, Ended, Prefilling, Sampled, Started, Work
from thunderfleet_runner.rank.step_clock import Pulse
from thunderfleet_runner.rank.stops import StopFinder

log = logging.getLogger(__name__)

CHECK_ID = "check"
CHECK_PROMPT = "The quick brown fox jumps over the lazy dog."
CHECK_TOKENS = 8
LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say (OpenAI's own convention)."""
_REMEMBERED = 256
_KINDS: dict[str, Literal["text", "reasoning", "tool"]] = {"reasoning": "reasoning", "tool": "tool"}

Send = Callable[..., None]
"""Puts messages on their way, in order."""
Command = protocol.Turn | protocol.Check | protocol.Measure | protocol.Stop


def _finite(value: float) -> float:
    return max(value, LOWEST_LOGPROB) if math.isfinite(value) else LOWEST_LOGPROB


@dataclass(frozen=True)
class _Tokenized:
    segments: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    initial_state: str

    @property
    def count(self) -> int:
        return sum(len(segment) for segment in self.segments)


class Recorder:
    """Keeps a request's token ids: for the check, which every rank answers for itself."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, item: object) -> None:
        event = mlxlm.classify(item)
        if isinstance(event, Sampled):
            self.tokens.append(event.token)
        elif isinstance(event, Broken):
            raise event.error


class Silence:
    """Where the ranks that are not rank 0 put what rank 0 tells its supervisor."""

    def put(self, item: object) -> None:
        """Nothing."""


class Answer:
    """One request on rank 0: turns mlx-lm's items into messages, finds stop strings, ends when told to."""

    def __init__(self, request: protocol.Request, send: Send, decode: Callable[[int], str], stoppable: bool) -> None:
        self.request = request
        self.over = False
        """Whether its Done was sent; what still comes for it is dropped."""
        self.ending = False
        """Whether the loop should look up and remove it."""
        self._send = send
        self._decode = decode
        self._stoppable = stoppable
        self._cancelled = False
        self._started: Started | None = None
        self._machine: mlxlm.TextMachine | None = None
        self._stops = StopFinder(request.stop)
        self._generated = 0
        self._kind = "normal"
        self._tool_text = ""
        self._tool_texts: list[str] = []

    def cancel(self) -> None:
        """Any thread: end after the running step."""
        self._cancelled = True
        self._stop()

    def _stop(self) -> None:
        # Over several ranks mlx-lm cannot stop a model whose caches do not batch; the loop ends it on all of them together.
        if self._started is not None and self._stoppable:
            self._started.stop()

    def put(self, item: object) -> None:
        """mlx-lm's loop calls this, on the main thread. What goes wrong here ends this request and nothing else."""
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
        if isinstance(event, Started):
            self._started = event
            self._machine = mlxlm.TextMachine(event.machine, event.initial_state)
            self._kind = event.initial_state
        if self._cancelled and not self.over:
            self._stop()
            self._done("cancelled")
        if self.over:
            self.ending = True
            return
        match event:
            case Sampled():
                self._sampled(event)
            case Broken(error):
                self.over = True
                self._send(protocol.RequestError(id=self.request.id, text=f"{type(error).__name__}: {error}"))
            case Ended():
                self._done("stop")
            case Started() | Prefilling():
                pass

    def _sampled(self, event: Sampled) -> None:
        assert self._machine is not None, "mlx-lm says how a request started before its first token"
        self._generated += 1
        texts: list[tuple[str, str]] = []
        stopped = False
        for kind, text in self._machine.feed(event.text, event.finish_reason):
            if kind == "tool":
                self._tool_text += text
            elif self._kind == "tool":
                self._close_tool()
            self._kind = kind
            if kind == "normal" and not stopped:
                text, stopped = self._stops.feed(text)
            elif stopped:
                text = ""
            if kind != "tool" and text:
                texts.append((kind, text))
        if event.finish_reason is not None and not stopped:
            rest = self._stops.flush()
            if rest:
                texts.append(("normal", rest))
        self._tell(event, texts)
        if stopped:
            self._stop()
            self.ending = True
            self._done("stop")
        elif event.finish_reason is not None:
            self._done("length" if event.finish_reason == "length" else "stop")

    def _tell(self, event: Sampled, texts: list[tuple[str, str]]) -> None:
        request = self.request
        merged: list[tuple[str, str]] = []
        for kind, text in texts:
            if merged and merged[-1][0] == kind:
                merged[-1] = (kind, merged[-1][1] + text)
            else:
                merged.append((kind, text))
        kind, text = merged[0] if merged else (self._kind, "")
        top = sorted(event.top, key=lambda entry: -entry[1]) if request.logprobs else []
        self._send(
            protocol.Token(
                id=request.id,
                token=event.token,
                text=text,
                kind=_KINDS.get(kind, "text"),
                logprob=_finite(event.logprob) if request.logprobs else None,
                top_logprobs=tuple(
                    protocol.TopLogprob(token=token, text=self._decode(token), logprob=_finite(value)) for token, value in top
                ),
            )
        )
        for kind, text in merged[1:]:
            self._send(protocol.Token(id=request.id, token=protocol.NO_TOKEN, text=text, kind=_KINDS.get(kind, "text")))

    def _close_tool(self) -> None:
        if self._tool_text:
            self._tool_texts.append(self._tool_text)
        self._tool_text = ""

    def _done(self, reason: str) -> None:
        self._close_tool()
        started = self._started
        calls: list[dict[str, Any]] = []
        if reason != "cancelled" and self._tool_texts and started is not None:
            calls, unread = mlxlm.parse_tools(started.tool_parser, self.request.tools, self._tool_texts)
            if unread:
                # Cut short, or not what it should be: better read by the client than lost.
                more = protocol.Token(id=self.request.id, token=protocol.NO_TOKEN, text="".join(unread))
                self._send(more)
        self.over = True
        self._send(
            protocol.Done.model_validate(
                {
                    "id": self.request.id,
                    "finish_reason": "tool_calls" if calls and reason == "stop" else reason,
                    "prompt_tokens": started.prompt_tokens if started else 0,
                    "cached_tokens": started.cached_tokens if started else 0,
                    "generated_tokens": self._generated,
                    "tool_calls": calls,
                    "peak_memory_bytes": mx.get_peak_memory(),
                }
            )
        )


class Engine:
    """Everything between the supervisor's messages and mlx-lm's loop; the loop's ``Source``.

    ``vocabulary`` is the number of token ids, ``context`` the most tokens of one sequence.
    """

    def __init__(
        self, provider: mlxlm.Provider, pulse: Pulse, send: Send, *, group: Any, vocabulary: int, memory_tokens: int,
        context: int, share_tokens: bool, trimmable: bool,
    ) -> None:  # fmt: skip
        self._send = send
        self._thread = 0
        self._outbox: list[BaseModel] = []
        self._unsure: list[BaseModel] = []
        """Of the step before: told when the ranks turn out to agree on it."""
        self._pulse = pulse
        self._group = group
        self._rank = 0 if group is None else group.rank()
        self._vocabulary = vocabulary
        self._context = context
        self._stoppable = group is None or provider.is_batchable
        self._tokenizer = provider.tokenizer
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._current: Command | None = None
        self._lock = threading.Lock()
        self._inbox: deque[tuple[Work, Answer | Recorder]] = deque()
        self._answers: dict[str, Answer] = {}
        self._begun: dict[str, Answer | Recorder] = {}
        self._tokenized: OrderedDict[str, _Tokenized] = OrderedDict()
        self._recorder = Recorder()
        cache = mlxlm.PromptCache(tokens=memory_tokens, trimmable=trimmable)
        self._loop = mlxlm.Loop(provider, cache, self, pulse, group, share_tokens=share_tokens)

    def _say(self, message: BaseModel) -> None:
        """What answers say: on the main thread kept until all ranks agree on it. A batch's tokens go out in one write."""
        if threading.get_ident() == self._thread:
            self._outbox.append(message)
        else:
            self._send(message)

    # --- the reader thread ---

    def command(self, command: Command) -> None:
        """A turn, the check, or the end: obeyed in order, between turns."""
        if isinstance(command, protocol.Stop):
            self._cancel_all()
        self._commands.put(command)

    def prepare(self, request: protocol.Request) -> protocol.Prepared:
        """Counts a prompt's tokens, and remembers them for ``generate``."""
        try:
            tokenized = self._tokenize(request)
        except Exception as error:
            return protocol.Prepared(id=request.id, error=f"the model's template or tokenizer refuses this prompt: {error}")
        problem = self._problem(request, tokenized)
        if problem is not None:
            return protocol.Prepared(id=request.id, error=problem)
        self._tokenized[request.id] = tokenized
        while len(self._tokenized) > _REMEMBERED:
            self._tokenized.popitem(last=False)
        return protocol.Prepared(id=request.id, prompt_tokens=tokenized.count)

    def generate(self, request: protocol.Request) -> None:
        """Queues a request for the loop; a bad one is answered at once."""
        try:
            tokenized = self._tokenized.pop(request.id, None) or self._tokenize(request)
            problem = self._problem(request, tokenized)
        except Exception as error:
            problem = f"the model's template or tokenizer refuses this prompt: {error}"
        if problem is None and tokenized.count + request.max_tokens > self._context:
            problem = (
                f"{tokenized.count} tokens of prompt and {request.max_tokens} to generate are more than the context of "
                f"{self._context} tokens"
            )
        if problem is not None:
            self._send(protocol.RequestError(id=request.id, text=problem))
            return
        answer = Answer(request, self._say, self._text_of, self._stoppable)
        with self._lock:
            self._answers[request.id] = answer
            self._inbox.append((_work(request, tokenized), answer))

    def cancel(self, request_id: str) -> None:
        """Ends a request soon; one that has ended, or never was, is left alone."""
        with self._lock:
            waiting = next((entry for entry in self._inbox if entry[0].id == request_id), None)
            if waiting is not None:
                self._inbox.remove(waiting)
            answer = self._answers.get(request_id)
        if answer is None:
            return
        answer.cancel()
        if waiting is not None:
            # Nobody else will say so: the loop never hears of it.
            answer.put(None)
            self._forget(request_id)

    def _cancel_all(self) -> None:
        with self._lock:
            names = list(self._answers)
        for name in names:
            self.cancel(name)

    def _tokenize(self, request: protocol.Request) -> _Tokenized:
        if request.kind == "tokens":
            return _Tokenized((tuple(request.tokens),), ("assistant",), "normal")
        chat = request.kind == "chat"
        segments, types, state = self._loop.tokenize(
            messages=request.messages if chat else (), tools=request.tools, prompt="" if chat else request.prompt
        )
        return _Tokenized(tuple(tuple(segment) for segment in segments), tuple(types), state)

    def _problem(self, request: protocol.Request, tokenized: _Tokenized) -> str | None:
        if tokenized.count == 0:
            return "the prompt has no tokens"
        if request.tools and not self._tokenizer.has_tool_calling:
            return "this model cannot call tools: its chat template names no format of tool calls that mlx-lm knows"
        if self._vocabulary:
            highest = max(max(segment, default=0) for segment in tokenized.segments)
            lowest = min(min(segment, default=0) for segment in tokenized.segments)
            if lowest < 0 or highest >= self._vocabulary:
                return f"token ids must be from 0 to {self._vocabulary - 1}"
            sampling = request.sampling
            if any(not 0 <= token < self._vocabulary for token in sampling.logit_bias):
                return f"logit_bias takes token ids from 0 to {self._vocabulary - 1}"
            if sampling.top_k >= self._vocabulary or request.top_logprobs >= self._vocabulary:
                return f"top_k and top_logprobs must be below the vocabulary of {self._vocabulary}"
        return None

    def _text_of(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._answers.pop(request_id, None)

    # --- the main thread ---

    def run(self) -> None:
        """Waits for the check, then serves turns until Stop. Raises whatever ends the group."""
        self._thread = threading.get_ident()
        if self._wait():
            self._loop.run()
            self._pulse.rest()

    def _wait(self) -> bool:
        self._pulse.rest()
        self._current = self._commands.get()
        while isinstance(self._current, protocol.Measure):
            self._pulse.wake("prefill")
            self._send(allreduce.measure(self._group, self._pulse))
            self._pulse.rest()
            self._current = self._commands.get()
        if isinstance(self._current, protocol.Stop):
            return False
        self._pulse.wake("prefill")
        if isinstance(self._current, protocol.Check):
            self._recorder = Recorder()
            if self._rank == 0:
                self._queue_check()
        return True

    def _queue_check(self) -> None:
        ids = [int(token) for token in self._tokenizer.encode(CHECK_PROMPT)] or [0]
        work = Work(
            id=CHECK_ID, segments=(tuple(ids),), segment_types=("assistant",), initial_state="normal",
            # An answer that ends at its first token would compare next to nothing.
            max_tokens=CHECK_TOKENS, cache=False, ends=False,
        )  # fmt: skip
        with self._lock:
            self._inbox.append((work, self._recorder))

    def agreed(self, *, all_of_it: bool) -> None:
        said, self._unsure, self._outbox = self._unsure, self._outbox, []
        if all_of_it:
            said, self._unsure = said + self._unsure, []
        if said:
            self._send(*said)

    def take(self) -> Work | None:
        with self._lock:
            for name in [name for name, answer in self._answers.items() if answer.over]:
                del self._answers[name]
            if not self._inbox:
                return None
            work, sink = self._inbox.popleft()
            self._begun[work.id] = sink
            return work

    def wanted(self) -> bool:
        return bool(self._inbox) or self.ending()

    def ending(self) -> bool:
        with self._lock:
            return any(answer.ending for answer in self._answers.values())

    def admitted(self, work: Work) -> mlxlm.Sink:
        if self._rank == 0:
            return self._begun.pop(work.id)
        return self._recorder if work.id == CHECK_ID else Silence()

    def asleep(self) -> bool:
        match self._current:
            case protocol.Check():
                self._send(
                    protocol.Ready(
                        tokens=tuple(self._recorder.tokens),
                        vocabulary=self._vocabulary,
                        chat_template=bool(getattr(self._tokenizer, "has_chat_template", False)),
                        peak_memory_bytes=mx.get_peak_memory(),
                    )
                )
            case protocol.Turn(number=number):
                self._send(protocol.Idle(turn=number))
        return self._wait()


def _work(request: protocol.Request, tokenized: _Tokenized) -> Work:
    sampling = request.sampling.model_dump(exclude={"seed"})
    return Work(
        id=request.id,
        segments=tokenized.segments,
        segment_types=tokenized.types,
        initial_state=tokenized.initial_state,
        max_tokens=request.max_tokens,
        sampling=mlxlm.Sampling(**sampling),
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        cache=request.cache,
        ends=not request.no_end,
    )
