"""A rank's work after loading: turns, requests and cancels.

Two threads meet here. The reader thread receives the supervisor's messages. The main thread runs mlx-lm's loop and is the only
one that uses MLX. Between turns the main thread blocks on a queue: no collective, no polling.
"""

import queue
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from pydantic import BaseModel

from thunderfleet_runner import protocol
from thunderfleet_runner.rank import allreduce, mlxlm
from thunderfleet_runner.rank.answers.answer import Answer, NullSink, Recorder, Send
from thunderfleet_runner.rank.answers.vectors import Vectors
from thunderfleet_runner.rank.grammar import Formats
from thunderfleet_runner.rank.mlxlm import Work
from thunderfleet_runner.rank.step_clock import COLLECTIVE, StepClock

CHECK_ID = "check"
CHECK_PROMPT = "The quick brown fox jumps over the lazy dog."
CHECK_TOKENS = 8

Command = protocol.Turn | protocol.Check | protocol.Measure | protocol.Stop


class Engine:
    """Connects the supervisor's messages with mlx-lm's loop; it is the loop's ``Source``.

    ``vocabulary`` is the number of token ids, ``context`` the maximum number of tokens of one sequence, ``kind`` the Mac's.
    """

    def __init__(
        self, provider: mlxlm.Provider, clock: StepClock, send: Send, *, group: Any, vocabulary: int, memory_tokens: int,
        context: int, share_tokens: bool, equal_logits: bool, trimmable: bool, formats: Formats | None,
        kind: int = 0,
    ) -> None:  # fmt: skip
        self._send = send
        self._kind = kind
        self._thread = 0
        self._outbox: list[BaseModel] = []
        self._unsure: list[BaseModel] = []
        """Messages of the step before: sent once all ranks are known to agree on it."""
        self._clock = clock
        self._group = group
        self._rank = 0 if group is None else group.rank()
        self._vocabulary = vocabulary
        self._context = context
        self._pipeline = share_tokens
        self._stoppable = group is None or provider.is_batchable
        self._tokenizer = provider.tokenizer
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._current: Command | None = None
        self._lock = threading.Lock()
        self._inbox: deque[tuple[Work, Answer | Vectors | Recorder]] = deque()
        self._answers: dict[str, Answer | Vectors] = {}
        self._begun: dict[str, Answer | Vectors | Recorder] = {}
        self._recorder = Recorder()
        cache = mlxlm.PromptCache(tokens=memory_tokens, trimmable=trimmable)
        self._formats = formats
        self._loop = mlxlm.Loop(
            provider, cache, self, clock, group, share_tokens=share_tokens, equal_logits=equal_logits, formats=formats
        )

    def _say(self, message: BaseModel) -> None:
        """Sends a message of an answer; on the main thread once all ranks agree on it. A batch's tokens go out in one write."""
        if threading.get_ident() == self._thread:
            self._outbox.append(message)
        else:
            self._send(message)

    # --- the reader thread ---

    def command(self, command: Command) -> None:
        """A turn, the check, a measurement or the end: carried out in order, between turns."""
        if isinstance(command, protocol.Stop):
            self._cancel_all()
        self._commands.put(command)

    def generate(self, request: protocol.Request) -> None:
        """Queues a request for the loop; an invalid one is answered at once."""
        try:
            segments = request.prompt.unpacked()
            problem = self._problem(request, segments)
        except ValueError as error:
            problem = str(error)
        if problem is not None:
            self._send(protocol.RequestError(id=request.id, text=problem))
            return
        answer: Answer | Vectors
        answer = Vectors(request, self._say) if request.embed else Answer(request, self._say, self._text_of, self._stoppable)
        with self._lock:
            self._answers[request.id] = answer
            self._inbox.append((_work(request, segments), answer))

    def cancel(self, request_id: str) -> None:
        """Ends a request soon; no effect on one that has ended or is unknown."""
        with self._lock:
            waiting = next((entry for entry in self._inbox if entry[0].id == request_id), None)
            if waiting is not None:
                self._inbox.remove(waiting)
            answer = self._answers.get(request_id)
        if answer is None:
            return
        answer.cancel()
        if waiting is not None:
            # The loop has never seen the request, so its end is reported here.
            answer.put(None)
            self._forget(request_id)

    def _cancel_all(self) -> None:
        with self._lock:
            names = list(self._answers)
        for name in names:
            self.cancel(name)

    def _problem(self, request: protocol.Request, segments: Sequence[Sequence[int]]) -> str | None:
        """Checks for requests that would end or mislead a rank. The gateway has already rejected them."""
        count = request.prompt.count
        if count == 0:
            return "the prompt has no tokens"
        if request.embed:
            return self._unembeddable(segments)
        if request.grammar and self._formats is None:
            return "a format cannot be forced with this model's tokenizer"
        if count + request.max_tokens > self._context:
            return f"{count} prompt tokens and {request.max_tokens} to generate exceed the context of {self._context} tokens"
        if self._vocabulary:
            highest = max(max(segment, default=0) for segment in segments)
            if highest >= self._vocabulary:
                return f"token ids must be from 0 to {self._vocabulary - 1}"
            sampling = request.sampling
            if any(not 0 <= token < self._vocabulary for token in sampling.logit_bias):
                return f"logit_bias token ids must be from 0 to {self._vocabulary - 1}"
            if sampling.top_k >= self._vocabulary or request.top_logprobs >= self._vocabulary:
                return f"top_k and top_logprobs must be less than the vocabulary size of {self._vocabulary}"
        return None

    def _unembeddable(self, texts: Sequence[Sequence[int]]) -> str | None:
        longest = max(map(len, texts))
        if self._pipeline:
            return "the layers of this model are divided among Macs, so it cannot compute embeddings"
        if not all(texts) or longest > self._context or (len(texts) > 1 and longest * len(texts) > protocol.EMBED_TOKENS):
            return f"the texts must have tokens, at most {self._context} each, and {protocol.EMBED_TOKENS} together"
        if self._vocabulary and max(map(max, texts)) >= self._vocabulary:
            return f"token ids must be from 0 to {self._vocabulary - 1}"
        return None

    def _text_of(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._answers.pop(request_id, None)

    # --- the main thread ---

    def run(self) -> None:
        """Waits for the check, then serves turns until Stop. An exception means that the group is lost."""
        self._thread = threading.get_ident()
        if self._wait():
            self._loop.run()
            self._clock.rest()

    def _wait(self) -> bool:
        self._clock.rest()
        self._current = self._commands.get()
        while isinstance(self._current, protocol.Measure):
            self._clock.wake(COLLECTIVE)
            self._send(allreduce.measure(self._group, self._clock))
            self._clock.rest()
            self._current = self._commands.get()
        if isinstance(self._current, protocol.Stop):
            return False
        self._clock.wake(COLLECTIVE)
        if isinstance(self._current, protocol.Check):
            self._recorder = Recorder()
            if self._rank == 0:
                self._queue_check()
        return True

    def _queue_check(self) -> None:
        ids = [int(token) for token in self._tokenizer.encode(CHECK_PROMPT)] or [0]
        work = Work(
            id=CHECK_ID, segments=(tuple(ids),), segment_types=("assistant",), initial_state="normal",
            # An answer that ends at its first token would hardly test anything.
            max_tokens=CHECK_TOKENS, cache=False, ends=False, logprobs=True, top_logprobs=2 if self._vocabulary > 2 else 0,
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
        return self._recorder if work.id == CHECK_ID else NullSink()

    def asleep(self) -> bool:
        match self._current:
            case protocol.Check():
                self._send(
                    protocol.Ready(
                        tokens=tuple(self._recorder.tokens),
                        costs=tuple(self._recorder.costs),
                        margins=tuple(self._recorder.margins),
                        kind=self._kind,
                        vocabulary=self._vocabulary,
                        chat_template=bool(getattr(self._tokenizer, "has_chat_template", False)),
                        peak_memory_bytes=mx.get_peak_memory(),
                    )
                )
            case protocol.Turn(number=number):
                self._send(protocol.Idle(turn=number))
        return self._wait()


def _work(request: protocol.Request, segments: tuple[tuple[int, ...], ...]) -> Work:
    return Work(
        id=request.id,
        segments=segments,
        segment_types=tuple(kind for kind, _ in request.prompt.segments),
        initial_state=request.prompt.initial_state,
        max_tokens=request.max_tokens,
        sampling=mlxlm.Sampling(**request.sampling.model_dump()),
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        cache=request.cache,
        grammar=request.grammar,
        ends=not request.no_end,
        embed=request.embed,
    )
