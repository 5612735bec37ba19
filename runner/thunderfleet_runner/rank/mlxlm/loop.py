"""mlx-lm's serving loop, on the caller's thread and in step with the other ranks."""

import itertools
import json
import zlib
from argparse import Namespace
from collections.abc import Callable, Sequence
from queue import Queue
from typing import Any

import mlx.core as mx
from mlx_lm import sample_utils as _sampling
from mlx_lm import server as _server

from thunderfleet_runner.rank.grammar import Formats, Mask, Unusable
from thunderfleet_runner.rank.mlxlm.batching.logits import LogitsHash, row_hash
from thunderfleet_runner.rank.mlxlm.batching.masking import Answers
from thunderfleet_runner.rank.mlxlm.batching.pipelines import Pace
from thunderfleet_runner.rank.mlxlm.batching.prompts import PromptCache
from thunderfleet_runner.rank.mlxlm.batching.steps import PREFILL_STEP, Alone, Batch, Budget, Sink, Source
from thunderfleet_runner.rank.mlxlm.embedding import CannotEmbed, embed
from thunderfleet_runner.rank.mlxlm.generate import generate as _generate
from thunderfleet_runner.rank.mlxlm.items import Embedded
from thunderfleet_runner.rank.mlxlm.models import prompt_cache
from thunderfleet_runner.rank.mlxlm.work import Work
from thunderfleet_runner.rank.step_clock import COLLECTIVE, StepClock
from thunderfleet_runner.rank.step_times import Step

PREFILL_SEQUENCES = 8
"""Maximum prompts in one step of prefill, as long as together, each padded to the longest, they do not exceed PREFILL_STEP."""
_SEED_FACTOR = 0x9E3779B97F4A7C15
"""Odd, so that different seeds and steps give different keys."""
_DIGEST_PRIME = (1 << 31) - 1
MOST_SHARED_BYTES = 256 << 20
"""Of a request, with all tokens of its prompt."""
LEAST_TOP_P = 1e-6
"""A smaller top_p keeps the likeliest token only, as this one does. A top_p that vanishes beside a sum of probabilities in
float32 makes mlx-lm read its threshold past the end of the row, where ranks have different values."""


class Diverged(RuntimeError):
    """Ranks of one group have different tokens, logits or reused prefixes: further output would be wrong."""


