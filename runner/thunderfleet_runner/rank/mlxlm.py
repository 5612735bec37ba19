"""The one place that knows mlx-lm's private names, so that a new mlx-lm is one module's work (and one contract test's).

``ResponseGenerator`` is mlx-lm's serving loop: continuous batching, prompt cache, reasoning and tool parsing. What it does
not do, and we need, is put in by overriding:
- it polls its peers all the time; here an idle group sleeps outside of any collective, until its supervisors announce a turn;
- it shares requests as pickles (whoever reaches the group's ports could run code); here as JSON;
- it lets every rank render and tokenize; here rank 0 does and all use its tokens (templates may print today's date);
- it looks at new requests and cancels twice a second; here a flag rides along with every step, read one step later so that
  nothing waits for it, together with a digest of what each rank has sampled: ranks that differ are noticed, not wedged;
- an exact hit in its prompt cache kills it; here at least one token is always computed;
- it sets the wired limit to the device's maximum; here the rank owns that.
"""

import importlib
import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm import server as _server
from mlx_lm import utils as _utils
from mlx_lm.models import cache as _cache

from thunderfleet_runner.rank.step_clock import Pulse, Shape

# ``mlx_lm.generate`` names a function too, which hides the module from a plain import.
_generate: Any = importlib.import_module("mlx_lm.generate")

VERSION = "0.32.2"
"""The mlx-lm that this module was written for and the contract test runs against."""

PREFILL_STEP = 2048
"""Prompt tokens in one step of prefill: bounds the workspace and how long a step takes."""
PREFILL_SEQUENCES = 8
"""Prompts in one step of prefill, when all of them together, each as long as the longest, are not longer than that."""
CACHED_SEQUENCES = 10
_DIGEST_PRIME = (1 << 31) - 1
LEAST_TOP_P = 1e-6
"""Leaves the likeliest token alone, as any smaller one should. But what is nothing beside a sum of probabilities in float32 has
mlx-lm take its threshold from past the end of the row, where every rank has something else."""


class Diverged(RuntimeError):
    """Ranks of one group have sampled different tokens or reused different prefixes; nothing that follows could be right."""


# --- loading --------------------------------------------------------------------------------------------------------


