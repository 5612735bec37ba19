"""Work between the steps of mlx-lm's loop: counts, digests, and rank 0's signal that all ranks check for new requests."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

from mlx_lm import server as _server

from thunderfleet_runner.rank.mlxlm.batching.logits import value_hash
from thunderfleet_runner.rank.mlxlm.work import Work
from thunderfleet_runner.rank.step_clock import COLLECTIVE, StepClock
from thunderfleet_runner.rank.step_times import Step

PREFILL_STEP = 2048
"""Prompt tokens in one step of prefill: bounds the workspace and how long a step takes."""


class Sink(Protocol):
    """Receives the loop's items about one request, on the loop's thread."""

    def put(self, item: object) -> None:
        """Takes one of mlx-lm's items; see ``items.classify``."""


class Source(Protocol):
    """Where the loop gets its requests; called on the loop's thread."""

    def take(self) -> Work | None:
        """Rank 0: the next request, if there is one."""

    def wanted(self) -> bool:
        """Rank 0: whether a request waits or must end, so that the loop should leave its batch."""

    def ending(self) -> bool:
        """Rank 0: whether a running request must end."""

    def agreed(self, *, all_of_it: bool) -> None:
        """All ranks have sampled the same tokens: messages up to the step before the last, or all of them, may be sent."""

    def asleep(self) -> bool:
        """The turn has no work left. Blocks until the next turn; False ends the loop."""

    def admitted(self, work: Work) -> Sink:
        """This rank starts this request; returns the sink of its results."""


class Lockstep(Protocol):
    """The loop as the steps use it: the state that all ranks must agree on."""

    clock: StepClock
    distributed: bool
    share_tokens: bool
    prefill_sequences: int
    prefill_step: int
    source: Source

    equal_logits: bool

    def digest(self, *values: int) -> None:
        """Adds values to this rank's digest."""

    def digest_logits(self, responses: Sequence[Any]) -> None:
        """Adds logits of a step, if it is their turn and all ranks must have the same."""

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A step with this number of prompt tokens has ended."""

    def word(self, wanted: Callable[[], bool]) -> Any:
        """Sends rank 0's flag and this rank's digest; the answer is read one step later."""

    def read(self, word: Any) -> bool:
        """Whether rank 0 signals the loop to check for requests. Raises Diverged."""

    def processing(self, processors: list[Any]) -> list[Any]:
        """The logits processors of the request that is being admitted: with the mask of its format."""

    def sampling(self, sampler: Any) -> Any:
        """``sampler`` for the request that is being admitted: with its seed, and with rank 0's choice for every rank."""