class Provider:
    """mlx-lm's ModelProvider for one model that is already loaded and never changes."""

    def __init__(self, model: Any, tokenizer: Any, name: str, *, sequences: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.model_key: tuple[str, None, None] | None = (name, None, None)
        self.processor = None
        self.draft_model = None
        self.is_batchable = all(hasattr(entry, "merge") for entry in prompt_cache(model))
        self.cli_args = Namespace(
            decode_concurrency=sequences,
            prompt_concurrency=min(sequences, PREFILL_SEQUENCES),
            prefill_step_size=PREFILL_STEP,
            prompt_cache_bytes=None,
            kv_bits=None,
            kv_group_size=64,
            quantized_kv_start=0,
            chat_template_args={},
        )

    def load_default(self) -> None:
        """Does nothing: the model is loaded."""

    def load(self, *_names: object) -> tuple[Any, Any]:
        return self.model, self.tokenizer

    def reset(self) -> None:
        self.model = self.tokenizer = self.model_key = None


def seeded(sampler: Any, seed: int) -> Any:
    """``sampler`` with random numbers of its own: the same for the same seed, whatever else is in the batch."""
    steps = itertools.count()

    def sample(logprobs: Any) -> Any:
        key = mx.random.key((seed * _SEED_FACTOR + next(steps)) % (1 << 64))
        shared = _sampling.categorical_sampling
        _sampling.categorical_sampling = lambda logits, temp: mx.random.categorical(logits * (1.0 / temp), key=key)
        try:
            return sampler(logprobs)
        finally:
            _sampling.categorical_sampling = shared

    return sample


class Loop(_server.ResponseGenerator):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's serving loop, run on the caller's thread, because MLX's streams belong to threads.

    ``group`` is MLX's, or None for one rank. With ``share_tokens`` all ranks use rank 0's sampled tokens. ``equal_logits``: all
    ranks must have the same bits.
    """

    def __init__(
        self,
        provider: Provider,
        cache: PromptCache,
        source: Source,
        clock: StepClock,
        group: Any,
        *,
        share_tokens: bool,
        equal_logits: bool,
        formats: Formats | None = None,
    ):
        # Not the base's: it starts another thread.
        self.model_provider = provider
        self.prompt_cache = cache
        self.requests: Queue[Any] = Queue()
        self.source = source
        self.clock = clock
        self.group = group
        self.share_tokens = share_tokens and group is not None
        self.distributed = group is not None
        self._is_distributed = self.distributed
        self._rank = group.rank() if group is not None else 0
        self._size = group.size() if group is not None else 1
        self._state_machine_cache: dict[Any, Any] = {}
        self._time_budget = Budget(self)
        self.prefill_sequences = int(provider.cli_args.prompt_concurrency)
        self._stop = False
        self._work: dict[str, tuple[Work, Sink]] = {}
        self._formats = formats
        self._admitting: tuple[Work, Sink] | None = None
        """The request that was tokenized last."""
        self._digest = 1
        self.equal_logits = equal_logits and group is not None
        self._logits = LogitsHash()
        self._pace = Pace() if self.share_tokens else None
        self.prefill_step = self._pace.step if self._pace else PREFILL_STEP
        self._shared_samplers: dict[int, tuple[Any, Any]] = {}
        cache.on_hit = lambda count: self.digest(count, 0, 2)
        Batch.loop = self
        _server.BatchGenerator = Batch
        _generate.GenerationBatch = Answers

    def run(self) -> None:
        """Serves until the source ends the loop, then frees the model. Any exception means that the group is lost."""
        self._generate()

    # --- the state that all ranks must agree on ---

    def digest(self, *values: int) -> None:
        """Adds values to this rank's digest."""
        for value in values:
            self._digest = (self._digest * 1_000_003 + value + 17) % _DIGEST_PRIME

    def digest_logits(self, responses: Sequence[Any]) -> None:
        """Adds logits of a step, if it is their turn and all ranks must have the same."""
        found = self._logits.of(responses) if self.equal_logits else None
        if found is not None:
            self.digest(found)

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A step with this number of prompt tokens has ended."""
        if self._pace is not None:
            self._pace.add(tokens, seconds)

    def word(self, wanted: Callable[[], bool]) -> Any:
        """Sends rank 0's flag and this rank's digest; the answer is read one step later."""
        flag = 1 if self._rank == 0 and wanted() else 0
        # Sent twice, because a rank that reads a corrupted flag would wait for the others in a collective that they do not
        # enter.
        answer = mx.distributed.all_sum(mx.array([flag, -flag, self._digest], mx.int64), group=self.group)
        mx.async_eval(answer)  # type: ignore[no-untyped-call]
        return answer, self._digest

    def read(self, word: Any) -> bool:
        """Whether rank 0 signals the loop to check for requests. Raises Diverged."""
        answer, mine = word
        flag, again, total = answer.tolist()
        if total != mine * self._size:
            raise Diverged(
                f"rank {self._rank}: the ranks of this group no longer compute the same tokens (digest {mine}, the sum over "
                f"{self._size} ranks is {total})"
            )
        if flag not in (0, 1) or flag != -again:
            raise Diverged(f"rank {self._rank}: a message of rank 0 was corrupted on its way ({flag} and {again})")
        return bool(flag)

    def sampling(self, sampler: Any) -> Any:
        """``sampler`` for the request that is being admitted: with its seed, and with rank 0's choice for every rank."""
        assert self._admitting is not None, "mlx-lm tokenizes a request before it admits it"
        seed = self._admitting[0].sampling.seed
        if seed is not None and sampler is not _generate.greedy_sampler:
            sampler = seeded(sampler, seed)
        return self.sharing(sampler) if self.share_tokens else sampler

    def processing(self, processors: list[Any]) -> list[Any]:
        """The logits processors of the request that is being admitted: with the mask of its format."""
        assert self._admitting is not None, "mlx-lm tokenizes a request before it admits it"
        work, sink = self._admitting
        if not work.grammar or self._formats is None:
            return processors
        after = self.model_provider.tokenizer.think_end_tokens if work.initial_state == "reasoning" else ()
        try:
            mask = Mask(self._formats, work.grammar, after or (), lambda reason: sink.put(Unusable(reason)))
        except Unusable as error:
            # The same on all ranks. Rank 0 ends the answer.
            sink.put(error)
            return processors
        return [*processors, mask]

    def sharing(self, sampler: Any) -> Any:
        """``sampler`` with rank 0's choice for every rank. One object for each sampler, so that requests stay in one batch."""
        known = self._shared_samplers.get(id(sampler))
        if known is not None:
            return known[1]

        def shared(logprobs: Any) -> Any:
            chosen = sampler(logprobs)
            sent = mx.distributed.all_sum(chosen if self._rank == 0 else mx.zeros_like(chosen), group=self.group)
            # Rank 0 keeps its own tokens, so that its digest differs if the others receive other tokens.
            return mx.depends([chosen], [sent])[0] if self._rank == 0 else sent

        if sampler is _generate.greedy_sampler:
            self._shared_samplers[id(sampler)] = (sampler, shared)
        return shared

    # --- what mlx-lm's loop calls ---

    def _next_request(self, timeout: float | None = None) -> tuple[Sink, Any, Any] | None:
        # mlx-lm passes a timeout exactly when no request runs.
        idle = timeout is not None
        self._time_budget.settle()
        if idle:
            self.prompt_cache.uncached.clear()
        while True:
            said = self._share_object(self._next(idle) if self._rank == 0 else None)
            if said is None:
                return None
            if "work" in said and said["work"]["embed"]:
                self._embed(Work.from_json(said["work"]))
                continue
            if "work" in said:
                self.prefill_step = self.model_provider.cli_args.prefill_step_size = int(said["step"])
                return self._admit(Work.from_json(said["work"]))
            if self.distributed:
                # The last step's unread work must be complete before this rank leaves the collective.
                mx.synchronize()
            if not self.source.asleep():
                self._stop = True
                return None

    def _next(self, idle: bool) -> dict[str, Any] | None:
        """What rank 0 sends to the others: a request, that there is none left, or nothing."""
        work = self.source.take()
        if work is not None:
            # Ranks measure different times, so all take rank 0's step.
            return {"work": work.to_json(), "step": self._pace.step if self._pace else PREFILL_STEP}
        return {"sleep": True} if idle else None

    def _share_object(self, obj: Any) -> Any:
        if not self.distributed:
            return obj
        data = b"" if not obj or self._rank != 0 else json.dumps(obj, separators=(",", ":")).encode()
        length = len(data)
        head: Any = mx.distributed.all_sum(mx.array([length, -length, zlib.crc32(data)], mx.int64), group=self.group).tolist()
        size, again, checksum = head
        if size != -again or not 0 <= size <= MOST_SHARED_BYTES:
            raise Diverged(f"rank {self._rank}: the length of a request was corrupted on its way ({size} and {again})")
        if size == 0:
            return None
        # Sent as buffers, not as lists, because a prompt may have megabytes, and all requests wait for it.
        content = mx.array(memoryview(data)) if self._rank == 0 else mx.zeros(size, mx.uint8)  # type: ignore[arg-type]
        values: Any = mx.distributed.all_sum(content, group=self.group)
        received = bytes(memoryview(values))
        if zlib.crc32(received) != checksum:
            raise Diverged(f"rank {self._rank}: a request of {size} bytes was corrupted on its way")
        return json.loads(received)

    def _embed(self, work: Work) -> None:
        """Computes a request's vectors, on all ranks, between steps of the batch."""
        sink = self.source.admitted(work)

        def pace(tokens: int, seen: int) -> None:
            self.clock.step()
            self.clock.begin(Step("prefill", tokens, seen))

        try:
            found = embed(self.model_provider.model, work.segments, work.embed, PREFILL_STEP, pace)
            tokens, sound = sum(map(len, work.segments)), bool(mx.all(mx.isfinite(found)).item())
            values = bytes(memoryview(found))  # type: ignore[arg-type]  # MLX's stubs do not declare that it is a buffer
            sink.put(Embedded(tokens, values) if sound else CannotEmbed("a vector is not finite"))
        except Exception as error:
            if self.distributed:
                # Other ranks may be in the middle of an exchange.
                raise
            sink.put(error)
        else:
            if self.equal_logits:
                self.digest(row_hash(found))
            if self.distributed:
                self.read(self.word(lambda: False))
        self.clock.step()
        self.clock.begin(COLLECTIVE)
        self.source.agreed(all_of_it=True)

    def _admit(self, work: Work) -> tuple[Sink, Any, Any]:
        sink = self.source.admitted(work)
        if not self.model_provider.is_batchable:
            sink = Alone(sink, self)
        self._work[work.id] = work, sink
        if not work.cache:
            self.prompt_cache.uncached.append(work.prompt)
        request = _server.CompletionRequest("text", work.id, [], None, None)
        sampling = work.sampling
        arguments = _server.GenerationArguments(
            model=_server.ModelDescription("default_model", None, None),
            sampling=_server.SamplingArguments(
                sampling.temperature,
                max(sampling.top_p, LEAST_TOP_P) if sampling.top_p > 0 else 0,
                sampling.top_k,
                sampling.min_p,
                xtc_probability=0.0,
                xtc_threshold=0.1,
            ),
            logits=_server.LogitsProcessorArguments(
                sampling.logit_bias or None,
                sampling.repetition_penalty,
                sampling.repetition_context_size,
                sampling.presence_penalty,
                sampling.presence_context_size,
                sampling.frequency_penalty,
                sampling.frequency_context_size,
            ),
            # Rank 0 finds stop strings in the text: mlx-lm searches for their tokens, but a text has many tokenizations.
            stop_words=[],
            max_tokens=work.max_tokens,
            num_draft_tokens=0,
            logprobs=work.logprobs,
            top_logprobs=work.top_logprobs if work.logprobs else 0,
            seed=None,
            chat_template_kwargs=None,
        )
        return sink, request, arguments

    def _serve_single(self, request: Any, stream: Any) -> None:
        sampler, processors = _server._make_sampler, _server._make_logits_processors
        _server._make_sampler = lambda *arguments: self.sampling(sampler(*arguments))
        _server._make_logits_processors = lambda *arguments: self.processing(processors(*arguments))
        try:
            super()._serve_single(request, stream)
        finally:
            _server._make_sampler, _server._make_logits_processors = sampler, processors

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
        """Hands over the tokens that rank 0's intake has computed."""
        self._admitting = self._work.pop(request.prompt)
        work, _ = self._admitting
        self.prompt_cache.bypass = not work.cache
        segments = [list(segment) for segment in work.segments]
        return work.prompt, segments, list(work.segment_types), work.initial_state, None

    def _make_state_machine(self, model_key: Any, tokenizer: Any, stop_words: Any) -> tuple[Any, Any]:
        # Called for the request that was just tokenized.
        assert self._admitting is not None, "mlx-lm tokenizes a request before it makes its state machine"
        work, _ = self._admitting
        stops, machine = super()._make_state_machine(model_key, tokenizer, stop_words)
        if work.grammar:
            # In an answer with a format, marks are text.
            thoughts = {"reasoning": [(tokenizer.think_end, "normal")]} if tokenizer.has_thinking else {}
            machine = _generate.TextStateMachine({"normal": [], **thoughts})
        return (stops if work.ends else _generate.StopSequences()), machine

    def _log_cache_stats(self) -> None:
        """Does nothing, because two log lines for each request would be noise."""