def load_lazily(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The whole model, strictly checked, no weight read. Returns (model, configuration). Raises what mlx-lm raises."""
    model, config = _utils.load_model(folder, lazy=True, strict=True)
    return model, config


def load_tokenizer(folder: Path, config: dict[str, Any]) -> Any:
    """mlx-lm's wrapper around the model's tokenizer. Code that came with a model is not run."""
    return _utils.load_tokenizer(folder, {"trust_remote_code": False}, eos_token_ids=config.get("eos_token_id"))


def layers(model: Any) -> list[Any]:
    """The layers that this rank holds (a pipeline keeps a place for the others)."""
    return [layer for layer in getattr(model, "layers", ()) if layer is not None]


def architecture(model: Any) -> str:
    """mlx-lm's name of the kind of model, such as qwen2."""
    return str(getattr(model, "model_type", type(model).__module__.rsplit(".", 1)[-1]))


def build(config: dict[str, Any]) -> Any:
    """The model of a configuration with no weights read (its arrays are lazy). Raises ValueError for an unknown kind."""
    model_class, arguments = _utils._get_classes(config)
    return model_class(arguments.from_dict(config))


def prompt_cache(model: Any) -> list[Any]:
    """A fresh cache for one sequence: one object a layer that this rank holds."""
    return list(_cache.make_prompt_cache(model))


def forget_wired_limit() -> None:
    """From now on mlx-lm leaves the wired limit alone; the rank sets it to its reservation."""
    modules: tuple[Any, ...] = (_utils, _generate, _server)
    for module in modules:
        module.maybe_set_recommended_wired_limit = _no_wired_limit


def _no_wired_limit() -> None:
    return None


# --- what is served -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """mlx-lm's sampling arguments that a client may set."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 0.0
    repetition_context_size: int = 20
    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20
    logit_bias: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """One request as all ranks get it: tokens, not text. ``segments`` are parts of the prompt with caches worth keeping."""

    id: str
    segments: tuple[tuple[int, ...], ...]
    segment_types: tuple[str, ...]
    initial_state: str
    max_tokens: int
    sampling: Sampling = Sampling()
    logprobs: bool = False
    top_logprobs: int = 0
    cache: bool = True
    ends: bool = True
    """False: the end token does not end the answer."""

    @property
    def prompt(self) -> list[int]:
        return [token for segment in self.segments for token in segment]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Work":
        sampling = dict(value["sampling"])
        sampling["logit_bias"] = {int(token): float(bias) for token, bias in sampling["logit_bias"].items()}
        return cls(
            **{
                **value,
                "segments": tuple(tuple(segment) for segment in value["segments"]),
                "segment_types": tuple(value["segment_types"]),
                "sampling": Sampling(**sampling),
            }
        )


class Provider:
    """mlx-lm's ModelProvider for one model that is loaded already and never changes."""

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
        """Loaded already."""

    def load(self, *_names: object) -> tuple[Any, Any]:
        return self.model, self.tokenizer

    def reset(self) -> None:
        self.model = self.tokenizer = self.model_key = None


class PromptCache(_cache.LRUPromptCache):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's prompt cache, bounded in tokens (the same on every rank, which bytes are not) and able to be passed by."""

    def __init__(self, *, tokens: int, trimmable: bool) -> None:
        super().__init__(CACHED_SEQUENCES)
        self._tokens = tokens
        self._trimmable = trimmable
        self.bypass = False
        """Whether the request that is being admitted neither uses nor feeds the cache."""
        self.uncached: list[list[int]] = []
        """Prompts whose caches are not kept."""
        self.on_hit: Callable[[int], None] = lambda count: None

    def fetch_nearest_cache(self, model: Any, tokens: list[int]) -> tuple[Any, list[int]]:
        found, rest = (None, tokens) if self.bypass else super().fetch_nearest_cache(model, tokens)
        if found is not None and not rest:
            if self._trimmable:
                _cache.trim_prompt_cache(found, 1)
                rest = tokens[-1:]
            else:
                found, rest = None, tokens
        self.on_hit(len(tokens) - len(rest))
        return found, rest

    def insert_cache(self, model: Any, tokens: list[int], prompt_cache: list[Any], *, cache_type: str = "assistant") -> None:
        if self._tokens <= 0 or any(tokens[: len(prompt) - 1] == prompt[:-1] for prompt in self.uncached):
            return
        # A sequence cut out of a batch is only a promise until it is evaluated, and keeps the whole batch's memory meanwhile.
        mx.eval([entry.state for entry in prompt_cache])
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
        while len(self) and self._held() > self._tokens:
            self.trim_to(n_sequences=len(self) - 1)

    def _held(self) -> int:
        return sum(len(tokens) for queue in self._lru._lrus.values() for _, tokens in queue)


def always_trimmable(model: Any) -> bool:
    """Whether every cache of this rank's layers can give back its last tokens at any time (plain attention can)."""
    plain = (_cache.KVCache, _cache.QuantizedKVCache)
    return all(type(entry) in plain for entry in prompt_cache(model))


def _never_trim(_cache_entries: Any) -> bool:
    return False


def forbid_trimming() -> None:
    """Prefixes are reused whole or not at all: some rank of the group holds layers that cannot be trimmed."""
    _cache.can_trim_prompt_cache = _never_trim


# --- the loop -------------------------------------------------------------------------------------------------------


class Sink(Protocol):
    """Where the loop puts what becomes of one request; called on the loop's thread."""

    def put(self, item: object) -> None:
        """mlx-lm's items: see ``classify``."""


class Source(Protocol):
    """What the loop asks of its surroundings; called on the loop's thread."""

    def take(self) -> Work | None:
        """Rank 0: the next request, if there is one."""

    def wanted(self) -> bool:
        """Rank 0: whether a request waits or ``ending``, so that the loop should look up."""

    def ending(self) -> bool:
        """Rank 0: whether a request that runs must be ended."""

    def agreed(self, *, all_of_it: bool) -> None:
        """All ranks have sampled the same: what sinks were given may be told, before the last step or all of it."""

    def asleep(self) -> bool:
        """Nothing is left to do in this turn. Blocks until the next one; False ends the loop."""

    def admitted(self, work: Work) -> Sink:
        """This rank begins this request; where its results go."""


@dataclass(frozen=True)
class Started:
    """The request was admitted. ``stop()`` ends it after the running step."""

    prompt_tokens: int
    cached_tokens: int
    initial_state: str
    machine: Any
    tool_parser: Callable[[str, Any], Any] | None
    stop: Callable[[], None]


@dataclass(frozen=True)
class Sampled:
    """One token. ``top`` are (id, log probability), likeliest first or not at all ordered, as mlx-lm gives them."""

    token: int
    text: str
    logprob: float
    finish_reason: str | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Ended:
    """No more comes."""


@dataclass(frozen=True)
class Prefilling:
    """A step of the prompt is through."""


@dataclass(frozen=True)
class Broken:
    """This request failed."""

    error: Exception


def classify(item: Any) -> Started | Sampled | Ended | Prefilling | Broken:
    """mlx-lm's queue item as one of ours. Raises TypeError for an unknown one."""
    match item:
        case None:
            return Ended()
        case Exception():
            return Broken(item)
        case _server.GenerationContext():
            return Started(
                prompt_tokens=len(item.prompt),
                cached_tokens=max(item.prompt_cache_count, 0),
                initial_state=item.initial_state,
                machine=item.text_sm,
                tool_parser=item.tool_parser,
                stop=item.stop,
            )
        case _server.Response():
            top = tuple((int(entry["id"]), float(entry["logprob"])) for entry in item.top_tokens)
            return Sampled(int(item.token), item.text, float(item.logprob), item.finish_reason, top)
        case tuple():
            return Prefilling()
    raise TypeError(f"mlx-lm's loop said {type(item).__name__}, which is unknown here")


class TextMachine:
    """Cuts decoded text into kinds (normal, reasoning, tool) and strips the marks between them."""

    def __init__(self, machine: Any, initial: str) -> None:
        self._state = machine.make_state(initial)

    def feed(self, text: str, finish_reason: str | None) -> list[tuple[str, str]]:
        """(kind, text) in order; the last is the kind that the next text belongs to. Nothing is held back at the end.

        mlx-lm drops what is held back when a stop word ended the answer; here it never sees stop words, so it is text.
        """
        machine = _server.TextStateMachine
        self._state, segments = machine.split(self._state, text)
        pieces = [(str(kind), str(piece)) for kind, piece in segments]
        if finish_reason is not None:
            self._state, rest, kind = machine.flush(self._state)
            pieces.append((str(kind or "normal"), str(rest)))
        return pieces


def parse_tools(parser: Any, tools: Sequence[dict[str, Any]], texts: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """OpenAI's ``function`` objects of what the model wrote between its tool marks, and the texts that are no such calls.

    A model may write anything there, and parsers are not made for that: whatever one raises makes the text an unread one.
    """
    calls: list[dict[str, Any]] = []
    unread: list[str] = []
    for text in texts:
        try:
            # Parsers of some formats change what they are given.
            parsed = parser(text, json.loads(json.dumps(list(tools))))
            found = [_function(call) for call in (parsed if isinstance(parsed, list) else [parsed])]
        except Exception:
            unread.append(text)
        else:
            calls += found
    return calls, unread


def _function(call: Any) -> dict[str, Any]:
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or not name:
        raise ValueError("a call needs a name")
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


class _Batch(_server.BatchGenerator):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's batch, with its steps counted and digested, and in a pipeline with rank 0's tokens for all ranks."""

    loop: "Loop"

    def next(self) -> Any:
        self.prefill_batch_size = self._prefill_sequences()
        decoding = len(self._generation_batch) > 0 and not self._unprocessed_sequences and not len(self._prompt_batch)
        shape: Shape = "decode" if decoding else "prefill"
        self.loop.pulse.begin(shape)
        prompts, tokens = super().next()
        for response in tokens:
            self.loop.digest(response.uid, response.token, 0 if response.finish_reason is None else 1)
        self.loop.pulse.step(shape)
        return prompts, tokens

    def _prefill_sequences(self) -> int:
        """How many prompts the next step may compute together: short ones only, since one step of one prompt is what is
        planned for, and since rows that leave a batch are copies beside it for a while.
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
        if self.loop.share_tokens and options.get("samplers"):
            options["samplers"] = [self.loop.sharing(sampler) for sampler in options["samplers"]]
        return super().insert_segments(segments, **options)


class _Left(Exception):
    """A request that mlx-lm serves by itself has been ended before its end, on all ranks at the same item."""


class _Alone:
    """A request where there is no batch: mlx-lm serves models whose caches do not merge one request at a time.

    What ``_Batch`` and ``_Budget`` do for a batch is done here, between mlx-lm's items, which are the same on every rank: steps
    are counted, tokens are digested and told when all ranks agree on them, and rank 0's wish to end is everybody's, a step
    later. Whatever is raised from here ends mlx-lm's work on this request.
    """

    def __init__(self, sink: Sink, loop: "Loop") -> None:
        self._sink = sink
        self._loop = loop
        self._word: Any = None

    def put(self, item: object) -> None:
        loop = self._loop
        if loop.distributed and isinstance(item, RuntimeError):
            # Ranks that part, or MLX's word that it cannot go on: peers may be in the midst of a step that nobody will share.
            raise item
        loop.pulse.step("prefill" if isinstance(item, tuple) else "decode")
        if isinstance(item, _server.Response):
            loop.digest(int(item.token), 0 if item.finish_reason is None else 1)
        self._sink.put(None if isinstance(item, _Left) else item)
        if item is None or isinstance(item, Exception):
            self._settle()
        elif self._left():
            raise _Left

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


class _Budget:
    """When the loop looks up from its batch: as soon as rank 0 has a reason, which all ranks learn with a step's delay."""

    def __init__(self, loop: "Loop") -> None:
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
        # This step's tokens are in the word that has just left, so only those of the step before are known to be the same.
        # Where rank 0's tokens are everybody's, what could differ is the prefix that was reused, and that was in a word before.
        self._loop.source.agreed(all_of_it=self._loop.share_tokens)
        if wanted:
            raise StopIteration

    def settle(self) -> None:
        """Reads the last word too. Collective, like all else here."""
        word, self._word = self._word, None
        if word is not None:
            self._loop.read(word)
        self._loop.source.agreed(all_of_it=True)


class Loop(_server.ResponseGenerator):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's serving loop, run on the caller's thread (MLX's streams belong to threads).

    ``group`` is MLX's, or None for one rank. ``share_tokens`` makes rank 0's sampled token everybody's.
    """

    def __init__(self, provider: Provider, cache: PromptCache, source: Source, pulse: Pulse, group: Any, *, share_tokens: bool):
        # Not the base's: it starts a thread of its own.
        self.model_provider = provider
        self.prompt_cache = cache
        self.requests: Queue[Any] = Queue()
        self.source = source
        self.pulse = pulse
        self.group = group
        self.share_tokens = share_tokens and group is not None
        self.distributed = group is not None
        self._is_distributed = self.distributed
        self._rank = group.rank() if group is not None else 0
        self._size = group.size() if group is not None else 1
        self._state_machine_cache: dict[Any, Any] = {}
        self._time_budget = _Budget(self)
        self.prefill_sequences = int(provider.cli_args.prompt_concurrency)
        self._stop = False
        self._work: dict[str, Work] = {}
        self._ends = True
        self._digest = 1
        self._shared_samplers: dict[int, tuple[Any, Any]] = {}
        cache.on_hit = lambda count: self.digest(count, 0, 2)
        _Batch.loop = self
        _server.BatchGenerator = _Batch

    def run(self) -> None:
        """Serves until the source says that it is over. Frees the model. Raises whatever went wrong: the group is lost then."""
        self._generate()

    # --- the state that all ranks must agree on ---

    def digest(self, *values: int) -> None:
        for value in values:
            self._digest = (self._digest * 1_000_003 + value + 17) % _DIGEST_PRIME

    def word(self, wanted: Callable[[], bool]) -> Any:
        """Sends rank 0's flag and this rank's digest on their way; the answer is read a step later."""
        flag = 1 if self._rank == 0 and wanted() else 0
        answer = mx.distributed.all_sum(mx.array([flag, self._digest], mx.int64), group=self.group)
        mx.async_eval(answer)  # type: ignore[no-untyped-call]
        return answer, self._digest

    def read(self, word: Any) -> bool:
        """Whether rank 0 wants the loop to look up. Raises Diverged."""
        answer, mine = word
        flag, total = answer.tolist()
        if total != mine * self._size:
            raise Diverged(
                f"rank {self._rank}: the ranks of this group no longer sample the same tokens (digest {mine}, "
                f"the sum over {self._size} ranks is {total})"
            )
        return bool(flag)

    def sharing(self, sampler: Any) -> Any:
        """``sampler``, but with rank 0's choice for every rank. One object for each sampler, so that batches stay batches."""
        known = self._shared_samplers.get(id(sampler))
        if known is not None:
            return known[1]

        def shared(logprobs: Any) -> Any:
            chosen = sampler(logprobs)
            return mx.distributed.all_sum(chosen if self._rank == 0 else mx.zeros_like(chosen), group=self.group)

        if sampler is _generate.greedy_sampler:
            self._shared_samplers[id(sampler)] = (sampler, shared)
        return shared

    # --- what mlx-lm's loop calls ---

    def _next_request(self, timeout: float | None = None) -> tuple[Sink, Any, Any] | None:
        # mlx-lm waits with a time limit exactly when nothing runs.
        idle = timeout is not None
        self._time_budget.settle()
        if idle:
            self.prompt_cache.uncached.clear()
        while True:
            said: dict[str, Any] | None = None
            if self._rank == 0:
                work = self.source.take()
                if work is not None:
                    said = {"work": work.to_json()}
                elif idle:
                    said = {"sleep": True}
            said = self._share_object(said)
            if said is None:
                return None
            if "work" in said:
                return self._admit(Work.from_json(said["work"]))
            if self.distributed:
                # The last step's work that nobody reads must be over before this rank leaves the group's company.
                mx.synchronize()
            if not self.source.asleep():
                self._stop = True
                return None

    def _share_object(self, obj: Any) -> Any:
        if not self.distributed:
            return obj
        data = b"" if not obj or self._rank != 0 else json.dumps(obj, separators=(",", ":")).encode()
        size: Any = mx.distributed.all_sum(mx.array(len(data), mx.int32), group=self.group).item()
        if size == 0:
            return None
        content = mx.array(list(data), mx.uint8) if self._rank == 0 else mx.zeros(size, mx.uint8)
        values: Any = mx.distributed.all_sum(content, group=self.group).tolist()
        return json.loads(bytes(values))

    def _admit(self, work: Work) -> tuple[Sink, Any, Any]:
        sink = self.source.admitted(work)
        if not self.model_provider.is_batchable:
            sink = _Alone(sink, self)
        self._work[work.id] = work
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
            # Stop strings are found in the text by rank 0: mlx-lm looks for their tokens, and a text has many tokenizations.
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
        make = _server._make_sampler
        if self.share_tokens:
            _server._make_sampler = lambda *arguments: self.sharing(make(*arguments))
        try:
            super()._serve_single(request, stream)
        finally:
            _server._make_sampler = make

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
        """Rank 0 has done it (``tokenize``); here its tokens are only handed over."""
        work = self._work.pop(request.prompt)
        self.prompt_cache.bypass = not work.cache
        self._ends = work.ends
        segments = [list(segment) for segment in work.segments]
        return work.prompt, segments, list(work.segment_types), work.initial_state, None

    def _make_state_machine(self, model_key: Any, tokenizer: Any, stop_words: Any) -> tuple[Any, Any]:
        # Called for the request that was just tokenized.
        stops, machine = super()._make_state_machine(model_key, tokenizer, stop_words)
        return (stops if self._ends else _generate.StopSequences()), machine

    def _log_cache_stats(self) -> None:
        """Two lines a request tell nobody anything."""

    # --- for rank 0, on any thread (no MLX) ---

    def tokenize(
        self, *, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], prompt: str
    ) -> tuple[list[list[int]], list[str], str]:
        """Segments, their types and the initial state of a chat, or of ``prompt`` when there are no messages.

        Raises whatever the model's template raises.
        """
        tokenizer = self.model_provider.tokenizer
        copied = json.loads(json.dumps(list(messages)))
        request = _server.CompletionRequest("chat" if messages else "text", prompt, copied, list(tools) or None, None)
        arguments = Namespace(chat_template_kwargs=None)
        _, segments, types, state, _ = super()._tokenize(tokenizer, request, arguments)
        return [list(map(int, segment)) for segment in segments], list(types), str(state)