class Batch(_server.BatchGenerator):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's batch with steps counted and tokens digested, and in a pipeline with rank 0's tokens for all ranks."""

    loop: Lockstep

    def next(self) -> Any:
        self.prefill_batch_size = self._prefill_sequences()
        self.prefill_step_size = self._prompt_batch.prefill_step_size = self.loop.prefill_step
        step = self._coming()
        before = self._counters.prompt_tokens
        self.loop.clock.begin(step)
        began = time.monotonic()
        prompts, tokens = super().next()
        for response in tokens:
            self.loop.digest(response.uid, response.token, 0 if response.finish_reason is None else 1)
        self.loop.digest_logits(tokens)
        computed = self._counters.prompt_tokens - before
        self.loop.prefilled(computed, time.monotonic() - began)
        self.loop.clock.step(replace(step, tokens=computed) if step.shape == "prefill" and computed else step)
        return prompts, tokens

    def _coming(self) -> Step:
        """The next step, by what waits: prompt tokens if there are any, else a token of each answer."""
        answers = self._generation_batch.tokens
        context = max(map(len, answers), default=0) + 1
        if answers and not self._unprocessed_sequences and not len(self._prompt_batch):
            return Step("decode", len(answers), context)
        waiting = [
            (len(done), work[0]) for done, work in zip(self._prompt_batch.tokens, self._currently_processing, strict=True)
        ]
        free = max(0, self.prefill_batch_size - len(waiting))
        waiting += [(len(sequence[4]), sequence[1]) for sequence in islice(self._unprocessed_sequences, free)]
        chunks = [min(len(segments[0]), self.loop.prefill_step) for _, segments in waiting]
        ends = [done + chunk for (done, _), chunk in zip(waiting, chunks, strict=True)]
        return Step("prefill", sum(chunks), max(context, *ends, 1))

    def _prefill_sequences(self) -> int:
        """How many prompts the next step may compute together.

        Short ones only: memory is planned for one step of one prompt, and rows that leave a batch are copied for a while.
        """
        widths = [
            len(tokens) + sum(map(len, work[0]))
            for tokens, work in zip(self._prompt_batch.tokens, self._currently_processing, strict=True)
        ]
        for sequence in self._unprocessed_sequences:
            if len(widths) >= self.loop.prefill_sequences:
                break
            width = len(sequence[4]) + sum(map(len, sequence[1]))
            if widths and (len(widths) + 1) * max(*widths, width) > PREFILL_STEP:
                break
            widths.append(width)
        return max(1, len(widths))

    def insert_segments(self, segments: Any, **options: Any) -> Any:
        options["samplers"] = [self.loop.sampling(sampler) for sampler in options["samplers"]]
        options["logits_processors"] = [self.loop.processing(processors) for processors in options["logits_processors"]]
        return super().insert_segments(segments, **options)


class _Left(Exception):
    """A request outside a batch is ended early, on all ranks at the same item."""


class Alone:
    """A request outside a batch: mlx-lm serves models whose caches do not merge one request at a time.

    Does between mlx-lm's items, which are the same on every rank, what ``Batch`` and ``Budget`` do for a batch: counts steps,
    digests tokens, releases them when all ranks agree, and ends the request on all ranks one step after rank 0 decides to. An
    exception raised here ends mlx-lm's work on this request.
    """

    def __init__(self, sink: Sink, loop: Lockstep) -> None:
        self._sink = sink
        self._loop = loop
        self._word: Any = None
        self._context = 0

    def put(self, item: object) -> None:
        loop = self._loop
        if loop.distributed and isinstance(item, RuntimeError):
            # Ranks have diverged, or MLX cannot continue: peers may be in the middle of a step that this rank will not join.
            raise item
        loop.clock.step()
        loop.clock.begin(self._following(item))
        if isinstance(item, _server.Response):
            loop.digest(int(item.token), 0 if item.finish_reason is None else 1)
            if loop.equal_logits:
                loop.digest(value_hash(item.logprob))
        self._sink.put(None if isinstance(item, _Left) else item)
        if item is None or isinstance(item, Exception):
            self._settle()
        elif self._left():
            raise _Left

    def _following(self, item: object) -> Step:
        """The step after this item."""
        if isinstance(item, _server.GenerationContext):
            self._context = len(item.prompt)
            return COLLECTIVE
        if isinstance(item, tuple):
            computed, total = item
            # mlx-lm computes the last token with the first one of the answer.
            if total - computed > 1:
                return Step("prefill", min(self._loop.prefill_step, total - computed - 1), self._context)
        self._context += 1
        return Step("decode", context=self._context)

    def _left(self) -> bool:
        loop = self._loop
        if not loop.distributed:
            loop.source.agreed(all_of_it=True)
            return loop.source.ending()
        previous, self._word = self._word, loop.word(loop.source.ending)
        left = previous is not None and loop.read(previous)
        loop.source.agreed(all_of_it=loop.share_tokens)
        return left

    def _settle(self) -> None:
        word, self._word = self._word, None
        if word is not None:
            self._loop.read(word)
        self._loop.source.agreed(all_of_it=True)


class Budget:
    """When the loop leaves its batch to check for new requests: one step after rank 0 has a reason to."""

    def __init__(self, loop: Lockstep) -> None:
        self._loop = loop
        self._first = True
        self._word: Any = None

    def __iter__(self) -> Iterator[None]:
        self._first = True
        return self

    def __next__(self) -> None:
        first, self._first = self._first, False
        if not self._loop.distributed:
            self._loop.source.agreed(all_of_it=True)
            if not first and self._loop.source.wanted():
                raise StopIteration
            return
        if first:
            return
        previous, self._word = self._word, self._loop.word(self._loop.source.wanted)
        wanted = previous is not None and self._loop.read(previous)
        # This step's tokens are in the digest just sent, so only those of the step before are known to agree. Where all ranks
        # use rank 0's tokens, only the reused prefix could differ, and that was in an earlier digest.
        self._loop.source.agreed(all_of_it=self._loop.share_tokens)
        if wanted:
            raise StopIteration

    def settle(self) -> None:
        """Reads the last answer too. Collective, like everything here."""
        word, self._word = self._word, None
        if word is not None:
            self._loop.read(word)
        self._loop.source.agreed(all_of_it=True)
